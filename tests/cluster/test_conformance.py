"""This machine and the real operator do the same in every scenario of the table, or differ as it is written there.

Those that are not QUICK are long proofs: what the operator did in them is kept, and this machine is held to it by the
tests that need no cluster.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.conformance_golden import (
    NAMES,
    Played,
    assert_as_written,
    keep,
    kept,
    play_all,
    to_keep,
    trace_of,
)
from tests.cluster.conformance_local import LocalStage
from tests.cluster.conformance_operator import OperatorStage
from tests.cluster.conformance_trace import missing_differences
from tests.cluster.kubectl import Kubectl

# Of each group of the table what differs most from the others.
QUICK = {
    "success",
    "own-variables",
    "elastic-first-leaves",
    "exit-65",
    "exit-143",
    "pod-deleted",
    "deadline",
}
SCENARIOS = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES]


@pytest.fixture(scope="module")
def chosen(request: pytest.FixtureRequest) -> list[str]:
    """The scenarios whose tests run."""
    found = [item for item in request.session.items if isinstance(item, pytest.Function) and hasattr(item, "callspec")]
    names = {item.callspec.params.get("name") for item in found if item.path == request.path}
    return [name for name in NAMES if name in names | {"success"}]


@pytest.fixture(scope="module")
def on_operator(admin: Kubectl, notebook: Kubectl, namespace: str, chosen: list[str]) -> Iterator[Played]:
    stage = OperatorStage(notebook.kubeconfig, admin.kubeconfig, namespace)
    played = play_all(stage, side_by_side=8, names=chosen)
    stage.close()
    if os.environ.get("TRAIN_FUNC_REWRITE_GOLDEN") == "1":
        keep(played)
    yield played


@pytest.fixture(scope="module")
def on_local(tmp_path_factory: pytest.TempPathFactory, chosen: list[str]) -> Iterator[Played]:
    home: Path = tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAIN_FUNC_HOME", str(home))
        stage = LocalStage(home)
        played = play_all(stage, side_by_side=6, names=chosen)
        stage.close()
        yield played


@pytest.mark.parametrize("name", SCENARIOS)
def test_both_agree_or_differ_as_written(name: str, on_operator: Played, on_local: Played) -> None:
    assert_as_written(name, trace_of(on_local, name), trace_of(on_operator, name))


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_operator_does_what_the_tests_without_a_cluster_take_it_for(name: str, on_operator: Played) -> None:
    assert to_keep(name, trace_of(on_operator, name)) == kept()[name]


def test_every_written_difference_of_the_environment_is_there(on_operator: Played, on_local: Played) -> None:
    here, there = (trace_of(played, "success").environments["0"] for played in (on_local, on_operator))
    assert missing_differences(here, there) == []
