"""The table of conformance: what is done on the twin and on the real operator, and where they cannot agree."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.conformance import Play
from tests.cluster.conformance_trace import Difference

Json = dict[str, Any]
HOLD = "conformance.train-func/hold"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One job. Its times are in paces, of which every place has its own."""

    name: str
    behaviour: str
    """Arguments of the program."""
    workers: int = 2
    memory: str | None = None
    grace: float | None = None
    deadline: float | None = None
    time_to_live: float | None = None
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the runPolicy."""
    change: Callable[[Json], None] = lambda job: None
    """Further changes of the manifest."""
    act: Callable[[Play], None] = lambda play: None
    """What is done to the job from outside."""
    rest: Callable[[Play], bool] = Play.at_rest
    """When nothing more happens."""


def _pod(job: Json) -> Json:
    template: Json = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    return template


def _container(job: Json) -> Json:
    container: Json = _pod(job)["spec"]["containers"][0]
    return container


def _own_variables(job: Json) -> None:
    """References of all kinds, expansion, and an attempt to set what the operator sets."""
    fields = {
        "NAME": "metadata.name",
        "LABEL": "metadata.labels['train-func/run']",
        "OTHER": "metadata.labels['absent']",
    }
    _container(job)["resources"]["limits"] |= {"cpu": "1500m"}
    _container(job)["env"] += [
        {"name": "PET_NNODES", "value": "9"},
        {"name": "PYTHONUNBUFFERED", "value": "x"},
        {"name": "FIRST", "value": "$(TRAIN_FUNC_POD) $$(FIRST) $(ABSENT) $(SECOND) $HOME"},
        {"name": "SECOND", "value": "$(FIRST) $(PET_NNODES)"},
        {"name": "CORES", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "k", "optional": True}}},
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
    ]


def _hold(job: Json) -> None:
    """Deleted pods stay, ended, until the driver lets them go: an operator that is slow misses them otherwise."""
    _pod(job)["metadata"]["finalizers"] = [HOLD]


def _delete_worker_1(play: Play) -> None:
    play.ready(1)
    play.delete_pod(1)


def _delete_the_last_worker_1(play: Play) -> None:
    _delete_worker_1(play)
    play.until(play.finished, "an end")
    play.stage.let_go(play.job)
    play.until_gone(1)


SCENARIOS = [
    # How a job succeeds, and what its workers are told.
    Scenario(name="success", behaviour="end 0"),
    Scenario(name="three-workers", behaviour="end 0", workers=3),
    Scenario(name="own-variables", behaviour="end 0", workers=1, change=_own_variables),
    Scenario(name="elastic-first-leaves", behaviour="leave_first", workers=3),
    # Faults of the run.
    Scenario(name="code-bug", behaviour="fail exception"),
    Scenario(name="exit-1", behaviour="fail 1", workers=3),
    Scenario(name="exit-65", behaviour="fail 65"),
    # Faults that a new pod fixes.
    Scenario(name="exit-143", behaviour="fail_at_first 1 143"),
    Scenario(name="exit-144", behaviour="fail_at_first 2 144", workers=3, policy={"backoffLimit": 1}),
    Scenario(name="killed", behaviour="fail_at_first 1 killed"),
    Scenario(name="kills-itself", behaviour="fail_at_first 1 kill_itself"),
    Scenario(name="out-of-memory", behaviour="fail_at_first 1 out_of_memory", memory="64Mi"),
    # A pod is deleted from outside.
    Scenario(name="pod-deleted", behaviour="fail_at_first 1 stay_143", act=_delete_worker_1),
    Scenario(name="pod-deleted-deaf", behaviour="fail_at_first 1 be_deaf", act=_delete_worker_1),
    Scenario(name="listens-late", behaviour="fail_at_first 1 listen_late", act=_delete_worker_1, grace=5),
    Scenario(
        name="pod-deleted-ends-with-0",
        behaviour="fail_at_first 1 stay_last_0",
        change=_hold,
        act=_delete_the_last_worker_1,
    ),
    Scenario(
        name="pod-deleted-ends-with-1",
        behaviour="fail_at_first 1 stay_last_1",
        change=_hold,
        act=_delete_the_last_worker_1,
    ),
    # Limits.
    Scenario(name="deadline", behaviour="stay 143", deadline=10),
    Scenario(name="deadline-deaf", behaviour="be_deaf", deadline=10),
    Scenario(name="deadline-after-restart", behaviour="fail_and_stay", deadline=16),
    # What is left of a job that has finished.
    Scenario(name="expires", behaviour="end 0", time_to_live=1, rest=Play.is_gone),
    Scenario(name="expires-while-working", behaviour="stay_behind", time_to_live=1, rest=Play.is_gone),
    Scenario(name="expires-never", behaviour="fail 1", time_to_live=0.5, act=lambda play: play.outlive(2)),
]

DIFFERENCES = [
    Difference(
        "kills-itself",
        "pods of worker 1",
        ["Failed 137 Error, deleted", "Succeeded 0 Completed"],
        ["Failed 144 Error, deleted", "Succeeded 0 Completed"],
        "the first process of a pod's PID space cannot be killed from inside, and goes on; here any process can",
    ),
    Difference(
        "listens-late",
        "pods of worker 1",
        ["Failed 143 Error, deleted", "Succeeded 0 Completed"],
        ["Failed 137 Error, deleted", "Succeeded 0 Completed"],
        "a stop signal that comes before the first process of a pod listens is lost, and its grace period with it; "
        "the twin delivers it late, so that a job can be cancelled right after its start",
    ),
]
