"""A job of this machine; its folder is shared by its controller and every process."""

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from train_func.client.backend import runs_already
from train_func.client.job_spec import TTL_SECONDS, JobSpec
from train_func.client.local.job_folder import OLD, JobFolder, Journal, make_folder, writing
from train_func.client.local.worker import machine_environment, secret_values
from train_func.client.status import OPEN, JobStatus, LogLine, LogPosition, Pod, Snapshot
from train_func.errors import InvalidInput, JobFailed, JobNotFound
from train_func.process import lock
from train_func.wire.layout import home

_JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
LOG_BYTES = 1024 * 1024  # of one pod in one look
START_SECONDS = 30.0  # for a controller to accept a job, on a machine that is busy
END_SECONDS = 15.0  # for a controller to answer, and to end beyond the grace period of its workers


class LocalJob:
    """A BoundJob in the TRAIN_FUNC_HOME of this moment. Raises InvalidInput for a name that no job can have."""

    pause = 0.3  # a look here costs next to nothing
    operator = None

    def __init__(self, name: str) -> None:
        if not _JOB_NAME.fullmatch(name):
            rule = "a DNS label is expected: a-z, 0-9 and -, at most 63 characters, a letter first"
            raise InvalidInput(f"{name!r} cannot be the name of a job: {rule}")
        self.name = name
        self.folder = JobFolder(home(os.environ) / "jobs" / name)
        self._lock = self.folder.root.parent / ".lock"  # under it no job can take the place of this one

    def status(self) -> JobStatus | None:
        """Returns the job's state, or None if there is no such job here."""
        return self._read().status

    def pods(self) -> list[Pod]:
        """Returns every incarnation of every worker, oldest first."""
        return list(self._read().pods.values())

    def look(self, since: Snapshot | None = None, *, worker: int | None = None, with_logs: bool = True) -> Snapshot:
        """Looks as every backend does, at the files of the job's folder; reads the logs of all workers."""
        positions = dict(since.positions) if since else {}
        journal = self._read()  # before the logs: no line follows an end
        lines, has_more = list[LogLine](), False
        for pod in journal.pods.values() if with_logs else ():
            if worker in (None, pod.worker):
                log, position = self.folder.pod(pod) / "log", positions.get(pod.uid, LogPosition())
                new, positions[pod.uid], is_cut = read_log(log, pod, position)
                lines += new
                has_more = has_more or is_cut
        return Snapshot(
            status=journal.status,
            pods=tuple(journal.pods.values()),
            events=tuple(journal.events),
            lines=tuple(lines),
            positions=positions,
            has_more=has_more,
        )

    def stacks_command(self) -> str:
        """Returns a command that signals the first process of each pod, its supervisor."""
        pids = [str(pod.pid) for pod in self.pods() if pod.phase == "Running"]
        return f"kill -QUIT {' '.join(pids)}" if pids else ""

    def start(self, spec: JobSpec) -> None:
        """Starts the controller in a new session, and returns once it has accepted the job.

        Raises:
            RunsAlready: another client has started it, here or where TRAIN_FUNC_HOME is shared.
            InvalidInput: its run is in another store, or TRAIN_FUNC_HOME cannot be written.
            JobFailed: the controller does not start.
        """
        folder = self.folder
        make_folder(folder.root.parent)
        with lock.hold(self._lock):
            remove_old(folder.root.parent)
            self._end_if_finished()
            if folder.is_controlled():
                stores = [str(each.environment["TRAIN_FUNC_STORE"]) for each in (folder.spec(), spec)]
                raise runs_already(self.name, *stores)
            environment = {
                **machine_environment(os.environ),
                **secret_values(spec, os.environ),
                "TRAIN_FUNC_HOME": str(folder.home),
                "TRAIN_FUNC_JOB": self.name,
                "TRAIN_FUNC_GROUP_SECRET": secrets.token_hex(32),
            }
            with writing(folder.root):
                folder.prepare(spec)
                log = folder.log.open("ab")
            with log:
                starting = subprocess.Popen(
                    [sys.executable, "-P", "-m", "train_func.client.local.controller", str(folder.root)],
                    env=environment,
                    cwd=folder.root,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            try:
                is_accepted, within = starting.wait(timeout=START_SECONDS) == 0, ""
            except subprocess.TimeoutExpired:
                os.killpg(starting.pid, signal.SIGKILL)  # with what it has forked
                starting.wait()
                is_accepted, within = False, f" within {START_SECONDS:.0f} s"
            if not is_accepted:
                last = "\n".join(folder.log.read_text(errors="replace").splitlines()[-5:])
                raise JobFailed(
                    f"the controller of job {self.name} did not start{within}; {folder.log}:\n{last}", cause="unknown"
                )

    def change(
        self,
        *,
        workers: int | None = None,
        node_selector: Mapping[str, str] | None = None,
        suspend: bool | None = None,
    ) -> None:
        """Changes the job as every backend does; returns once the controller has applied the number of workers."""
        with self._changing():
            before = self.folder.read_changes()
            changes = replace(
                before,
                workers=before.workers if workers is None else workers,
                suspend=before.suspend if suspend is None else suspend,
                node_selector={**before.node_selector, **(node_selector or {})},
            )
            self.folder.write_changes(changes)
        end = time.monotonic() + END_SECONDS
        while True:
            status = self.status()
            if status is None or status.is_over or status.workers == changes.workers:
                return
            if time.monotonic() > end:
                raise JobFailed(
                    f"the controller of job {self.name} did not answer within {END_SECONDS:.0f} s; see "
                    f"{self.folder.log}",
                    cause="unknown",
                )
            time.sleep(0.02)

    def evict(self, worker: int, *, force: bool = False, dry_run: bool = False) -> None:
        """Ends a worker as every backend does."""
        with self._changing():
            pods = [pod for pod in self.pods() if pod.worker == worker and pod.phase in OPEN]
            if not pods:
                raise InvalidInput(f"worker={worker!r}: job {self.name} has no process of it now")
            if not dry_run:
                changes = self.folder.read_changes()
                evictions = {**changes.evictions, pods[-1].uid: force}
                self.folder.write_changes(replace(changes, evictions=evictions))

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Locks the job against changes by other clients; raises JobNotFound if it does not run here."""
        if not self.folder.root.exists():
            raise self._absent()
        with lock.hold(self._lock):
            if not self.folder.is_controlled():
                raise JobNotFound(f"job {self.name} has ended: submit the run again")
            yield

    def _absent(self) -> JobNotFound:
        return JobNotFound(f"this machine has no job {self.name!r} in {self.folder.root.parent}")

    def clear_away(self) -> None:
        """Ends the last workers of a finished job, which may still be ending and hold memory."""
        if self.folder.root.exists():
            with lock.hold(self._lock):
                self._end_if_finished()

    def cancel(self) -> None:
        """Ends all processes of the job within its grace period. Its state is then Failed, with the reason Cancelled.

        A job that has ended keeps its state. Waits for a job that another client is just starting.

        Raises:
            JobNotFound: there is no such job here.
            JobFailed: its controller does not end.
        """
        if not self._stop():
            raise self._absent()

    def delete(self) -> None:
        """Cancels the job and removes its folder with all logs; ignores an absent job."""
        self._stop()
        if self.folder.root.exists():
            with lock.hold(self._lock):
                if not self.folder.is_controlled():  # no client has started it again
                    self.folder.remove()

    def _read(self) -> Journal:
        """Returns the journal, with a failure if no controller lives any more."""
        was_controlled = self.folder.is_controlled()  # before reading: a controller writes its last entry, then ends
        status, pods, events = self.folder.read()
        if was_controlled or self.folder.is_controlled():
            return Journal(status, pods, events)
        if status and not status.finished:
            status = replace(status, interrupted=True)
        lost = {uid: replace(pod, phase="Unknown") for uid, pod in pods.items() if pod.phase in OPEN}
        return Journal(status, {**pods, **lost}, events)

    def _end_if_finished(self) -> None:
        status = self.folder.read().status
        if status and status.finished:
            self._await_end(self._ask_to_end())

    def _stop(self) -> bool:
        """Ends all processes of the job, while other jobs can start; returns whether there was a job."""
        if not self.folder.root.exists():
            return False
        with lock.hold(self._lock):
            is_there, seconds = self.status() is not None, self._ask_to_end()
        self._await_end(seconds)
        return is_there

    def _ask_to_end(self) -> float:
        """Tells the controller, if there is one; returns the seconds within which it ends."""
        if not self.folder.is_controlled():
            return 0.0
        self.folder.ask_to_end()
        return self.folder.spec().grace_seconds + END_SECONDS

    def _await_end(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while self.folder.is_controlled():
            if time.monotonic() > end:
                raise JobFailed(
                    f"job {self.name} did not end within {seconds:.0f} s; "
                    f"see {self.folder.pid} for its controller and {self.folder.log} for what that did",
                    cause="unknown",
                )
            time.sleep(0.02)


def job_folders(jobs: Path) -> list[JobFolder]:
    """Returns the folders of accepted jobs, by name; ignores other files beside them."""
    roots = (journal.parent for journal in sorted(jobs.glob("*/journal.jsonl")))
    return [JobFolder(root) for root in roots if _JOB_NAME.fullmatch(root.name)]


def remove_old(jobs: Path) -> None:
    """Removes the folders of jobs that ended a day ago, and what is left of others; the runs stay in the store."""
    for left in jobs.glob(f"{OLD}*"):
        shutil.rmtree(left, ignore_errors=True)
    for folder in job_folders(jobs):
        is_old = folder.journal.stat().st_mtime + TTL_SECONDS < time.time()
        if is_old and not folder.is_controlled():
            folder.remove()


def read_log(log: Path, pod: Pod, position: LogPosition) -> tuple[list[LogLine], LogPosition, bool]:
    """Returns the whole lines after ``position``, their end, and whether there are more; of an ended pod all lines."""
    if position.is_complete:
        return [], position, False
    has_ended = pod.deleted or pod.phase not in OPEN
    try:
        with log.open("rb") as file:
            file.seek(position.offset)
            data = file.read(LOG_BYTES)
    except FileNotFoundError:
        return [], LogPosition(is_complete=has_ended), False
    has_more = len(data) == LOG_BYTES
    is_last = has_ended and not has_more
    if not is_last and (b"\n" in data or not has_more):  # else the rest, or a piece of a very long line
        data = data[: data.rfind(b"\n") + 1]
    rows = data.removesuffix(b"\n").split(b"\n") if data else []
    lines = [LogLine(pod.worker, pod.uid, row.decode(errors="replace").removesuffix("\r")) for row in rows]
    return lines, LogPosition(offset=position.offset + len(data), is_complete=is_last), has_more
