"""What a cluster would say to a job, asked before anything is created: all questions at once, all findings at once."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from train_func.client.cluster import checks, faults
from train_func.client.cluster.access import Access, run_concurrently
from train_func.client.cluster.checks import Asked, Finding, Note
from train_func.errors import InvalidInput

REACH_SECONDS = 2.5  # for the first answer; without it nothing else can be known
SECONDS = 4.5  # for everything, one slow first answer included
REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
# In the order in which findings are told; beside each, what it asks about.
CHECKS = (
    (checks.permissions, "create", "selfsubjectaccessreviews"),
    (checks.operator, "get", "apis"),
    (checks.webhook, "create", "jobs"),
    (checks.namespace, "get", "namespaces"),
    (checks.image, "", ""),
    (checks.quotas, "list", "resourcequotas"),
    (checks.limits, "list", "limitranges"),
    (checks.nodes, "list", "nodes"),
    (checks.secrets, "get", "secrets"),
    (checks.account, "get", "serviceaccounts"),
    (checks.priority, "get", "priorityclasses"),
    (checks.admission, "create", "pods"),
)
# Who is silent when the others have told the same better: admission stops at the first thing that it refuses.
ECHOES = (
    (checks.webhook, "quota", (checks.quotas,)),
    (checks.secrets, None, (checks.namespace,)),
    (checks.account, None, (checks.namespace,)),
    (checks.admission, None, (checks.limits, checks.account, checks.priority)),
)
# What it means that one of these may not be asked.
UNKNOWN = {
    "namespaces": "the namespace's state",
    "resourcequotas": "its quotas",
    "limitranges": "its limit ranges",
    "nodes": "whether a node could hold a worker",
    "secrets": "whether its Secrets are there",
    "serviceaccounts": "whether the service account is there",
    "priorityclasses": "whether the priority class is there",
    "pods": "whether a worker's pod would be admitted",
}

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
        said = [_unanswered(first, access), *checks.image(access, Asked(manifest, workers))]
    else:
        taken = min(time.monotonic() - begun, REACH_SECONDS)  # it takes longer only where a busy server asked for that
        job = Asked(manifest, workers, first["status"].get("resourceRules") or ())
        said = _ask(access, job, SECONDS - taken)
    known = [Finding("input", fault) for fault in also]
    found = list(dict.fromkeys([*known, *(told for told in said if isinstance(told, Finding))]))
    if found:
        raise InvalidInput([finding.message for finding in found], cause=found[0].cause)
    return [told.text for told in said if isinstance(told, Note)]


def _ask(access: Access, job: Asked, seconds: float) -> list[Finding | Note]:
    answers = run_concurrently([partial(_said, question, access, job) for question, _, _ in CHECKS], seconds)
    said: dict[Any, list[Finding | Note]] = {}
    unknown: list[str] = []
    for answer, (question, verb, resource) in zip(answers, CHECKS, strict=True):
        if isinstance(answer, Exception) and resource in UNKNOWN and faults.forbidden(answer):
            unknown.append(UNKNOWN[resource])
        else:
            said[question] = _taken(answer, verb, resource, access)
    for question, cause, better in ECHOES:
        if any(isinstance(told, Finding) for other in better for told in said.get(other, ())):
            told = said.get(question, [])
            said[question] = [one for one in told if isinstance(one, Note) or cause not in (None, one.cause)]
    if unknown and (known := (access.where, access.namespace, *unknown)) not in _told:
        _told.add(known)
        words = (
            f"not known beforehand, for want of the right to look: {', '.join(unknown)} (infra/rbac-cluster.yaml lets "
            "look at what the whole cluster shares)"
        )
        said["unknown"] = [Note(words)]
    return [one for told in said.values() for one in told]


def _said(question: Callable[[Access, Asked], checks.Said], access: Access, job: Asked) -> list[Finding | Note]:
    return list(question(access, job))


def _taken(
    answer: "list[Finding | Note] | Exception", verb: str, resource: str, access: Access
) -> list[Finding | Note]:
    """What a check said, or what its failing says."""
    if not isinstance(answer, Exception):
        return answer
    if faults.timed_out(answer):
        return [Note(f"{verb} {resource}: {access.where} did not answer in time; it was not waited for")]
    if not faults.known(answer):
        raise answer
    asked = access.kind.plural if resource == "jobs" else resource
    return [Finding(faults.cause_of(answer), faults.api_fault(answer, verb, asked, access))]


def _unanswered(error: Exception, access: Access) -> Finding:
    if isinstance(error, TimeoutError):
        told = f"{access.where} did not answer within {REACH_SECONDS} s; see whether `kubectl get pods` answers"
        return Finding("cluster", told)
    if not faults.known(error):
        raise error
    return Finding(faults.cause_of(error), faults.api_fault(error, "create", "selfsubjectrulesreviews", access))
