"""Reads Kubernetes' JSON into what a backend reports: conditions, pods, events."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from train_func.client.status import Condition, JobEvent, JobStatus, Pod

NEVER = datetime.min.replace(tzinfo=UTC)

Json = Mapping[str, Any]


def job_status(job: Json, conditions: Iterable[Condition], *, is_over_deadline: bool = False) -> JobStatus:
    """Returns the status of a job; its operator is there as long as the cluster, so it is never interrupted."""
    metadata = job.get("metadata") or {}
    return JobStatus(
        conditions=tuple(conditions),
        created=moment(metadata.get("creationTimestamp")),
        deleting="deletionTimestamp" in metadata,
        is_over_deadline=is_over_deadline,
    )


def pod(item: Json, worker: int, container_name: str) -> Pod:
    """Reads the pod of a worker, whose program runs in the container of that name."""
    metadata, status = item["metadata"], item.get("status") or {}
    # A cluster may have put containers of its own beside it.
    container: Json = next(
        (entry for entry in status.get("containerStatuses") or () if entry["name"] == container_name), {}
    )
    state = container.get("state") or {}
    ended, waiting, running = (state.get(kind) or {} for kind in ("terminated", "waiting", "running"))
    reason, message = _why(status, ended or waiting)
    # A kubelet says why a pod is not ready; the controller that misses its kubelet changes the status alone.
    not_ready = _condition_of(status, "Ready", "False")
    is_unheard = bool(not_ready) and not not_ready.get("reason")
    unheard_since = (moment(not_ready.get("lastTransitionTime")) or NEVER) if is_unheard else None
    return Pod(
        name=metadata["name"],
        uid=metadata["uid"],
        worker=worker,
        phase=status.get("phase", "Pending"),
        exit_code=ended.get("exitCode"),
        reason=reason,
        message=message,
        started=moment(ended.get("startedAt") or running.get("startedAt")),
        ended=moment(ended.get("finishedAt")),
        deleted="deletionTimestamp" in metadata,
        restarts=container.get("restartCount", 0),
        namespace=metadata.get("namespace", ""),
        node=(item.get("spec") or {}).get("nodeName", ""),
        unheard_since=unheard_since if status.get("phase") == "Running" and not ended else None,
    )


def _why(status: Json, container: Json) -> tuple[str, str]:
    """Reason and message: the pod's own (evicted, deadline), its container's, or what keeps it from a node."""
    words = str(status.get("reason", "")), str(status.get("message", ""))
    theirs = str(container.get("reason", "")), str(container.get("message", ""))
    if words[0]:
        return words[0], words[1] or theirs[1]
    if taken := _condition_of(status, "DisruptionTarget", "True"):  # evicted or preempted: its code says no more
        return str(taken.get("reason", "")), str(taken.get("message", "")) or theirs[1]
    if theirs[0]:
        return theirs
    waits = _condition_of(status, "PodScheduled", "False")
    return str(waits.get("reason", "")), str(waits.get("message", ""))


def _condition_of(status: Json, kind: str, value: str) -> Json:
    conditions = status.get("conditions") or ()
    return next((entry for entry in conditions if (entry["type"], entry["status"]) == (kind, value)), {})


def event(item: Json) -> JobEvent:
    """Reads an event of the core API."""
    about = item["involvedObject"]
    last = (item.get("series") or {}).get("lastObservedTime")
    times = (last, item.get("lastTimestamp"), item.get("eventTime"), item.get("firstTimestamp"))
    created = item["metadata"].get("creationTimestamp")
    return JobEvent(
        time=next((moment(time) for time in (*times, created) if time), None) or NEVER,
        type=item.get("type") or "Normal",
        reason=item.get("reason") or "",
        message=item.get("message") or "",
        object=f"{about.get('kind')}/{about.get('name')}",
        count=item.get("count") or (item.get("series") or {}).get("count") or 1,
        since=moment(item.get("firstTimestamp")),
        uid=about.get("uid") or "",
    )


def moment(text: str | None) -> datetime | None:
    """Reads a time stamp of Kubernetes."""
    return datetime.fromisoformat(text) if text else None


def condition(item: Json) -> Condition:
    """Reads a condition of a job."""
    return Condition(item["type"], item["status"], item.get("reason", ""), item.get("message", ""))
