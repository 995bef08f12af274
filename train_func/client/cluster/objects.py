"""The objects of one job: created in an order that leaves no orphan, read, and removed whole.

The ConfigMap comes first, because pods mount it, and is given to the job as soon as that has a uid. Should the client
die in between, a ConfigMap without an owner is left: no pod runs for it, and the next submission, cancel or delete of
that run removes it.
"""

import time
from collections.abc import Mapping
from typing import Any

from train_func.client.backend import RunsAlready
from train_func.client.cluster import faults, reading
from train_func.client.cluster.access import Access, Json
from train_func.client.manifest import RUN_LABEL
from train_func.client.status import Event, JobStatus, Pod
from train_func.errors import InvalidInput, JobFailed

API = ("kubeflow.org", "v1")
PLURAL = "pytorchjobs"
COMES_SECONDS = 2.0  # until a job is there whose creation was asked for, and whose answer nobody heard
GONE_SECONDS = 60.0  # longest that the removal of a job may take, beyond the grace period of its pods
LOOK_SECONDS = 0.2
TELL_SECONDS = 3.0  # of waiting for an end, before it is said what is waited for


def create(access: Access, manifest: Mapping[str, Any], config_map: Mapping[str, Any]) -> None:
    """Creates the ConfigMap and the PyTorchJob that owns it; a finished job of that run is removed first.

    Raises:
        InvalidInput: the name is taken by something else, or the cluster refuses.
        RunsAlready: somebody else was quicker.
        JobFailed: the finished job does not go away.
    """
    name, run = manifest["metadata"]["name"], manifest["metadata"]["labels"][RUN_LABEL]
    if job := read_job(access, name):
        _refuse(access, job, f"pytorchjob {name}", run)
        if not reading.job_status(job).finished and "deletionTimestamp" not in job["metadata"]:
            raise _runs(access, name)
        remove(access, name)
    _replace_config_map(access, config_map, run)
    try:
        _create_job(access, manifest)
        _give(access, name)
    except BaseException as error:
        # An interrupt, or the answer was lost on its way: the server may have done what was asked.
        outage = not isinstance(error, InvalidInput) or error.cause == "cluster"
        if not _comes(access, name, COMES_SECONDS if outage else 0.0):
            _delete_config_map(access, name)
            raise
        _give(access, name)  # the job is there: made by somebody at the same moment, or as it was asked for
        if not (isinstance(error, InvalidInput) and outage):
            raise


def _comes(access: Access, name: str, seconds: float) -> bool:
    """Whether the job is there, or will be within ``seconds``: the server may be about to create it."""
    end = time.monotonic() + seconds
    while not read_job(access, name):
        if time.monotonic() >= end:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def read_job(access: Access, name: str) -> Json | None:
    """The PyTorchJob as the API has it."""
    job: Json | None = _found(
        access,
        f"{PLURAL}/{name}",
        lambda: access.custom.get_namespaced_custom_object(*API, access.namespace, PLURAL, name),
    )
    return job


def status(access: Access, name: str) -> JobStatus | None:
    """The job's state, or None when there is no such job."""
    job = read_job(access, name)
    return reading.job_status(job) if job else None


def pods(access: Access, name: str) -> list[Pod]:
    """The job's pods that there are now, oldest first."""
    selector = f"training.kubeflow.org/job-name={name}"
    found = access.read("list", "pods", access.core.list_namespaced_pod, access.namespace, label_selector=selector)
    items = sorted(found["items"], key=lambda pod: str(pod["metadata"]["creationTimestamp"]))
    return [reading.pod(pod) for pod in items]


def events(access: Access, name: str) -> list[Event]:
    """Events about the job and its pods that the cluster still keeps, oldest first."""
    found = access.read("list", "events", access.core.list_namespaced_event, access.namespace)
    about = (event for event in found["items"] if concerns(event["involvedObject"].get("name", ""), name))
    return sorted((reading.event(event) for event in about), key=lambda event: event.time)


def remove(access: Access, name: str) -> bool:
    """Removes the job, its pods and its ConfigMap, and waits until they are gone; False when there was none.

    Raises:
        JobFailed: it does not go away.
    """
    job = read_job(access, name)
    if job is not None:
        _delete_job(access, job)
        _await_end(access, job)
    _delete_config_map(access, name)
    return job is not None


def names(access: Access) -> list[str]:
    """The jobs of the namespace that have the label of a run."""
    options = {"label_selector": RUN_LABEL}
    found = access.read(
        "list", PLURAL, access.custom.list_namespaced_custom_object, *API, access.namespace, PLURAL, **options
    )
    return sorted(job["metadata"]["name"] for job in found["items"])


