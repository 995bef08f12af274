"""The object of one job: creates, reads, and removes it with its pods. The API accepts one of a name; that is the lock.

The kind of a job decides how its objects are sent.
"""

import contextlib
import time
from collections.abc import Mapping
from typing import Any

from train_func.client.backend import runs_already
from train_func.client.cluster.access import Access, Json
from train_func.client.job_spec import RUN_LABEL
from train_func.client.kinds import reading
from train_func.client.status import JobEvent, JobStatus, Pod
from train_func.errors import InvalidInput, JobFailed

LOOK_SECONDS = 0.2
GONE_SECONDS = 60.0  # longest that the removal of a job may take beyond the grace period of its pods
TELL_SECONDS = 3.0  # of waiting for an end, before it is said what is waited for


def create(access: Access, manifest: Mapping[str, Any]) -> None:
    """Creates the job; a finished job of that run is removed first.

    Raises:
        InvalidInput: the name is taken by something else, or by a job whose run is in another store, or the cluster
            refuses. With the cause ``cluster`` an answer was lost, and whether the job was created is unknown.
        RunsAlready: another client has created it.
        JobFailed: the finished job does not go away.
    """
    name, run = manifest["metadata"]["name"], manifest["metadata"]["labels"][RUN_LABEL]
    if job := read_job(access, name):
        label = (job["metadata"].get("labels") or {}).get(RUN_LABEL)
        if label != run:
            origin = f"of the run {label}" if label else "not of train_func"
            raise InvalidInput(
                f"{access.kind.name} {name} in namespace {access.namespace} of {access.where} is {origin}, and has the "
                "name that this run needs; delete it, or submit to another namespace"
            )
        if not access.kind.status(job).finished and "deletionTimestamp" not in job["metadata"]:
            raise _runs(access, name, job, manifest)
        _remove(access, job)
    try:
        with access.asking("create", access.kind.plural, 409) as met:
            access.kind.create(access, manifest)
        if not met:
            return
        existing = read_job(access, name)
    except InvalidInput as lost:
        existing = None
        if lost.cause == "cluster":  # the answer may have been that of a success
            with contextlib.suppress(InvalidInput):
                existing = read_job(access, name)
        if existing is None:
            raise
    # Else a lost answer was asked for again.
    marks = "TRAIN_FUNC_SUBMISSION", "TRAIN_FUNC_SUBMITTED"
    if existing is None or _values(access, existing, *marks) != _values(access, manifest, *marks):
        raise _runs(access, name, existing or manifest, manifest)


def _values(access: Access, job: Mapping[str, Any], *names: str) -> list[str]:
    """Returns the values of these variables of a job's workers."""
    return [entry.get("value", "") for entry in access.kind.environment(job) if entry["name"] in names]


def read_job(access: Access, name: str) -> Json | None:
    """Returns the job as the API has it."""
    with access.asking("get", access.kind.plural, 404) as met:
        job = access.kind.read(access, name)
    return None if met else job


def status(access: Access, name: str) -> JobStatus | None:
    """Returns the job's state, or None if there is no such job."""
    job = read_job(access, name)
    return access.kind.status(job) if job else None


def pods(access: Access, name: str) -> list[Pod]:
    """Returns the job's pods that exist now, oldest first."""
    items = sorted(_pods(access, name), key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    return [access.kind.pod(pod) for pod in items]


def _pods(access: Access, name: str) -> list[Json]:
    return _listed(access, "pods", access.core("pods"), labelSelector=access.kind.pod_selector(name))


def events(access: Access, name: str) -> list[JobEvent]:
    """Returns the events of the job and its pods that the cluster still has, oldest first."""
    kind, listed = access.kind, _listed(access, "events", access.core("events"))
    items = [item for item in listed if kind.concerns(item["involvedObject"].get("name", ""), name)]
    return sorted((kind.understood(reading.event(item)) for item in items), key=lambda event: event.time)


def names(access: Access) -> list[str]:
    """Returns the names of the namespace's jobs with the label of a run."""
    jobs = _listed(access, access.kind.plural, access.jobs(), labelSelector=RUN_LABEL)
    return sorted(job["metadata"]["name"] for job in jobs)


def _listed(access: Access, resource: str, path: str, **query: str) -> list[Json]:
    with access.asking("list", resource):
        return list(access.get(path, **query)["items"])


def change(access: Access, name: str, changes: Mapping[str, Any]) -> bool:
    """Changes the job by a merge patch; returns False if there is none."""
    with access.asking("patch", access.kind.plural, 404) as met:
        access.patch(access.jobs(name), changes)
    return not met


def delete_pod(access: Access, pod: Pod, options: Mapping[str, Any]) -> None:
    """Deletes a pod; ignores an absent one."""
    with access.asking("delete", "pods", 404, 409):
        access.delete(access.core("pods", pod.name), {"preconditions": {"uid": pod.uid}, **options})


def remove(access: Access, name: str) -> bool:
    """Removes the job and its pods, and waits until they are gone; returns False if there was none.

    Raises:
        JobFailed: it does not go away.
    """
    if job := read_job(access, name):
        _remove(access, job)
    return job is not None


def _remove(access: Access, job: Json) -> None:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    with access.asking("delete", access.kind.plural, 404, 409) as met:
        options = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
        access.kind.delete(access, name, options)
    if 409 in met:  # another job of that name by now: another client submitted it again
        raise _runs(access, name, job, job)
    grace = max((pod["spec"].get("terminationGracePeriodSeconds", 30) for pod in _pods(access, name)), default=0)
    begun, is_reported = time.monotonic(), False
    end = begun + grace + GONE_SECONDS
    while (left := read_job(access, name)) and left["metadata"]["uid"] == uid:
        if time.monotonic() > end:
            raise JobFailed(
                f"job {name} was deleted and is still there after {grace + GONE_SECONDS:.0f} s, with its pods "
                f"{', '.join(pod.name for pod in pods(access, name)) or '(none)'}; a node that does not answer keeps "
                f"them: `kubectl -n {access.namespace} get pods -o wide`",
                cause="unknown",
            )
        if not is_reported and time.monotonic() - begun > TELL_SECONDS:
            is_reported = True
            ending = ", ".join(pod.name for pod in pods(access, name))
            print(f"{name}: waiting up to {grace} s for its pods to end: {ending or 'none'}", flush=True)
        time.sleep(LOOK_SECONDS)


def _runs(access: Access, name: str, existing: Mapping[str, Any], job: Mapping[str, Any]) -> InvalidInput:
    stores = ["".join(_values(access, each, "TRAIN_FUNC_STORE")) for each in (existing, job)]
    return runs_already(f"{name} in namespace {access.namespace} of {access.where}", *stores)
