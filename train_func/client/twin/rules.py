"""The operator's rules: what becomes of a job when its pods change. A pure function of status, pods and time.

Follows what Training Operator 1.9.4 does, its oddities included: a permanent exit code sets no completion time, so that
such a job never expires; a job that has failed takes no further condition; Running and Restarting replace each other;
a running pod that was asked to end counts as failed, and when it ends with 0 an elastic job has succeeded.
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
    if finished(status):
        _clean_up(spec, outcome, pods)
    elif spec.suspended:
        _suspend(spec, outcome, pods, now)
    else:
        _go_on(spec, outcome, pods, now)
    before = copy.deepcopy(status["conditions"])
    if undated(outcome.status["conditions"]) == undated(before):
        outcome.status["conditions"] = before  # what went and came back in one look is no news
    return outcome


def _go_on(spec: Spec, outcome: Outcome, pods: Sequence[PodRecord], now: str) -> None:
    if holds(outcome.status, "Suspended"):
        _resume(spec, outcome, now)
    if message := _limit(spec, outcome.status, pods, now):
        outcome.status.setdefault("completionTime", now)
        _say(outcome, "Normal", "Failed", message, now)
        _clean_up(spec, outcome, pods)
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
    if not finished(status) or spec.suspended or spec.time_to_live is None or "completionTime" not in status:
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


def _suspend(spec: Spec, outcome: Outcome, pods: Sequence[PodRecord], now: str) -> None:
    """Deletes all pods, whatever cleanPodPolicy says."""
    outcome.delete = list(pods)
    for replica in outcome.status["replicaStatuses"].values():
        replica["active"] = 0
    if holds(outcome.status, "Suspended"):
        return
    reason, message = f"{KIND}Suspended", f"{KIND} {spec.name} is suspended."
    outcome.events.append(("Normal", reason, message))
    if holds(outcome.status, "Running"):
        set_condition(outcome.status, "Running", reason, message, now, "False")
    set_condition(outcome.status, "Suspended", reason, message, now)


def _resume(spec: Spec, outcome: Outcome, now: str) -> None:
    """The time of the deadline begins anew."""
    reason, message = f"{KIND}Resumed", f"{KIND} {spec.name} is resumed."
    outcome.events.append(("Normal", reason, message))
    set_condition(outcome.status, "Suspended", reason, message, now, "False")
    outcome.status["startTime"] = now


def _clean_up(spec: Spec, outcome: Outcome, pods: Sequence[PodRecord]) -> None:
    if spec.clean_pod_policy == "All":
        outcome.delete = list(pods)
    elif spec.clean_pod_policy == "Running":
        outcome.delete = [pod for pod in pods if not pod.over]
    if holds(outcome.status, "Succeeded"):
        for replica in outcome.status["replicaStatuses"].values():
            replica["succeeded"] += replica["active"]
            replica["active"] = 0


def _limit(spec: Spec, status: Status, pods: Sequence[PodRecord], now: str) -> str | None:
    """The message of the limit that the job is over, if any."""
    if spec.backoff_limit is not None and _over_backoff_limit(spec, spec.backoff_limit, status, pods):
        return f"Job {spec.name} has failed because it has reached the specified backoff limit"
    started = status.get("startTime")
    if spec.deadline is not None and started:
        active = datetime.fromisoformat(now) - datetime.fromisoformat(started)
        if active.total_seconds() >= spec.deadline:
            return f"Job {spec.name} has failed because it was active longer than specified deadline"
    return None


def _over_backoff_limit(spec: Spec, limit: int, status: Status, pods: Sequence[PodRecord]) -> bool:
    """Restarts in place of running pods count; pods that were replaced do not, except for a limit of 0."""
    failed = sum(pod.phase == "Failed" for pod in pods)
    active = sum(not pod.over and not pod.deleting for pod in pods)
    before = sum(replica["failed"] for replica in status["replicaStatuses"].values())
    if limit == 0 and failed > before and active != spec.num_workers:
        return True
    restarts = sum(pod.restarts for pod in pods if pod.phase == "Running")
    return spec.restart_policy != "Never" and restarts >= max(1, limit)


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
    by_code = spec.restart_policy == "ExitCode"
    # A failed pod without an exit code counts as retryable.
    retryable = pod.exit_code is None or exits.retryable(pod.exit_code)
    if spec.restart_policy in ("OnFailure", "Always") or (by_code and retryable):
        outcome.delete.append(pod)
        message = f"job {spec.name} is restarting because Worker replica(s) failed."
        _say(outcome, "Warning", "Restarting", message, now)
    elif by_code:
        _say(outcome, "Warning", "Failed", f'job "{spec.name}" is failing because "Worker" replica(s) failed.', now)


def _job(spec: Spec, outcome: Outcome, now: str) -> None:
    """Derives the job's conditions from the counted pods."""
    status = outcome.status
    status.setdefault("startTime", now)
    counts = status["replicaStatuses"]["Worker"]
    succeeded, active, failed = counts["succeeded"], counts["active"], counts["failed"]
    job = f"{KIND} {spec.namespace}/{spec.name}"
    if succeeded == spec.num_workers or (spec.elastic is not None and succeeded > 0):
        status.setdefault("completionTime", now)
        _say(outcome, "Normal", "Succeeded", f"{job} successfully completed.", now)
    elif active > 0:
        set_condition(status, "Running", f"{KIND}Running", f"{job} is running.", now)
    if failed > 0 and spec.num_workers > succeeded + active:
        if spec.restart_policy == "Never":
            status.setdefault("completionTime", now)
            message = f"{KIND} {spec.name} is failed because {failed} Worker replica(s) failed."
            _say(outcome, "Normal", "Failed", message, now)
        else:
            message = f"{KIND} {spec.name} is restarting because {failed} Worker replica(s) failed."
            _say(outcome, "Warning", "Restarting", message, now)
