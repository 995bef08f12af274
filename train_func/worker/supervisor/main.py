"""The supervisor, process 1 of a pod: runs the ranks, ends them in order, and explains their end."""

import contextlib
import faulthandler
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn

from train_func.errors import InvalidInput, TrainFuncError
from train_func.process.process_tree import adopt_orphans, kill_descendants, reap_orphans
from train_func.process.timeout import begin
from train_func.storage import open_store
from train_func.wire import exits
from train_func.wire.events import WorkerEnds, WorkerStarts
from train_func.wire.layout import SOURCE
from train_func.wire.records import RunRecord, Termination, Verdict
from train_func.wire.result import complete
from train_func.worker import masks
from train_func.worker.environment import GROUP_SECRET, WEBHOOK, Environment, read_environment
from train_func.worker.publish.publication import delete_checkpoints
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop, Stopped, WithinGrace
from train_func.worker.store_wait import KEY_SECONDS, RECORD_SECONDS, patiently
from train_func.worker.supervisor import packages
from train_func.worker.supervisor.alerts.alerter import SEND_SECONDS, Alerter
from train_func.worker.supervisor.attempt import WorkerAttempt
from train_func.worker.supervisor.group import Member, NotFormed, PeersLost, meet
from train_func.worker.supervisor.lead import ElectedLead, Finished, FixedLead, Lead, Replaced
from train_func.worker.supervisor.log import LogTee
from train_func.worker.supervisor.rank_process import Template
from train_func.worker.supervisor.run_inputs import RunInputs, bring_submission
from train_func.worker.supervisor.uploads import Heartbeat
from train_func.worker.supervisor.verdict import stop_verdict

LOOK_SECONDS = 0.1  # between two looks at the work
LATE_SECONDS = 2.0  # by which the end of the ranks may be noticed later than it was due
FAILED = "the supervisor itself failed"


def supervise(environ: Mapping[str, str], stop: Stop) -> NoReturn:
    """Runs this worker's part of the job; returns an exit code of exits.py, or the function's own."""
    faulthandler.enable(os.dup(2))
    adopt_orphans()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the parent may have ignored it, and exit codes with it
    masks.begin(environ)
    log_tee = LogTee()
    reporting.report_to(log_tee.say)
    supervisor: Supervisor | None = None
    try:
        environment = read_environment(environ)
        os.environ["TRAIN_FUNC_JOB_DIR"] = str(environment.job_dir)
        for secret in (GROUP_SECRET, WEBHOOK):  # the ranks, and what they start, need none of them
            os.environ.pop(secret, None)
        stop.grace = environment.grace
        reporting.say(  # by it a client recognises the copy of this log in the store
            WorkerStarts(
                worker=environment.worker,
                num_workers=environment.num_workers,
                pod=environment.pod,
                pod_uid=environment.pod_uid,
                submitted=environment.submitted,
            )
        )
        supervisor = Supervisor(environment, log_tee, stop)
        verdict = supervisor.run()
    except InvalidInput as error:
        verdict = Verdict(exits.USAGE, error.cause, str(error), worker=0)
    verdict = masks.mask(verdict)
    code, cause, message = verdict.exit_code, verdict.cause, verdict.message
    if path := environ.get("TRAIN_FUNC_TERMINATION_FILE"):
        attempt = supervisor.attempt_number if supervisor else None
        try:
            with open(path, "w") as file:  # noqa: PTH123
                file.write(
                    Termination(attempt=attempt, exit_code=code, cause=cause, message=message).to_json().decode()
                )
        except OSError as error:
            print(f"the termination message could not be written: {error}")
    end = WorkerEnds(worker=verdict.worker, exit_code=code, cause=cause, message=message, follows=verdict.follows)
    if supervisor:
        supervisor.send_alerts()
    log_tee.close(end, supervisor.seconds_left() if supervisor else 0.0)
    if supervisor:
        supervisor.depart(verdict)
    os._exit(code)


