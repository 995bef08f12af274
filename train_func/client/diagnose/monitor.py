"""Diagnoses what hinders a job while a caller waits for it: each diagnosis is reported once, as soon as it is known.

On a cluster most failures never make a job Failed: it hangs, and only its pods and events say why.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from train_func.client.backend import BoundJob
from train_func.client.diagnose.dead_nodes import DeadNodes
from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.client.diagnose.incidents import CRASHES, failed_before_first_attempt, incidents, not_before, since
from train_func.client.diagnose.starting import StoreWaits, refusals, waits
from train_func.client.kinds.kind import Operator
from train_func.client.kinds.reading import DELETED
from train_func.client.status import Event, JobStatus, Pod
from train_func.errors import Cause, InvalidInput, JobFailed
from train_func.records import RunRecord

# In seconds.
LOOK = 1.0  # between two looks
CALM = 5.0  # the same while nothing hinders the job
LOOP = 90.0  # without another end of the same kind, after which a worker no longer counts as failing repeatedly
SETTLE = 4.0  # that a diagnosis lasts before it counts as permanent: some are over in a moment
SLOW = 2.0  # that a worker may be without a node before it is reported: most get one at the second try
REPEAT = 10.0  # at least, before the same kind of diagnosis is reported in other words
QUIET = 10.0  # without a sign of the operator, after which that is reported, and again after twice as long

# Causes of errors that say nothing about the job: it keeps running, and the caller keeps waiting.
OF_THE_BACKEND: tuple[Cause, ...] = ("permission", "cluster")


def patiently(ask: Callable[[], str], before: str) -> str:
    """The answer; ``before``, the last one, while the backend does not answer or refuses what it allowed so far."""
    try:
        return ask()
    except InvalidInput as error:
        if error.cause not in OF_THE_BACKEND:
            raise
        return before


class JobMonitor:
    """Watches one job for a caller that waits; ``now`` is a clock in seconds, ``today`` tells the time of day."""

    def __init__(
        self,
        record: RunRecord,
        job: BoundJob,
        now: Callable[[], float] = time.monotonic,
        today: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
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
        self._outage: list[Diagnosis] = []
        self._store_waits = StoreWaits(job, now)
        self._dead_nodes = DeadNodes(now, today)
        self._hindering: list[Diagnosis] = []

    def look(self) -> list[Diagnosis]:
        """What is new since the last look; a diagnosis comes again when it has turned out to be permanent."""
        now = self._now()
        if self._looked is not None and now - self._looked < LOOK:
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
        return [*self._outage_news(outage), *found]

    def _look(self, first: bool, now: float) -> list[Diagnosis]:
        status = self._job.status()
        if status is None or status.finished:
            self._hindering = []
            self._dead_nodes.look([])
            return []
        pods, events = not_before(status.created, self._job.pods()), since(status.created, self._job.events())
        left = status.deleting or status.condition("Suspended")  # by all pods together
        new = self._new_incidents([pod for pod in pods if not (left and pod.reason == DELETED)], events)
        found = [*self._hindrances(status, pods, events, now), *self._repeated(new, now)]
        self._hindering = self._settled(found, now)
        passing = [incident for incident in new if not incident.permanent]
        hindering = [each for each in self._hindering if self._is_news(each, now)]
        # Of the incidents before the first look only the last is news.
        return [*(passing[-1:] if first else passing), *self._dead_nodes.look(pods), *hindering]

    @property
    def current(self) -> list[Diagnosis]:
        """What hinders the job at the moment, and why there is no news of it."""
        return [*self._hindering, *self._dead_nodes.current, *self._outage]

    def failure(self) -> JobFailed | None:
        """The error to raise when the job hangs and waiting cannot help; None while it may."""
        hopeless = [diagnosis for diagnosis in self.current if diagnosis.permanent]
        if not hopeless:
            return None
        lines = [f"{self._record.name}: {hopeless[0]}", *(f"also: {other}" for other in hopeless[1:])]
        lines.append("  the job is left as it is: job.cancel() removes it, job.result() waits again")
        return JobFailed("\n".join(lines), cause=hopeless[0].cause)

    def stacks_command(self) -> str:
        """What is typed to learn where the ranks are; empty where it is not known at the moment."""
        return patiently(self._job.stacks_command, "")

    @property
    def poll_interval(self) -> float:
        """Seconds after which to look again even if nothing seems to change."""
        return LOOK if self.current or self._quiet else CALM

    def _outage_news(self, error: InvalidInput | None) -> list[Diagnosis]:
        """What to report now; ``error`` is why there is no news of the job, None while there is."""
        before, self._outage = self._outage, [_outage(error)] if error else []
        if [diagnosis.cause for diagnosis in before] == [diagnosis.cause for diagnosis in self._outage]:
            return []
        return self._outage or [Diagnosis("cluster", "reconnected to the cluster: what is shown is up to date")]

    def _new_incidents(self, pods: Sequence[Pod], events: Sequence[Event]) -> list[Diagnosis]:
        """The incidents since the last look."""
        crashes = max(CRASHES, self._record.run.max_attempts + 1)
        new = [found for found in incidents(pods, events, crashes) if found.key not in self._seen]
        self._seen |= {found.key for found in new}
        return [found.diagnosis for found in new]

    def _repeated(self, new: Sequence[Diagnosis], now: float) -> list[Diagnosis]:
        """The incident that happens to a worker again and again, as long as it does."""
        if hopeless := [incident for incident in new if incident.permanent]:
            self._hopeless = (hopeless[-1], now)
        if self._hopeless is None or now - self._hopeless[1] > LOOP:
            return []
        return [self._hopeless[0]]

    def _hindrances(
        self, status: JobStatus, pods: Sequence[Pod], events: Sequence[Event], now: float
    ) -> list[Diagnosis]:
        if status.condition("Suspended"):
            return [
                Diagnosis(
                    "quota", "the job is suspended, by its queue or by a user", "the job continues once it is resumed"
                )
            ]
        found = [*refusals(pods, events, self._record.run.workers), *waits(pods, events)]
        found += self._store_waits.look(pods, failed_before_first_attempt(pods, events))
        self._quiet = not (status.conditions or pods or any(event.object != f"Pod/{event.pod}" for event in events))
        if self._quiet and now - self._begun >= QUIET:
            found.append(_not_picked_up(self._job.operator, now - self._begun))
        return found

    def _settled(self, found: list[Diagnosis], now: float) -> list[Diagnosis]:
        kinds = {(diagnosis.cause, diagnosis.permanent) for diagnosis in found}
        self._since = {kind: self._since.get(kind, now) for kind in kinds}
        lasting = [
            replace(each, permanent=each.permanent and now - self._since[each.cause, True] >= SETTLE) for each in found
        ]
        slow = now - min(self._since.get(("scheduling", permanent), now) for permanent in (True, False))
        return [each for each in lasting if each.cause != "scheduling" or slow >= SLOW]

    def _is_news(self, diagnosis: Diagnosis, now: float) -> bool:
        before, when = self._told.get(diagnosis.cause, (None, 0.0))
        if before and (before.permanent, before.headline) == (diagnosis.permanent, diagnosis.headline):
            return False
        if before and before.permanent == diagnosis.permanent and now - when < REPEAT:
            return False
        self._told[diagnosis.cause] = (diagnosis, now)
        return True


def _outage(error: InvalidInput) -> Diagnosis:
    what = f"no news of the job: {error}"
    return Diagnosis(error.cause, what, "the job keeps running; news of it comes as soon as the cluster answers")


def _not_picked_up(operator: Operator, seconds: float) -> Diagnosis:
    """Says so in other words only when it has lasted twice as long; an operator may be busy, or start only now."""
    told = QUIET * 2 ** int(math.log2(max(1.0, seconds / QUIET)))
    since = f"{told:.0f} s" if told < 120 else f"{told / 60:.0f} minutes"
    return Diagnosis(
        "cluster",
        f"the {operator.name} has not picked up this job yet, for more than {since}: it is busy or starting, does not "
        "run, or does not handle this namespace",
        f"the job starts once it does; to see whether it runs: {operator.look}",
    )
