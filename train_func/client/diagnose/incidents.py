"""What happened to workers after they started: evicted, preempted, out of memory, ended with a retryable code.

Read from pods, events and termination messages. The operator repeats its event of an end for as long as the pod is
there, so the count of that event says nothing of the number of ends: the starts of pods are counted.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from train_func.client.diagnose.reasons import EVICTED, look_up
from train_func.client.status import Diagnosis, JobEvent, Pod
from train_func.errors import Cause
from train_func.wire import exits
from train_func.wire.records import Termination

CRASHES = 3  # of a worker's pods that end the same way, each within SHORT_LIFE_SECONDS: only a change can help then
SHORT_LIFE_SECONDS = 120.0
EVICTION_REASONS = frozenset(EVICTED.split())
_STARTED_AGAIN = "it is started again"
_NOT_KNOWN = datetime.max.replace(tzinfo=UTC)  # of what a pod shows at the moment: it is the newest
_HELP = {
    exits.UNREACHABLE: (
        "make the store's address reachable for the workers, or cancel the job and name another: s3_endpoint=... of "
        "Cluster(...) or TRAIN_FUNC_S3_ENDPOINT; or see whether the clock is right and the provider of keys answers"
    ),
    exits.KEY: "put a key that the store takes into the Secret that store_secret=... of Cluster(...) names",
}


@dataclass(frozen=True)
class Incident:
    """Something that happened to a worker once."""

    key: str
    """Equal for one incident in every look, whether a pod or an event shows it."""
    worker: int
    diagnosis: Diagnosis
    time: datetime | None
    """When it was seen; None where the backend does not say."""


def incidents(pods: Sequence[Pod], events: Sequence[JobEvent], max_attempts: int) -> list[Incident]:
    """The incidents in events and pods, oldest first, each once.

    Args:
        pods: of the job.
        events: of the job.
        max_attempts: of the run; a worker that is killed for its memory may have counted them, and then gives up.
    """
    starts = container_starts(pods, events)
    begun: dict[object, datetime] = {}  # the first end of a worker by a reason and a code
    happened: dict[str, Incident] = {}
    over_disk: Counter[int] = Counter()

    def evict(key: str, worker: int, reason: str, message: str, time: datetime | None) -> None:
        if key not in happened:
            diagnosis = look_up(reason, message)
            assert diagnosis is not None  # the table has a row for each of the reasons
            over_disk[worker] += diagnosis.cause == "storage"
            is_permanent = diagnosis.cause == "storage" and over_disk[worker] >= CRASHES
            what = f"worker {worker} {diagnosis.message}"
            happened[key] = Incident(key, worker, replace(diagnosis, message=what, permanent=is_permanent), time)

    for event in events:
        end = event.end
        if event.object == f"Pod/{event.pod}" and event.reason in EVICTION_REASONS:
            key = f"eviction {event.pod} {event.uid or event.time}"
            evict(key, event.worker, event.reason, event.message, event.time)
        elif end and exits.retryable(end.code) and not _follows(end.code, end.message):
            first = begun.setdefault((event.worker, event.reason, end.code), event.since or event.time)
            num_ends = 1 + sum(first < start <= event.time for start in starts.get(event.worker, ()))
            diagnosis = end_of(event)
            is_quick = (event.time - first).total_seconds() < SHORT_LIFE_SECONDS * (num_ends - 1)
            if is_quick and num_ends >= (max_attempts + 1 if diagnosis.cause == "memory" else CRASHES):
                diagnosis = replace(diagnosis, permanent=diagnosis.remedy != _STARTED_AGAIN)
            key = f"end {event.pod} {event.reason} {end.code} {num_ends}"
            happened[key] = Incident(key, event.worker, diagnosis, event.time)
    for pod in pods:
        # A cluster also evicts what runs on a node that it no longer hears: that node is the cause, and told as such.
        if pod.reason in EVICTION_REASONS and not pod.unheard_since:
            evict(f"eviction {pod.name} {pod.uid}", pod.worker, pod.reason, pod.message, pod.ended)
    return sorted(happened.values(), key=lambda incident: incident.time or _NOT_KNOWN)


def _follows(code: int, message: str) -> bool:
    """Returns whether a worker ended only because others did; one alone may leave with PEER for a fault of its own."""
    cause = termination(message)[0] or exits.cause_of(code)
    return cause == "peer" or (code == exits.PEER and cause == "preemption")


def container_starts(pods: Sequence[Pod], events: Iterable[JobEvent]) -> dict[int, list[datetime]]:
    """By worker, when each of its pods started; from the node's events, which outlast the pods, and from its pods."""
    starts: dict[int, dict[str, datetime]] = {}
    for event in events:
        if event.object == f"Pod/{event.pod}" and event.reason == "Created":  # once for each pod
            starts.setdefault(event.worker, {}).setdefault(event.uid or f"{event.time}", event.since or event.time)
    for pod in pods:
        if pod.started:
            starts.setdefault(pod.worker, {}).setdefault(pod.uid, pod.started)
    return {worker: list(by_uid.values()) for worker, by_uid in starts.items()}


def end_of(event: JobEvent) -> Diagnosis:
    """Returns what the end of a container means that the operator reports."""
    assert event.end is not None
    code, (written, words) = event.end.code, termination(event.end.message)
    reason = look_up(event.reason, "")
    cause = reason.cause if reason else written or exits.cause_of(code)
    help_ = reason.remedy if reason else _HELP.get(code, "")
    remedy = f"{_STARTED_AGAIN}; if that does not help: {help_}" if help_ else _STARTED_AGAIN
    what = f"worker {event.worker} {ending(code, event.reason, event.end.message)}"
    return Diagnosis(cause, what, remedy, worker_message=words if written else "")


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
    last = message.rstrip().rpartition("\n")[2].strip()
    if _NO_PACKAGE.fullmatch(last):
        return "image", last
    return None, last if _PYTHON_ERROR.fullmatch(last) else ""


def ending(code: int, reason: str, message: str) -> str:
    """Returns how a container ended, to follow its worker's name."""
    cause, words = termination(message)
    if reason in _OF_THE_NODE:
        words = one_line(message)
    if of_cluster := look_up(reason, words):
        return of_cluster.message
    if cause is None and code in _SIGNALLED and reason not in _OF_THE_NODE:
        return f"was killed by {_SIGNALLED[code]}"
    return f"ended with exit code {code}" + (f": {words}" if words else "")


def one_line(message: str) -> str:
    """The message without its line breaks."""
    return " ".join(message.split())