def concerns(about: str, name: str) -> bool:
    """Whether an object of that name is the job or one of its pods."""
    return about == name or about.startswith(f"{name}-worker-")


def _create_job(access: Access, manifest: Mapping[str, Any]) -> None:
    from kubeflow.training import KubeflowOrgV1PyTorchJob
    from kubernetes.client import V1ObjectMeta

    metadata = manifest["metadata"]
    # The SDK's models would drop fields that they do not know; only the metadata has to be one of them.
    job = KubeflowOrgV1PyTorchJob(
        api_version=manifest["apiVersion"],
        kind=manifest["kind"],
        metadata=V1ObjectMeta(name=metadata["name"], namespace=access.namespace, labels=metadata["labels"]),
        spec=manifest["spec"],
    )
    try:
        access.training.create_job(job=job, namespace=access.namespace)
    except (RuntimeError, TimeoutError) as error:
        cause = error.__cause__ or error.__context__ or error
        if faults.status_of(cause) == 409:
            raise _runs(access, metadata["name"]) from None
        raise faults.failed(cause, "create", PLURAL, access) from None


def _replace_config_map(access: Access, config_map: Mapping[str, Any], run: str) -> None:
    name = config_map["metadata"]["name"]
    found = _found(
        access,
        f"configmaps/{name}",
        lambda: access.read("get", "configmaps", access.core.read_namespaced_config_map, name, access.namespace),
    )
    if found is not None:
        _refuse(access, found, f"configmap {name}", run)
        _delete_config_map(access, name)
    access.ask(
        "create",
        "configmaps",
        lambda: access.core.create_namespaced_config_map(access.namespace, config_map),
    )


def _give(access: Access, name: str) -> None:
    """Makes the job the owner of its ConfigMap.

    Not a blocking owner: to set that, clusters that guard finalizers ask for one right more.
    """
    job = read_job(access, name)
    if job is None:
        return
    owner = {"apiVersion": "/".join(API), "kind": job["kind"], "name": name, "uid": job["metadata"]["uid"]}
    body = {"metadata": {"ownerReferences": [owner]}}
    access.ask(
        "patch",
        "configmaps",
        lambda: access.core.patch_namespaced_config_map(name, access.namespace, body),
    )


def _delete_job(access: Access, job: Mapping[str, Any]) -> None:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    body = {"propagationPolicy": "Foreground", "preconditions": {"uid": uid}}
    try:
        _found(
            access,
            f"{PLURAL}/{name}",
            lambda: access.custom.delete_namespaced_custom_object(*API, access.namespace, PLURAL, name, body=body),
            verb="delete",
        )
    except Exception as error:
        if faults.status_of(error) == 409:  # another job of that name by now: somebody submitted it again
            raise _runs(access, name) from None
        raise


def _delete_config_map(access: Access, name: str) -> None:
    _found(
        access,
        f"configmaps/{name}",
        lambda: access.core.delete_namespaced_config_map(name, access.namespace),
        verb="delete",
    )


def _await_end(access: Access, job: Mapping[str, Any]) -> None:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    template = job["spec"]["pytorchReplicaSpecs"].get("Worker", {}).get("template", {})
    grace = template.get("spec", {}).get("terminationGracePeriodSeconds", 30)
    begun, told = time.monotonic(), False
    end = begun + grace + GONE_SECONDS
    while (left := read_job(access, name)) and left["metadata"]["uid"] == uid:
        if time.monotonic() > end:
            raise JobFailed(
                f"job {name} was deleted and is still there after {grace + GONE_SECONDS:.0f} s, with its pods "
                f"{', '.join(pod.name for pod in pods(access, name)) or '(none)'}; a node that does not answer keeps "
                f"them: `kubectl -n {access.namespace} get pods -o wide`",
                cause="unknown",
            )
        if not told and time.monotonic() - begun > TELL_SECONDS:
            told = True
            ending = ", ".join(pod.name for pod in pods(access, name))
            print(f"{name}: the end of its pods is waited for, they have {grace} s: {ending or 'none'}", flush=True)
        time.sleep(LOOK_SECONDS)


def _found(access: Access, resource: str, call: Any, *, verb: str = "get") -> Any:
    """The answer, or None when there is no such object."""
    try:
        return access.ask(verb, resource, call)
    except Exception as error:
        if faults.status_of(error) == 404:
            return None
        raise


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
