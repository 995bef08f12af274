"""What a namespace allows, held against what a job asks for: resource quotas and limit ranges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from train_func.client import quantity
from train_func.client.cluster import capacity

Json = Mapping[str, Any]

# The operator makes a headless service for every worker; the job's files travel in one ConfigMap.
_PER_WORKER = ("pods", "count/pods", "services", "count/services")
_PER_JOB = ("configmaps", "count/configmaps", "count/pytorchjobs.kubeflow.org")


@dataclass(frozen=True)
class Excess:
    """A quota that a job would go beyond."""

    message: str
    ever: bool
    """Whether it would even if nothing else ran in the namespace."""


def excesses(manifest: Json, quotas: Iterable[Json]) -> list[Excess]:
    """Where the job of ``manifest`` would go beyond a ResourceQuota of its namespace."""
    found = []
    for item in quotas:
        if not _concerns(item["spec"], manifest):
            continue
        status = item.get("status") or {}
        hard = status.get("hard") or item["spec"].get("hard") or {}
        for name, text in hard.items():
            used = quantity.parse(str((status.get("used") or {}).get(name, "0")))
            if excess := _excess(item["metadata"]["name"], name, quantity.parse(str(text)), used, manifest):
                found.append(excess)
    return found


def outside(manifest: Json, ranges: Iterable[Json]) -> list[str]:
    """Where a worker asks for more or less than a LimitRange of the namespace allows."""
    container = _pod(manifest)["containers"][0]
    found = []
    for item in ranges:
        for limit in item["spec"].get("limits") or ():
            if limit["type"] in ("Container", "Pod"):
                found += _beyond(item["metadata"]["name"], limit, container)
    return found


def _excess(quota: str, name: str, hard: Decimal, used: Decimal, manifest: Json) -> Excess | None:
    asked = _asked(name, manifest)
    if asked is None or used + asked <= hard:
        return None
    told = f"quota {quota!r} allows {_worded(name, hard)} {name}; the job asks for {_worded(name, asked)}"
    if asked > hard:
        return Excess(f"{told}: ask for less or for fewer workers, or have the quota raised", ever=True)
    return Excess(f"{told} and {_worded(name, used)} is used now", ever=False)


def _asked(name: str, manifest: Json) -> Decimal | None:
    """What the whole job asks for of what a quota calls ``name``; None: nothing that it counts."""
    num_workers = Decimal(manifest["spec"]["pytorchReplicaSpecs"]["Worker"].get("replicas", 1))
    if name in _PER_WORKER:
        return num_workers
    if name in _PER_JOB:
        return Decimal(1)
    pod = _pod(manifest)
    kind, _, resource = name.partition(".") if name.startswith(("requests.", "limits.")) else ("requests", "", name)
    each = capacity.requests(pod) if kind == "requests" else _limits(pod)
    return each[resource] * num_workers if resource in each else None


def _limits(pod: Json) -> dict[str, Decimal]:
    limits = (pod["containers"][0].get("resources") or {}).get("limits") or {}
    return {name: quantity.parse(str(text)) for name, text in limits.items()}


def _concerns(spec: Json, manifest: Json) -> bool:
    """Whether a quota's scopes take in pods like these, which have requests and a deadline."""
    pod = _pod(manifest)
    terminating = pod.get("activeDeadlineSeconds") is not None
    holds = {
        "Terminating": terminating,
        "NotTerminating": not terminating,
        "BestEffort": False,
        "NotBestEffort": True,
        "CrossNamespacePodAffinity": False,
    }
    if not all(holds.get(scope, True) for scope in spec.get("scopes") or ()):
        return False
    selectors = (spec.get("scopeSelector") or {}).get("matchExpressions") or ()
    return all(_selected(selector, holds, pod) for selector in selectors)


def _selected(selector: Json, holds: Mapping[str, bool], pod: Json) -> bool:
    if selector["scopeName"] != "PriorityClass":
        return holds.get(selector["scopeName"], True)
    given, values = pod.get("priorityClassName"), selector.get("values") or ()
    match selector["operator"]:
        case "In":
            return given in values
        case "NotIn":
            return given not in values
        case "Exists":
            return given is not None
    return given is None


def _beyond(name: str, limit: Json, container: Json) -> list[str]:
    resources = container.get("resources") or {}
    found = []
    for bound, kind in (("max", "limits"), ("min", "requests")):
        for resource, text in (limit.get(bound) or {}).items():
            given = (resources.get(kind) or {}).get(resource)
            if given is None:
                continue
            asked, allowed = quantity.parse(str(given)), quantity.parse(str(text))
            if asked > allowed if bound == "max" else asked < allowed:
                most = "most" if bound == "max" else "least"
                found.append(
                    f"limit range {name!r} allows each {limit['type'].lower()} at {most} {text} {resource}; "
                    f"a worker asks for {given}: change {resource}=..., or have the range changed"
                )
    return found


def _pod(manifest: Json) -> Json:
    pod: Json = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    return pod


def _worded(name: str, amount: Decimal) -> str:
    return capacity.worded(name.removeprefix("requests.").removeprefix("limits."), amount)
