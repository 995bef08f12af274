"""What befell workers that are started again: evicted, preempted, out of memory, ended with a retryable code."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from train_func.client.explain import termination
from train_func.client.explain.trouble import Trouble, worker_of
from train_func.client.observed import Event, Pod
from train_func.errors import Cause

# What the cluster does to a pod on purpose, as pods and their events name it.
TAKEN_AWAY = {
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
_ON_EVENT = {
    "Evicted": "was evicted",
    "Preempted": "was preempted",
    "TaintManagerEviction": "was removed from its node",
}
_OVER_DISK = ("ephemeral", "emptyDir", "usage of EmptyDir", "local storage")
# The operator's copy of a termination message, when a container has ended with something else than 0.
_ENDED = re.compile(
    r"Error pod (?P<pod>\S+) container \S+ exitCode: (?P<code>\d+) terminated message: (?P<message>.*)", re.DOTALL
)
_CAUSES: dict[int, Cause] = {137: "killed", 143: "preemption", 144: "storage", 147: "killed"}
FOLLOWING = (145, 146)  # ends that another worker's end brings about
FIRST_RETRYABLE = 128
CRASHES = 4  # starts that end within SHORT_LIFE each, after which only a change can help
SHORT_LIFE = 60.0  # seconds


@dataclass(frozen=True)
class Incident:
    """Something that befell a worker once."""

    key: str
    """Tells it from the next one of its kind."""
    worker: int
    trouble: Trouble
    echo: bool = False
    """Whether it is an event about a pod that, while it was there, told the same itself."""


def incidents(pods: Sequence[Pod], events: Iterable[Event]) -> list[Incident]:
    """What pods and events tell, oldest first."""
    found = [told for event in events if (told := _of_event(event))]
    return found + [told for pod in pods if (told := _of_pod(pod))]


def brief(event: Event) -> str:
    """An event in one line, without the end of the log that one of a container's end may carry."""
    ended = _ENDED.match(event.message)
    return f"{event.reason}: {' '.join((_ending(event, ended) if ended else event.message).split())}"


def _of_pod(pod: Pod) -> Incident | None:
    if pod.reason not in TAKEN_AWAY:
        return None
    return Incident(f"taken {pod.name} {pod.uid}", pod.worker, _taken(pod.worker, TAKEN_AWAY[pod.reason], pod.message))


def _of_event(event: Event) -> Incident | None:
    kind, _, name = event.object.partition("/")
    at = f"{event.reason} {event.count} {event.time}"
    if kind == "Pod" and event.reason in _ON_EVENT:
        worker = worker_of(name)
        return Incident(f"event {name} {at}", worker, _taken(worker, _ON_EVENT[event.reason], event.message), echo=True)
    ended = _ENDED.match(event.message)
    if kind != "PyTorchJob" or ended is None:
        return None
    if int(ended["code"]) < FIRST_RETRYABLE or int(ended["code"]) in FOLLOWING:
        return None
    return Incident(f"end {ended['pod']} {at}", worker_of(ended["pod"]), _of_end(event, ended))


def _taken(worker: int, how: str, message: str) -> Trouble:
    what = f"worker {worker} {how}: {' '.join(message.split())}"
    if any(sign in message for sign in _OVER_DISK):
        return Trouble("storage", what, "give workers more disk=..., or keep less in the working folder and the cache")
    return Trouble(
        "preemption", what, "nothing: it is started again elsewhere, from the beginning (no checkpoints yet)"
    )


def _of_end(event: Event, ended: "re.Match[str]") -> Trouble:
    code = int(ended["code"])
    cause, message = termination.read(ended["message"])
    worker = worker_of(ended["pod"])
    hopeless = event.count >= CRASHES and _pace(event) < SHORT_LIFE
    if event.reason == "StartError":
        words = " ".join(ended["message"].split())
        what = f"worker {worker}: its image cannot run the workers' program: {words}"
        return Trouble("image", what, _IMAGE, permanent=event.count >= CRASHES)
    if event.reason == "OOMKilled":
        what = f"worker {worker} needed more than its memory limit and was killed (exit code {code}). {message}".strip()
        return Trouble("memory", what, _MEMORY, permanent=hopeless)
    return Trouble(cause or _CAUSES.get(code, "unknown"), _ending(event, ended), "it is started again")


def _ending(event: Event, ended: "re.Match[str]") -> str:
    how = termination.ending(int(ended["code"]), event.reason, ended["message"])
    return f"worker {worker_of(ended['pod'])} {how}"


_IMAGE = "job.cancel(), give an image built by `make image` (image=...) and submit again"
_MEMORY = "it is started again; if that does not help: job.cancel(), more memory=... or a lower micro_batch_size"


def _pace(event: Event) -> float:
    """Seconds from one such event to the next."""
    if event.since is None or event.count < 2:
        return float("inf")
    return (event.time - event.since).total_seconds() / (event.count - 1)
