"""The objects of one job: created in an order that leaves no orphan, read, and removed whole.

The ConfigMap comes first, because pods mount it, and is given to the job as soon as that has a uid. Should the client
die in between, a ConfigMap without an owner is left: no pod runs for it, and the next submission, cancel or delete of
that run removes it. Of clients that submit the same run at the same moment one creates the job, and the ConfigMap that
the job then owns is the one of that client.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from train_func.client.backend import RunsAlready
from train_func.client.cluster.access import Access, Json
from train_func.client.kinds import reading
from train_func.client.kinds.pod import RUN_LABEL
from train_func.client.status import Event, JobStatus, Pod
from train_func.errors import InvalidInput, JobFailed

COMES_SECONDS = 2.0  # until a job is there whose creation was asked for, and whose answer was lost
LOOK_SECONDS = 0.2
TELL_SECONDS = 3.0  # of waiting for an end, before it is said what is waited for


def create(access: Access, manifest: Mapping[str, Any], config_map: Mapping[str, Any]) -> None:
    """Creates the ConfigMap and the job that owns it; a finished job of that run is removed first.

    Raises:
        InvalidInput: the name is taken by something else, or the cluster refuses. With the cause ``cluster`` an answer
            was lost, and whether the job was created is unknown.
        RunsAlready: another client has created it.
        JobFailed: the finished job does not go away.
    """
    name, run = manifest["metadata"]["name"], manifest["metadata"]["labels"][RUN_LABEL]
    if job := read_job(access, name):
        _refuse(access, job, f"{access.kind.name} {name}", run)
        if not access.kind.status(job).finished and "deletionTimestamp" not in job["metadata"]:
            raise _runs(access, name)
        _remove(access, name, job)
    claimed = _claim(access, config_map, run)
    try:
        _give(access, _create_job(access, manifest), config_map, claimed)
    except BaseException as error:
        # An interrupt, or the answer was lost on its way: the server may have done what was asked.
        outage = not isinstance(error, InvalidInput) or error.cause == "cluster"
        try:
            job = _comes(access, name, COMES_SECONDS if outage else 0.0)
        except InvalidInput:  # whether it is there stays unknown, which the first error tells
            raise error from None
        if job is None:
            _delete_config_map(access, claimed)
            raise
        files = access.found("configmaps", access.core("configmaps", name))
        if files and not _owners(files):  # its client has not come so far, or was this one
            owned = _own(access, job, files)
            if isinstance(error, RunsAlready):
                error.has_own_files = owned and files["metadata"]["uid"] == claimed["metadata"]["uid"]
        if not (isinstance(error, InvalidInput) and outage):
            raise


def _claim(access: Access, config_map: Mapping[str, Any], run: str) -> Json:
    """Creates the ConfigMap, in place of one that is left of an earlier submission; returns it as it was created.

    One that is left looks like that of a client that is about to create the job: should this one be quicker to create
    the job, that client finds it there; should it be slower, ``_give`` of that client replaces this ConfigMap.
    """
    name = config_map["metadata"]["name"]

    def judge(left: Json) -> None:
        _refuse(access, left, f"configmap {name}", run)
        if other := next((owner["kind"] for owner in _owners(left) if owner["kind"] != access.kind.name), None):
            raise InvalidInput(
                f"{run} is in namespace {access.namespace} of {access.where} as a {other}: attach to it there, "
                f"with on=Cluster(kind={other!r}), or delete it first"
            )
        if read_job(access, name):
            raise _runs(access, name)

    return _replace(access, config_map, judge)


def _replace(access: Access, config_map: Mapping[str, Any], judge: Callable[[Json], None]) -> Json:
    """Creates the ConfigMap in place of one of that name, unless ``judge`` raises for that one."""
    name = config_map["metadata"]["name"]
    end = time.monotonic() + access.timings.gone
    while (created := _post(access, "configmaps", access.core("configmaps"), config_map)) is None:
        left = access.found("configmaps", access.core("configmaps", name))
        if left:
            judge(left)
            _delete_config_map(access, left)
        if time.monotonic() > end:
            raise InvalidInput(
                f"configmap {name} in namespace {access.namespace} of {access.where} was deleted and is still there "
                f"after {access.timings.gone:.0f} s; its finalizers may keep it: `kubectl -n {access.namespace} get "
                f"configmap {name} -o yaml` shows them; see that they are removed, then submit again"
            )
        if left is None or "deletionTimestamp" in left["metadata"]:
            time.sleep(LOOK_SECONDS)
    return created


def _create_job(access: Access, manifest: Mapping[str, Any]) -> Json:
    job = _post(access, access.kind.plural, access.jobs(), manifest)
    if job is None:
        raise _runs(access, manifest["metadata"]["name"])
    return job


def _give(access: Access, job: Json, config_map: Mapping[str, Any], claimed: Json) -> None:
    """Makes the job the owner of the ConfigMap that was created with it; one of another client is replaced."""
    if _own(access, job, claimed):
        return
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    files = {**config_map, "metadata": {**config_map["metadata"], "ownerReferences": [_reference(job)]}}

    def judge(left: Json) -> None:
        if any(owner["uid"] != uid for owner in _owners(left)):
            there = read_job(access, name)
            if there is None or there["metadata"]["uid"] != uid:  # it was deleted, and the run submitted again
                raise _runs(access, name)

    try:
        _replace(access, files, judge)
    except InvalidInput as refused:
        if refused.cause != "cluster":
            _delete_job(access, job)  # its pods would run with the files of another submission
        raise


def _own(access: Access, job: Json, config_map: Json) -> bool:
    """Makes the job the owner of a ConfigMap; False when that has been changed or deleted meanwhile."""
    metadata = config_map["metadata"]
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "ownerReferences": [_reference(job)]}}
    with access.asking("patch", "configmaps", 404, 409) as met:
        access.patch(access.core("configmaps", metadata["name"]), body, seconds=access.timings.answer)
    return not met


def _reference(job: Json) -> Json:
    """Not a blocking owner: to set that, clusters that guard finalizers ask for one right more."""
    metadata = job["metadata"]
    return {"apiVersion": job["apiVersion"], "kind": job["kind"], "name": metadata["name"], "uid": metadata["uid"]}


def _owners(config_map: Json) -> list[Json]:
    return config_map["metadata"].get("ownerReferences") or []


def _post(access: Access, resource: str, path: str, body: Mapping[str, Any]) -> Json | None:
    """What was created; None when there is something of that name."""
    with access.asking("create", resource, 409) as met:
        created = access.post(path, body, seconds=access.timings.answer)
    return None if met else created


def _comes(access: Access, name: str, seconds: float) -> Json | None:
    """The job, if it is there or will be within ``seconds``: the server may be about to create it."""
    end = time.monotonic() + seconds
    while not (job := read_job(access, name)) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
    return job


def read_job(access: Access, name: str) -> Json | None:
    """The job as the API has it."""
    return access.found(access.kind.plural, access.jobs(name))


def status(access: Access, name: str) -> JobStatus | None:
    """The job's state, or None when there is no such job."""
    job = read_job(access, name)
    return access.kind.status(job) if job else None


