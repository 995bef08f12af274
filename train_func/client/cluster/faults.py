"""What an error of the Kubernetes API means, and what to do about it."""

import json
from typing import TYPE_CHECKING, Any

from train_func.errors import Cause, InvalidInput

if TYPE_CHECKING:
    from train_func.client.cluster.access import Access


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an answer; None when none came."""
    return getattr(error, "status", None) or None


def known(error: BaseException) -> bool:
    """Whether it is an error of the API or of the way there, and no fault of this program."""
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    return isinstance(error, (ApiException, HTTPError, OSError))


def failed(error: BaseException, verb: str, resource: str, access: "Access") -> InvalidInput:
    """The error to raise for one of the API's."""
    cause: Cause = "permission" if status_of(error) in (401, 403) else "unknown"
    return InvalidInput(api_fault(error, verb, resource, access), cause=cause)


def api_fault(error: BaseException, verb: str, resource: str, access: "Access") -> str:
    """What was asked, where, what came back, and what to do."""
    asked = f"{verb} {resource} in namespace {access.namespace} of {access.where}"
    match status_of(error):
        case None | 0:
            return f"{asked}: the API server cannot be reached: {error}; see whether `kubectl get pods` answers"
        case 401:
            return f"{asked}: the credentials are not accepted; log in to the cluster again"
        case 403:
            return f"{asked}: forbidden: {said(error)}; ask for the Role in infra/rbac.yaml"
        case status:
            return f"{asked}: status {status}: {said(error)}"


def said(error: Any) -> str:
    """The server's own words."""
    try:
        return str(json.loads(error.body)["message"])
    except (AttributeError, TypeError, ValueError, KeyError):
        return str(getattr(error, "reason", None) or error)
