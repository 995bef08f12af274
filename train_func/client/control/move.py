"""A job changes while it runs: its number of workers, and the nodes that these are on.

What a move has cost is read from the store: which pods an attempt had from their logs, its steps from its history.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from train_func.client.backend import Backend, BoundJob
from train_func.client.diagnose import JobMonitor
from train_func.client.elsewhere import whereabouts
from train_func.client.status import OPEN, Pod, Snapshot
from train_func.client.stored_attempts import all_ends, attempt_numbers, attempt_rows
from train_func.errors import InvalidInput, JobNotFound
from train_func.fields import brief, whole_fault
from train_func.storage import Store, find
from train_func.text import counted, numbered_workers, shown
from train_func.wire import events
from train_func.wire.metrics import Row
from train_func.wire.records import RunRecord

AWAY_SECONDS = 300.0  # for which a cluster that does not answer is asked again to resume a job


@dataclass(frozen=True, kw_only=True)
class Move:
    """How a worker has come to another node; what is not known is None."""

    worker: int
    from_node: str | None
    to_node: str | None
    pause: float | None
    """Seconds without a step: from the last one before to the first one after, where the worker left and, where the
    others trained meanwhile, where it joined them."""
    num_steps_repeated: int | None

    def __str__(self) -> str:
        """Says all of it in one line."""
        unknown = "not known"
        pause = unknown if self.pause is None else f"{self.pause:.1f} s"
        repeated = unknown if self.num_steps_repeated is None else str(self.num_steps_repeated)
        nodes = f"from {self.from_node or unknown} to {self.to_node or unknown}"
        return f"worker {self.worker} moved {nodes}; pause: {pause}, steps repeated: {repeated}"


@dataclass(frozen=True)
class _Before:
    """A job before something moves."""

    pods: Mapping[int, Pod]
    """The newest pod of each worker."""
    attempt: int
    """The newest attempt."""
    monitor: JobMonitor
    snapshot: Snapshot


class Workers:
    """The workers of one job, whose number and nodes change; what happens meanwhile is told to ``note``."""

    def __init__(
        self, record: RunRecord, job: BoundJob, backend: Backend, store: Store, note: Callable[[str], None]
    ) -> None:
        self._record, self._job, self._backend, self._store, self._note = record, job, backend, store, note
        self._end = float("inf")  # of waiting, in monotonic seconds

    def scale(self, workers: int) -> None:
        """Gives the job another number of workers; returns at once."""
        run = self._record.run
        if run.min_workers is None:
            raise InvalidInput(
                f"scale({workers!r}): {self._record.name} has a fixed number of workers, {run.workers}. Only a run "
                "with min_workers changes its size: cancel the job, then submit it again with Run(..., min_workers=1), "
                "and it goes on from its newest checkpoint"
            )
        if fault := whole_fault("workers", workers, run.min_workers, run.workers):
            raise InvalidInput(f"{fault}: from min_workers to workers of the Run")
        before = self._look().status
        self._job.change(workers=workers)
        size = before.workers if before and before.workers is not None else run.workers
        what = (
            "its highest workers leave at the end of a step" if workers < size else "new ones join at the end of a step"
        )
        self._note(
            f"{counted(size, 'worker')} before, {workers} from now on" + (f": {what}" if workers != size else "")
        )

    def move(self, worker: int | None, to: Mapping[str, str], timeout: float | None) -> list[Move]:
        """Has a worker, or each one after the other, start again on nodes with these labels."""
        if not (isinstance(to, Mapping) and to and all(isinstance(text, str) for pair in to.items() for text in pair)):
            example = "{'topology.kubernetes.io/zone': 'b'}"
            raise InvalidInput(f"to={brief(to)}: labels of the nodes to move to are expected, such as to={example}")
        run, snapshot = self._record.run, self._look()
        size = (snapshot.status and snapshot.status.workers) or run.workers
        if worker is not None and (fault := whole_fault("worker", worker, 0, size - 1)):
            raise InvalidInput(fault)
        if worker is not None and run.min_workers is None:
            raise InvalidInput(
                f"worker={worker}: without min_workers no worker of {self._record.name} leaves while the others train, "
                "so that they move together: leave worker= out"
            )
        self._end = float("inf") if timeout is None else time.monotonic() + timeout
        if run.min_workers is None:
            return self._move_together(size, to)
        workers = [worker] if worker is not None else list(reversed(range(size)))
        self._job.evict(workers[0], dry_run=True)  # a refusal leaves everything as it is
        self._job.change(node_selector=to)
        # Worker 0 leads the others at first; every change of the lead takes a few seconds more.
        moves: list[Move] = []
        for each in workers:
            before = self._before()
            self._job.evict(each)
            self._note(f"worker {each} leaves {_node(before.pods.get(each)) or 'its node'} at the end of a step")
            moves += self._wait_for([each], before)
        return moves

    def _move_together(self, size: int, to: Mapping[str, str]) -> list[Move]:
        before, is_suspended = self._before(), False
        try:
            self._job.change(suspend=True)
            is_suspended = True
            self._note("all workers leave at the same step; should this be interrupted, move(...) again has them go on")
            snapshot = self._look(before.snapshot)  # pods may have been made meanwhile
            # Until the operator has seen the suspension it may make pods by the old template.
            while snapshot.outage or not _is_suspended(snapshot) or any(pod.phase in OPEN for pod in snapshot.pods):
                for diagnosis in before.monitor.look(snapshot):
                    if diagnosis.cause != "quota":  # that it is suspended
                        self._note(str(diagnosis))
                self._pause("it is not suspended, or its workers have not ended")
                snapshot = self._look(snapshot)
        finally:  # also where the answer to the suspension was lost
            within = AWAY_SECONDS if is_suspended else min(AWAY_SECONDS, self._end - time.monotonic())
            self._resume(to, within)
        self._note("all workers are started again")
        return self._wait_for(range(size), before)

    def _resume(self, node_selector: Mapping[str, str], within: float) -> None:
        """Resumes the job; asks a cluster that does not answer again, because no workers run while it is suspended."""
        end, is_first = time.monotonic() + within, True
        while True:
            try:
                return self._job.change(node_selector=node_selector, suspend=False)
            except InvalidInput as error:
                if error.cause != "cluster":
                    raise
                if time.monotonic() > end:
                    again = f"{self._record.name} may be suspended now: move(...) again resumes it"
                    raise InvalidInput(f"{error}; {again}", cause="cluster") from None
                if is_first:
                    self._note(f"it is asked again for up to {within:.0f} s: {error}")
                is_first = False
            time.sleep(self._job.pause)

    def _before(self) -> "_Before":
        monitor, snapshot = JobMonitor(self._record, self._job.operator), self._look()
        monitor.look(snapshot)  # what has happened by now is no news
        return _Before(self._pods(snapshot), self._newest(), monitor, snapshot)

    def _wait_for(self, workers: Sequence[int], before: "_Before") -> list[Move]:
        """Waits until new pods of these workers have done a step; returns how they have come to it."""
        monitor, snapshot, nodes = before.monitor, before.snapshot, dict[int, str]()
        old = {pod.uid for pod in before.pods.values()}
        newest, joined = before.attempt, 0
        had_steps = any(self._rows(number) for number in self._attempts(1))
        steps = list[Row]()
        while True:
            snapshot = self._job.look(snapshot, with_logs=False)
            if snapshot.status is None or snapshot.status.is_over:
                self._note("the job has ended meanwhile")
                break
            for worker, pod in self._pods(snapshot).items():
                if worker in workers and pod.uid not in old and pod.node and nodes.get(worker) != pod.node:
                    nodes[worker] = pod.node
                    self._note(f"worker {worker} starts on {pod.node}")
            attempt = self._newest()
            if attempt > newest:
                newest = attempt
                self._note(f"attempt {newest} has begun")
            joined = joined or self._joined(workers, old, before.attempt)
            steps = [row for number in self._attempts(joined) for row in self._rows(number)] if joined else []
            if joined and (steps or not had_steps):
                break
            for diagnosis in monitor.look(snapshot):
                self._note(str(diagnosis))
            if failure := monitor.failure():
                raise failure
            self._pause(f"{numbered_workers(workers)} {'has' if len(workers) == 1 else 'have'} not joined")
        pause, repeated = self._cost(before.attempt, joined) if steps else (None, None)
        moves = [
            Move(
                worker=worker,
                from_node=_node(before.pods.get(worker)),
                to_node=nodes.get(worker),
                pause=pause,
                num_steps_repeated=repeated,
            )
            for worker in workers
        ]
        for move in moves:
            self._note(str(move))
        return moves

    def _joined(self, workers: Sequence[int], old: set[str], before: int) -> int:
        """The first attempt after ``before`` in which each of these workers has a new pod; 0 where there is none."""
        for number in self._attempts(before + 1):
            pods = [self._pod_of(self._record.keys.attempt(number).log(worker)) for worker in workers]
            if all(pods) and old.isdisjoint(pods):
                return number
        return 0

    def _pod_of(self, key: str) -> str:
        """Returns the pod whose log has this key; empty while there is no log."""
        log = find(self._store, key)
        first = events.parse(log.data.partition(b"\n")[0].decode(errors="replace")) if log else None
        return first.pod_uid if isinstance(first, events.WorkerStarts) else ""

    def _cost(self, before: int, joined: int) -> tuple[float | None, int | None]:
        """Seconds without a step, and steps done twice, from one attempt to the first steps of another one."""
        rows = {number: rows for number in self._attempts(1) if (rows := self._rows(number))}
        done = {number: rows[-1].step for number, rows in rows.items()}
        for record in all_ends(self._store, self._record.keys, []):
            done[record.attempt] = max(done.get(record.attempt, 0), record.step)
        begin = max((number for number in rows if number <= before), default=0)
        end = min(number for number in rows if number >= joined)
        if not begin:
            return None, None
        pause, num_repeated = 0.0, 0
        for number, following in pairwise(number for number in rows if begin <= number <= end):
            first = rows[following][0]
            if first.step > done[number] + 1:  # steps were done that no worker has reported
                return None, None
            num_repeated += done[number] + 1 - first.step
            stopped, resumed = (datetime.fromisoformat(row.timestamp) for row in (rows[number][-1], first))
            pause += (resumed - stopped).total_seconds()
        return pause, num_repeated

    def _rows(self, attempt: int) -> list[Row]:
        """The rows of its steps, those of evaluations left out, by time."""
        rows = attempt_rows(self._store, self._record.keys, attempt)
        steps = [row for row in rows if not all(name.startswith(("eval", "epoch")) for name in row.values)]
        return sorted(steps, key=lambda row: row.timestamp)

    def _attempts(self, first: int) -> list[int]:
        return [number for number in attempt_numbers(self._store, self._record.keys) if number >= first]

    def _newest(self) -> int:
        return max(self._attempts(0), default=0)

    def _look(self, since: Snapshot | None = None) -> Snapshot:
        """Looks at the job that can be changed; raises JobNotFound where none runs."""
        snapshot = self._job.look(since, with_logs=False)
        if snapshot.status is None or snapshot.status.is_over or snapshot.status.deleting:
            gone = f"job {self._job.name} does not run: submit the run again, with fresh=True if it has succeeded"
            raise JobNotFound(whereabouts(self._record.keys, self._store, self._backend) or gone)
        return snapshot

    def _pods(self, snapshot: Snapshot) -> dict[int, Pod]:
        """The newest pod of each worker."""
        return {pod.worker: pod for pod in snapshot.pods}

    def _pause(self, what: str) -> None:
        if time.monotonic() > self._end:
            raise TimeoutError(
                shown(f"{self._record.name}: {what} yet; the job goes on, and stays as it was asked for")
            )
        time.sleep(self._job.pause)


def _is_suspended(snapshot: Snapshot) -> bool:
    return bool(snapshot.status and snapshot.status.condition("Suspended"))


def _node(pod: Pod | None) -> str | None:
    return pod.node or None if pod else None
