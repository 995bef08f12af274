"""What befell workers that are started again: evicted, preempted, out of memory, ended with a retryable code.

The operator repeats its event of an end for as long as the pod is there, so its count says nothing of the ends.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from train_func import exits
from train_func.client.diagnose import termination
from train_func.client.diagnose.container_starts import ContainerStarts, container_starts
from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.client.diagnose.eviction import EVICTION_REASONS, eviction
from train_func.client.status import ContainerEnd, Event, Pod

_ON_EVENT = {
    "Evicted": "was evicted",
    "Preempted": "was preempted",
    "TaintManagerEviction": "was removed from its node",
}
TAKEN = "taken"  # the key of what the cluster did begins so
CRASHES = 4  # pods that end so, each within SHORT_LIFE, after which only a change can help
SHORT_LIFE = 60.0  # seconds
EVICTIONS = 3  # of one worker, for what it keeps on disk; after that only a change can help


@dataclass(frozen=True)
class Incident:
    """Something that befell a worker once."""

    key: str
    """Tells it from the next one of its kind."""
    worker: int
    diagnosis: Diagnosis

    @property
    def over_disk(self) -> bool:
        """Whether the worker was evicted for what it kept on disk."""
        return self.key.startswith(TAKEN) and self.diagnosis.cause == "storage"


def incidents(pods: Sequence[Pod], events: Sequence[Event], crashes: int = CRASHES) -> list[Incident]:
    """What events and pods tell, oldest first; what both tell is told once.

    Args:
        crashes: pods of one worker that may end the same way; a worker that counts its attempts gives up earlier.
    """
    begun = container_starts(pods, events)
    found = [told for event in _together(events) if (told := _of_event(event, begun, crashes))]
    found += [told for pod in pods if (told := _of_pod(pod))]
    once = {told.key: told for told in found}
    return _with_repeated(list(once.values()))


def _together(events: Sequence[Event]) -> list[Event]:
    """Ends of one worker's pods by the same code, with the same words of its own, as one event that came many times.

    A container that is killed says nothing: its event then quotes the end of its log, which is another for each pod.
    """
    found: dict[object, Event] = {}
    for event in events:
        alike: object = id(event)
        if event.end:
            alike = (event.object, event.reason, event.pod, event.end.code, termination.read(event.end.message))
        if first := found.pop(alike, None):
            event = replace(event, count=first.count + event.count, since=first.since or first.time)
        found[alike] = event
    return list(found.values())


def _with_repeated(found: Sequence[Incident]) -> list[Incident]:
    """With those marked permanent that befall a worker again and again, because it does the same each time."""
    times: Counter[int] = Counter()
    marked = []
    for told in found:
        times[told.worker] += told.over_disk
        if told.over_disk and times[told.worker] >= EVICTIONS:
            told = replace(told, diagnosis=replace(told.diagnosis, permanent=True))
        marked.append(told)
    return marked


def since(created: datetime | None, events: Iterable[Event]) -> list[Event]:
    """Those of the job that was created then: a name is used again, and the cluster keeps events for an hour."""
    return [event for event in events if created is None or event.time >= created]


def failed_before_first_attempt(pods: Sequence[Pod], events: Sequence[Event]) -> dict[int, int]:
    """How many pods of each worker have ended for want of the store before an attempt began: the store counts none."""
    begun, found = container_starts(pods, events), defaultdict[int, set[str]](set)
    for event in events:
        end = event.end
        if end and end.code == exits.UNREACHABLE and termination.attempt(end.message) is None:
            found[event.worker] |= set(begun.between(event.worker, event))
    return {worker: len(ends) for worker, ends in found.items()}


def brief(event: Event) -> str:
    """An event in one line, without the end of the log that one of a container's end may carry."""
    return f"{event.reason}: {' '.join((_ending(event, event.end) if event.end else event.message).split())}"


def _of_pod(pod: Pod) -> Incident | None:
    if pod.reason not in EVICTION_REASONS:
        return None
    return Incident(
        f"{TAKEN} {pod.name} {pod.uid}", pod.worker, eviction(pod.worker, EVICTION_REASONS[pod.reason], pod.message)
    )


def _of_event(event: Event, begun: ContainerStarts, crashes: int) -> Incident | None:
    if event.object == f"Pod/{event.pod}" and event.reason in _ON_EVENT:
        told = eviction(event.worker, _ON_EVENT[event.reason], event.message)
        return Incident(f"{TAKEN} {event.pod} {event.uid or event.time}", event.worker, told)
    end = event.end
    if end is None or not exits.retryable(end.code) or end.code in exits.FOLLOWING:
        return None
    pods = begun.between(event.worker, event)
    # Named by the pod and not by the event, which comes again with another count and time.
    return Incident(f"end {event.pod} {pods[-1]}", event.worker, _of_end(event, end, len(pods), crashes))


def _of_end(event: Event, end: ContainerEnd, num_pods: int, crashes: int) -> Diagnosis:
    worker, code = event.worker, end.code
    cause, message = termination.read(end.message)
    hopeless = num_pods >= crashes and _seconds(event) < SHORT_LIFE * (num_pods - 1)
    if event.reason == "StartError":
        words = " ".join(end.message.split())
        what = f"worker {worker}: its image cannot run the workers' program: {words}"
        return Diagnosis("image", what, _IMAGE, permanent=num_pods >= CRASHES)
    if event.reason == "OOMKilled":
        what = f"worker {worker} needed more than its memory limit and was killed (exit code {code}). {message}".strip()
        return Diagnosis("memory", what, _MEMORY if not hopeless else _MORE_MEMORY, permanent=hopeless)
    own = message if cause else ""
    return Diagnosis(cause or exits.cause_of(code), _ending(event, end), "it is started again", said=own)


def _ending(event: Event, end: ContainerEnd) -> str:
    return f"worker {event.worker} {termination.ending(end.code, event.reason, end.message)}"


_IMAGE = "job.cancel(), give an image built by `make image` (image=...) and submit again"
_LESS = "more memory=..., or a lower micro_batch_size and fresh=True"
_MORE_MEMORY = f"every pod ends so: job.cancel(), and submit again with {_LESS}"
_MEMORY = f"it is started again; if that does not help: job.cancel(), {_LESS}"


def _seconds(event: Event) -> float:
    """From the first such end to the last."""
    return (event.time - event.since).total_seconds() if event.since else 0.0
