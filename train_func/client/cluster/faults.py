"""What an error of the Kubernetes API means, and what to do about it."""

import json
import re
from dataclasses import dataclass
from typing import Any

from train_func.client.cluster import rights
from train_func.client.cluster.sending import NO_API, retry_after
from train_func.client.cluster.timings import Timings
from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.client.diagnose.starting import DENIED, POLICY
from train_func.client.kinds import Kind
from train_func.errors import InvalidInput

_LOG_IN = (
    "Log in to the cluster again; where the kubeconfig names a file with a token, put a new one there: `kubectl create "
    "token ACCOUNT --duration=8h >FILE`"
)
_RBAC = re.compile(r"cannot \w+ resource")
_WEBHOOK = re.compile(r'failed calling webhook "(?P<name>[^"]+)"')
_NAMESPACE = re.compile(r'namespaces? "[^"]+" not found')


@dataclass(frozen=True)
class Target:
    """What is asked: a cluster, a namespace of it, for jobs of one kind."""

    namespace: str
    where: str
    """Which cluster it is, for messages."""
    kind: Kind
    timings: Timings


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an answer; None when none came."""
    return getattr(error, "status", None) or None


def known(error: BaseException) -> bool:
    """Whether it is an error of the API or of the way there, and no fault of this program."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    return isinstance(error, (ApiException, HTTPError, OSError))


def forbidden(error: BaseException) -> bool:
    """Whether a right is missing, and not something else refused what may be asked."""
    return status_of(error) == 403 and bool(_RBAC.search(said(error)))


def timed_out(error: BaseException) -> bool:
    """Whether it took too long, and nothing else is known."""
    from urllib3.exceptions import TimeoutError as NoAnswer

    reason = getattr(error, "reason", None)
    return isinstance(error, (TimeoutError, NoAnswer)) or isinstance(reason, NoAnswer) or status_of(error) == 504


def failed(error: BaseException, verb: str, resource: str, target: Target) -> InvalidInput:
    """The error to raise for one of the API's; a fault of this program is raised as it is."""
    found = diagnosed(error, verb, resource, target)
    return InvalidInput(found.message, cause=found.cause)


def diagnosed(error: BaseException, verb: str, resource: str, target: Target) -> Diagnosis:
    """What was asked, where, what came back, and what to do; a fault of this program is raised as it is."""
    if not known(error):
        raise error
    asked = f"{verb} {resource} in namespace {target.namespace} of {target.where}"
    words = said(error)
    match status_of(error):
        case None:
            away = f"{target.where} cannot be reached: {_why(error)}"
            return Diagnosis("cluster", f"{away}. See whether `kubectl get pods` answers with that context")
        case 401:
            refused = f"{target.where} does not accept the credentials (expired?): {words}. {_LOG_IN}"
            return Diagnosis("permission", refused)
        case 404:
            return _missing(asked, words, resource, target)
        case 409:
            return Diagnosis("input", f"{asked}: it is there already: {words}; attach to it, or delete it first")
        case 400 | 422 if not DENIED.search(words) or target.kind.operator.webhook in words:
            return Diagnosis("input", f"{asked}: the cluster does not take what was asked: {words}")
        case 400 | 403 | 422:
            return _refusal(asked, words, target)
        case 429:
            seconds = retry_after(error)
            later = "" if seconds is None else f", and wants to be asked again after {seconds:.0f} s"
            busy = (
                f"{asked}: the API server has too many requests (status 429){later}: {words}. It is asked again for at "
                f"most {target.timings.busy:.0f} s; submit again later"
            )
            return Diagnosis("cluster", busy)
        case _ if found := _WEBHOOK.search(words):
            why = f"its webhook {found['name']} cannot be called: {words.rpartition(': ')[2]}"
            return Diagnosis("cluster", silent_operator(target, why))
        case status:
            failure = f"{asked}: the API server failed with status {status}: {words}; submit again when it is ready"
            return Diagnosis("cluster", failure)


