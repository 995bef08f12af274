"""Asks a cluster whether it would run a job, before anything is created; reports all findings at once.

The first question shows whether server and namespace exist. All others are then asked concurrently, each with the same
time limit. A question that the account may not ask refuses nothing, and a note names it.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from train_func.client.cluster import api_errors
from train_func.client.cluster.access import Access
from train_func.client.diagnose.reasons import judge
from train_func.client.job_spec import JobSpec, SecretKey, parse_quantity
from train_func.client.kinds import KINDS
from train_func.client.kinds.pod import pod_spec, resources
from train_func.client.status import Diagnosis
from train_func.errors import InvalidInput
from train_func.text import counted

KUEUE = "kueue.x-k8s.io"
AT_ONCE = 16
QUICK_SECONDS = 2.4  # for an answer: two fit into the five that are promised

Answer = Iterator[Diagnosis | str]
"""Findings that keep the job from running, and notes, which refuse nothing."""


def check(access: Access, spec: JobSpec, also: Sequence[str] = (), *, tells_unknown: bool = True) -> list[str]:
    """Asks all questions that are possible before the job of ``spec`` is created.

    Args:
        also: faults that are known already, to be reported with the others.
        tells_unknown: note questions that the account may not ask; an account of a notebook has few rights.

    Returns:
        Notes on questions that were not answered, and on reasons for which the job may wait.

    Raises:
        InvalidInput: with every finding.
    """

    def ask(row: Any) -> tuple[list[Diagnosis | str], str]:
        """Returns the answer to a question, or the purpose of a question that the account may not ask."""
        question, verb, resource, purpose = row
        try:
            return list(question(access, spec)), ""
        except Exception as error:
            if purpose and api_errors.forbidden(error):
                return [], purpose
            if api_errors.is_timeout(error) and question is not namespace:
                return [f"{verb} {resource}: {access.where} did not answer in time, and was skipped"], ""
            return [api_errors.diagnose(error, verb, access.kind.plural if question is job else resource, access)], ""

    access = replace(access, seconds=QUICK_SECONDS)
    first, *rest = QUESTIONS
    answers = [ask(first)]
    if not answers[0][0]:
        with ThreadPoolExecutor(AT_ONCE) as askers:
            answers += askers.map(ask, rest)
    findings = [Diagnosis("input", fault) for fault in also]
    for answer, _ in answers:
        once = {finding.cause for finding in findings} & {"quota"}  # of a quota the quotas themselves tell best
        findings += [finding for finding in answer if isinstance(finding, Diagnosis) and finding.cause not in once]
    if findings:
        raise InvalidInput(list(dict.fromkeys(finding.message for finding in findings)), cause=findings[0].cause)
    notes = [note for answer, _ in answers for note in answer if isinstance(note, str)]
    unknown = [purpose for _, purpose in answers if purpose]
    if unknown and tells_unknown:
        notes.append(f"not checked, because this account may not look: {', '.join(unknown)}")
    return notes


def namespace(access: Access, spec: JobSpec) -> Answer:
    """Asks whether the namespace exists and is not being deleted."""
    body = access.get(f"/api/v1/namespaces/{access.namespace}")
    if (body.get("status") or {}).get("phase") == "Terminating":
        yield Diagnosis("cluster", f"namespace={access.namespace!r}: it is being deleted; take another, or wait")


def rights(access: Access, spec: JobSpec) -> Answer:
    """Asks whether the account has all rights that a job needs."""
    if missing := missing_rights(access, api_errors.rights(access.kind)):
        text = "; ".join(f"{', '.join(verbs)} {name}" for name, verbs in missing.items())
        text = f"namespace {access.namespace} of {access.where}: you may not {text}"
        yield Diagnosis("permission", f"{text}; {api_errors.role(access)}")


def missing_rights(access: Access, needed: api_errors.Rights, *, of_cluster: bool = False) -> dict[str, list[str]]:
    """Returns the verbs that this account may not use, by resource; ``of_cluster``: of no namespace."""

    def denied(right: tuple[str, str, str]) -> bool:
        group, resource, verb = right
        resource, _, subresource = resource.partition("/")
        where = {} if of_cluster else {"namespace": access.namespace}
        attributes = {**where, "verb": verb, "group": group, "resource": resource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {**attributes, "subresource": subresource}},
        }
        answer = access.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        return not answer["status"]["allowed"]

    rights = [(*resource, verb) for resource, verbs in needed.items() for verb in verbs]
    missing: dict[str, list[str]] = {}
    with ThreadPoolExecutor(AT_ONCE) as askers:
        for (group, resource, verb), is_denied in zip(rights, askers.map(denied, rights), strict=True):
            if is_denied:
                missing.setdefault(f"{resource}.{group}".removesuffix("."), []).append(verb)
    return missing


def quotas(access: Access, spec: JobSpec) -> Answer:
    """Asks whether the namespace's quotas allow the whole job, in general and now."""
    need = dict[str, tuple[int, str]]()
    for name, count in access.kind.num_objects(spec.workers).items():
        need[name] = need[f"count/{name}"] = (1, str(count))
    for name, each in resources(spec).items():
        need[name] = need[f"requests.{name}"] = need[f"limits.{name}"] = (spec.workers, each)
    for quota in access.get(access.core("resourcequotas"))["items"]:
        of_quota, status = quota["spec"], quota.get("status") or {}
        if of_quota.get("scopes") or of_quota.get("scopeSelector"):
            continue  # it may be meant for other pods; the cluster itself refuses what goes beyond it
        hard = status.get("hard") or of_quota.get("hard") or {}
        for name in sorted(hard.keys() & need.keys()):
            number, each = need[name]
            used = (status.get("used") or {}).get(name, "0")
            amount, most = number * parse_quantity(each), parse_quantity(hard[name])
            job_asks = each if number == 1 else f"{number} x {each}"
            text = f"quota {quota['metadata']['name']!r} allows {hard[name]} {name}; the job asks for {job_asks}"
            if amount > most:
                yield Diagnosis("quota", f"{text}: ask for less or for fewer workers, or have the quota raised")
            elif amount + parse_quantity(used) > most:
                yield f"{text} and {used} is used now: the job waits for it"


