"""Cluster: the backend that executes jobs on a Kubernetes.

Loaded when it is first used, and the kubernetes client only with the first request: its import takes a second.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_func.client.cluster.cluster import Cluster

__all__ = ["Cluster"]


def __getattr__(name: str) -> Any:
    if name != "Cluster":
        raise AttributeError(f"train_func.client.cluster has no {name!r}; it offers Cluster")
    from train_func.client.cluster.cluster import Cluster

    return Cluster
