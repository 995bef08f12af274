"""Looks out for what hinders a job while somebody waits for it: each trouble is told once, and named at once.

On a cluster most failures never make a job Failed: it hangs, and only its pods and events say why.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from train_func.client.explain.incidents import CRASHES, incidents, since, unbegun
from train_func.client.explain.refusals import refusals
from train_func.client.explain.store_waits import StoreWaits
from train_func.client.explain.trouble import Trouble, workers
from train_func.client.explain.unheard import OF_THE_PLACE, Unheard
from train_func.client.explain.waiting import waiting
from train_func.client.observed import Event, JobStatus, Place, Pod, WhyNot
from train_func.errors import Cause, InvalidInput, JobFailed
from train_func.run import RunRecord

LOOK_SECONDS = 1.0  # between two looks
LOOP_SECONDS = 90.0  # without another such end, after which a worker is no longer thought to run in a circle
CALM_SECONDS = 5.0  # the same while nothing hinders the job
SETTLE_SECONDS = 4.0  # that a trouble lasts before it counts as permanent: some are over in a moment
SLOW_SECONDS = 2.0  # that a worker may be without a node before it is told: most get one at the second try
AGAIN_SECONDS = 10.0  # at least, before the same kind of trouble is told in other words
ROOM_SECONDS = 20.0  # between two looks at the nodes
QUIET_SECONDS = 10.0  # without a sign of the operator, after which that is told
SILENT_SECONDS = 20.0  # the same, after which it counts as not running


class Lookout:
    """Of one job, for one who waits; ``now`` is a clock in seconds."""

    def __init__(self, record: RunRecord, place: Place, now: Callable[[], float] = time.monotonic) -> None:
        self._record = record
        self._place = place
        self._now = now
        self._begun = now()
        self._looked: float | None = None
        self._since: dict[tuple[Cause, bool], float] = {}
        self._told: dict[Cause, tuple[Trouble, float]] = {}
        self._seen: set[str] = set()
        self._hopeless: tuple[Trouble, float] | None = None
        self._quiet = True
        self._room: tuple[WhyNot | None, float] | None = None
        self._unheard = Unheard()
        self._store_waits = StoreWaits(record.job_name, place, now)
        self._hindering: list[Trouble] = []

    def look(self) -> list[Trouble]:
        """What is new since the last look; a trouble comes again when it has turned out to be permanent."""
        now = self._now()
        if self._looked is not None and now - self._looked < LOOK_SECONDS:
            return []
        first, self._looked = self._looked is None, now
        found: list[Trouble] = []
        try:
            unheard = self._place.unheard(self._record.job_name)
            if unheard is None or unheard.cause != "cluster":
                found = self._look(first, now)
        except InvalidInput as error:
            if first or error.cause not in OF_THE_PLACE:
                raise
            unheard = error
        told = self._unheard.news(unheard)
        return [*told, *found]

    def _look(self, first: bool, now: float) -> list[Trouble]:
        name = self._record.job_name
        status = self._place.status(name)
        if status is None or status.finished:
            self._hindering = []
            return []
        pods, events = self._place.pods(name), since(status.created, self._place.events(name))
        befallen = self._befallen(pods, events)
        found = [*self._hindrances(status, pods, events, now), *self._loop(befallen, now)]
        self._hindering = self._settled(found, now)
        passing = [told for told in befallen if not told.permanent]
        # Of what happened before anybody looked only the last is news.
        return [*(passing[-1:] if first else passing), *(told for told in self._hindering if self._is_news(told, now))]

    @property
    def current(self) -> list[Trouble]:
        """What hinders the job at the moment, and what hinders looking at it."""
        return [*self._hindering, *self._unheard.current]

    def failure(self) -> JobFailed | None:
        """The error to raise while the job hangs for good; None while waiting may help."""
        hopeless = [trouble for trouble in self.current if trouble.permanent]
        if not hopeless:
            return None
        lines = [f"{self._record.name}: {hopeless[0]}", *(f"also: {other}" for other in hopeless[1:])]
        lines.append("  the job is left as it is: job.cancel() removes it, job.result() waits again")
        return JobFailed("\n".join(lines), cause=hopeless[0].cause)

    @property
    def patience(self) -> float:
        """Seconds after which to look again even if nothing seems to change."""
        return LOOK_SECONDS if self.current or self._quiet else CALM_SECONDS

    def _befallen(self, pods: Sequence[Pod], events: Sequence[Event]) -> list[Trouble]:
        """What has befallen workers since the last look, each thing once."""
        crashes = max(CRASHES, self._record.run.max_attempts + 1)
        new = [found for found in incidents(pods, events, crashes) if found.key not in self._seen]
        self._seen |= {found.key for found in new}
        return [found.trouble for found in new]

    def _loop(self, befallen: Sequence[Trouble], now: float) -> list[Trouble]:
        """The end that a worker comes to again and again, as long as it does."""
        if hopeless := [told for told in befallen if told.permanent]:
            self._hopeless = (hopeless[-1], now)
        if self._hopeless is None or now - self._hopeless[1] > LOOP_SECONDS:
            return []
        return [self._hopeless[0]]

    def _hindrances(self, status: JobStatus, pods: Sequence[Pod], events: Sequence[Event], now: float) -> list[Trouble]:
        if status.condition("Suspended"):
            return [Trouble("quota", "the job is suspended, by its queue or by somebody", "it goes on once resumed")]
        found = [*refusals(pods, events, self._record.run.workers), *waits(pods, events)]
        found = [self._with_room(told, now) if told.cause == "scheduling" else told for told in found]
        found += self._store_waits.look(pods, unbegun(pods, events))
        self._quiet = silent = (
            not status.conditions and not pods and not any(e.object.startswith("PyTorchJob/") for e in events)
        )
        if silent and (quiet := now - self._begun) >= QUIET_SECONDS:
            found.append(_no_operator(quiet))
        return found

    def _with_room(self, trouble: Trouble, now: float) -> Trouble:
        """With what every node has; permanent when none could ever hold the workers."""
        if self._room is None or now - self._room[1] >= ROOM_SECONDS:
            self._room = (self._place.why_not(self._record.job_name), now)
        why_not = self._room[0]
        if why_not is None:
            return trouble
        what = f"{trouble.what}\n{why_not.table}"
        if why_not.lack is None:
            return replace(trouble, what=what)
        return replace(trouble, what=f"{why_not.lack}: {what}", next=_LESS, permanent=True)

    def _settled(self, found: list[Trouble], now: float) -> list[Trouble]:
        kinds = {(trouble.cause, trouble.permanent) for trouble in found}
        self._since = {kind: self._since.get(kind, now) for kind in kinds}
        lasting = [
            replace(told, permanent=told.permanent and now - self._since[told.cause, True] >= SETTLE_SECONDS)
            for told in found
        ]
        slow = [told for told in lasting if told.cause == "scheduling" and now - self._first(told.cause) < SLOW_SECONDS]
        return [told for told in lasting if told not in slow]

    def _first(self, cause: Cause) -> float:
        return min(since for (found, _), since in self._since.items() if found == cause)

    def _is_news(self, trouble: Trouble, now: float) -> bool:
        before, when = self._told.get(trouble.cause, (None, 0.0))
        if before and (before.permanent, before.headline) == (trouble.permanent, trouble.headline):
            return False
        if before and before.permanent == trouble.permanent and now - when < AGAIN_SECONDS:
            return False
        self._told[trouble.cause] = (trouble, now)
        return True


def waits(pods: Sequence[Pod], events: Sequence[Event]) -> list[Trouble]:
    """Why the newest pods of workers do not start; workers with the same trouble together."""
    newest = {pod.worker: pod for pod in pods}
    found: dict[Trouble, list[int]] = {}
    for worker, pod in newest.items():
        if not pod.deleted and (trouble := waiting(pod, events)):
            found.setdefault(trouble, []).append(worker)
    return [replace(told, what=f"{workers(numbers)}: {told.what}") for told, numbers in found.items()]


_LESS = "job.cancel(), then ask for less cpu, memory or gpu, or for fewer workers, or have nodes added; submit again"


def _no_operator(quiet: float) -> Trouble:
    return Trouble(
        "cluster",
        "nothing has been done with the job: the Training Operator does not run, or does not look after this namespace",
        "have whoever runs the cluster look: kubectl -n kubeflow get pods; the job starts once the operator runs",
        permanent=quiet >= SILENT_SECONDS,
    )
