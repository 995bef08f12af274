"""What a namespace allows, held against what a job asks for: resource quotas and limit ranges."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from train_func.client import quantity
from train_func.client.cluster import capacity
from train_func.client.kinds.kind import Workers

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Excess:
    """A quota that a job would go beyond."""

    message: str
    ever: bool
    """Whether it would even if nothing else ran in the namespace."""


def excesses(workers: Workers, num_objects: Mapping[str, int], quotas: Iterable[Json]) -> list[Excess]:
    """Where a job that comes to so many objects of each resource would go beyond a quota of its namespace."""
    found = []
    for item in quotas:
        if not _concerns(item["spec"], workers.spec):
            continue
        status = item.get("status") or {}
        hard = status.get("hard") or item["spec"].get("hard") or {}
        for name, text in hard.items():
            used = quantity.parse(str((status.get("used") or {}).get(name, "0")))
            asked = _asked(name, workers, num_objects)
            if excess := _excess(item["metadata"]["name"], name, quantity.parse(str(text)), used, asked):
                found.append(excess)
    return found


def outside(workers: Workers, ranges: Iterable[Json]) -> list[str]:
    """Where a worker asks for more or less than a LimitRange of the namespace allows."""
    container = workers.container
    found = []
    for item in ranges:
        for limit in item["spec"].get("limits") or ():
            if limit["type"] in ("Container", "Pod"):
                found += _beyond(item["metadata"]["name"], limit, container)
    return found


def _excess(quota: str, name: str, hard: Decimal, used: Decimal, asked: Decimal | None) -> Excess | None:
    if asked is None or used + asked <= hard:
        return None
    told = f"quota {quota!r} allows {_worded(name, hard)} {name}; the job asks for {_worded(name, asked)}"
    if asked > hard:
        return Excess(f"{told}: ask for less or for fewer workers, or have the quota raised", ever=True)
    return Excess(f"{told} and {_worded(name, used)} is used now", ever=False)


def _asked(name: str, workers: Workers, num_objects: Mapping[str, int]) -> Decimal | None:
    """What the whole job asks for of what a quota calls ``name``; None: nothing that it counts."""
    if (num := num_objects.get(name.removeprefix("count/"))) is not None:
        return Decimal(num)
    kind, _, resource = name.partition(".") if name.startswith(("requests.", "limits.")) else ("requests", "", name)
    limits = (workers.container.get("resources") or {}).get("limits")
    each = capacity.requests(workers.spec) if kind == "requests" else capacity.parsed(limits)
    return each[resource] * workers.num if resource in each else None


def _concerns(spec: Json, pod: Json) -> bool:
    """Whether a quota's scopes take in pods like these, which have requests and a deadline."""
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


def _worded(name: str, amount: Decimal) -> str:
    return capacity.worded(name.removeprefix("requests.").removeprefix("limits."), amount)
