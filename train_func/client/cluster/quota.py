"""What a namespace allows, held against what a job asks for: its resource quotas."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from train_func.client import quantity
from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.client.kinds.kind import Workers

Json = Mapping[str, Any]


def excesses(workers: Workers, num_objects: Mapping[str, int], quotas: Iterable[Json]) -> list[Diagnosis | str]:
    """Where a job that comes to so many objects of each resource would go beyond a quota of its namespace.

    A text where it would not if nothing else ran there.
    """
    found = []
    for item in quotas:
        if item["spec"].get("scopes") or item["spec"].get("scopeSelector"):
            continue  # it may be meant for other pods; the cluster itself refuses what goes beyond it
        status = item.get("status") or {}
        hard = status.get("hard") or item["spec"].get("hard") or {}
        for name, text in hard.items():
            used = quantity.parse(str((status.get("used") or {}).get(name, "0")))
            asked = _asked(name, workers, num_objects)
            if excess := _excess(item["metadata"]["name"], name, quantity.parse(str(text)), used, asked):
                found.append(excess)
    return found


def _excess(quota: str, name: str, hard: Decimal, used: Decimal, asked: Decimal | None) -> Diagnosis | str | None:
    if asked is None or used + asked <= hard:
        return None
    told = f"quota {quota!r} allows {_worded(name, hard)} {name}; the job asks for {_worded(name, asked)}"
    if asked > hard:
        return Diagnosis("quota", f"{told}: ask for less or for fewer workers, or have the quota raised")
    return f"{told} and {_worded(name, used)} is used now: the job waits for it"


def _asked(name: str, workers: Workers, num_objects: Mapping[str, int]) -> Decimal | None:
    """What the whole job asks for of what a quota calls ``name``; None: nothing that it counts."""
    if (num := num_objects.get(name.removeprefix("count/"))) is not None:
        return Decimal(num)
    kind, _, resource = name.partition(".") if name.startswith(("requests.", "limits.")) else ("requests", "", name)
    limits = (workers.container.get("resources") or {}).get("limits")
    each = requests(workers.spec) if kind == "requests" else _parsed(limits)
    return each[resource] * workers.num if resource in each else None


def requests(pod: Json) -> dict[str, Decimal]:
    """What the containers of a pod's spec ask for; what has a limit and no request is requested as much."""
    together: defaultdict[str, Decimal] = defaultdict(Decimal)
    for container in pod.get("containers") or ():
        resources = container.get("resources") or {}
        for name, amount in {**_parsed(resources.get("limits")), **_parsed(resources.get("requests"))}.items():
            together[name] += amount
    return dict(together)


def _parsed(resources: Mapping[str, Any] | None) -> dict[str, Decimal]:
    return {name: quantity.parse(str(text)) for name, text in (resources or {}).items()}


def _worded(name: str, amount: Decimal) -> str:
    """One resource's amount as people write it."""
    resource = name.removeprefix("requests.").removeprefix("limits.")
    if resource == "memory" or resource.endswith("storage") or resource.startswith("hugepages"):
        return quantity.readable(int(amount)).replace(".0", "")
    return f"{amount.normalize():f}"