def job(access: Access, spec: JobSpec) -> Answer:
    """Asks whether the operator is installed, and whether it and the namespace accept the job."""
    kind = access.kind
    try:
        access.post(access.jobs(), kind.render(spec), dryRun="All")
    except Exception as error:
        status = api_errors.status_of(error)
        if api_errors.is_timeout(error):  # the API server itself answers: this was not the first question
            yield Diagnosis("cluster", api_errors.silent_operator(access, "its webhook did not look at a job in time"))
        elif status == 404:
            groups = {group["name"] for group in access.get("/apis")["groups"]}
            other_kinds = [other for other in KINDS.values() if other is not kind and other.group in groups]
            notes = [f" ({o.operator.name} is there, which executes Cluster(kind={o.name!r}))" for o in other_kinds]
            yield Diagnosis("cluster", api_errors.no_operator(access) + "".join(notes))
        # A missing right is told by the question for rights; a job that is there is the client's own.
        elif status != 409 and not api_errors.forbidden(error):
            raise


def queue(access: Access, spec: JobSpec) -> Answer:
    """Asks whether Kueue is installed and has the queue."""
    name = spec.queue
    if not name:
        return
    kueue = access.find(f"/apis/{KUEUE}")
    if kueue is None:
        yield Diagnosis("input", f"queue={name!r}: {access.where} has no Kueue; leave queue out, or have it installed")
        return
    version = kueue["preferredVersion"]["version"]
    if access.find(f"/apis/{KUEUE}/{version}/namespaces/{access.namespace}/localqueues/{name}") is None:
        lists = f"`kubectl -n {access.namespace} get localqueues` lists them"
        yield Diagnosis("input", f"queue={name!r}: namespace {access.namespace} has no such LocalQueue; {lists}")


