"""The single questions of the preflight: each asks the cluster one thing and says what speaks against the job."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from train_func.client.cluster import faults, quota, rights
from train_func.client.cluster.access import Access, run_concurrently
from train_func.client.diagnose.diagnosis import Diagnosis, create_secret
from train_func.client.diagnose.starting import judge
from train_func.client.kinds import KINDS
from train_func.client.kinds.kind import Workers
from train_func.client.kinds.pod import QUEUE_LABEL
from train_func.text import counted

KUEUE = "kueue.x-k8s.io"
WEBHOOK_SECONDS = 3.0  # it answers within milliseconds; without a pod behind it the API server tries for ten seconds
RIGHTS_SECONDS = 1.5  # for rights that the review did not show, all asked at once

Json = Mapping[str, Any]


Said = Iterator[Diagnosis | str]
"""What keeps the job from running, or a note: what is worth knowing and refuses nothing."""


@dataclass(frozen=True)
class Asked:
    """The job that is asked about."""

    manifest: Json
    workers: Workers
    rules: Sequence[Json] = ()
    """What may be done in the namespace, by the server's review."""


def permissions(access: Access, job: Asked) -> Said:
    """Whether all that is needed may be done; what the review does not show is asked for one by one."""
    doubtful = [right for right in rights.needed(access.kind) if not rights.granted(right, job.rules)]
    answers = run_concurrently([partial(_may, access, right) for right in doubtful], RIGHTS_SECONDS)
    if missing := [right for right, may in zip(doubtful, answers, strict=True) if may is False]:
        told = f"namespace {access.namespace} of {access.where}: you may not {rights.worded(missing)}"
        yield Diagnosis("permission", f"{told}; {rights.remedy(access.kind, access.namespace)}")


def operator(access: Access, job: Asked) -> Said:
    """Whether the operator's API is served, in the version that is used, and Kueue's when a queue is named."""
    kind = access.kind
    served = {group["name"]: group for group in access.get("/apis")["groups"]}
    versions = [version["version"] for version in served.get(kind.group, {}).get("versions", [])]
    if not versions:
        others = [other for other in KINDS.values() if other is not kind and other.group in served]
        there = "".join(f" ({o.operator.name} is there, which executes Cluster(kind={o.name!r}))" for o in others)
        yield Diagnosis("cluster", faults.no_operator(access) + there)
    elif kind.version not in versions:
        told = f"{access.where} serves {kind.group} as {', '.join(versions)}; {kind.version} is expected"
        yield Diagnosis("cluster", f"{told}: {kind.operator.name}, {kind.operator.install}")
    else:
        kinds = access.get(f"/apis/{kind.group}/{kind.version}")["resources"]
        if not any(found["name"] == kind.plural for found in kinds):
            yield Diagnosis("cluster", faults.no_operator(access))
    queue = job.manifest["metadata"].get("labels", {}).get(QUEUE_LABEL)
    if queue and KUEUE not in served:
        yield Diagnosis("input", f"queue={queue!r}: {access.where} has no Kueue; leave queue out, or have it installed")
    elif queue:
        yield from _queue(access, queue, served[KUEUE]["preferredVersion"]["version"])


def webhook(access: Access, job: Asked) -> Said:
    """Whether the operator's webhook answers, and takes the job."""
    try:
        access.post(access.jobs(), job.manifest, seconds=WEBHOOK_SECONDS, dryRun="All")
    except Exception as error:
        if faults.timed_out(error):  # the API server itself answers: this was not the first question
            why = f"its webhook did not look at a job within {WEBHOOK_SECONDS:.0f} s"
            yield Diagnosis("cluster", faults.silent_operator(access, why))
        # A missing API, namespace or right is told by those who ask for that; a job that is there is the client's.
        elif faults.status_of(error) not in (404, 409) and not faults.forbidden(error):
            raise


