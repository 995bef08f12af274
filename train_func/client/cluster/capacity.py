"""Whether the nodes of a cluster could ever hold a job's workers, and a table that says per node why one does not."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from train_func.client import quantity
from train_func.client.cluster import faults
from train_func.client.cluster.access import Access
from train_func.client.kinds.kind import Workers
from train_func.client.status import SchedulingReport

Json = Mapping[str, Any]
Amounts = Mapping[str, Decimal]

PAGE = "500"  # objects of one answer; what goes on beyond it is not looked at
RUNNING = "status.phase!=Succeeded,status.phase!=Failed"
GROWING = ("karpenter.sh", "autoscaling.x-k8s.io")  # API groups that only a cluster serves whose nodes come and go
GROWS = "    (this cluster adds nodes by itself when workers find no room)"
SHOWN = 8  # nodes in a table
# Taints that Kubernetes itself puts on a node that is unwell or new, and takes away again.
PASSING = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/uninitialized")
ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class NodeFit:
    """What one node has for a worker."""

    node: str
    whole: Amounts
    free: Amounts | None
    """None where the pods of the cluster may not be looked at."""
    never: tuple[str, ...]
    """Why it could not hold one even if it were empty and well."""
    now: tuple[str, ...]
    """Why it cannot hold one at the moment, beyond that."""


def requests(pod: Json) -> dict[str, Decimal]:
    """What the containers of a pod's spec ask for; the scheduler counts init containers and an overhead too."""
    together: defaultdict[str, Decimal] = defaultdict(Decimal)
    for container in pod.get("containers") or ():
        _add(together, _asked(container))
    return dict(together)


def _add(together: defaultdict[str, Decimal], more: Amounts) -> None:
    for name, amount in more.items():
        together[name] += amount


def report(workers: Workers, nodes: Iterable[Json], pods: Iterable[Json] | None) -> SchedulingReport:
    """Per node what it has for one worker, those that come closest first, and what all of them lack.

    Args:
        nodes: as the API lists them.
        pods: of all namespaces; None where they may not be listed.
    """
    asked, used = requests(workers.spec), _used(pods) if pods is not None else None
    found = [_node_fit(workers.spec, asked, node, used) for node in nodes]
    found.sort(key=lambda fit: (len(fit.never), len(fit.now), fit.node))
    return SchedulingReport(_lack(workers.num, asked, found), _table(asked, found))


def _lack(num_workers: int, asked: Amounts, found: Sequence[NodeFit]) -> str | None:
    """Why these nodes, even if they were empty, could not hold all workers; None when they could."""
    wanted = amounts(asked)
    if not found:
        return f"the cluster has no node at all; each worker asks for {wanted}"
    able = [fit for fit in found if not fit.never]
    if not able:
        none = f"none of the cluster's {len(found)} nodes" if len(found) > 1 else "the cluster's only node"
        return f"{none} could {'never' if len(found) == 1 else 'ever'} hold a worker, which asks for {wanted}"
    places = sum(_places(asked, fit) for fit in able)
    if places >= num_workers:
        return None
    return (
        f"{num_workers} workers that ask for {wanted} each have to run at once, and the nodes, even if they were "
        f"empty, could hold {places}"
    )


def _table(asked: Amounts, found: Sequence[NodeFit]) -> str:
    """Per node what is free of what there is, and why it holds no worker."""
    shown = [(fit.node, _has(asked, fit), "; ".join((*fit.never, *fit.now)) or "could hold one") for fit in found]
    rows = [("node", "free of all" if any(r.free is not None for r in found) else "has", "why not"), *shown[:SHOWN]]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"    {node:<{widths[0]}}  {has:<{widths[1]}}  {why}" for node, has, why in rows]
    more = len(shown) - SHOWN
    return "\n".join([*lines, *([f"    ... and {more} more"] if more > 0 else [])])


def parsed(resources: Mapping[str, Any] | None) -> dict[str, Decimal]:
    """Resources as Kubernetes writes them."""
    return {name: quantity.parse(str(text)) for name, text in (resources or {}).items()}


def amounts(resources: Amounts) -> str:
    """Resources as people write them: ``2 cpu, 8Gi memory``."""
    return ", ".join(f"{worded(name, amount)} {name}" for name, amount in resources.items()) or "nothing"


def worded(name: str, amount: Decimal) -> str:
    """One resource's amount as people write it."""
    if name == "memory" or name.endswith("storage") or name.startswith("hugepages"):
        return quantity.readable(int(amount)).replace(".0", "")
    return f"{amount.normalize():f}"


def _asked(container: Json) -> dict[str, Decimal]:
    resources = container.get("resources") or {}
    # What has a limit and no request is requested as much.
    return {**parsed(resources.get("limits")), **parsed(resources.get("requests"))}


