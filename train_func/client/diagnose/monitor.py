"""Diagnoses what hinders a job while a caller waits for it: each diagnosis is reported once, when it has lasted.

On a cluster most failures never make a job Failed: it hangs, and only its pods and events say why.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from train_func.client.diagnose.incidents import SHORT_LIFE_SECONDS, Incident, incidents
from train_func.client.diagnose.reasons import dead_nodes, refusals, waits
from train_func.client.kinds.kind import Operator
from train_func.client.status import DELETED, OPEN, Diagnosis, JobEvent, Pod, Snapshot
from train_func.errors import JobFailed
from train_func.text import counted, numbered_workers
from train_func.wire.records import RunRecord

LASTS = timedelta(seconds=5)  # before a hindrance counts: many are over in a moment
STARTS = timedelta(seconds=20)  # before a worker that has had no pod is a sign that no operator runs
GIVES_UP = timedelta(seconds=30)  # before a permanent one ends the waiting: a registry, say, is asked three times


class JobMonitor:
    """Judges the snapshots of one job, by the clock ``now``."""

    def __init__(
        self, record: RunRecord, operator: Operator | None, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._record, self._operator, self._now = record, operator, now
        self._seen: set[str] | None = None  # keys of incidents; None before the first look
        self._since: dict[object, datetime] = {}  # by kind of hindrance
        self._without_pod: dict[int, datetime] = {}  # since when, by worker
        self._reported: set[object] = set()  # kinds of those that last
        self._outage: Diagnosis | None = None
        self._hindrances: list[Diagnosis] = []  # of the last look that was answered

    @property
    def current(self) -> list[Diagnosis]:
        """What hinders the job at the moment, and why there is no news of it."""
        return [self._outage, *self._hindrances] if self._outage else self._hindrances

    def look(self, snapshot: Snapshot) -> list[Diagnosis]:
        """Returns what is new since the last look; a diagnosis comes again when it has turned out to be permanent."""
        now, news, before = self._now(), list[Diagnosis](), self._outage
        if error := snapshot.outage:
            remedy = "the job keeps running; news of it comes as soon as the cluster answers"
            self._outage = Diagnosis(error.cause, f"no news of the job: {error}", remedy)
        else:
            self._outage = None
            if before and before.kind in self._reported:
                news.append(Diagnosis("cluster", "reconnected to the cluster: what is shown is up to date"))
            news += self._judge(snapshot.of_this_job(), now)
        self._since = {each.kind: self._since.get(each.kind, now) for each in self.current}
        lasting = [each for each in self.current if now - self._since[each.kind] >= LASTS]
        news += [each for each in lasting if each.kind not in self._reported]
        self._reported = {each.kind for each in lasting}
        return news

    def failure(self) -> JobFailed | None:
        """The error to raise when the job hangs and waiting cannot help; None while it may."""
        now = self._now()
        hopeless = [each for each in self._hindrances if each.permanent and now - self._since[each.kind] >= GIVES_UP]
        if not hopeless or self._outage:
            return None
        lines = [f"{self._record.name}: {hopeless[0]}", *(f"also: {other}" for other in hopeless[1:])]
        lines.append("  the job is left as it is: cancel stops it, result waits again")
        return JobFailed("\n".join(lines), cause=hopeless[0].cause, remedy=hopeless[0].remedy, retryable=False)

    def _judge(self, snapshot: Snapshot, now: datetime) -> list[Diagnosis]:
        """Finds what hinders the job; returns what has happened to its workers since the last look."""
        status, pods, events = snapshot.status, snapshot.pods, snapshot.events
        self._hindrances = []
        before, self._without_pod = self._without_pod, {}
        if status is None or status.finished:
            return []
        is_suspended = status.condition("Suspended")
        if status.deleting or is_suspended:  # all pods go together
            pods = tuple(pod for pod in pods if pod.reason != DELETED)
        run, num_workers = self._record.run, status.workers or self._record.run.workers
        happened = incidents(pods, events, run.max_attempts)
        of_workers = [each for each in happened if each.worker < num_workers]  # the others were not to stay
        passing = [each for each in of_workers if not each.diagnosis.permanent]
        # Of the incidents before the first look only the last is news.
        news = passing[-1:] if self._seen is None else [each for each in passing if each.key not in self._seen]
        self._seen = {incident.key for incident in happened}
        is_new = not (status.conditions or pods or any(event.object != f"Pod/{event.pod}" for event in events))
        if is_suspended:
            what = "the job is suspended, by its queue or by a user"
            suspended = Diagnosis("quota", what, "the job continues once it is resumed")
            self._hindrances = [suspended, *dead_nodes(pods, now)]
        elif is_new and self._operator:
            what = (
                f"the {self._operator.name} has not picked up this job yet: it is busy or starting, does not run, or "
                "does not handle this namespace"
            )
            remedy = f"the job starts once it does; to see whether it runs: {self._operator.look}"
            self._hindrances = [Diagnosis("cluster", what, remedy)]
        else:
            hopeless = [end for end in of_workers if _is_hopeless(end, pods, now)]
            refused = refusals(pods, events, num_workers)
            self._hindrances = [
                *refused,
                *waits(pods, events),
                *[end.diagnosis for end in hopeless][-1:],
                *dead_nodes(pods, now),
                *([] if refused or status.deleting else self._unattended(pods, events, num_workers, before, now)),
            ]
            num_running = len(snapshot.running - {end.worker for end in hopeless})
            if run.min_workers is not None and num_running >= run.min_workers:
                go_on = f"; the job goes on with {num_running} of {counted(num_workers, 'worker')}"
                each_may_pass = (replace(each, permanent=False) for each in self._hindrances)
                self._hindrances = [replace(each, message=f"{each.message}{go_on}") for each in each_may_pass]
        return [incident.diagnosis for incident in news]

    def _unattended(
        self,
        pods: tuple[Pod, ...],
        events: tuple[JobEvent, ...],
        num_workers: int,
        before: Mapping[int, datetime],
        now: datetime,
    ) -> list[Diagnosis]:
        """Finds the workers whose pods have ended or are gone while no operator does anything about it.

        ``before``: since when the last look found them so.
        """
        living = {pod.worker for pod in pods if pod.phase in OPEN}
        self._without_pod = {n: before.get(n, now) for n in range(num_workers) if n not in living}
        if self._operator is None:
            return []
        had_pod = {pod.worker for pod in pods} | {e.worker for e in events if e.pod and e.creation != "refused"}
        within = dict.fromkeys(had_pod, timedelta(seconds=self._operator.replaces_within))
        late = {n: since for n, since in self._without_pod.items() if now - since >= within.get(n, STARTS)}
        if not late:
            return []
        seconds = (now - min(late.values())).total_seconds()
        what = (
            f"{numbered_workers(list(late))}: ended or missing for {seconds:.0f} s, and the {self._operator.name} has "
            "neither made a new pod nor ended the job"
        )
        remedy = f"the job goes on, or ends, once it does; to see whether it runs: {self._operator.look}"
        return [Diagnosis("cluster", what, remedy)]


def _is_hopeless(incident: Incident, pods: tuple[Pod, ...], now: datetime) -> bool:
    """Returns whether only a change helps: no pod of its worker lives longer than those that end again and again."""
    last = next((pod for pod in reversed(pods) if pod.worker == incident.worker and not pod.deleted), None)
    runs = last and last.started and not last.ended and (now - last.started).total_seconds() > SHORT_LIFE_SECONDS
    return incident.diagnosis.permanent and not runs
