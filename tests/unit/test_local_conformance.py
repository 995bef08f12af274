"""Local() does in every scenario what the real operator did; tests/cluster plays both side by side."""

from collections import Counter

import pytest

from tests.cluster.conformance_golden import KEPT, NAMES, assert_as_written, kept, play_all, trace_of
from tests.cluster.conformance_local import LocalStage
from tests.cluster.scenarios import DIFFERENCES
from tests.local_jobs import processes


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAIN_FUNC_HOME", str(home))
        stage = LocalStage(home)
        found = play_all(stage, side_by_side=6)
        stage.close()
    yield found
    assert processes(TRAIN_FUNC_HOME=str(home)) == []


@pytest.mark.parametrize("name", NAMES)
def test_it_does_what_the_operator_did(played, name):
    assert_as_written(name, trace_of(played, name), kept()[name])


def test_the_table_is_whole():
    assert max(Counter(NAMES).values()) == 1
    assert set(kept()) == set(NAMES)
    assert {row.scenario for row in DIFFERENCES} <= set(NAMES)
    assert all(environment for name in KEPT for environment in kept()[name].environments.values())
