"""What happened to workers after they started: evicted, preempted, out of memory, ended with a retryable code.

Read from pods, events and termination messages. The operator repeats its event of an end for as long as the pod is
there, so the count of that event says nothing of the number of ends.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from train_func import exits
from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.client.kinds.reading import DELETED
from train_func.client.status import ContainerEnd, Event, Pod
from train_func.errors import Cause
from train_func.records import Termination

# Why the cluster ended a pod on purpose, by the reason in the pod's status or of an event about it. The reason
# TaintManagerEviction is none: an event with it also tells that a pod stays after all.
EVICTION_REASONS = {
    "Evicted": "was evicted",
    "Preempting": "was preempted",
    "Preempted": "was preempted",
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
CRASHES = 4  # pods that end the same way, each within SHORT_LIFE, after which only a change can help
SHORT_LIFE = 60.0  # seconds
EVICTIONS = 3  # of one worker, for what it keeps on disk; after that only a change can help

OTHER_IMAGE = "give an image built by `make image` (image=...) and submit again"
_STARTED_AGAIN = "it is started again"
_FROM_THE_NEWEST = f"{_STARTED_AGAIN}, from its newest checkpoint"
_LESS_MEMORY = "more memory=..., or, with a task, a lower micro_batch_size"
_LIMIT_OF_THE_NAMESPACE = (
    "keep less there, or have that limit raised, which is the namespace's default for ephemeral-storage "
    "(`kubectl get limitranges -o yaml`) and not disk=...: job.cancel(), then submit again"
)


@dataclass(frozen=True)
class Incident:
    """Something that happened to a worker once."""

    key: str
    """The same for the same incident in a pod and in an event, and in every later look."""
    worker: int
    diagnosis: Diagnosis
    over_disk: bool = False
    """Whether the worker was evicted for what it kept on disk."""


def incidents(pods: Sequence[Pod], events: Sequence[Event], crashes: int = CRASHES) -> list[Incident]:
    """The incidents in events and pods, oldest first, each once.

    Args:
        crashes: pods of one worker that may end the same way; a worker that counts its attempts gives up earlier.
    """
    starts = ContainerStarts(pods, events)
    found = [incident for event in _merged(events) if (incident := _of_event(event, starts, crashes))]
    found += [incident for pod in pods if (incident := _of_pod(pod))]
    return _with_repeated({incident.key: incident for incident in found}.values())


def since(created: datetime | None, events: Iterable[Event]) -> list[Event]:
    """The events after this creation of the job: a name is used again, and the cluster keeps events for an hour."""
    return [event for event in events if created is None or event.time >= created]


def not_before(created: datetime | None, pods: Iterable[Pod]) -> list[Pod]:
    """The pods without those that had gone before this creation of the job; a machine keeps them, for their logs."""
    return [pod for pod in pods if not (created and pod.deleted and pod.ended and pod.ended < created)]


def failed_before_first_attempt(pods: Sequence[Pod], events: Sequence[Event]) -> dict[int, int]:
    """By worker, how many pods ended before an attempt began because they did not reach the store."""
    starts, found = ContainerStarts(pods, events), defaultdict[int, set[str]](set)
    for event in events:
        if event.end is None or event.end.code != exits.UNREACHABLE:
            continue
        written = Termination.read(event.end.message)
        if written is None or written.attempt is None:
            found[event.worker] |= set(starts.pods_of(event))
    return {worker: len(uids) for worker, uids in found.items()}


def brief(event: Event) -> str:
    """An event in one line, without the end of the log that the event of a container's end may carry."""
    return f"{event.reason}: {_one_line(_ending(event, event.end) if event.end else event.message)}"


