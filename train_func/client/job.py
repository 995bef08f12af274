"""Job: the handle on what executes a run, the same for every backend and every kernel."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

from train_func.client import registry
from train_func.client.backend import Backend, Note
from train_func.client.diagnose import JobMonitor, explain, patiently, separate
from train_func.client.diagnose.diagnosis import workers
from train_func.client.elsewhere import SILENT_SECONDS, Elsewhere, status_here
from train_func.client.in_place_record import InPlace
from train_func.client.job_model import JobModel
from train_func.client.logs import AttemptLine, LogText, StoredLogs, headed, joined, of_attempt
from train_func.client.status import Event, JobStatus
from train_func.client.stored_run import (
    FINISHED,
    history,
    mark_cancelled,
    newest_checkpoint,
    published_result,
    state_in_store,
    state_of,
    submitted,
    workers_of,
)
from train_func.client.waiting_notice import WaitingNotice, hinted
from train_func.client.watch import watch
from train_func.errors import InvalidInput, JobNotFound, StorageFailed, TrainFuncError
from train_func.fields import whole_fault
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.storage.retry import call_with_timeout
from train_func.text import shown

if TYPE_CHECKING:
    from train_func.client.history import History

REPR_SECONDS, LONGEST_WAIT = 3.0, 60.0  # for a job's repr; between two looks where the backend tells of every change


class Job(JobModel):
    """Made by ``submit`` and ``attach``; holds nothing that another process could not find again by name."""

    def __init__(self, record: RunRecord, backend: Backend, store: Store, in_place: InPlace | None = None) -> None:
        """``in_place``: what is in place under the name that it was attached to."""
        super().__init__(record, backend, store, in_place)
        self._job = backend.job(record.job_name)

    def __repr__(self) -> str:
        generation = "" if self.record.generation == 1 else f", generation {self.record.generation}"
        try:
            state = call_with_timeout(REPR_SECONDS, lambda: self.state)
        except (TrainFuncError, TimeoutError):
            state = "state unknown"
        return f"Job({self.name!r}{generation}, {state})"

    @property
    def attach_expression(self) -> str:
        """What is written to get this handle in another kernel."""
        on = registry.expression(registry.name_of(self._backend), self._backend.found_by)
        return f"attach({self.name!r}{on and f', {on}'})"

    @property
    def state(self) -> str:
        """Created, Running, Restarting, Suspended, Succeeded, Failed, Cancelled, Interrupted, or Absent.

        Of a job that was deleted, or has expired, it is what the store holds of its run; Absent when that is no end.
        """
        status = self._status()
        if status is None:
            return state_in_store(self._store, self.record)
        return state_of(status, published=self._published)

    def _status(self) -> JobStatus | None:
        return status_here(self._job, self.record, self._store, self._backend)

    @property
    def manifest(self) -> dict[str, Any]:
        """The whole manifest that was submitted."""
        return dict(json.loads(self._store.get(self.record.keys.manifest).data))

    def wait(self, timeout: float | None = None) -> str:
        """Waits until the job has finished and returns its state; what hinders it meanwhile is printed once.

        Raises:
            JobFailed: it hangs, and only a change from outside can help; the job is left as it is.
            TimeoutError: after ``timeout`` seconds; the job goes on.
        """
        end = None if timeout is None else time.monotonic() + timeout
        monitor, state, notice = JobMonitor(self.record, self._job), self.state, WaitingNotice()
        while state not in FINISHED:
            if state == "Absent":
                gone = f"there is no job {self.record.job_name}; submit the run again"
                raise JobNotFound(self._other_backend() or gone)
            told = [str(found) for found in monitor.look() if not found.permanent]  # the error tells of those
            if told or state == "Running":
                notice.heard()
            for words in told or filter(None, [notice.due(state)]):
                self._note(words)
            if failure := monitor.failure():
                raise failure
            if end is not None and time.monotonic() > end:
                why = "".join(f"; {diagnosis.message}" for diagnosis in monitor.current)
                raise TimeoutError(shown(f"{self.name} is {state} after {timeout} s{why}; wait again, or cancel()"))
            left = LONGEST_WAIT if end is None else max(0.0, end - time.monotonic())
            self._job.wait_for_change(min(left, monitor.poll_interval))
            state = patiently(lambda: self.state, state)
        return state

    def watch(self) -> str:
        """Shows state, progress and evaluations as they come, until the job has finished; returns its state.

        An interrupt ends the watching, and the job goes on: in IPython it returns, in a program it raises
        KeyboardInterrupt.
        """
        stop = threading.Event()
        told = partial(self._told, follow=True, note=lambda words: None, stop=stop)  # the monitor tells what matters
        newest, monitor = partial(submitted, self._store, self.record), JobMonitor(self.record, self._job)
        return watch(self, told, newest, monitor, stop, lambda: separate(self.record, self._store))

    def logs(self, *, follow: bool = False, worker: int | None = None, attempt: int | None = None) -> LogText:
        """Lines of all workers from the first one on, each behind its worker; a line before those of each attempt.

        The last expression of a cell, it shows them.

        Args:
            follow: go on until the job, or the attempt asked for, has finished.
            worker: only of this one, which any attempt may have had.
            attempt: only of this one, by the number in the line before its lines.

        Raises:
            InvalidInput: no attempt had such a worker.
            JobNotFound: there is no such attempt.
        """
        if worker is not None and worker not in (known := workers_of(self._store, self.record)):
            raise InvalidInput(f"worker={worker!r}: {self.name} has {workers(known)}")
        if attempt is not None and (fault := whole_fault("attempt", attempt, 1)):
            raise InvalidInput(fault)
        told = partial(self._told, follow=follow, worker=worker)
        read = lambda: headed(told()) if attempt is None else of_attempt(told(), attempt, self.name)  # noqa: E731
        return LogText(read, follow=follow)

    def _told(
        self, *, follow: bool, worker: int | None = None, note: Note | None = None, stop: threading.Event | None = None
    ) -> Iterator[AttemptLine]:
        """What the workers say, with the attempts they belong to; by default what is left out is printed."""
        note, stop = note or self._note, stop or threading.Event()
        there = self._status() is not None
        lines = self._job.logs(follow=follow, worker=worker, note=note, stop=stop) if there else ()
        pods = self._job.pods() if there else []
        return joined(StoredLogs(self.record, self._store), pods, lines, worker=worker)

    def events(self) -> list[Event]:
        """What happened to the job and its workers, oldest first."""
        return self._job.events()

    def history(self) -> "History":
        """Every reported step and evaluation, as a DataFrame; of a repeated step the later attempt counts.

        ``job.history().plot()`` draws the metrics over the steps.
        """
        from train_func.client.history import history_of  # pandas takes long to import

        return history_of(history(self._store, self.record), self.name)

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Waits, then returns the published metrics, and over them what the function has returned.

        A value that was no dict stands under ``returned``.

        Raises:
            JobFailed: naming the cause, the worker and the line of the cell.
            TimeoutError: after ``timeout`` seconds; the job goes on.
        """
        try:
            with hinted(lambda: self._note("waiting for its end; watch() shows how far it is")):
                state = self.wait(timeout)
        except KeyboardInterrupt:
            self._note(
                f"stopped waiting; the job keeps running: {self.attach_expression} finds it again, .cancel() stops it"
            )
            raise
        if state != "Succeeded":
            raise explain(self.record, self._job, self._store, self.attach_expression, registry.name_of(self._backend))
        published = published_result(self._store, self.record)
        if published is None:
            self._note("it ran under an earlier version of train_func, and published nothing")
            return {}
        found, run = {**published.metrics, **published.returned}, self.record.run
        others = (
            "" if found or run.task or run.workers == 1 else "rank 0 returned nothing; what others return is not kept"
        )
        for words in filter(None, (separate(self.record, self._store), published.note, others)):
            self._note(words)
        return found

    def cancel(self) -> None:
        """Stops the workers; submitting the same again goes on from the newest checkpoint, whose step is printed.

        A model that is trained by then is published within the grace period and kept: the job has succeeded, which is
        said, and ``fresh=True`` trains again. Of a job that has ended, nothing is changed. One of a machine or cluster
        that cannot be asked from here is given up, where it gives no sign of life: the run can be submitted or removed
        here then, and its workers begin no further attempt, should they come to life again.

        Raises:
            JobNotFound: there is no such job any more, or it runs in another place.
        """
        status = self._status()
        if status is None and (other := Elsewhere.of(self.record, self._store, self._backend)):
            return self._give_up(other)
        if status is not None and status.finished:
            return self._note("it had ended before; nothing was changed")
        with ThreadPoolExecutor(1) as beside:  # a store that is away must not keep the workers going
            marked = beside.submit(mark_cancelled, self._store, self.record) if status else None
            try:
                self._job.cancel()
            except JobNotFound:
                if words := self._other_backend():
                    raise JobNotFound(words) from None
                raise
        try:
            if marked:
                marked.result()
            if self._published():
                goes_on = "its model was trained by then and is published; submit with fresh=True to train again"
            else:
                goes_on = newest_checkpoint(self._store, self.record) or "from its beginning, without a checkpoint"
                goes_on = f"submitted again, it goes on {goes_on}"
            self._note(f"cancelled; {goes_on}")
        except StorageFailed as failure:
            self._note(f"it is stopped; the store could not be told, so that it may be called Absent: {failure}")

    def _give_up(self, other: Elsewhere) -> None:
        """Marks a job that cannot be asked as cancelled, unless it lives."""
        if other.job is not None:
            raise JobNotFound(self._other_backend())
        self._note(f"looking up to {SILENT_SECONDS:.0f} s for a sign of life of its job")
        if other.lives():
            raise JobNotFound(f"{other}. It lives, and is stopped where it runs: {other.handle}.cancel()")
        if state_in_store(self._store, self.record) in FINISHED:
            self._note("it had ended before; nothing was changed")
            return
        mark_cancelled(self._store, self.record)
        goes_on = newest_checkpoint(self._store, self.record) or "from its beginning, without a checkpoint"
        self._note(f"its job on {other.submission.place} is given up; submitted again, it goes on {goes_on}")

    def delete(self) -> None:
        """Stops the workers and removes the job from its backend, with its pods and their logs; says what stays.

        The run stays: its record, logs and model in the store, by which it is found again. ``train_func.remove``
        removes that as well.
        """
        there = self._job.status() is not None
        self._job.delete()
        gone = self._other_backend() or "there is no job any more"
        remove = self.attach_expression.replace("attach", "remove", 1)
        self._note(
            f"{'the job is deleted, with its pods and their files' if there else gone}; the run "
            f"stays in {self._store.address}/{self.name}/, where logs(), attach() and submit() find it, result() and "
            f"fetch() what it has published; {remove} removes the run too"
        )

    def _published(self) -> bool:
        return bool(self._store.list(self.record.keys.result))
