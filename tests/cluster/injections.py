"""Faults that only a cluster has, as rows of the table of causes; tests/faults/injections.py has the others."""

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.cluster import accounts, in_cluster_minio, restricted_pod, training_operator
from tests.cluster.hanging import SLEEPS, Edit, Hanging, hanging, runs
from tests.cluster.kubectl import Kubectl, until
from tests.cluster.stepping import Listening
from tests.cluster.test_explanations import HOPELESS, LOW, PASSING, objects
from tests.cluster.test_node_faults import PRETENDED, on_a_pretended_node
from tests.cluster.test_rare_failures import FILLS_ITS_DISK, over_ephemeral
from tests.cluster.testbed_machine import PRETENDING, RUN, frozen, pid_in
from tests.faults import faulty
from tests.faults.injections import CLUSTER, Injection, Kind, Told, drills, ends
from train_func.errors import Cause

OTHERS = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "TRAIN_FUNC_STORE_SECRET")
TOLD_SECONDS = 150  # the kubelet measures volumes once a minute
PASSING_CAUSES: dict[str, Cause] = {
    "quota": "quota",
    "no-room": "scheduling",
    "suspended": "quota",
    "no-operator": "cluster",
}


@contextlib.contextmanager
def as_notebook(folder: Path) -> Iterator[None]:
    """A namespace with a store, and its account in the environment of this process; it may cause every fault.

    Where the testbed can pretend a node, it does.
    """
    image = os.environ["TRAIN_FUNC_IMAGE"]
    admin = accounts.admin_of_the_cluster(folder)
    training_operator.ensure(admin)
    with accounts.namespace_of_its_own(admin) as namespace, contextlib.ExitStack() as after:
        own = Kubectl(admin.kubeconfig, namespace)
        restricted_pod.said_by(own, restricted_pod.pod(image, "pull", "true"))
        notebook = accounts.notebook_user(admin, namespace, folder)
        wrong = {"rootUser": "stranger", "rootPassword": "wrong"}
        metadata = {"name": "wrong", "namespace": namespace}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": accounts.ACCOUNT, "namespace": namespace}],
        }
        admin.apply(
            *objects(namespace),
            {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": wrong},
            binding,
        )
        after.callback(admin, "delete", "priorityclass", LOW)
        after.callback(admin, "delete", "clusterrolebinding", namespace)
        if PRETENDED.exists():
            environment = {**os.environ, "KUBECONFIG": str(admin.kubeconfig)}
            subprocess.run([PRETENDED, "1"], check=True, capture_output=True, timeout=120, env=environment)
            after.callback(admin, "delete", "nodes", "--selector=type=kwok")
        if not (run := folder / "run").exists():  # beside the kubeconfig of the account too
            run.symlink_to(RUN)
        store = after.enter_context(in_cluster_minio.running(own))
        for name in OTHERS:
            os.environ.pop(name, None)
        os.environ.update(in_cluster_minio.variables(notebook, store))
        yield


def hears(edit: Edit = lambda *_: None, **options: Any) -> Callable[[Injection], Told]:
    """The job is there past the preflight, and a client that waits hears what hinders it."""

    def act(injection: Injection) -> Told:
        with job_of(injection, edit, **options) as found:
            return first_told(found)

    return act


def is_evicted(injection: Injection) -> Told:
    """By the API that a drained node uses."""
    with job_of(injection, runs(SLEEPS), grace_seconds=1) as found:
        pod, namespace = f"{found.job.record.job_name}-worker-0", os.environ["TRAIN_FUNC_NAMESPACE"]
        until(lambda: found.job.state == "Running", "the job runs", TOLD_SECONDS)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        listening = Listening(found.job)
        Kubectl(Path(os.environ["KUBECONFIG"]))("create", f"--raw={path}", "--filename=-", given=json.dumps(eviction))
        return first_told(found, listening)


def loses_its_node(injection: Injection) -> Told:
    """A node that is pretended, and goes silent."""
    with job_of(injection, on_a_pretended_node, grace_seconds=5) as found:
        until(lambda: found.job.state == "Running", "the job runs", TOLD_SECONDS)
        listening = Listening(found.job)
        with frozen(pid_in(PRETENDING)):
            return first_told(found, listening)


@contextlib.contextmanager
def job_of(injection: Injection, edit: Edit, **options: Any) -> Iterator[Hanging]:
    """A job of one worker, gone afterwards."""
    title = "".join(letter if letter.isalnum() else "-" for letter in injection.kind.name.lower())[:24].rstrip("-")
    found = hanging(f"{title}-{injection.seed}", edit, **options)
    try:
        yield found
    finally:
        found.job.delete()


def first_told(found: Hanging, listening: Listening | None = None) -> Told:
    """What a client that waits is told first."""
    listening = listening or Listening(found.job)
    try:
        first = until(lambda: listening.heard[:1], "a diagnosis", TOLD_SECONDS, listening.evidence)[0]
    except AssertionError as nothing:
        return None, str(nothing)
    finally:
        listening.stop()
    return first.cause, str(first)


def kind(name: str, causes: list[Cause], act: Callable[[Injection], Told | None], **fields: Any) -> Kind:
    """A row in which no worker is at fault."""
    return Kind(name=name, causes=causes, act=act, **{"victim": "", "on": [CLUSTER], "beside": "many", **fields})


KINDS = [
    *(kind(f"job: {title}", [cause], hears(**how)) for title, (how, cause, _) in HOPELESS.items()),  # type: ignore[list-item]
    *(kind(f"job: {title}", [PASSING_CAUSES[title]], hears(**how)) for title, (how, _) in PASSING.items()),
    kind("a pod is evicted", ["preemption"], is_evicted),
    kind("the volume of a worker is full", ["storage"], hears(runs(FILLS_ITS_DISK), disk="20Mi", grace_seconds=1)),
    kind("the disk of a pod is over its limit", ["storage"], hears(over_ephemeral, grace_seconds=1)),
    kind(
        "the key of the store is wrong",
        ["storage", "permission"],
        lambda injection: ends(injection.submit()),
        options={"store_secret": "wrong"},
    ),
    kind(
        "drill: a pod is deleted",
        ["preemption", "killed"],
        drills("pod", "KILL", "TERM"),
        function=faulty.trains,
        victim="worker",
        beside="one",
    ),
    *([kind("a node is lost", ["cluster"], loses_its_node, beside="none")] if PRETENDED.exists() else []),
]