class Supervisor:
    """Works in a thread, so that the main thread is free for signals and deadlines."""

    def __init__(self, environment: Environment, log_tee: LogTee, stop: Stop) -> None:
        self._environment = environment
        self._log_tee = log_tee
        self._stop = stop
        self._attempt: WorkerAttempt | None = None
        self._template = Template(environment.num_threads)
        self._lead: Lead = FixedLead(environment)
        self._alerter = Alerter(environment)
        self._member: Member | None = None
        self._verdict: Verdict | None = None
        self._heartbeat: Heartbeat | None = None
        self._inputs: RunInputs | None = None

    @property
    def attempt_number(self) -> int | None:
        """The number of the attempt, once there is one."""
        return self._attempt.lease.attempt if self._attempt and self._attempt.lease else None

    def seconds_left(self) -> float:
        """Returns the seconds that the worker may still wait for the store."""
        return self._attempt.seconds_left() if self._attempt else 0.0

    def send_alerts(self) -> None:
        """Waits until the last alerts are sent; after a signal it leaves half of the remaining time to the log."""
        stop = self._stop
        seconds = (stop.all_until - time.monotonic()) / 2 if stop.requested else SEND_SECONDS
        self._alerter.flush(seconds)

    def depart(self, verdict: Verdict) -> None:
        """Ends the signs of life with the worker."""
        if self._heartbeat and self._heartbeat.is_alive():
            is_over = not verdict.retryable and verdict.exit_code != exits.FENCED  # another job of the run may live
            self._heartbeat.finish(self.seconds_left(), is_over=is_over)

    def run(self) -> Verdict:
        """Runs until the work has ended or, after a signal, time is up; leaves no process behind."""
        work = threading.Thread(target=self._work, name="work", daemon=True)
        work.start()
        while work.is_alive() and not self._is_given_up():
            work.join(LOOK_SECONDS)
            launcher = self._attempt.launcher if self._attempt else None
            if launcher and (ranks := launcher.pids()):
                reap_orphans(ranks)
        kill_descendants(seconds=LATE_SECONDS)
        if self._verdict:
            return self._verdict
        verdict = Verdict(exits.CODE, "unknown", f"{FAILED}; its log has the error", self._environment.worker)
        if self._stop.requested:
            verdict = stop_verdict(self._environment.worker, self._stop.name)
        try:
            return self._close(verdict)
        except Exception as error:  # as that of the work may be
            traceback.print_exception(error)
            return verdict

    def _is_given_up(self) -> bool:
        """Returns whether to stop waiting for the work; it may be stuck in an import or a connection."""
        attempt, stop = self._attempt, self._stop
        if not stop.requested:
            return False
        if attempt is None:
            return stop.seconds > LATE_SECONDS
        if attempt.ending:
            return False
        if attempt.finishes:
            return WithinGrace(stop).requested
        if attempt.launcher is None or not attempt.launcher.has_ranks:
            return True
        return time.monotonic() > stop.work_until + LATE_SECONDS

    def _work(self) -> None:
        verdict = self._verdict_on(self._prepare)
        while verdict is None:
            attempt, member = self._attempt, self._member
            assert attempt is not None and member is not None
            verdict = self._verdict_on(partial(attempt.run, member, self._template))
            if another := attempt.next():
                self._attempt = another
                verdict = self._verdict_on(self._meet) if member.has_gone else None
        if self._attempt:
            self._attempt.leave()
        self._verdict = verdict
        # Until the Secret has followed an exchange; worker 0 has no second try, so it waits after another's fault too.
        first = (self._environment.worker == 0 and self._attempt and self._attempt.root) or verdict
        if verdict.retryable and exits.KEY in (verdict.exit_code, first.exit_code):
            with contextlib.suppress(Stopped):
                self._stop.pause(KEY_SECONDS - (self._heartbeat.refused_seconds if self._heartbeat else 0.0))

    def _verdict_on(self, work: Callable[[], Verdict | None]) -> Verdict | None:
        """Returns the result of ``work``, or the verdict on its error."""
        worker = self._environment.worker
        try:
            return work()
        except Stopped as error:
            return self._close(stop_verdict(worker, str(error)))
        except PeersLost as error:
            if self._stop.requested and error.verdict and error.verdict.exit_code == exits.STOPPED:  # all were told to
                return self._close(stop_verdict(worker, self._stop.name))
            return self._close(Verdict(exits.PEER, "peer", str(error), worker, root_cause=False), error.verdict)
        except Replaced as error:
            if self._member:
                self._member.has_gone = True
            return self._close(Verdict(exits.PEER, "peer", str(error), worker, root_cause=False))
        except Finished:
            return self._close(Verdict(exits.DONE, None, "the run was finished before", worker))
        except NotFormed as error:
            return self._close(Verdict(exits.RENDEZVOUS, "peer", str(error), worker))
        except Exception as error:
            exit, is_own = exits.exit_of(error), isinstance(error, TrainFuncError)
            message = f"{error}" if is_own else f"{type(error).__name__}: {error}"
            if is_own or exit.cause != "code":
                code = self._code_for_pod(exit.code)
                return self._close(Verdict(code, exit.cause, message, worker, root_cause=exit.cause != "peer"))
            traceback.print_exception(error)
            return self._close(Verdict(self._code_for_pod(exits.CODE), "unknown", f"{FAILED}: {message}", worker))

    def _code_for_pod(self, code: int) -> int:
        """Returns the exit code of a pod for the code of an error in it.

        A new pod may have another key of the store, once the Secret has followed an exchange. Worker 0 alone ends the
        job for a key that was never good: another worker may have come during the exchange. A pod of a worker without a
        group may be on a node that can do what this one cannot, and the others train meanwhile.
        """
        if code == exits.KEY and self._heartbeat is None and self._environment.worker == 0:
            return exits.PERMISSION
        has_no_group = self._member is None or self._member.has_gone
        if has_no_group and not exits.retryable(code) and self._lead.others_train():
            return exits.PEER
        return code

    def _prepare(self) -> Verdict | None:
        """Returns None once the group is complete; a verdict when there is nothing to train."""
        environment, stop = self._environment, self._stop
        if environment.worker == 0:
            self._log_tee.tell(self._alerter.hear)
        environment.temporary_dir.mkdir(parents=True, exist_ok=True)
        store = patiently(lambda: open_store(environment.store), stop)
        record = patiently(lambda: bring_submission(store, environment.submission, environment.job_dir), stop)
        if environment.is_elastic:
            self._lead = ElectedLead(environment, store, record)
        heartbeat = Heartbeat(store, record, environment.pod)
        given = (environment, record, store, self._log_tee, stop, self._lead, self._alerter, heartbeat)
        self._attempt = WorkerAttempt(*given)
        stop.check()
        if not record.wheels:  # which are to be unpacked before
            self._start_template(record)  # its imports take longest, so they begin before the store is probed
        patiently(lambda: store.probe(record.keys.prefix), stop)  # which says within seconds why it cannot be used
        self._heartbeat = heartbeat
        if environment.worker == 0:
            heartbeat.start()
            begin(partial(packages.share_packages, store, environment.image))
        if patiently(lambda: complete(store, record), stop):
            delete_checkpoints(store, record, RECORD_SECONDS)  # who has published may have died before it
            return Verdict(exits.DONE, None, "the run was finished before", environment.worker)
        if record.wheels:
            wheels = environment.work_dir / "packages"
            packages.put_first(
                patiently(lambda: packages.unpack_packages(store, record, environment.cache_dir, wheels), stop)
            )
            self._start_template(record)
        self._inputs = RunInputs(environment, record, store, stop)
        return self._meet()

    def _start_template(self, record: RunRecord) -> None:
        self._template.start(self._environment.job_dir / SOURCE, has_task=record.run.task is not None)

    def _meet(self) -> Verdict | None:
        """Returns None once this worker is in a group."""
        inputs, stop = self._inputs, self._stop
        assert inputs is not None

        def get_ready() -> None:
            inputs.bring(stop.check)
            while not self._template.is_ready(LOOK_SECONDS):
                stop.check()

        self._member = meet(self._environment, stop, self._lead, get_ready, self._member)
        if self._member.is_lead:
            self._log_tee.tell(self._alerter.hear)
            if self._heartbeat and not self._heartbeat.is_alive():
                self._heartbeat.start()
        return None

    def _close(self, verdict: Verdict, root: Verdict | None = None) -> Verdict:
        if self._attempt:
            return self._attempt.close(verdict, root)
        if self._environment.worker == 0:
            self._alerter.end(verdict, verdict)
        return verdict
