"""Who reaches whom in the cluster, found out by trying, where the cluster enforces network policies."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster import accounts, restricted_pod
from tests.cluster.kubectl import Kubectl, until

PORT = 8000
LISTENS = f"from http.server import test, SimpleHTTPRequestHandler as H; test(H, port={PORT})"
TRIES = """
import socket, sys, time
def reached(address):
    host, port = address.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=3).close()
        return True
    except OSError:
        return False
rounds = []
while rounds[-3:] != 3 * rounds[-1:] or len(rounds) < 3:
    rounds.append([address for address in sys.argv[1:] if reached(address)])
    time.sleep(1)
print("\\n".join(rounds[-1]))
"""  # a new pod is only some moments later one that the rules know
DENIES = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "deny-all"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}


def reached(admin: Kubectl, namespace: str, *addresses: str, labels: dict[str, str] | None = None) -> set[str]:
    """Those of the addresses, HOST:PORT, to which a pod with these labels can connect."""
    pod = restricted_pod.pod(os.environ["TRAIN_FUNC_IMAGE"], "tries", "python", "-c", TRIES, *addresses)
    pod["metadata"]["labels"] = labels or {}
    return set(restricted_pod.said_by(Kubectl(admin.kubeconfig, namespace), pod).split())


@contextmanager
def listening(admin: Kubectl, namespace: str, labels: dict[str, str] | None = None) -> Iterator[str]:
    """A pod in this namespace with these labels, which answers every pod: its address."""
    pod = restricted_pod.pod(os.environ["TRAIN_FUNC_IMAGE"], "listens", "python", "-c", LISTENS)
    pod["metadata"]["labels"] = labels or {}
    there = Kubectl(admin.kubeconfig, namespace)
    there.apply(pod)
    try:
        there("wait", "pod/listens", "--for=condition=Ready", "--timeout=400s", seconds=410)
        yield f"{there('get', 'pod', 'listens', '--output=jsonpath={.status.podIP}')}:{PORT}"
    finally:
        there("delete", "pod", "listens", "--grace-period=1", "--timeout=60s", seconds=70)


def skip_unless_enforced(admin: Kubectl) -> None:
    """Skips, and says so, where a policy that denies everything lets a connection in."""
    with accounts.namespace_of_its_own(admin) as name, listening(admin, name) as address:
        until(lambda: reached(admin, name, address) or None, "the pod that listens is reached")
        Kubectl(admin.kubeconfig, name).apply(DENIES)
        for _ in range(3):  # policies take a moment to be enforced
            if not reached(admin, name, address):
                return
    pytest.skip("NOT TESTED: this cluster enforces no network policies")
