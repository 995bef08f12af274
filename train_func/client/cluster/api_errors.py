"""Meaning and remedy of errors of the Kubernetes API, and the rights that a job needs."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train_func.client.diagnose.reasons import DENIED, judge
from train_func.client.kinds import Kind
from train_func.client.status import Diagnosis
from train_func.errors import InvalidInput

_LOG_IN = (
    "Log in to the cluster again; where the kubeconfig names a file with a token, put a new one there: `kubectl create "
    "token ACCOUNT --duration=8h >FILE`"
)
Rights = Mapping[tuple[str, str], Sequence[str]]  # verbs, by group and resource
ROLE = "train-func-notebook"
NO_API = "what answers there is no Kubernetes API, by its answer in HTML or XML; see the server's address"
ANONYMOUS = "system:anonymous"
_RBAC = re.compile(r"cannot \w+ resource")
_WEBHOOK = re.compile(r'failed calling webhook "(?P<name>[^"]+)"')
_NAMESPACE = re.compile(r'namespaces? "[^"]+" not found')


@dataclass(frozen=True)
class Scope:
    """The scope of a request: a cluster, a namespace of it, and a kind of job."""

    namespace: str
    where: str
    """The name of the cluster in messages."""
    kind: Kind


def status_of(error: BaseException) -> int | None:
    """Returns the HTTP status of an answer; None if none came."""
    return getattr(error, "status", None) or None


def known(error: BaseException) -> bool:
    """Returns whether it is an error of the API or the connection, and no fault of this program."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    return isinstance(error, (ApiException, HTTPError, OSError))


def forbidden(error: BaseException) -> bool:
    """Returns whether the account lacks a right; False for other refusals, and if no credentials were sent."""
    return status_of(error) == 403 and bool(_RBAC.search(words := words_of(error))) and ANONYMOUS not in words


def is_timeout(error: BaseException) -> bool:
    """Returns whether no answer came in time."""
    from urllib3.exceptions import TimeoutError as NoAnswer

    reason = getattr(error, "reason", None)
    return isinstance(error, (TimeoutError, NoAnswer)) or isinstance(reason, NoAnswer) or status_of(error) == 504


def failed(error: BaseException, verb: str, resource: str, scope: Scope) -> InvalidInput:
    """Returns the error to raise for an error of the API; a fault of this program is raised unchanged."""
    diagnosis = diagnose(error, verb, resource, scope)
    return InvalidInput(diagnosis.message, cause=diagnosis.cause)


def diagnose(error: Any, verb: str, resource: str, scope: Scope) -> Diagnosis:
    """Returns request, place, answer and remedy; a fault of this program is raised unchanged."""
    if not known(error):
        raise error
    request = f"{verb} {resource} in namespace {scope.namespace} of {scope.where}"
    words, status = words_of(error), status_of(error)
    match status:
        case None:
            outage = str(getattr(error, "reason", None) or error)
            if "certificate" in outage.lower():
                outage = f"its certificate is not one that the kubeconfig's certificate-authority has signed ({outage})"
            else:
                outage = outage.rpartition("): ")[2]  # behind the name of a connection
            away = f"{scope.where} cannot be reached: {outage}"
            return Diagnosis("cluster", f"{away}. See whether `kubectl get pods` answers with that context")
        case 401:
            refused = f"{scope.where} does not accept the credentials (expired?): {words}. {_LOG_IN}"
            return Diagnosis("permission", refused)
        case 403 if ANONYMOUS in words:
            unsent = f"{scope.where} was sent no credentials: {words}"
            return Diagnosis("permission", f"{unsent}. See whether `kubectl get pods` works with that context")
        case 403 if _RBAC.search(words):
            exists = "if that namespace exists at all (`kubectl get namespaces`)"
            return Diagnosis("permission", f"{request}: forbidden: {words}; {exists}: {role(scope, verb, resource)}")
        case 404 if _NAMESPACE.search(words):
            lists = "`kubectl get namespaces` lists them"
            remedy = f"{lists}, `kubectl create namespace {scope.namespace}` makes it"
            return Diagnosis("input", f"namespace={scope.namespace!r}: {scope.where} has no such namespace; {remedy}")
        case 404 if resource.partition("/")[0] == scope.kind.plural and '" not found' not in words:
            return Diagnosis("cluster", no_operator(scope))
        case 404:
            return Diagnosis("cluster", f"{request}: not found: {words}")
        case 409:
            return Diagnosis("input", f"{request}: it is there already: {words}; attach to it, or delete it first")
        case 400 | 403 | 422 if scope.kind.operator.webhook in words or (status != 403 and not DENIED.search(words)):
            return Diagnosis("input", f"{request}: the cluster does not accept it: {words}")
        case 400 | 403 | 422:
            reason = judge(words)
            remedy = f"; {reason.remedy}" if reason.permanent else ""
            # An error with the cause "cluster" would leave open whether it was done.
            cause = "permission" if reason.cause == "cluster" else reason.cause
            return Diagnosis(cause, f"{request}: refused: {words}{remedy}")
        case 429 if "disruption budget" in words:
            remedy = "Wait until its PodDisruptionBudget allows it, or take kill='pod', which no budget keeps off"
            return Diagnosis("permission", f"{request}: refused: {words} {remedy}")
        case 429:
            seconds = next((v for k, v in (error.headers or {}).items() if k.lower() == "retry-after"), None)
            later = f", and asks to wait {seconds} s" if seconds else ""
            again = "The request was repeated for up to a minute, unless the server asks to wait longer"
            busy = f"the API server has too many requests (status 429){later}: {words}. {again}; submit again later"
            return Diagnosis("cluster", f"{request}: {busy}")
        case _ if webhook := _WEBHOOK.search(words):
            why = f"its webhook {webhook['name']} cannot be called: {words.rpartition(': ')[2]}"
            return Diagnosis("cluster", silent_operator(scope, why))
        case _:
            failure = f"{request}: the API server failed with status {status}: {words}; submit again when it is ready"
            return Diagnosis("cluster", failure)


