"""The table of conformance: what is done on this machine and on the real operator, and where they cannot agree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.cluster.conformance import Play
from tests.cluster.conformance_trace import Difference
from train_func.client.job_spec import SecretKey


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One job. Its times are in paces, of which every place has its own."""

    name: str
    behaviour: str
    """Arguments of the program."""
    workers: int = 2
    deadline: float | None = None
    cpu: int | str = 1
    max_attempts: int = 3
    environment: Mapping[str, str | SecretKey] = field(default_factory=dict)
    act: Callable[[Play], None] = lambda play: None
    """What is done to the job from outside."""


OWN_VARIABLES = {
    "FIRST": "$(TRAIN_FUNC_POD) $$(FIRST) $(ABSENT) $(SECOND) $HOME",
    "SECOND": "$(FIRST) /workspace",
    "SECRET": SecretKey(secret="absent", key="k", optional=True),
}


def _delete_worker_1(play: Play) -> None:
    play.ready(1)
    play.delete_pod(1)


SCENARIOS = [
    # How a job succeeds, and what its workers are told.
    Scenario(name="success", behaviour="end 0"),
    Scenario(name="three-workers", behaviour="end 0", workers=3),
    Scenario(name="own-variables", behaviour="end 0", workers=1, cpu="1500m", environment=OWN_VARIABLES),
    Scenario(name="elastic-first-leaves", behaviour="leave_first", workers=3),
    # Faults of the run.
    Scenario(name="code-bug", behaviour="fail exception"),
    Scenario(name="exit-1", behaviour="fail 1", workers=3),
    Scenario(name="exit-65", behaviour="fail 65"),
    # Faults that a new pod fixes.
    Scenario(name="exit-143", behaviour="fail_at_first 1 143"),
    Scenario(name="exit-144", behaviour="fail_at_first 2 144", workers=3, max_attempts=1),
    Scenario(name="killed", behaviour="fail_at_first 1 killed"),
    Scenario(name="kills-itself", behaviour="fail_at_first 1 kill_itself"),
    # A pod is deleted from outside.
    Scenario(name="pod-deleted", behaviour="fail_at_first 1 stay_143", act=_delete_worker_1),
    # Limits.
    Scenario(name="deadline", behaviour="stay 143", deadline=10),
    Scenario(name="deadline-deaf", behaviour="be_deaf", deadline=10),
    Scenario(name="deadline-after-restart", behaviour="fail_and_stay", deadline=16),
]

DIFFERENCES = [
    Difference(
        "kills-itself",
        "pods of worker 1",
        ["Failed 137 Error, deleted", "Succeeded 0 Completed"],
        ["Failed 144 Error, deleted", "Succeeded 0 Completed"],
        "the first process of a pod's PID space cannot be killed from inside, and goes on; here any process can",
    ),
]
