"""Processes of the testbed's one node, which is this machine: supervisors of pods, the kubelet, and how they freeze."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.cluster.kubectl import Kubectl
from tests.cluster.stepping import Training

RUN = Path(os.environ.get("KUBECONFIG", "")).parent / "run"  # where the testbed keeps process ids
KUBELET, PRETENDING = RUN / "kubelet.pid", RUN / "kwok.pid"
REASON = "the node of this cluster is another machine"


def processes_of(admin: Kubectl, namespace: str, found: Training, worker: int) -> dict[int, bool]:
    """By process id on this machine, those of a worker's container: whether it is the supervisor."""
    pod = f"pod{uid(admin, namespace, found.pod(worker))}"
    return {
        int(process.name): is_supervisor
        for process in Path("/proc").iterdir()
        if process.name.isdecimal() and (is_supervisor := _is_supervisor(process, pod)) is not None
    }


def supervisor_of(admin: Kubectl, namespace: str, found: Training, worker: int) -> int:
    """Its process id on this machine."""
    (pid,) = (pid for pid, is_supervisor in processes_of(admin, namespace, found, worker).items() if is_supervisor)
    return pid


def uid(admin: Kubectl, namespace: str, pod: str) -> str:
    """Of a pod; empty when there is none of that name."""
    output = "--output=jsonpath={.metadata.uid}"
    return admin("get", "pod", pod, f"--namespace={namespace}", "--ignore-not-found", output)


@contextlib.contextmanager
def frozen(pids: Iterable[int]) -> Iterator[float]:
    """They give no sign of life meanwhile; yields when that began."""
    frozen = list(pids)
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield time.time()
    finally:
        for pid in frozen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def pid_in(file: Path) -> list[int]:
    """As ``frozen`` takes it."""
    return [int(file.read_text())]


def _is_supervisor(process: Path, pod: str) -> bool | None:
    """None when it is none of the container's: the pod itself has a process too."""
    try:
        if pod not in (process / "cgroup").read_text() or b"python" not in (process / "cmdline").read_bytes():
            return None
        return re.search(r"^NSpid:.*\s1$", (process / "status").read_text(), re.M) is not None
    except OSError:  # it has ended
        return None
