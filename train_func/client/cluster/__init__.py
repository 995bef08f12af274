"""Cluster: the backend that executes jobs on a Kubernetes.

The kubernetes client is loaded with the first request: its import takes a second.
"""
