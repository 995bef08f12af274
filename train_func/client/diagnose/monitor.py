"""Looks out for what hinders a job while a caller waits for it: each diagnosis is told once, and named at once.

On a cluster most failures never make a job Failed: it hangs, and only its pods and events say why.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from train_func.client.backend import BoundJob
from train_func.client.diagnose.diagnosis import Diagnosis, workers
from train_func.client.diagnose.incidents import CRASHES, failed_before_first_attempt, incidents, since
from train_func.client.diagnose.outage import OF_THE_BACKEND, ApiOutage
from train_func.client.diagnose.refusals import refusals
from train_func.client.diagnose.store_waits import StoreWaits
from train_func.client.diagnose.waiting import waiting
from train_func.client.kinds.kind import Operator
from train_func.client.status import Event, JobStatus, Pod, SchedulingReport
from train_func.errors import Cause, InvalidInput, JobFailed
from train_func.records import RunRecord


@dataclass(frozen=True, kw_only=True)
class MonitorTimings:
    """How long a monitor waits before it says something, in seconds; a test passes others."""

    look: float = 1.0
    """Between two looks."""
    calm: float = 5.0
    """The same while nothing hinders the job."""
    loop: float = 90.0
    """Without another such end, after which a worker is no longer thought to run in a circle."""
    settle: float = 4.0
    """That a diagnosis lasts before it counts as permanent: some are over in a moment."""
    slow: float = 2.0
    """That a worker may be without a node before it is told: most get one at the second try."""
    again: float = 10.0
    """At least, before the same kind of diagnosis is told in other words."""
    nodes: float = 20.0
    """Between two looks at the nodes."""
    quiet: float = 10.0
    """Without a sign of the operator, after which that is told."""
    silent: float = 20.0
    """The same, after which it counts as not running."""


class JobMonitor:
    """Of one job, for one who waits; ``now`` is a clock in seconds."""

    def __init__(
        self,
        record: RunRecord,
        job: BoundJob,
        now: Callable[[], float] = time.monotonic,
        timings: MonitorTimings | None = None,
    ) -> None:
        self._timings = timings or MonitorTimings()
        self._record = record
        self._job = job
        self._now = now
        self._begun = now()
        self._looked: float | None = None
        self._since: dict[tuple[Cause, bool], float] = {}
        self._told: dict[Cause, tuple[Diagnosis, float]] = {}
        self._seen: set[str] = set()
        self._hopeless: tuple[Diagnosis, float] | None = None
        self._quiet = True
        self._room: tuple[SchedulingReport | None, float] | None = None
        self._outage = ApiOutage()
        self._store_waits = StoreWaits(job, now)
        self._hindering: list[Diagnosis] = []

    def look(self) -> list[Diagnosis]:
        """What is new since the last look; a diagnosis comes again when it has turned out to be permanent."""
        now = self._now()
        if self._looked is not None and now - self._looked < self._timings.look:
            return []
        first, self._looked = self._looked is None, now
        found: list[Diagnosis] = []
        try:
            outage = self._job.outage()
            if outage is None or outage.cause != "cluster":
                found = self._look(first, now)
        except InvalidInput as error:
            if first or error.cause not in OF_THE_BACKEND:
                raise
            outage = error
        told = self._outage.news(outage)
        return [*told, *found]

    def _look(self, first: bool, now: float) -> list[Diagnosis]:
        status = self._job.status()
        if status is None or status.finished:
            self._hindering = []
            return []
        pods, events = self._job.pods(), since(status.created, self._job.events())
        befallen = self._befallen(pods, events)
        found = [*self._hindrances(status, pods, events, now), *self._loop(befallen, now)]
        self._hindering = self._settled(found, now)
        passing = [told for told in befallen if not told.permanent]
        # Of what happened before anybody looked only the last is news.
        return [*(passing[-1:] if first else passing), *(told for told in self._hindering if self._is_news(told, now))]

    @property
    def current(self) -> list[Diagnosis]:
        """What hinders the job at the moment, and what hinders looking at it."""
        return [*self._hindering, *self._outage.current]

    def failure(self) -> JobFailed | None:
        """The error to raise while the job hangs for good; None while waiting may help."""
        hopeless = [diagnosis for diagnosis in self.current if diagnosis.permanent]
        if not hopeless:
            return None
        lines = [f"{self._record.name}: {hopeless[0]}", *(f"also: {other}" for other in hopeless[1:])]
        lines.append("  the job is left as it is: job.cancel() removes it, job.result() waits again")
        return JobFailed("\n".join(lines), cause=hopeless[0].cause)

    @property
    def poll_interval(self) -> float:
        """Seconds after which to look again even if nothing seems to change."""
        return self._timings.look if self.current or self._quiet else self._timings.calm

    def _befallen(self, pods: Sequence[Pod], events: Sequence[Event]) -> list[Diagnosis]:
        """What has befallen workers since the last look, each thing once."""
        crashes = max(CRASHES, self._record.run.max_attempts + 1)
        new = [found for found in incidents(pods, events, crashes) if found.key not in self._seen]
        self._seen |= {found.key for found in new}
        return [found.diagnosis for found in new]

    def _loop(self, befallen: Sequence[Diagnosis], now: float) -> list[Diagnosis]:
        """The end that a worker comes to again and again, as long as it does."""
        if hopeless := [told for told in befallen if told.permanent]:
            self._hopeless = (hopeless[-1], now)
        if self._hopeless is None or now - self._hopeless[1] > self._timings.loop:
            return []
        return [self._hopeless[0]]

    def _hindrances(
        self, status: JobStatus, pods: Sequence[Pod], events: Sequence[Event], now: float
    ) -> list[Diagnosis]:
        if status.condition("Suspended"):
            return [Diagnosis("quota", "the job is suspended, by its queue or by a user", "it goes on once resumed")]
        found = [*refusals(pods, events, self._record.run.workers), *waits(pods, events)]
        found = [self._with_room(told, now) if told.cause == "scheduling" else told for told in found]
        found += self._store_waits.look(pods, failed_before_first_attempt(pods, events))
        self._quiet = silent = not (
            status.conditions or pods or any(event.object != f"Pod/{event.pod}" for event in events)
        )
        if silent and (quiet := now - self._begun) >= self._timings.quiet:
            found.append(_silent(self._job.operator, quiet, self._timings))
        return found

    def _with_room(self, diagnosis: Diagnosis, now: float) -> Diagnosis:
        """With what every node has; permanent when none could ever hold the workers."""
        if self._room is None or now - self._room[1] >= self._timings.nodes:
            self._room = (self._job.scheduling_report(), now)
        scheduling_report = self._room[0]
        if scheduling_report is None:
            return diagnosis
        what = f"{diagnosis.message}\n{scheduling_report.table}"
        if scheduling_report.lack is None:
            return replace(diagnosis, message=what)
        return replace(diagnosis, message=f"{scheduling_report.lack}: {what}", remedy=_LESS, permanent=True)

    def _settled(self, found: list[Diagnosis], now: float) -> list[Diagnosis]:
        kinds = {(diagnosis.cause, diagnosis.permanent) for diagnosis in found}
        self._since = {kind: self._since.get(kind, now) for kind in kinds}
        lasting = [
            replace(told, permanent=told.permanent and now - self._since[told.cause, True] >= self._timings.settle)
            for told in found
        ]
        slow = now - min(self._since.get(("scheduling", permanent), now) for permanent in (True, False))
        return [told for told in lasting if told.cause != "scheduling" or slow >= self._timings.slow]

    def _is_news(self, diagnosis: Diagnosis, now: float) -> bool:
        before, when = self._told.get(diagnosis.cause, (None, 0.0))
        if before and (before.permanent, before.headline) == (diagnosis.permanent, diagnosis.headline):
            return False
        if before and before.permanent == diagnosis.permanent and now - when < self._timings.again:
            return False
        self._told[diagnosis.cause] = (diagnosis, now)
        return True


def waits(pods: Sequence[Pod], events: Sequence[Event]) -> list[Diagnosis]:
    """Why the newest pods of workers do not start; workers with the same diagnosis together."""
    newest = {pod.worker: pod for pod in pods}
    found: dict[Diagnosis, list[int]] = {}
    for worker, pod in newest.items():
        if not pod.deleted and (diagnosis := waiting(pod, events)):
            found.setdefault(diagnosis, []).append(worker)
    return [replace(told, message=f"{workers(numbers)}: {told.message}") for told, numbers in found.items()]


_LESS = "job.cancel(), then ask for less cpu, memory or gpu, or for fewer workers, or have nodes added; submit again"


def _silent(operator: Operator, quiet: float, timings: MonitorTimings) -> Diagnosis:
    return Diagnosis(
        "cluster",
        f"the {operator.name} has not picked up this job: it does not run, or does not look after this namespace",
        f"have the administrator of the cluster look: {operator.look}; the job starts once the operator runs",
        permanent=quiet >= timings.silent,
    )
