"""The supervisor, process 1 of a pod: lets the ranks work, and sees to it that their end is orderly and explained."""

import faulthandler
import json
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from train_func import exits
from train_func.errors import InvalidInput, TrainFuncError
from train_func.events import WorkerEnds, WorkerStarts
from train_func.process_tree import adopt_orphans, kill_descendants, reap_orphans
from train_func.records import RunRecord, Termination, Verdict
from train_func.storage import open_store
from train_func.worker import masks
from train_func.worker.environment import GROUP_SECRET, Environment, read_environment
from train_func.worker.publish.store import complete, delete_checkpoints
from train_func.worker.rank import reporting
from train_func.worker.rank.end import RankEnd
from train_func.worker.stop import Stop, Stopped, WithinGrace
from train_func.worker.store_wait import patiently
from train_func.worker.supervisor import packages
from train_func.worker.supervisor.attempt import Attempt
from train_func.worker.supervisor.budget import Refused
from train_func.worker.supervisor.coordinator import SILENCE
from train_func.worker.supervisor.group import Member, NotFormed, PeersLost, meet
from train_func.worker.supervisor.heartbeat import Heartbeat
from train_func.worker.supervisor.log import LogTee
from train_func.worker.supervisor.rank_process import Template
from train_func.worker.supervisor.ranks import Launcher
from train_func.worker.supervisor.verdict import stopped


def supervise(environ: Mapping[str, str], stop: Stop) -> NoReturn:
    """Runs this worker's part of the job; the exit code is one of exits.py, or the function's own."""
    faulthandler.enable(os.dup(2))
    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the parent may have ignored it, and exit codes with it
    masks.begin(environ)
    log_tee = LogTee()
    reporting.report_to(log_tee.say)
    supervisor: Supervisor | None = None
    try:
        environment = read_environment(environ)
        os.environ.pop(GROUP_SECRET, None)  # the ranks, and what they start, need none of it
        stop.grace = environment.grace
        reporting.say(_starts(environment))
        supervisor = Supervisor(environment, log_tee, stop)
        verdict = supervisor.run()
    except InvalidInput as error:
        verdict = Verdict(exits.USAGE, error.cause, str(error), worker=0)
    attempt = supervisor.attempt_number if supervisor else None
    verdict = masks.mask(verdict)
    said = Termination(attempt=attempt, exit_code=verdict.exit_code, cause=verdict.cause, message=verdict.message)
    _write_termination(environ.get("TRAIN_FUNC_TERMINATION_FILE"), said.to_json().decode())
    log_tee.close(_ends(verdict), supervisor.seconds_left() if supervisor else 0.0)
    if supervisor:
        supervisor.depart(verdict)
    os._exit(verdict.exit_code)


def _starts(environment: Environment) -> WorkerStarts:
    """Says whose log this is: by it a client recognises the copy in the store, and to which submission it belongs."""
    try:
        submitted = json.loads((environment.job_dir / "run.json").read_text()).get("submitted")
    except (OSError, ValueError, AttributeError):  # what is wrong with it is said where it is read as a whole
        submitted = None
    return WorkerStarts(
        worker=environment.worker,
        num_workers=environment.num_workers,
        pod=environment.pod,
        pod_uid=environment.pod_uid,
        submitted=str(submitted or ""),
    )


def _ends(verdict: Verdict) -> WorkerEnds:
    return WorkerEnds(
        worker=verdict.worker,
        exit_code=verdict.exit_code,
        cause=verdict.cause,
        message=verdict.message,
        follows=verdict.follows,
    )


def _write_termination(file: str | None, said: str) -> None:
    if not file:
        return
    try:
        with open(file, "w") as termination:  # noqa: PTH123
            termination.write(said)
    except OSError as error:
        print(f"the termination message could not be written: {error}")


