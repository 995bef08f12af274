"""What a cluster would say to a job, asked before anything is created: all questions at once, all findings at once."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from train_func.client.cluster import checks, faults
from train_func.client.cluster.access import Access, run_concurrently
from train_func.client.cluster.checks import Asked
from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.errors import InvalidInput

REACH_SECONDS = 2.5  # for the first answer; without it nothing else can be known
SECONDS = 4.5  # for everything, one slow first answer included
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
# In the order in which findings are told; beside each, what it asks about, and what stays unknown where that may not be
# asked.
CHECKS = (
    (checks.permissions, "create", "selfsubjectaccessreviews", ""),
    (checks.operator, "get", "apis", ""),
    (checks.webhook, "create", "jobs", ""),
    (checks.namespace, "get", "namespaces", "the namespace's state"),
    (checks.pod, "create", "pods", "whether a worker's pod would be admitted"),
    (checks.quotas, "list", "resourcequotas", "its quotas"),
    (checks.secrets, "get", "secrets", "whether its Secrets are there"),
    (checks.claims, "get", "persistentvolumeclaims", "whether its claims are there"),
)
# Who is silent, about all or one cause, when another has told the same better.
ECHOES = (
    (checks.webhook, "quota", checks.quotas),
    (checks.pod, None, checks.namespace),
    (checks.secrets, None, checks.namespace),
    (checks.claims, None, checks.namespace),
)

Json = Mapping[str, Any]
_told: set[tuple[str, ...]] = set()  # what could not be looked at, where: said once, not with every submission


def check(access: Access, manifest: Json, also: Sequence[str] = ()) -> list[str]:
    """Asks everything that can be known before the job of ``manifest`` is created.

    Args:
        also: faults that are known already and have to be told with the others.

    Returns:
        Notes: what could not be looked at, and what may make the job wait.

    Raises:
        InvalidInput: with every finding at once.
    """
    begun, workers = time.monotonic(), access.kind.workers(manifest)
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview"}
    body = {**review, "spec": {"namespace": access.namespace}}
    (first,) = run_concurrently([lambda: access.post(REVIEW, body, seconds=REACH_SECONDS)], REACH_SECONDS)
    if isinstance(first, Exception):
        said: list[Diagnosis | str] = [_unanswered(first, access)]
    else:
        taken = min(time.monotonic() - begun, REACH_SECONDS)  # it takes longer only where a busy server asked for that
        job = Asked(manifest, workers, first["status"].get("resourceRules") or ())
        said = _ask(access, job, SECONDS - taken)
    known = [Diagnosis("input", fault) for fault in also]
    found = list(dict.fromkeys([*known, *(told for told in said if isinstance(told, Diagnosis))]))
    if found:
        raise InvalidInput([finding.message for finding in found], cause=found[0].cause)
    return [told for told in said if isinstance(told, str)]


def _ask(access: Access, job: Asked, seconds: float) -> list[Diagnosis | str]:
    said_by = [partial(list[Diagnosis | str], question(access, job)) for question, *_ in CHECKS]
    answers = run_concurrently(said_by, seconds)
    said: dict[Any, list[Diagnosis | str]] = {}
    unknown: list[str] = []
    for answer, (question, verb, resource, purpose) in zip(answers, CHECKS, strict=True):
        if purpose and isinstance(answer, Exception) and faults.forbidden(answer):
            unknown.append(purpose)
        else:
            said[question] = _taken(answer, verb, resource, access)
    for question, cause, better in ECHOES:
        if any(isinstance(told, Diagnosis) for told in said.get(better, ())):
            told = said.get(question, [])
            said[question] = [one for one in told if isinstance(one, str) or cause not in (None, one.cause)]
    if unknown and (known := (access.where, access.namespace, *unknown)) not in _told:
        _told.add(known)
        said["unknown"] = [f"not known beforehand, for want of the right to look: {', '.join(unknown)}"]
    return [one for told in said.values() for one in told]


def _taken(
    answer: "list[Diagnosis | str] | Exception", verb: str, resource: str, access: Access
) -> list[Diagnosis | str]:
    """What a check said, or what its failing says."""
    if not isinstance(answer, Exception):
        return answer
    if faults.timed_out(answer):
        return [f"{verb} {resource}: {access.where} did not answer in time; it was not waited for"]
    asked = access.kind.plural if resource == "jobs" else resource
    return [faults.diagnosed(answer, verb, asked, access)]


def _unanswered(error: Exception, access: Access) -> Diagnosis:
    if isinstance(error, TimeoutError):
        told = f"{access.where} did not answer within {REACH_SECONDS} s; see whether `kubectl get pods` answers"
        return Diagnosis("cluster", told)
    return faults.diagnosed(error, "create", "selfsubjectrulesreviews", access)
