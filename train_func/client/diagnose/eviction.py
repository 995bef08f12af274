"""What it means that a cluster took a worker from its node: too much on its disk is the worker's own doing."""

import re

from train_func.client.diagnose.diagnosis import Diagnosis

# What the cluster does to a pod on purpose, as pods name it.
EVICTION_REASONS = {
    "Evicted": "was evicted",
    "Preempting": "was preempted",
    "PreemptionByScheduler": "was preempted",
    "EvictionByEvictionAPI": "was evicted",
    "DeletionByTaintManager": "was removed from its node",
    "DeletionByPodGC": "was lost with its node",
    "TerminationByKubelet": "was ended by its node",
    "NodeLost": "was lost with its node",
    "NodeShutdown": "was ended by its node, which shuts down",
    "Terminated": "was ended by its node, which shuts down",
    "Shutdown": "was ended by its node, which shuts down",
}
_VOLUMES = {"work": "its working folder (/workspace)", "cache": "its cache (/cache)"}
_VOLUME = re.compile(r'Usage of EmptyDir volume "(?P<volume>[^"]+)" exceeds the limit "(?P<limit>[^"]+)"')
_ALL = re.compile(
    r"ephemeral local storage usage exceeds the total limit of containers (?P<all>[^\s\"]+?)\.?(?:\s|$)"
    r'|exceeded its local ephemeral storage limit "(?P<one>[^"]+)"'
)
_NODE = re.compile(r"low on resource: (?:ephemeral-storage|inodes)")
AGAIN = "it is started again, from the beginning (no checkpoints yet)"


def eviction(worker: int, how: str, message: str) -> Diagnosis:
    """What befell the worker.

    Args:
        worker: its number.
        how: one of the values of EVICTION_REASONS.
        message: the cluster's own words.
    """
    words = " ".join(message.split())
    if found := _VOLUME.search(words):
        volume, limit = found["volume"], found["limit"]
        place = _VOLUMES.get(volume, "a volume of its own")
        what = f"worker {worker} {how}: it kept more than disk={limit!r} in {place}: {words}"
        return Diagnosis("storage", what, "raise disk=... or keep less there: job.cancel(), then submit again")
    if found := _ALL.search(words):
        limit = found["all"] or found["one"]
        what = f"worker {worker} {how}: working folder, cache and log together took more than {limit} of disk: {words}"
        return Diagnosis("storage", what, _NOT_OURS)
    if _NODE.search(words):
        what = f"worker {worker} {how}: the disk of its node is full: {words}"
        return Diagnosis("preemption", what, f"have that node's disk cleared; {AGAIN}")
    what = f"worker {worker} {how}: {words}"
    return Diagnosis("preemption", what, f"nothing: {AGAIN}")


_NOT_OURS = (
    "keep less there, or have that limit raised, which is the namespace's default for ephemeral-storage "
    "(`kubectl get limitranges -o yaml`) and not disk=...: job.cancel(), then submit again"
)