class ContainerStarts:
    """When the pods of each worker started: an event of the job names no pod, and is matched to one by its time."""

    def __init__(self, pods: Sequence[Pod], events: Iterable[Event]) -> None:
        """From the node's events, which outlast the pods; for a worker without such events, from its pods."""
        starts: dict[int, dict[str, datetime]] = {}
        for event in events:
            if event.object == f"Pod/{event.pod}" and event.reason == "Created":  # once for each pod
                starts.setdefault(event.worker, {}).setdefault(event.uid or f"{event.time}", event.since or event.time)
        known = set(starts)
        for pod in pods:
            if pod.started and pod.worker not in known:
                starts.setdefault(pod.worker, {})[pod.uid] = pod.started
        self._starts = {worker: sorted((start, uid) for uid, start in by.items()) for worker, by in starts.items()}

    def pods_of(self, event: Event) -> list[str]:
        """The uids of the pods that an event, which may stand for several, is about; at least one."""
        starts = self._starts.get(event.worker, [])
        until = [uid for start, uid in starts if start <= event.time]
        earlier = [uid for start, uid in starts if start <= (event.since or event.time)]
        return until[max(0, len(earlier) - 1) :][-event.count :] or ["first"]


def _merged(events: Sequence[Event]) -> list[Event]:
    """Events with the ends of one worker's pods by the same code, with the same words of the worker, as one event.

    A container that is killed says nothing: its event then quotes the end of its log, which differs for each pod.
    """
    found: dict[object, Event] = {}
    for event in events:
        alike: object = id(event)
        if event.end:
            alike = (event.object, event.reason, event.pod, event.end.code, termination(event.end.message))
        if first := found.pop(alike, None):
            event = replace(event, count=first.count + event.count, since=first.since or first.time)
        found[alike] = event
    return list(found.values())


def _with_repeated(found: Iterable[Incident]) -> list[Incident]:
    """Marks as permanent the evictions that a worker brings about again and again."""
    times: Counter[int] = Counter()
    marked = []
    for incident in found:
        times[incident.worker] += incident.over_disk
        if incident.over_disk and times[incident.worker] >= EVICTIONS:
            incident = replace(incident, diagnosis=replace(incident.diagnosis, permanent=True))
        marked.append(incident)
    return marked


def _of_pod(pod: Pod) -> Incident | None:
    if pod.reason == DELETED:
        found = eviction(pod.worker, "was deleted", pod.message)
        return Incident(f"deletion {pod.name} {pod.uid}", pod.worker, found)
    if pod.reason not in EVICTION_REASONS:
        return None
    return _eviction(pod.worker, f"{pod.name} {pod.uid}", pod.reason, pod.message)


def _eviction(worker: int, pod: str, reason: str, message: str) -> Incident:
    found = eviction(worker, EVICTION_REASONS[reason], message)
    return Incident(f"eviction {pod}", worker, found, over_disk=found.cause == "storage")


def _of_event(event: Event, starts: ContainerStarts, crashes: int) -> Incident | None:
    if event.object == f"Pod/{event.pod}" and event.reason in EVICTION_REASONS:
        return _eviction(event.worker, f"{event.pod} {event.uid or event.time}", event.reason, event.message)
    end = event.end
    if end is None or not exits.retryable(end.code) or end.code in exits.FOLLOWING:
        return None
    pods = starts.pods_of(event)
    # Named by the pod and not by the event, which comes again with another count and time.
    return Incident(f"end {event.pod} {pods[-1]}", event.worker, _of_end(event, end, len(pods), crashes))


def _of_end(event: Event, end: ContainerEnd, num_pods: int, crashes: int) -> Diagnosis:
    worker = event.worker
    cause, message = termination(end.message)
    seconds = (event.time - event.since).total_seconds() if event.since else 0.0  # from the first such end to the last
    hopeless = num_pods >= crashes and seconds < SHORT_LIFE * (num_pods - 1)
    if event.reason == "StartError":
        what = f"worker {worker}: its image cannot run the workers' program: {_one_line(end.message)}"
        return Diagnosis("image", what, f"job.cancel(), {OTHER_IMAGE}", permanent=num_pods >= CRASHES)
    if event.reason == "OOMKilled":
        what = f"worker {worker} needed more than its memory limit and was killed (exit code {end.code}). {message}"
        remedy = f"{_STARTED_AGAIN}; if that does not help: job.cancel(), {_LESS_MEMORY}"
        if hopeless:
            remedy = f"every pod ends so: job.cancel(), and submit again with {_LESS_MEMORY}"
        return Diagnosis("memory", what.strip(), remedy, permanent=hopeless)
    own = message if cause else ""
    return Diagnosis(cause or exits.cause_of(end.code), _ending(event, end), _STARTED_AGAIN, said=own)


