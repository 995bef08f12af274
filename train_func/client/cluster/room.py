"""Asks what the cluster's nodes have for a job's workers, as far as they may be looked at."""

from collections.abc import Mapping
from typing import Any

from train_func.client.cluster import capacity, faults
from train_func.client.cluster.access import Access
from train_func.client.kinds.kind import Workers
from train_func.client.status import SchedulingReport

PAGE = "500"  # objects of one answer; what goes on beyond it is not looked at
RUNNING = "status.phase!=Succeeded,status.phase!=Failed"
GROWING = ("karpenter.sh", "autoscaling.x-k8s.io")  # API groups that only a cluster serves whose nodes come and go
GROWS = "    (this cluster adds nodes by itself when workers find no room)"

Json = dict[str, Any]


def look(access: Access, workers: Workers) -> SchedulingReport | None:
    """Per node why it takes no worker of the job; None where there are more nodes than can be looked at.

    Raises:
        ApiException: the nodes may not be listed.
    """
    nodes = access.get("/api/v1/nodes", limit=PAGE)
    if _goes_on(nodes):
        return None
    ask = capacity.PodRequest.of(workers)
    found = capacity.rooms(ask, nodes["items"], _pods(access))
    lack, table = capacity.lack(ask, found), capacity.table(ask, found)
    if lack and grows(access):
        return SchedulingReport(None, f"{table}\n{GROWS}")
    return SchedulingReport(lack, table)


def grows(access: Access) -> bool:
    """Whether something adds nodes when there is no room, as far as that shows."""
    try:
        groups = {group["name"] for group in access.get("/apis")["groups"]}
        if groups & set(GROWING):
            return True
        access.get("/api/v1/namespaces/kube-system/configmaps/cluster-autoscaler-status")
    except Exception as error:
        if not faults.known(error):
            raise
        return False
    return True


def _pods(access: Access) -> list[Json] | None:
    """Those that take room; None where they may not be listed, or are too many."""
    try:
        pods = access.get("/api/v1/pods", limit=PAGE, fieldSelector=RUNNING)
    except Exception as error:
        if not faults.known(error):
            raise
        return None
    return None if _goes_on(pods) else list(pods["items"])


def _goes_on(answer: Mapping[str, Any]) -> bool:
    return bool((answer.get("metadata") or {}).get("continue"))


def scheduling_report(access: Access, job_name: str) -> SchedulingReport | None:
    """As ``look``, for a job that exists; None where that cannot be known."""
    try:
        return look(access, access.kind.workers(access.get(access.jobs(job_name))))
    except Exception as error:
        if not faults.known(error):
            raise
        return None
