"""Cluster: the backend that executes jobs on a Kubernetes.

The kubernetes client is loaded with the first request: its import takes a second.
"""

from train_func.client.cluster.cluster import Cluster

__all__ = ["Cluster"]
