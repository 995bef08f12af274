"""Which workers wait for a store that they do not reach: they alone know, and only their logs say it at once."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from train_func.client.backend import BoundJob
from train_func.client.diagnose.diagnosis import Diagnosis, workers
from train_func.client.status import Pod

ASK_SECONDS = 4.0  # between two looks at the last lines
MOST_ASKED = 4  # workers: what keeps one from the store nearly always keeps all
MOST_TIMES = 20  # for each pod: the time that a worker waits for its store at its start, and some more
# Of the failure what stays the same from one try to the next: which store, where it was looked for, and what happened.
_WAITS = re.compile(
    r"the store is away, waiting up to \d+ s more for it: .*? (?:in|of) (?P<why>\w+://.*?)"
    r"(?: \(tried [^)]*\))?(?:\. .*)?"
)
_BEGINS = re.compile(r"worker \d+ of \d+ starts in ")
_NAMELESS = "no name server knows"  # what a store that is merely down does not come to
NAMELESS_SECONDS = 15.0  # after which that is no name server that has just started
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
        self._whys: dict[str, str] = {}  # by pod's uid
        self._since: dict[str, float] = {}  # of each why that is found again and again

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
        found: dict[str, list[int]] = {}
        for pod in running:
            if why := self._whys.get(pod.uid):
                found.setdefault(why, []).append(pod.worker)
        self._since = {why: self._since.get(why, self._now()) for why in found}
        return [self._trouble(why, numbers, num_ended) for why, numbers in found.items()]

    def _trouble(self, why: str, numbers: list[int], num_ended: Mapping[int, int]) -> Diagnosis:
        waits = f"{workers(numbers)} wait{'s' * (len(numbers) == 1)} for the store: {why}"
        told = Diagnosis("storage", waits, NEXT)
        nameless = _NAMELESS in why and self._now() - self._since[why] >= NAMELESS_SECONDS
        if nameless or max(num_ended.get(number, 0) for number in numbers) >= ENDS:
            return replace(told, permanent=True)
        return told

    def _ask(self, pods: Sequence[Pod]) -> None:
        lines = self._job.last_lines(pods)
        for pod in pods:
            line = lines.get(pod.uid, "")
            waits = _WAITS.fullmatch(line)
            self._whys[pod.uid] = waits["why"] if waits else ""
            over = line and not waits and not _BEGINS.match(line)  # it has come further
            self._times[pod.uid] = MOST_TIMES if over else self._times.get(pod.uid, 0) + 1
