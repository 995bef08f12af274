"""Cluster: the backend that runs jobs on a Kubernetes cluster.

The kubernetes client is loaded with the first request: its import takes a second.
"""
