"""What the real operator did in each scenario, kept so that this machine is held to it without a cluster, too.

TRAIN_FUNC_REWRITE_GOLDEN=1 rewrites it from a cluster.
"""

import json
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.cluster.conformance import Play, Stage
from tests.cluster.conformance_trace import ENVIRONMENT, Trace, differences, strange_variables
from tests.cluster.scenarios import DIFFERENCES, SCENARIOS, Scenario

GOLDEN = Path(__file__).parents[1] / "golden/conformance.json"
# Whose workers' environments are kept; those of the others are the same.
KEPT = ("success", "three-workers")
NAMES = [scenario.name for scenario in SCENARIOS]

Played = Mapping[str, Trace | BaseException]


def play_all(stage: Stage, side_by_side: int, names: Sequence[str] = NAMES) -> Played:
    """Scenarios on one place; one that cannot be played leaves its exception."""

    def play(scenario: Scenario) -> Trace | BaseException:
        try:
            return Play(scenario, stage).run()
        except Exception as failure:
            return failure

    with ThreadPoolExecutor(side_by_side) as pool:
        chosen = [scenario for scenario in SCENARIOS if scenario.name in names]
        return dict(zip((scenario.name for scenario in chosen), pool.map(play, chosen), strict=True))


def trace_of(played: Played, name: str) -> Trace:
    """What was seen; raises what kept the scenario from being played."""
    found = played[name]
    if isinstance(found, BaseException):
        raise found
    return found


def assert_as_written(name: str, local: Trace, operator: Trace) -> None:
    """This machine and the operator agree but for the written differences, and those are there."""
    written = {row.what: (row.local, row.operator) for row in DIFFERENCES if row.scenario == name}
    found = differences(local, operator)
    assert found == written, (
        f"{name}: this machine and the operator {_shown(found)}\nbut what is written is {_shown(written)}"
    )
    for worker, environment in operator.environments.items():
        strange = strange_variables(local.environments[worker], environment) if environment else []
        assert not strange, f"{name}: worker {worker} on this machine and on the operator: {_shown(strange)}"


def _shown(value: object) -> str:
    return json.dumps(value, indent=1)


def kept() -> dict[str, Trace]:
    """What the operator did, by scenario."""
    return {name: Trace.from_dict(plain) for name, plain in json.loads(GOLDEN.read_text()).items()}


def keep(played: Played) -> None:
    """Writes what the operator did."""
    plain = {name: to_keep(name, trace_of(played, name)).to_dict() for name in NAMES}
    GOLDEN.write_text(json.dumps(plain, indent=1) + "\n")


def to_keep(name: str, trace: Trace) -> Trace:
    """The trace without what depends on the cluster, the image and the pace."""
    environments = {worker: _lasting(name, variables) for worker, variables in trace.environments.items()}
    return Trace.from_dict({**trace.to_dict(), "environments": environments})


def _lasting(name: str, variables: Mapping[str, str]) -> dict[str, str]:
    passing = "|".join(row.name for row in ENVIRONMENT if row.passing)
    return {key: value for key, value in variables.items() if name in KEPT and not re.fullmatch(passing, key)}
