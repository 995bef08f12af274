"""The single questions of the preflight: each asks the cluster one thing and says what speaks against the job."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from train_func.client.cluster import asking, faults, quota, rights, room
from train_func.client.cluster.access import Access
from train_func.client.cluster.images import image_fault
from train_func.client.diagnose.refusals import judge
from train_func.client.diagnose.remedies import create_secret
from train_func.errors import Cause

GROUP, VERSION, PLURAL = "kubeflow.org", "v1", "pytorchjobs"
KUEUE, QUEUE_LABEL = "kueue.x-k8s.io", "kueue.x-k8s.io/queue-name"
WEBHOOK_SECONDS = 3.0  # it answers within milliseconds; without a pod behind it the API server tries for ten seconds
RIGHTS_SECONDS = 1.5  # for rights that the review did not show, all asked at once

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Finding:
    """Why the job cannot run."""

    cause: Cause
    message: str


@dataclass(frozen=True)
class Note:
    """What is worth knowing and refuses nothing."""

    text: str


Said = Iterator[Finding | Note]


def image(access: Access, manifest: Json) -> Said:
    """Whether the image's name can be one."""
    if fault := image_fault(pod_of(manifest)["containers"][0]["image"]):
        yield Finding("image", fault)


def operator(access: Access, manifest: Json) -> Said:
    """Whether the operator's API is served, in the version that is used, and Kueue's when a queue is named."""
    served = {group["name"]: group for group in asking.get(access, "/apis")["groups"]}
    versions = [version["version"] for version in served.get(GROUP, {}).get("versions", [])]
    if not versions:
        v2 = "trainer.kubeflow.org" in served
        told = " (Kubeflow Trainer v2 is there; it takes no PyTorchJob, and both can be installed)" if v2 else ""
        yield Finding("cluster", faults.no_operator(access.where) + told)
    elif VERSION not in versions:
        there = ", ".join(versions)
        yield Finding(
            "cluster", f"{access.where} serves {GROUP} as {there}; {VERSION} is expected: Training Operator 1.9"
        )
    else:
        kinds = asking.get(access, f"/apis/{GROUP}/{VERSION}")["resources"]
        if not any(kind["name"] == PLURAL for kind in kinds):
            yield Finding("cluster", faults.no_operator(access.where))
    queue = manifest["metadata"].get("labels", {}).get(QUEUE_LABEL)
    if queue and KUEUE not in served:
        yield Finding("input", f"queue={queue!r}: {access.where} has no Kueue; leave queue out, or have it installed")
    elif queue:
        yield from _queue(access, queue, served[KUEUE]["preferredVersion"]["version"])


def webhook(access: Access, manifest: Json) -> Said:
    """Whether the operator's webhook answers, and takes the job."""
    path = f"/apis/{GROUP}/{VERSION}/namespaces/{access.namespace}/{PLURAL}"
    try:
        asking.post(access, path, manifest, seconds=WEBHOOK_SECONDS, dryRun="All")
    except Exception as error:
        if faults.timed_out(error):  # the API server itself answers: this was not the first question
            why = f"its webhook did not look at a job within {WEBHOOK_SECONDS:.0f} s"
            yield Finding("cluster", faults.silent_operator(access.where, why))
        # A missing API, namespace or right is told by those who ask for that; a job that is there is the client's.
        elif faults.status_of(error) not in (404, 409) and not faults.forbidden(error):
            raise


def admission(access: Access, manifest: Json) -> Said:
    """Whether a worker's pod would be admitted: pod security, limits, account, and whatever else is asked here."""
    template = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    labels = {**template["metadata"]["labels"], "training.kubeflow.org/replica-index": "0"}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{manifest['metadata']['name']}-worker-0", "labels": labels},
        "spec": {**template["spec"], "restartPolicy": "Never"},
    }
    try:
        asking.post(access, f"/api/v1/namespaces/{access.namespace}/pods", body, dryRun="All")
    except Exception as error:
        words, status = faults.said(error), faults.status_of(error)
        if status not in (400, 403, 422) or faults.forbidden(error):
            if status not in (404, 409):
                raise
        elif "exceeded quota" not in words:  # which the quotas themselves tell better
            told = judge(words, num_workers(manifest))
            yield Finding(told.cause, f"a worker's pod would not be admitted: {told.message}; {told.remedy}")


def namespace(access: Access, manifest: Json) -> Said:
    """Whether the namespace is there and stays."""
    found = asking.get(access, f"/api/v1/namespaces/{access.namespace}")
    if (found.get("status") or {}).get("phase") == "Terminating":
        yield Finding("cluster", f"namespace={access.namespace!r}: it is being deleted; take another, or wait")