def _refusal(asked: str, words: str, target: Target) -> Diagnosis:
    if "system:anonymous" in words:
        message = (
            f"{target.where} was sent no credentials: {words}. See whether `kubectl get pods` works with that context"
        )
        return Diagnosis("permission", message)
    if _RBAC.search(words):
        message = (
            f"{asked}: forbidden: {words}; if that namespace exists at all (`kubectl get namespaces`): "
            f"{rights.remedy(target.kind, target.namespace)}"
        )
        return Diagnosis("permission", message)
    if "is being terminated" in words:
        message = f"{asked}: the namespace is being deleted; wait until it is gone and made anew, or take another"
        return Diagnosis("permission", message)
    refused = f"{asked}: refused: {words}"
    if DENIED.search(words):
        return Diagnosis("input", refused if target.kind.operator.webhook in words else f"{refused}; {POLICY}")
    if "exceeded quota" in words or "failed quota" in words:
        return Diagnosis("quota", refused)
    is_input = re.search(r"(maximum|minimum) \S+ usage per|is invalid|no PriorityClass", words)
    return Diagnosis("input" if is_input else "permission", refused)


def _missing(asked: str, words: str, resource: str, target: Target) -> Diagnosis:
    if _NAMESPACE.search(words):
        message = (
            f"namespace={target.namespace!r}: {target.where} has no such namespace; `kubectl get namespaces` lists "
            f"them, `kubectl create namespace {target.namespace}` makes it"
        )
        return Diagnosis("input", message)
    if resource.partition("/")[0] == target.kind.plural and '" not found' not in words:
        return Diagnosis("cluster", no_operator(target))
    return Diagnosis("cluster", f"{asked}: not found: {words}")


def no_operator(target: Target) -> str:
    """What to do about a cluster that does not know the kind of job."""
    kind = target.kind
    return (
        f"{kind.operator.name} is not installed: {target.where} serves no {kind.name} ({kind.group}/{kind.version}). "
        f"Have it installed, {kind.operator.install}"
    )


def silent_operator(target: Target, why: str) -> str:
    """What to do about an operator whose webhook cannot be called."""
    operator = target.kind.operator
    return (
        f"the {operator.name} of {target.where} does not answer: {why}. It starts within a minute or so; otherwise "
        f"have the administrator of the cluster look: {operator.look}"
    )


def _why(error: BaseException) -> str:
    words = str(error)
    if "CERTIFICATE_VERIFY_FAILED" in words or "certificate" in words.lower():
        reason = re.search(r"certificate verify failed: ([^(]+)", words)
        told = reason[1].strip() if reason else "its certificate is not accepted"
        return f"its certificate is not one that the kubeconfig's certificate-authority has signed ({told})"
    for sign, meaning in (
        ("Name or service not known", "its name is not known to the name servers"),
        ("NameResolution", "its name is not known to the name servers"),
        ("Connection refused", "nothing listens there (connection refused)"),
        ("No route to host", "there is no way to it (no route to host)"),
        ("Network is unreachable", "there is no way to it (network unreachable)"),
        ("imed out", "no answer in time"),
        ("Connection aborted", "the connection breaks off"),
        ("ended prematurely", "the connection breaks off"),
    ):
        if sign in words:
            return meaning
    last = words.rpartition(": ")[2].rstrip("')>\" ")
    return last if last and "object at 0x" not in last else type(error).__name__


def said(error: Any) -> str:
    """The server's own words."""
    try:
        return str(json.loads(error.body)["message"])
    except (AttributeError, TypeError, ValueError, KeyError):
        given = getattr(error, "body", None) or ""
        body = (given.decode(errors="replace") if isinstance(given, bytes) else str(given)).strip()
        if body.startswith("<"):  # a page, of whatever listens there
            return NO_API
        return body or str(getattr(error, "reason", None) or error).strip()