def _ending(event: Event, end: ContainerEnd) -> str:
    return f"worker {event.worker} {ending(end.code, event.reason, end.message)}"


_VOLUMES = {"work": "its working folder (/workspace)", "cache": "its cache (/cache)"}
_VOLUME = re.compile(r'Usage of EmptyDir volume "(?P<volume>[^"]+)" exceeds the limit "(?P<limit>[^"]+)"')
_ALL = re.compile(
    r"ephemeral local storage usage exceeds the total limit of containers (?P<all>[^\s\"]+?)\.?(?:\s|$)"
    r'|exceeded its local ephemeral storage limit "(?P<one>[^"]+)"'
)
_NODE = re.compile(r"low on resource: (?:ephemeral-storage|inodes)")


def eviction(worker: int, how: str, message: str) -> Diagnosis:
    """Why the cluster ended a worker's pod on purpose.

    Args:
        worker: its number.
        how: one of the values of EVICTION_REASONS.
        message: the cluster's own words.
    """
    words = _one_line(message)
    if found := _VOLUME.search(words):
        volume, limit = found["volume"], found["limit"]
        place = _VOLUMES.get(volume, "a volume of its own")
        what = f"worker {worker} {how}: it kept more than disk={limit!r} in {place}: {words}"
        return Diagnosis("storage", what, "raise disk=... or keep less there: job.cancel(), then submit again")
    if found := _ALL.search(words):
        limit = found["all"] or found["one"]
        what = f"worker {worker} {how}: working folder, cache and log together took more than {limit} of disk: {words}"
        return Diagnosis("storage", what, _LIMIT_OF_THE_NAMESPACE)
    if _NODE.search(words):
        what = f"worker {worker} {how}: the disk of its node is full: {words}"
        return Diagnosis("preemption", what, f"have that node's disk cleared; {_FROM_THE_NEWEST}")
    return Diagnosis("preemption", f"worker {worker} {how}: {words}", f"nothing: {_FROM_THE_NEWEST}")


# By their numbers on Linux, where the workers are; on this machine some may have others.
_SIGNALS = ("HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE")
_SIGNALLED = {128 + number: f"SIG{name}" for number, name in enumerate((*_SIGNALS, "ALRM", "TERM"), start=1)}
_PYTHON_ERROR = re.compile(r"(?:\w+\.)*\w*(?:Error|Exception|KeyboardInterrupt|SystemExit|StopIteration)(?:: .*)?")
_NO_PACKAGE = re.compile(r".*\bNo module named ['\"]?train_func\b.*")
# Ends whose message is that of the node, not of what ran in the container.
_OF_THE_NODE = ("StartError", "ContainerCannotRun", "ContainerStatusUnknown")


def termination(message: str) -> tuple[Cause | None, str]:
    """The cause and the words that a supervisor wrote; without a supervisor, the Python error in the last line."""
    if written := Termination.read(message):
        return written.cause, written.message
    last = _last_line(message)
    return None, last if _PYTHON_ERROR.fullmatch(last) else ""


def missing_package(message: str) -> str:
    """What Python says in an image without this package; empty for another message."""
    last = _last_line(message)
    return last if _NO_PACKAGE.fullmatch(last) else ""


def ending(code: int, reason: str, message: str) -> str:
    """How a container ended, to follow its worker's name."""
    cause, words = termination(message)
    if reason in _OF_THE_NODE:
        words = _one_line(message)
    elif cause is None and code in _SIGNALLED:
        return f"was killed by {_SIGNALLED[code]}"
    return f"ended with exit code {code}" + (f": {words}" if words else "")


def _last_line(log: str) -> str:
    return log.rstrip().rpartition("\n")[2].strip()


def _one_line(message: str) -> str:
    return " ".join(message.split())