class Supervisor:
    """The work happens in a thread, so that the main thread is free for signals and deadlines at any moment."""

    def __init__(self, environment: Environment, log_tee: LogTee, stop: Stop) -> None:
        self._environment = environment
        self._log_tee = log_tee
        self._stop = stop
        self._attempt: Attempt | None = None
        self._launcher: Launcher | None = None
        self._template = Template(environment.num_threads)
        self._member: Member | None = None
        self._verdict: Verdict | None = None
        self._heartbeat: Heartbeat | None = None

    @property
    def attempt_number(self) -> int | None:
        """Number of the attempt, once there is one."""
        return self._attempt.lease.attempt if self._attempt and self._attempt.lease else None

    def seconds_left(self) -> float:
        """Seconds the worker may still wait for the store."""
        return self._attempt.seconds_left() if self._attempt else 0.0

    def depart(self, verdict: Verdict) -> None:
        """Ends the signs of life with the worker."""
        if self._heartbeat:
            is_over = not verdict.retryable and verdict.exit_code != exits.FENCED  # another job of the run may live
            self._heartbeat.finish(self.seconds_left(), is_over=is_over)

    def run(self) -> Verdict:
        """Returns when the work has ended or, after a signal, when it is time; no process of it is left."""
        late = self._environment.timings.late
        work = threading.Thread(target=self._work, name="work", daemon=True)
        work.start()
        while work.is_alive() and not self._given_up(late):
            work.join(self._environment.timings.look)
            if self._launcher and (own := self._launcher.pids()):
                reap_orphans(own)
        kill_descendants(seconds=late)
        return self._verdict or self._give_up()

    def _given_up(self, late: float) -> bool:
        """Whether the work has nothing left worth waiting for; it may be stuck in an import or a connection."""
        if self._attempt is None:
            return self._stop.requested and self._stop.seconds > late
        is_over = self._member is None and self._attempt.job_end
        if self._attempt.ending or not (self._stop.requested or is_over):
            return False
        if self._attempt.finishes:
            return WithinGrace(self._stop).requested
        if self._launcher is None or self._launcher.may_leave():
            return True
        return self._stop.requested and time.monotonic() > self._stop.work_until + late

    def _give_up(self) -> Verdict:
        worker = self._environment.worker
        if self._stop.requested or not self._attempt:
            return self._close(stopped(worker, self._stop.name))
        return self._close(
            Verdict(exits.PEER, "peer", "the job is over", worker, root_cause=False), self._attempt.job_end
        )

    def _work(self) -> None:
        verdict = self._ended(self._prepare)
        while verdict is None:
            verdict = self._ended(self._run_ranks)
            if self._attempt and (following := self._attempt.next()):
                self._attempt, verdict = following, None
        if self._attempt:
            self._attempt.leave()
        self._verdict = verdict

    def _ended(self, work: Callable[[], Verdict | None]) -> Verdict | None:
        """What ``work`` returns, or the verdict on what it raises."""
        try:
            return work()
        except Refused as error:
            return self._close(error.verdict)
        except Stopped as error:
            return self._close(stopped(self._environment.worker, str(error)))
        except PeersLost as error:
            own = Verdict(exits.PEER, "peer", str(error), self._environment.worker, root_cause=False)
            return self._close(own, error.verdict)
        except Exception as error:
            return self._close(self._of_error(error))

    def _of_error(self, error: Exception) -> Verdict:
        worker = self._environment.worker
        match error:
            case NotFormed():
                return Verdict(exits.RENDEZVOUS, "peer", str(error), worker)
            case TrainFuncError():
                return Verdict(exits.exit_of(error).code, error.cause, str(error), worker)
        found, words = exits.exit_of(error), f"{type(error).__name__}: {error}"
        if found.cause != "code":
            return Verdict(found.code, found.cause, words, worker, root_cause=found.cause != "peer")
        traceback.print_exception(error)
        return Verdict(exits.CODE, "unknown", f"the supervisor itself failed: {words}", worker)

    def _prepare(self) -> Verdict | None:
        """None once the group is complete; a verdict when there is nothing to train."""
        environment = self._environment
        environment.temporary_dir.mkdir(parents=True, exist_ok=True)
        record = _read_record(environment)
        store = patiently(lambda: open_store(record.store), self._stop, environment.timings)
        self._attempt = Attempt(environment, record, store, self._log_tee, self._stop)
        self._stop.check()
        self._attempt.prepare()  # first, because it knows within seconds why a store cannot be used
        if environment.worker == 0:
            self._heartbeat = Heartbeat(store, record, environment.pod)
            self._heartbeat.start()
        if patiently(lambda: complete(store, record), self._stop, environment.timings):
            delete_checkpoints(store, record, environment.timings.record)  # who has published may have died before it
            return Verdict(exits.DONE, None, "the run was finished before", environment.worker)
        folder = patiently(
            lambda: packages.unpacked(store, record, environment.cache_dir, environment.work_dir / "packages"),
            self._stop,
            environment.timings,
        )
        packages.put_first(folder)
        self._template.start(environment.job_dir / "source.py")
        self._member = meet(environment, self._stop)
        return None

    def _run_ranks(self) -> Verdict:
        attempt, member = self._attempt, self._member
        assert attempt is not None and member is not None
        self._launcher = None  # how the ranks of the attempt before ended is on record
        variables = attempt.open(member)
        self._template.start(self._environment.job_dir / "source.py")
        self._launcher = Launcher(
            self._environment, self._log_tee, self._stop, member, self._template, attempt.hang_after
        )
        if self._launcher.run(variables):
            return self._finish(attempt, member)
        hang = self._launcher.hang
        return self._close(hang.verdict(self._environment.worker) if hang else None)

    def _finish(self, attempt: Attempt, member: Member) -> Verdict:
        attempt.finish(member, self._ends())
        member.leave(SILENCE)
        return self._close(Verdict(exits.DONE, None, "all ranks of all workers ended", self._environment.worker))

    def _ends(self) -> list[RankEnd]:
        return self._launcher.ends() if self._launcher else []

    def _close(self, own: Verdict | None, root: Verdict | None = None) -> Verdict:
        if self._attempt is None:
            assert own is not None
            return own
        if self._launcher:
            self._attempt.step, self._attempt.out_of_memory = self._launcher.step, self._launcher.out_of_memory
        return self._attempt.close(self._ends(), own, root)


def _read_record(environment: Environment) -> RunRecord:
    path = environment.job_dir / "run.json"
    try:
        return RunRecord.from_json(path.read_bytes(), str(path))
    except OSError as error:  # of the file, or of what is in it
        raise InvalidInput(f"{path} is not the record of a run: {error}") from error