def pod(access: Access, spec: JobSpec) -> Answer:
    """Asks whether a worker's pod would be admitted: pod security, limit ranges, account, priority class, policies."""
    kind = access.kind
    metadata = {"name": f"{spec.name}-{kind.role}-0", "labels": {**spec.labels, kind.worker_label: "0"}}
    worker = {**pod_spec(spec, kind.container, kind.worker_label), "restartPolicy": "Never"}
    try:
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": worker}
        access.post(access.core("pods"), body, dryRun="All")
    except Exception as error:
        words, status = api_errors.words_of(error), api_errors.status_of(error)
        if status == 409:  # a pod of an earlier job
            return
        if status not in (400, 403, 422) or api_errors.forbidden(error):
            raise
        if "exceeded quota" not in words:  # which the quotas themselves tell better
            reason = judge(words)
            message = f"a worker's pod would not be admitted: {reason.message}; {reason.remedy}"
            yield Diagnosis(reason.cause, message) if reason.permanent else message


def secrets(access: Access, spec: JobSpec) -> Answer:
    """Asks whether the Secrets that workers need have the expected keys."""
    keys_of_secrets: dict[str, list[str]] = {}
    for value in spec.environment.values():
        if isinstance(value, SecretKey) and not value.optional:
            keys_of_secrets.setdefault(value.secret, []).append(value.key)
    for name, keys in keys_of_secrets.items():
        secret = access.find(access.core("secrets", name))
        if secret is None:
            text = f"is not in namespace {access.namespace}, and workers take {', '.join(keys)} from it"
            yield Diagnosis(
                "permission", f"Secret {name!r} {text}: {create_secret_command(name, keys, access.namespace)}"
            )
        elif lacking := [key for key in keys if key not in (secret.get("data") or {})]:
            has = ", ".join(sorted(secret.get("data") or {})) or "nothing"
            text = f"in namespace {access.namespace} has no {', '.join(lacking)}; it has {has}"
            yield Diagnosis("permission", f"Secret {name!r} {text}. Workers take {', '.join(keys)} from it")


def create_secret_command(name: str, keys: Sequence[str], namespace: str) -> str:
    """Returns a command that creates a Secret with these keys.

    It takes no value as an argument, because the list of processes and the shell's history would show it.
    """
    lines = " and ".join(f"{key}=..." for key in keys)
    return (
        f"`kubectl -n {namespace} create secret generic {name} --from-env-file=/dev/stdin`, then type {lines}, each on "
        "a line of its own, and Ctrl-D"
    )


def claims(access: Access, spec: JobSpec) -> Answer:
    """Asks whether the claims that workers mount exist, and can be mounted by all workers."""
    for name in dict.fromkeys([*filter(None, [spec.cache]), *spec.claims]):
        claim = access.find(access.core("persistentvolumeclaims", name))
        modes = set(claim["spec"].get("accessModes") or ()) if claim else set()
        if claim is None:
            lists = f"`kubectl -n {access.namespace} get persistentvolumeclaims` lists them"
            text = f"namespace {access.namespace} has no such PersistentVolumeClaim; {lists}"
            yield Diagnosis("input", f"claim {name!r}: {text}")
        elif spec.workers > 1 and modes == {"ReadWriteOncePod"}:
            text = f"which one pod can mount, and the job has {counted(spec.workers, 'worker')}"
            remedy = "take one that is ReadWriteMany, or workers=1"
            yield Diagnosis("input", f"claim {name!r} is ReadWriteOncePod, {text}; {remedy}")
        elif spec.workers > 1 and modes <= {"ReadWriteOnce", "ReadWriteOncePod"}:
            yield f"claim {name!r} is ReadWriteOnce: {counted(spec.workers, 'worker')} have to run on one node"


# In the order in which findings are told; beside each, what it asks for, and what stays unknown where that may not be
# asked.
QUESTIONS = (
    (namespace, "get", "namespaces", "the namespace's state"),
    (rights, "create", "selfsubjectaccessreviews", ""),
    (quotas, "list", "resourcequotas", "its quotas"),
    (job, "create", "jobs", ""),
    (queue, "get", "localqueues", "whether its queue is there"),
    (pod, "create", "pods", "whether a worker's pod would be admitted"),
    (secrets, "get", "secrets", "whether its Secrets are there"),
    (claims, "get", "persistentvolumeclaims", "whether its claims are there"),
)