def pod(access: Access, job: Asked) -> Said:
    """Whether a worker's pod would be admitted: pod security, limit ranges, account, priority class, policies."""
    try:
        access.post(access.core("pods"), {"apiVersion": "v1", "kind": "Pod", **job.workers.pod}, dryRun="All")
    except Exception as error:
        words, status = faults.said(error), faults.status_of(error)
        if status in (404, 409):  # no such namespace, which is told by itself; a pod of an earlier job
            return
        if status not in (400, 403, 422) or faults.forbidden(error):
            raise
        if "exceeded quota" not in words:  # which the quotas themselves tell better
            told = judge(words, job.workers.num)
            yield Diagnosis(told.cause, f"a worker's pod would not be admitted: {told.message}; {told.remedy}")


def namespace(access: Access, job: Asked) -> Said:
    """Whether the namespace is there and stays."""
    found = access.get(f"/api/v1/namespaces/{access.namespace}")
    if (found.get("status") or {}).get("phase") == "Terminating":
        yield Diagnosis("cluster", f"namespace={access.namespace!r}: it is being deleted; take another, or wait")


def quotas(access: Access, job: Asked) -> Said:
    """Whether the namespace's quotas could hold the job, and do now."""
    items = access.get(access.core("resourcequotas"))["items"]
    yield from quota.excesses(job.workers, access.kind.num_objects(job.workers.num), items)


def secrets(access: Access, job: Asked) -> Said:
    """Whether the Secrets that workers cannot start without hold the keys that are expected."""
    wanted: dict[str, list[str]] = {}
    for variable in job.workers.container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("secretKeyRef")
        if reference and not reference.get("optional"):
            wanted.setdefault(reference["name"], []).append(reference["key"])
    for name, keys in wanted.items():
        yield from _secret(access, name, keys)


def claims(access: Access, job: Asked) -> Said:
    """Whether the claims that workers mount are there, and can be mounted by all of them."""
    volumes = (volume.get("persistentVolumeClaim") for volume in job.workers.spec.get("volumes") or ())
    for name in dict.fromkeys(claim["claimName"] for claim in volumes if claim):
        found = access.find(access.core("persistentvolumeclaims", name))
        if found is None:
            yield Diagnosis(
                "input",
                f"claim {name!r}: namespace {access.namespace} has no such PersistentVolumeClaim; "
                f"`kubectl -n {access.namespace} get persistentvolumeclaims` lists them",
            )
            continue
        modes = set(found["spec"].get("accessModes") or ())
        if job.workers.num > 1 and modes == {"ReadWriteOncePod"}:
            yield Diagnosis(
                "input",
                f"claim {name!r} is ReadWriteOncePod, which one pod can mount, and the job has "
                f"{counted(job.workers.num, 'worker')}; take one that is ReadWriteMany, or workers=1",
            )
        elif job.workers.num > 1 and modes <= {"ReadWriteOnce", "ReadWriteOncePod"}:
            yield f"claim {name!r} is ReadWriteOnce: {counted(job.workers.num, 'worker')} have to run on one node"


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
    answer = access.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
    return bool(answer["status"]["allowed"])


def _secret(access: Access, name: str, keys: list[str]) -> Said:
    try:
        there = access.get(access.core("secrets", name)).get("data") or {}
    except Exception as error:
        if faults.status_of(error) != 404 or "namespaces" in faults.said(error):
            raise
        yield Diagnosis(
            "permission",
            f"Secret {name!r} is not in namespace {access.namespace}, and workers take {', '.join(keys)} from it: "
            f"{create_secret(name, keys, access.namespace)}",
        )
        return
    if lacking := [key for key in keys if key not in there]:
        yield Diagnosis(
            "permission",
            f"Secret {name!r} in namespace {access.namespace} has no {', '.join(lacking)}; it has "
            f"{', '.join(sorted(there)) or 'nothing'}. Workers take {', '.join(keys)} from it",
        )


def _queue(access: Access, queue: str, version: str) -> Said:
    if access.find(f"/apis/{KUEUE}/{version}/namespaces/{access.namespace}/localqueues/{queue}") is None:
        yield Diagnosis(
            "input",
            f"queue={queue!r}: namespace {access.namespace} has no such LocalQueue; "
            f"`kubectl -n {access.namespace} get localqueues` lists them",
        )