def pods(access: Access, name: str) -> list[Pod]:
    """The job's pods that there are now, oldest first."""
    found = _listed(access, "pods", access.core("pods"), labelSelector=access.kind.pod_selector(name))
    return [access.kind.pod(pod) for pod in sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))]


def events(access: Access, name: str) -> list[Event]:
    """Events about the job and its pods that the cluster still keeps, oldest first."""
    found = (event(access, name, item) for item in _listed(access, "events", access.core("events")))
    return sorted((event for event in found if event), key=lambda event: event.time)


def event(access: Access, name: str, found: Json) -> Event | None:
    """One event as the API has it; None when it does not concern the job."""
    about = found["involvedObject"].get("name", "")
    return access.kind.understood(reading.event(found)) if access.kind.concerns(about, name) else None


def names(access: Access) -> list[str]:
    """The jobs of the namespace that have the label of a run."""
    found = _listed(access, access.kind.plural, access.jobs(), labelSelector=RUN_LABEL)
    return sorted(job["metadata"]["name"] for job in found)


def _listed(access: Access, resource: str, path: str, **query: str) -> list[Json]:
    with access.asking("list", resource):
        return list(access.get(path, seconds=access.timings.answer, **query)["items"])


def remove(access: Access, name: str) -> bool:
    """Removes the job, its pods and its ConfigMap, and waits until they are gone; False when there was none.

    Raises:
        JobFailed: it does not go away.
    """
    job = read_job(access, name)
    _remove(access, name, job)
    return job is not None


def _remove(access: Access, name: str, job: Json | None) -> None:
    if job is not None:
        _delete_job(access, job)
        _await_end(access, job)
    left = access.found("configmaps", access.core("configmaps", name))
    if left and all(job and owner["uid"] == job["metadata"]["uid"] for owner in _owners(left)):
        _delete_config_map(access, left)


def _delete_job(access: Access, job: Mapping[str, Any]) -> None:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    body = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
    with access.asking("delete", access.kind.plural, 404, 409) as met:
        access.delete(access.jobs(name), body, seconds=access.timings.answer)
    if 409 in met:  # another job of that name by now: another client submitted it again
        raise _runs(access, name)


def _delete_config_map(access: Access, found: Json) -> None:
    """Unless another client has changed or replaced it meanwhile."""
    name = found["metadata"]["name"]
    unchanged = {field: found["metadata"][field] for field in ("uid", "resourceVersion")}
    with access.asking("delete", "configmaps", 404, 409):
        access.delete(access.core("configmaps", name), {"preconditions": unchanged}, seconds=access.timings.answer)


def _await_end(access: Access, job: Mapping[str, Any]) -> None:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    grace = access.kind.workers(job).spec.get("terminationGracePeriodSeconds", 30)
    begun, told = time.monotonic(), False
    end = begun + grace + access.timings.gone
    while (left := read_job(access, name)) and left["metadata"]["uid"] == uid:
        if time.monotonic() > end:
            raise JobFailed(
                f"job {name} was deleted and is still there after {grace + access.timings.gone:.0f} s, with its pods "
                f"{', '.join(pod.name for pod in pods(access, name)) or '(none)'}; a node that does not answer keeps "
                f"them: `kubectl -n {access.namespace} get pods -o wide`",
                cause="unknown",
            )
        if not told and time.monotonic() - begun > TELL_SECONDS:
            told = True
            ending = ", ".join(pod.name for pod in pods(access, name))
            print(f"{name}: the end of its pods is waited for, they have {grace} s: {ending or 'none'}", flush=True)
        time.sleep(LOOK_SECONDS)


def _refuse(access: Access, found: Mapping[str, Any], what: str, run: str) -> None:
    """Raises InvalidInput unless the object was made for this run."""
    label = (found["metadata"].get("labels") or {}).get(RUN_LABEL)
    if label != run:
        raise InvalidInput(
            f"{what} in namespace {access.namespace} of {access.where} is "
            f"{f'of the run {label}' if label else 'not of train_func'}, and has the name that this run needs; "
            "delete it, or submit to another namespace"
        )


def _runs(access: Access, name: str) -> RunsAlready:
    return RunsAlready(
        f"job {name} runs already in namespace {access.namespace} of {access.where}: attach to it, or cancel it first"
    )