def rights(kind: Kind) -> Rights:
    """Returns the verbs, by group and resource, that are needed to submit and follow a job of that kind."""
    return {
        (kind.group, kind.plural): ("get", "list", "create", "delete"),
        ("", "pods"): ("list",),
        ("", "pods/log"): ("get",),
        ("", "events"): ("list",),
    }


def role(scope: Scope, verb: str = "", resource: str = "") -> str:
    """Returns a Role for the administrator of the namespace to apply; an installed client has no file of it.

    If ``verb`` is a right to jobs or pods that only some calls need, it is an additional Role with that right.
    """
    for (group, granted), verbs in rights(scope.kind).items():
        if verb and granted == resource and verb not in verbs:
            return grant(scope, {(group, resource): (verb,)}, f"train-func-{verb}-{resource}", "to who submits")
    return grant(scope, rights(scope.kind), ROLE, "to who submits")


def grant(scope: Scope, rights: Rights, name: str, to: str, *, of_cluster: bool = False) -> str:
    """Returns the object that gives these rights, and the command that binds it.

    Args:
        scope: the scope with its namespace.
        rights: the rights to give.
        name: name of the object.
        to: the account that it is bound to, in words.
        of_cluster: whether it is a ClusterRole, for objects of no namespace.
    """
    rules = [
        f"- {{apiGroups: [{json.dumps(group)}], resources: [{resource}], verbs: [{', '.join(verbs)}]}}"
        for (group, resource), verbs in rights.items()
    ]
    kind, binding = ("ClusterRole", "clusterrolebinding") if of_cluster else ("Role", "rolebinding")
    where = "" if of_cluster else f" -n {scope.namespace}"
    bind = f"kubectl create {binding} {name}{where} --{kind.lower()}={name} --user=NAME"
    metadata = f"{{name: {name}}}" if of_cluster else f"{{name: {name}, namespace: {scope.namespace}}}"
    return "\n".join(
        [
            f"have this {kind} applied with `kubectl apply -f FILE`, and bound {to}: `{bind}`:",
            f"apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata: {metadata}\nrules:",
            *rules,
        ]
    )


def no_operator(scope: Scope) -> str:
    """Returns the message for a cluster that does not know the kind of job."""
    kind = scope.kind
    return (
        f"{kind.operator.name} is not installed: {scope.where} serves no {kind.name} ({kind.group}/{kind.version}). "
        f"Have it installed, {kind.operator.install}"
    )


def silent_operator(scope: Scope, why: str) -> str:
    """Returns the message for an operator whose webhook cannot be called."""
    operator = scope.kind.operator
    return (
        f"the {operator.name} of {scope.where} does not answer: {why}. It starts within a minute or so; otherwise "
        f"have the administrator of the cluster look: {operator.look}"
    )


def words_of(error: Any) -> str:
    """Returns the server's own words."""
    try:
        return str(json.loads(error.body)["message"])
    except (AttributeError, TypeError, ValueError, KeyError):
        body = getattr(error, "body", None) or ""
        body = (body.decode(errors="replace") if isinstance(body, bytes) else str(body)).strip()
        if body.startswith("<"):  # a page, of whatever listens there
            return NO_API
        return body or str(getattr(error, "reason", None) or error).strip()
