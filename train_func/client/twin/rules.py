"""The operator's rules: what becomes of a job when its pods change. A pure function of status, pods and time.

Follows what Training Operator 1.9.4 does with the jobs that train_func renders (elastic, restarted by exit code, no pod
cleaned up), its oddities included: a permanent exit code sets no completion time, so that such a job never expires; a
job that has failed takes no further condition; Running and Restarting replace each other; a running pod that was asked
to end counts as failed, and when it ends with 0 the job has succeeded.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from train_func import exits
from train_func.client.twin.record import PodRecord
from train_func.client.twin.spec import Spec

Status = dict[str, Any]
KIND = "PyTorchJob"
CANCELLED = "Cancelled"  # reason of a Failed condition that no operator gives


@dataclass
class Outcome:
    """The new status, and what has to be done for it."""

    status: Status
    create: list[int] = field(default_factory=list)
    """Workers that need a new pod."""
    delete: list[PodRecord] = field(default_factory=list)
    events: list[tuple[str, str, str]] = field(default_factory=list)
    """Type, reason and message of events about the job."""


def reconcile(spec: Spec, status: Status, pods: Sequence[PodRecord], now: str) -> Outcome:
    """One look at a job. ``pods`` are those that exist, at most one of each worker; ``now`` is a time stamp."""
    outcome = Outcome(copy.deepcopy(status))
    if holds(status, "Succeeded"):
        for replica in outcome.status["replicaStatuses"].values():
            replica["succeeded"] += replica["active"]
            replica["active"] = 0
    elif not finished(status):
        _go_on(spec, outcome, pods, now)
    if undated(outcome.status["conditions"]) == undated(status["conditions"]):
        outcome.status["conditions"] = status["conditions"]  # what went and came back in one look is no news
    return outcome


def _go_on(spec: Spec, outcome: Outcome, pods: Sequence[PodRecord], now: str) -> None:
    if _is_over_deadline(spec, outcome.status, now):
        outcome.status.setdefault("completionTime", now)
        message = f"Job {spec.name} has failed because it was active longer than specified deadline"
        _say(outcome, "Normal", "Failed", message, now)
    else:
        _pods(spec, outcome, pods, now)
        _job(spec, outcome, now)


def created(spec: Spec, now: str) -> Status:
    """The status of a job that was just accepted."""
    status: Status = {"conditions": [], "replicaStatuses": {}}
    set_condition(status, "Created", f"{KIND}Created", f"{KIND} {spec.name} is created.", now)
    return status


def holds(status: Status, kind: str) -> bool:
    """Whether the condition of that type is true."""
    return any(found["type"] == kind and found["status"] == "True" for found in status["conditions"])


def finished(status: Status | None) -> bool:
    """Whether the job has succeeded or failed; one without a status has not."""
    return status is not None and (holds(status, "Succeeded") or holds(status, "Failed"))


def expires(spec: Spec, status: Status) -> datetime | None:
    """When a finished job is removed, if ever."""
    if not finished(status) or "completionTime" not in status:
        return None
    return datetime.fromisoformat(status["completionTime"]) + timedelta(seconds=spec.time_to_live)


def set_condition(status: Status, kind: str, reason: str, message: str, now: str, value: str = "True") -> None:
    """Gives a condition a value, unless the job has failed or the condition says so already."""
    current = next((found for found in status["conditions"] if found["type"] == kind), None)
    if holds(status, "Failed") or (current and (current["status"], current["reason"]) == (value, reason)):
        return
    replaced = {kind, {"Running": "Restarting", "Restarting": "Running"}.get(kind)}
    kept = [found for found in status["conditions"] if found["type"] not in replaced]
    for found in kept:
        if kind in ("Succeeded", "Failed") and found["type"] == "Running":
            found["status"] = "False"
    changed = current["lastTransitionTime"] if current and current["status"] == value else now
    times = {"lastUpdateTime": now, "lastTransitionTime": changed}
    status["conditions"] = [*kept, {"type": kind, "status": value, "reason": reason, "message": message, **times}]


def undated(conditions: Sequence[dict[str, str]]) -> list[list[str]]:
    """Type, status, reason and message of each condition."""
    return [[found[key] for key in ("type", "status", "reason", "message")] for found in conditions]


def _say(outcome: Outcome, severity: str, kind: str, message: str, now: str) -> None:
    """An event and the condition it tells of."""
    outcome.events.append((severity, f"{KIND}{kind}", message))
    set_condition(outcome.status, kind, f"{KIND}{kind}", message, now)


def _is_over_deadline(spec: Spec, status: Status, now: str) -> bool:
    started = status.get("startTime", now)
    active = datetime.fromisoformat(now) - datetime.fromisoformat(started)
    return active.total_seconds() >= spec.deadline


def _pods(spec: Spec, outcome: Outcome, pods: Sequence[PodRecord], now: str) -> None:
    """Asks for missing pods, replaces failed ones or fails the job, and counts."""
    counts = {"active": 0, "succeeded": 0, "failed": 0}
    existing = {pod.worker: pod for pod in pods}
    outcome.create = [worker for worker in range(spec.num_workers) if worker not in existing]
    counter = {"Running": "active", "Succeeded": "succeeded", "Failed": "failed"}
    for _, pod in sorted(existing.items()):
        if pod.phase == "Failed":
            _failed_pod(spec, outcome, pod, now)
        if pod.phase in counter:
            counts["failed" if pod.deleting and pod.phase == "Running" else counter[pod.phase]] += 1
    outcome.status["replicaStatuses"] = {"Worker": counts}


def _failed_pod(spec: Spec, outcome: Outcome, pod: PodRecord, now: str) -> None:
    # A failed pod without an exit code counts as retryable.
    if pod.exit_code is None or exits.retryable(pod.exit_code):
        outcome.delete.append(pod)
        message = f"job {spec.name} is restarting because Worker replica(s) failed."
        _say(outcome, "Warning", "Restarting", message, now)
    else:
        _say(outcome, "Warning", "Failed", f'job "{spec.name}" is failing because "Worker" replica(s) failed.', now)


def _job(spec: Spec, outcome: Outcome, now: str) -> None:
    """Derives the job's conditions from the counted pods."""
    status = outcome.status
    status.setdefault("startTime", now)
    counts = status["replicaStatuses"]["Worker"]
    succeeded, active, failed = counts["succeeded"], counts["active"], counts["failed"]
    job = f"{KIND} {spec.namespace}/{spec.name}"
    if succeeded > 0:  # of an elastic job one is enough
        status.setdefault("completionTime", now)
        _say(outcome, "Normal", "Succeeded", f"{job} successfully completed.", now)
    elif active > 0:
        set_condition(status, "Running", f"{KIND}Running", f"{job} is running.", now)
    if failed > 0 and spec.num_workers > succeeded + active:
        message = f"{KIND} {spec.name} is restarting because {failed} Worker replica(s) failed."
        _say(outcome, "Warning", "Restarting", message, now)