def quotas(access: Access, manifest: Json) -> Said:
    """Whether the namespace's quotas could hold the job, and do now."""
    items = asking.get(access, f"/api/v1/namespaces/{access.namespace}/resourcequotas")["items"]
    for excess in quota.excesses(manifest, items):
        yield Finding("quota", excess.message) if excess.ever else Note(f"{excess.message}: the job waits for it")


def limits(access: Access, manifest: Json) -> Said:
    """Whether a worker is within the namespace's limit ranges."""
    items = asking.get(access, f"/api/v1/namespaces/{access.namespace}/limitranges")["items"]
    for told in quota.outside(manifest, items):
        yield Finding("quota", told)


def nodes(access: Access, manifest: Json) -> Said:
    """Whether the nodes could ever hold the workers."""
    report = room.look(access, manifest)
    if report and report.lack:
        todo = "ask for less cpu, memory or gpu, or for fewer workers"
        yield Finding("scheduling", f"{report.lack}; {todo}\n{report.table}")


def secrets(access: Access, manifest: Json) -> Said:
    """Whether the Secrets that workers cannot start without hold the keys that are expected."""
    wanted: dict[str, list[str]] = {}
    for variable in pod_of(manifest)["containers"][0].get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
        if reference and not reference.get("optional"):
            wanted.setdefault(reference["name"], []).append(reference["key"])
    for name, keys in wanted.items():
        yield from _secret(access, name, keys)


def account(access: Access, manifest: Json) -> Said:
    """Whether the service account that was named is there."""
    name = pod_of(manifest).get("serviceAccountName")
    if name and not _exists(access, f"/api/v1/namespaces/{access.namespace}/serviceaccounts/{name}"):
        yield Finding(
            "input",
            f"service_account={name!r}: namespace {access.namespace} has no such account; create it, or leave it out",
        )


def priority(access: Access, manifest: Json) -> Said:
    """Whether the priority class that was named is there."""
    name = pod_of(manifest).get("priorityClassName")
    if name and not _exists(access, f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}"):
        yield Finding(
            "input", f"priority_class={name!r}: there is none of that name; `kubectl get priorityclasses` lists them"
        )


def missing_rights(access: Access, rules: list[Json]) -> list[rights.Right]:
    """Those that are needed and not granted; what the review does not show is asked for one by one."""
    doubtful = [right for right in rights.needed() if not rights.granted(right, rules)]
    answers = asking.run_concurrently([partial(_may, access, right) for right in doubtful], RIGHTS_SECONDS)
    return [right for right, may in zip(doubtful, answers, strict=True) if may is False]


def _may(access: Access, right: rights.Right) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "namespace": access.namespace,
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
    }
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    body = {**review, "spec": {"resourceAttributes": attributes}}
    answer = asking.post(access, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def _secret(access: Access, name: str, keys: list[str]) -> Said:
    try:
        there = asking.get(access, f"/api/v1/namespaces/{access.namespace}/secrets/{name}").get("data") or {}
    except Exception as error:
        if faults.status_of(error) != 404 or "namespaces" in faults.said(error):
            raise
        yield Finding(
            "permission",
            f"Secret {name!r} is not in namespace {access.namespace}, and workers take {', '.join(keys)} from it: "
            f"{create_secret(name, keys, access.namespace)}",
        )
        return
    if lacking := [key for key in keys if key not in there]:
        yield Finding(
            "permission",
            f"Secret {name!r} in namespace {access.namespace} has no {', '.join(lacking)}; it has "
            f"{', '.join(sorted(there)) or 'nothing'}. Workers take {', '.join(keys)} from it",
        )


def _queue(access: Access, queue: str, version: str) -> Said:
    if not _exists(access, f"/apis/{KUEUE}/{version}/namespaces/{access.namespace}/localqueues/{queue}"):
        yield Finding(
            "input",
            f"queue={queue!r}: namespace {access.namespace} has no such LocalQueue; "
            f"`kubectl -n {access.namespace} get localqueues` lists them",
        )


def _exists(access: Access, path: str) -> bool:
    try:
        asking.get(access, path)
    except Exception as error:
        if faults.status_of(error) == 404:
            return False
        raise
    return True


def pod_of(manifest: Json) -> Json:
    """The spec of a worker's pod."""
    pod: Json = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return pod


def num_workers(manifest: Json) -> int:
    """How many there are."""
    return int(manifest["spec"]["pytorchReplicaSpecs"]["Worker"].get("replicas", 1))
