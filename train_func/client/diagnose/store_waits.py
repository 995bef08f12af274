"""Which workers wait for a store that they do not reach: they alone know, and only their logs say it at once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from train_func import events
from train_func.client.backend import BoundJob
from train_func.client.diagnose.diagnosis import Diagnosis, workers
from train_func.client.status import Pod
from train_func.events import WaitsForStore, WorkerStarts

ASK_SECONDS = 4.0  # between two looks at the last lines
MOST_ASKED = 4  # workers: what keeps one from the store nearly always keeps all
MOST_TIMES = 20  # for each pod: the time that a worker waits for its store at its start, and some more
UNKNOWN_HOST_SECONDS = 15.0  # after which that is no name server that has just started
ENDS = 2  # pods of a worker that ended waiting for the store, each after a minute, before it only goes in a circle
NEXT = (
    "see that the workers reach that address: it goes on by itself then; another one is named by s3_endpoint=... of "
    "Cluster(...) or TRAIN_FUNC_S3_ENDPOINT, after job.cancel()"
)


class StoreWaits:
    """Of one job, for one who waits; ``now`` is a clock in seconds."""

    def __init__(self, job: BoundJob, now: Callable[[], float]) -> None:
        self._job = job
        self._now = now
        self._asked: float | None = None
        self._times: dict[str, int] = {}
        self._waits: dict[str, WaitsForStore | None] = {}  # by pod's uid
        self._since: dict[str, float] = {}  # of each fault that is found again and again

    def look(self, pods: Sequence[Pod], num_ended: Mapping[int, int]) -> list[Diagnosis]:
        """Those of the newest pods; workers that wait for the same together.

        Args:
            num_ended: pods of each worker that have ended before any attempt began, for want of the store.
        """
        running = [pod for pod in pods if pod.phase == "Running" and not pod.deleted and pod.ended is None]
        starting = [pod for pod in running if self._times.get(pod.uid, 0) < MOST_TIMES][:MOST_ASKED]
        if starting and (self._asked is None or self._now() - self._asked >= ASK_SECONDS):
            self._asked = self._now()
            self._ask(starting)
        found: dict[tuple[str, bool], list[int]] = {}
        for pod in running:
            if wait := self._waits.get(pod.uid):
                found.setdefault((wait.fault, wait.is_unknown_host), []).append(pod.worker)
        self._since = {fault: self._since.get(fault, self._now()) for fault, _ in found}
        return [self._diagnosis(*fault, numbers, num_ended) for fault, numbers in found.items()]

    def _diagnosis(
        self, fault: str, is_unknown_host: bool, numbers: list[int], num_ended: Mapping[int, int]
    ) -> Diagnosis:
        waits = f"{workers(numbers)} wait{'s' * (len(numbers) == 1)} for the store: {fault}"
        told = Diagnosis("storage", waits, NEXT)
        unknown = is_unknown_host and self._now() - self._since[fault] >= UNKNOWN_HOST_SECONDS
        if unknown or max(num_ended.get(number, 0) for number in numbers) >= ENDS:
            return replace(told, permanent=True)
        return told

    def _ask(self, pods: Sequence[Pod]) -> None:
        lines = self._job.last_lines(pods)
        for pod in pods:
            line = lines.get(pod.uid, "")
            event = events.parse(line)
            self._waits[pod.uid] = event if isinstance(event, WaitsForStore) and not event.purpose else None
            over = line and not isinstance(event, (WaitsForStore, WorkerStarts))  # it has come further
            self._times[pod.uid] = MOST_TIMES if over else self._times.get(pod.uid, 0) + 1
