"""Faults in a job of a cluster: commands in its pods, deletions, a node that is drained; and the rights they need.

The supervisor is process 1 of its container. The kernel lets no process of a container kill its process 1 by SIGKILL,
so that a worker that ends without a word is a pod that is deleted without grace.
"""

from collections.abc import Iterable
from typing import cast

from train_func.client.backend import BoundJob
from train_func.client.cluster.access import Access
from train_func.client.cluster.admission import missing_rights
from train_func.client.cluster.api_errors import Rights, grant
from train_func.client.cluster.cluster_job import ClusterJob
from train_func.client.drill.faults import Fault, Injection
from train_func.client.status import Pod
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.text import counted

ROLE = "train-func-drill"
EXECUTE: Rights = {("", "pods/exec"): ("get", "create")}
RIGHTS: dict[str, Rights] = {
    "rank": EXECUTE,
    "hang": EXECUTE,
    "worker": EXECUTE,
    "pod": {("", "pods"): ("delete",)},
    "node": {("", "pods/eviction"): ("create",)},
}
RIGHTS_OF_CLUSTER: dict[str, Rights] = {"node": {("", "nodes"): ("get", "patch")}}
# The children of process 1 with this name; what a rank has started may have its name too.
SIGNAL_RANK = """
for process in /proc/[0-9]*; do
    [ "$(cat "$process/comm" 2>/dev/null)" = "$0" ] || continue
    grep -q "^PPid:[[:space:]]*1$" "$process/status" || continue
    kill "-$1" "${process#/proc/}" && echo "${process#/proc/}" && exit 0
done
exit 1
"""


def injector(job: BoundJob, store: Store) -> "ClusterFaults":
    """Returns the injector for a job of a cluster."""
    return ClusterFaults(cast(ClusterJob, job), store)


class ClusterFaults:
    """Causes faults in a job of Cluster(...), by the account that looks at it."""

    def __init__(self, job: ClusterJob, store: Store) -> None:
        self._job, self._store = job, store

    def check(self, fault: Fault) -> None:
        """Raises InvalidInput where the fault cannot be caused on a cluster, or a right is missing, with its Role."""
        if fault.kill == "store":
            raise InvalidInput(
                f"kill='store': {self._store.address} is a server that other runs use too, and is not for a drill to "
                "stop. Its administrator can, as with `kubectl scale deployment myminio --replicas=0` and "
                "`--replicas=1` a minute later; job.watch() shows what the workers say meanwhile. Or drill a run of "
                "Local() with a store in a folder"
            )
        if fault.kill == "worker" and fault.signal == "KILL":
            raise InvalidInput(
                "kill='worker', signal='KILL': the supervisor is process 1 of its container, which SIGKILL from inside "
                "does not reach. kill='pod' ends all of its processes the same way; signal='TERM' asks it to end"
            )
        access = self._job.access()
        with access.asking("create", "selfsubjectaccessreviews"):
            lines = []
            for table, of_cluster in ((RIGHTS, False), (RIGHTS_OF_CLUSTER, True)):
                needed = table.get(fault.kill, {})
                if missing := missing_rights(access, needed, of_cluster=of_cluster):
                    text = "; ".join(f"{', '.join(verbs)} {name}" for name, verbs in missing.items())
                    help_ = grant(access, needed, ROLE, "to who drills", of_cluster=of_cluster)
                    lines.append(f"kill={fault.kill!r}: you may not {text} in {access.where}; {help_}")
        if lines:
            raise InvalidInput(lines, cause="permission")

    def inject(self, fault: Fault, victim: int | None) -> Injection:
        """Causes the fault now."""
        access = self._job.access()
        pods = {pod.worker: pod for pod in self._job.pods() if pod.phase == "Running" and not pod.deleted}
        if fault.kind.victim == "rank":
            return _signal_rank(access, pods.values(), victim or 0, str(fault.signal))
        worker = max(pods, default=0) if victim is None else victim
        if worker not in pods:
            there = ", ".join(map(str, sorted(pods))) or "none"
            raise InvalidInput(f"worker={worker}: it does not run at the moment; these do: {there}")
        pod = pods[worker]
        match fault.kill:
            case "worker":
                is_done, words = access.execute(pod.name, "sh", "-c", f"kill -{fault.signal} 1")
                if not is_done:
                    raise InvalidInput(f"worker={worker}: `kill` in {pod.name} failed: {words}; try again")
                return Injection(f"sent SIG{fault.signal} to the supervisor of worker {worker}, in {pod.name}")
            case "pod":
                is_graceful = fault.signal == "TERM"
                self._job.evict(worker, force=not is_graceful)
                how = "" if is_graceful else ", without grace"
                return Injection(f"deleted the pod {pod.name} of worker {worker}{how}")
            case _:
                return _drain(access, pod.node, [other for other in pods.values() if other.node == pod.node])


def _signal_rank(access: Access, pods: Iterable[Pod], rank: int, signal: str) -> Injection:
    """Ranks follow the members of a group, so that the worker of the same number comes first, and then the others."""
    said = ""
    for pod in sorted(pods, key=lambda pod: (pod.worker != rank, pod.worker)):
        is_done, words = access.execute(pod.name, "sh", "-c", SIGNAL_RANK, f"rank {rank}", signal)
        if is_done:
            return Injection(f"sent SIG{signal} to rank {rank}, process {words} of worker {pod.worker}, in {pod.name}")
        said = words or said
    raise InvalidInput(f"rank={rank}: no process of a pod that runs is this rank{said and f' ({said})'}; try again")


def _drain(access: Access, node: str, pods: list[Pod]) -> Injection:
    """Cordons a node and evicts the job's pods from it, as ``kubectl drain`` does; undone, it takes pods again."""
    path = f"/api/v1/nodes/{node}"
    evictions = {
        access.core("pods", f"{pod.name}/eviction"): {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": access.namespace},
        }
        for pod in pods
    }
    with access.asking("create", "pods/eviction"):  # a refusal leaves everything as it is
        for eviction, body in evictions.items():
            access.post(eviction, body, dryRun="All")
    with access.asking("get", "nodes"):
        was_cordoned = bool(access.get(path)["spec"].get("unschedulable"))

    def uncordon() -> None:
        if not was_cordoned:
            with access.asking("patch", "nodes"):
                access.patch(path, {"spec": {"unschedulable": None}})

    try:
        with access.asking("patch", "nodes"):
            access.patch(path, {"spec": {"unschedulable": True}})
        with access.asking("create", "pods/eviction"):
            for eviction, body in evictions.items():
                access.post(eviction, body)
    except BaseException:
        uncordon()
        raise
    again = "" if was_cordoned else f" (if this process is killed: `kubectl uncordon {node}`)"
    return Injection(f"cordoned the node {node}{again} and evicted {counted(len(pods), 'pod')} from it", uncordon)