def _used(pods: Iterable[Json]) -> Mapping[str, Amounts]:
    """Per node what its pods have asked for, and their number."""
    used: defaultdict[str, defaultdict[str, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node and (pod.get("status") or {}).get("phase") not in ENDED:
            _add(used[node], {**requests(pod["spec"]), "pods": Decimal(1)})
    return used


def _node_fit(worker: Json, asked: Amounts, node: Json, used: Mapping[str, Amounts] | None) -> NodeFit:
    name, spec, status = node["metadata"]["name"], node.get("spec") or {}, node.get("status") or {}
    whole = parsed(status.get("allocatable"))
    free = None
    if used is not None:
        taken = used.get(name, {})
        free = {kind: amount - taken.get(kind, Decimal(0)) for kind, amount in whole.items()}
    passing, lasting = _taints(worker.get("tolerations") or (), spec.get("taints") or ())
    wrong = _labels(worker.get("nodeSelector") or {}, node["metadata"].get("labels") or {})
    never = [*wrong, *lasting, *_short(asked, whole, "in all")]
    now = [*_unwell(spec, status), *passing]
    if free is not None and not never:
        now += _short(asked, free, "free")
    return NodeFit(name, whole, free, tuple(never), tuple(dict.fromkeys(now)))


def _labels(selector: Mapping[str, str], labels: Mapping[str, str]) -> list[str]:
    return [
        f"label {key}={value} is expected, it has {f'{key}={labels[key]}' if key in labels else 'none'}"
        for key, value in selector.items()
        if labels.get(key) != value
    ]


def _taints(tolerations: Sequence[Json], taints: Iterable[Json]) -> tuple[list[str], list[str]]:
    """Those that keep the worker away: the passing ones, and those that stay."""
    passing: list[str] = []
    lasting: list[str] = []
    for taint in taints:
        if taint["effect"] == "PreferNoSchedule" or any(_tolerates(found, taint) for found in tolerations):
            continue
        value = f"={taint['value']}" if taint.get("value") else ""
        words = f"taint {taint['key']}{value}:{taint['effect']} is not tolerated"
        (passing if taint["key"].startswith(PASSING) else lasting).append(words)
    return passing, lasting


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint["effect"]):
        return False
    if toleration.get("operator") == "Exists":
        return toleration.get("key") in (None, "", taint["key"])
    return (toleration.get("key"), toleration.get("value") or "") == (taint["key"], taint.get("value") or "")


def _unwell(spec: Json, status: Json) -> list[str]:
    ready = next((found["status"] for found in status.get("conditions") or () if found["type"] == "Ready"), "True")
    return [
        *(["closed for new pods (cordoned)"] if spec.get("unschedulable") else []),
        *(["not ready"] if ready != "True" else []),
    ]


def _short(asked: Amounts, there: Amounts, word: str) -> list[str]:
    """What is missing of ``there``, which is all of the node (word: in all) or what is free of it."""
    found = []
    for name, amount in {**asked, "pods": Decimal(1)}.items():
        has = max(there.get(name, Decimal(0)), Decimal(0))
        if has >= amount:
            continue
        if name == "pods":
            found.append("no room for one more pod")
        elif name not in there:
            found.append(f"has no {name}")
        else:
            found.append(f"{name}: {worded(name, amount)} asked for, {worded(name, has)} {word}")
    return found


def _places(asked: Amounts, fit: NodeFit) -> int:
    wanted = {**asked, "pods": Decimal(1)}
    return min(int(fit.whole.get(name, Decimal(0)) // amount) for name, amount in wanted.items() if amount)


def _has(asked: Amounts, fit: NodeFit) -> str:
    told = []
    for name in asked:
        whole = worded(name, fit.whole.get(name, Decimal(0)))
        if fit.free is not None:
            whole = f"{worded(name, max(fit.free.get(name, Decimal(0)), Decimal(0)))} of {whole}"
        told.append(f"{whole} {name}")
    return ", ".join(told)


def look(access: Access, workers: Workers) -> SchedulingReport | None:
    """Per node why it takes no worker of the job; None where there are more nodes than can be looked at.

    Raises:
        ApiException: the nodes may not be listed.
    """
    nodes = access.get("/api/v1/nodes", limit=PAGE)
    if _goes_on(nodes):
        return None
    found = report(workers, nodes["items"], _pods(access))
    return replace(found, lack=None, table=f"{found.table}\n{GROWS}") if found.lack and grows(access) else found


def grows(access: Access) -> bool:
    """Whether something adds nodes when there is no room, as far as that shows."""
    groups = faults.unless_refused(lambda: access.get("/apis")["groups"]) or ()
    status = "/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status"
    return any(group["name"] in GROWING for group in groups) or bool(faults.unless_refused(lambda: access.get(status)))


def _pods(access: Access) -> list[Json] | None:
    """Those that take room; None where they may not be listed, or are too many."""
    pods = faults.unless_refused(lambda: access.get("/api/v1/pods", limit=PAGE, fieldSelector=RUNNING))
    return None if pods is None or _goes_on(pods) else list(pods["items"])


def _goes_on(answer: Mapping[str, Any]) -> bool:
    return bool((answer.get("metadata") or {}).get("continue"))


def scheduling_report(access: Access, job_name: str) -> SchedulingReport | None:
    """As ``look``, for a job that exists; None where that cannot be known."""
    return faults.unless_refused(lambda: look(access, access.kind.workers(access.get(access.jobs(job_name)))))
