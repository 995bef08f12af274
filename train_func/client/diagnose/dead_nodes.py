"""Nodes that do not answer: their pods stay, and the operator starts no new worker while the old pod is there.

Kubernetes deletes the pods of such a node after the seconds that they tolerate it, and removes none of them before the
node has confirmed its end. The client's clock and the cluster's may differ: the grace period is counted from the look
that finds a pod deleted, and the two clocks are compared only for a pod that was deleted before the first look.
"""

import math
from collections.abc import Callable, Sequence
from datetime import datetime

from train_func.client.diagnose.diagnosis import Diagnosis, workers
from train_func.client.status import Deletion, Pod
from train_func.text import counted, listed

CONFIRMED = 20.0  # seconds after the grace period within which a node that answers has removed its pod
_TAINT = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


class DeadNodes:
    """The nodes that keep workers of one job; ``now`` is a clock in seconds, ``today`` tells the time of day."""

    def __init__(self, now: Callable[[], float], today: Callable[[], datetime]) -> None:
        self._now = now
        self._today = today
        self._overdue: dict[str, float] = {}  # by uid of a deleted pod: when it counts as kept
        self._alive: set[str] = set()  # uids of pods that were seen before they were deleted
        self._told: set[tuple[str, bool]] = set()
        self.current: list[Diagnosis] = []
        """What holds now."""

    def look(self, pods: Sequence[Pod]) -> list[Diagnosis]:
        """What is new: one diagnosis for each node and what it has come to."""
        now = self._now()
        self._alive |= {pod.uid for pod in pods if pod.deletion is None}
        self._overdue = {
            pod.uid: self._overdue.get(pod.uid, now + self._wait(pod.uid, pod.deletion))
            for pod in pods
            if pod.deletion and pod.node and pod.ended is None
        }
        found: dict[tuple[str, bool], list[Pod]] = {}
        for pod in pods:
            is_kept = self._overdue.get(pod.uid, math.inf) <= now
            if is_kept or pod.is_unheard:
                found.setdefault((pod.node, is_kept), []).append(pod)
        self.current, news = [], []
        for (node, is_kept), there in found.items():
            diagnosis = _diagnosis(node, there, is_kept=is_kept)
            self.current.append(diagnosis)
            keys = {(pod.uid, is_kept) for pod in there}
            if not keys <= self._told:
                news.append(diagnosis)
            self._told |= keys
        return news

    def _wait(self, uid: str, deletion: Deletion) -> float:
        """Seconds until a pod, which is seen deleted for the first time, counts as kept by its node."""
        if uid in self._alive:
            return deletion.grace_seconds + CONFIRMED
        left = (deletion.due - self._today()).total_seconds()
        return min(max(left, 0.0), deletion.grace_seconds) + CONFIRMED


def _diagnosis(node: str, pods: Sequence[Pod], *, is_kept: bool) -> Diagnosis:
    who, names = workers([pod.worker for pod in pods]), listed([pod.name for pod in pods])
    where = f"{who}: node {node} does not answer"
    if is_kept:
        due = min(pod.deletion.due for pod in pods if pod.deletion)
        what = (
            f"{where}: it keeps {counted(len(pods), 'deleted pod')} ({names}), due to end at {due:%H:%M:%S} UTC; no "
            "new worker starts in its place before that"
        )
        return Diagnosis("cluster", what, f"have the node started again; {_removal(node, pods)}")
    what = f"{where}: the cluster has heard nothing of {names} for a while"
    return Diagnosis("cluster", what, f"nothing, if the node comes back; if it does not, {_removal(node, pods)}")


def _removal(node: str, pods: Sequence[Pod]) -> str:
    namespace = f" -n {pods[0].namespace}" if pods[0].namespace else ""
    names = " ".join(pod.name for pod in pods)
    return (
        "once its machine is known to be off, an administrator of the cluster runs `kubectl taint nodes "
        f"{node} {_TAINT}` (and the same with a - at its end when the node is back), or an account that may delete "
        f"pods runs `kubectl{namespace} delete pod {names} --grace-period=0 --force`; the job then goes on by itself"
    )
