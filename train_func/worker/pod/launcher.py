"""The ranks of one worker, as processes under torch's elastic agent."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import torch
from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events.api import Event, EventSource
from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler

from train_func import exits
from train_func.worker.pod import output, trackers
from train_func.worker.pod.environment import Environment
from train_func.worker.pod.log_tee import LogTee
from train_func.worker.pod.peers import Peers, PeersLost
from train_func.worker.pod.processes import signal_group
from train_func.worker.pod.rank_end import Outcome, RankEnd, running
from train_func.worker.pod.rendezvous import Rendezvous
from train_func.worker.pod.stop import RESERVE, Stop
from train_func.worker.pod.verdict import stopped

Open = Callable[[Peers], Mapping[str, str]]
Finish = Callable[[Peers, list[RankEnd]], None]


class Launcher(LocalElasticAgent):
    """Starts the ranks of one attempt once its group is complete, watches and ends them.

    ``open_attempt`` is called when the group is complete, before any rank starts, and returns variables of the ranks;
    ``finish_attempt`` when all ranks of this worker have exited with 0. ``run`` raises what these raise, Stopped on a
    signal, NotFormed without a group and PeersLost when another worker ends badly; no rank is left in any case.
    """

    def __init__(
        self, environment: Environment, log_tee: LogTee, stop: Stop, *, open_attempt: Open, finish_attempt: Finish
    ) -> None:
        _silence()
        self._worker = environment.worker
        self._patience, self._grace = environment.timings.patience, environment.grace - RESERVE
        self._stop = stop
        self._log_tee = log_tee
        self._open_attempt = open_attempt
        self._finish_attempt = finish_attempt
        self._rendezvous_of_group = Rendezvous(environment, stop)
        self._files = _RankFiles(environment, log_tee)
        self._gate = threading.Lock()
        self._seen: list[int] = []  # local ranks in the order in which they were seen dead
        self._asked: set[int] = set()
        self.has_ranks = False
        spec = WorkerSpec(
            role="rank",
            local_world_size=environment.num_ranks,
            rdzv_handler=cast(RendezvousHandler, self._rendezvous_of_group),
            entrypoint=sys.executable,
            args=("-u", "-m", "train_func.worker", "rank"),
            max_restarts=0,
            monitor_interval=environment.timings.look,
        )
        super().__init__(spec, self._files)

    def ends(self) -> list[RankEnd]:
        """How the ranks ended, or how they stand."""
        return [
            RankEnd(
                rank=self._files.rank(local_rank),
                exit_code=process.poll(),
                outcome=Outcome.read(self._files.outcome(local_rank)),
                was_signalled=local_rank in self._asked,
                order=self._seen.index(local_rank) if local_rank in self._seen else len(self._seen),
                unfinished=running(self._files.outcome(local_rank)).exists(),  # asked for after its exit code
            )
            for local_rank, process in self._processes().items()
        ]

    def pids(self) -> set[int]:
        """Process ids whose exit codes belong to this agent; none before all ranks were started."""
        return {process.pid for process in self._processes().values()}

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        super()._rendezvous(worker_group)
        self._peers = self._rendezvous_of_group.peers
        self._files.variables = self._open_attempt(self._peers)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        with self._gate:
            self._stop.check()
            self.has_ranks = True
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def may_leave(self) -> bool:
        """Whether there is no rank and, after a signal, never will be."""
        with self._gate:
            return not self.has_ranks

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        if self._stop.requested:
            self._peers.tell(stopped(self._worker, self._stop.name))
        self._stop.check()
        try:
            self._peers.look()
        except PeersLost as lost:
            if lost.verdict and lost.verdict.exit_code == exits.STOPPED:
                self._patience = self._grace  # the ranks of all workers save together
            raise
        self._look()
        if self._failed_ends():
            self._await_root()
            self._end_ranks()
            return RunResult(WorkerState.FAILED)  # to torch a rank that left early with code 0 has succeeded
        result: RunResult = super()._monitor_workers(worker_group)
        if result.state is WorkerState.SUCCEEDED:
            self._end_ranks()  # their own children
        return result

    def _exit_barrier(self) -> None:
        self._finish_attempt(self._peers, self.ends())
        self._peers.all_done()

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._end_ranks()
        super()._shutdown(signal.SIGKILL, timeout=1)

    def _construct_event(self, state: str, source: EventSource, *args: Any, **kwargs: Any) -> Event:
        """Nothing reads torch's events, and making one resolves the name of this host, which may take long."""
        return Event(name=state, source=source)

    def _processes(self) -> dict[int, "subprocess.Popen[bytes]"]:
        handlers = getattr(self._pcontext, "subprocess_handlers", {})
        return {local_rank: handler.proc for local_rank, handler in handlers.items()}

    def _look(self) -> None:
        for local_rank, process in self._processes().items():
            if local_rank not in self._seen and process.poll() is not None:
                self._seen.append(local_rank)

    def _alive(self) -> dict[int, "subprocess.Popen[bytes]"]:
        return {rank: process for rank, process in self._processes().items() if process.poll() is None}

    def _failed_ends(self) -> list[RankEnd]:
        return [end for end in self.ends() if end.failed and end.exit_code is not None]

    def _await_root(self) -> None:
        """A rank that lost its peer may be seen dead before the peer that is still writing down why it failed."""
        end = time.monotonic() + self._patience
        while self._alive() and all(end.follows for end in self._failed_ends()) and time.monotonic() < end:
            self._stop.pause(0.05)
            self._look()

    def _end_ranks(self) -> None:
        """Asks the ranks to stop, kills those that do not in time, and whatever any of them has started."""
        if not self.has_ranks:
            return
        alive = self._alive()
        self._asked |= set(alive)
        for process in alive.values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        patience = time.monotonic() + self._patience
        while self._alive() and time.monotonic() < (self._stop.work_until if self._stop.requested else patience):
            time.sleep(0.02)
        for process in self._processes().values():
            signal_group(process.pid, signal.SIGKILL)
        for process in self._processes().values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self._patience)
        self._log_tee.ranks_ended()
        self.has_ranks = False


class _RankFiles(LogsSpecs):
    """Where a rank's output and outcome go, and what its environment gets beside torch's own variables."""

    def __init__(self, environment: Environment, log_tee: LogTee) -> None:
        super().__init__()
        self._environment = environment
        self._log_tee = log_tee
        self._folder = Path(mkdtemp(prefix="ranks-", dir=environment.temporary_dir))
        self._ranks: dict[int, int] = {}
        self.variables: Mapping[str, str] = {}

    @property
    def root_log_dir(self) -> str:
        return str(self._folder)

    def rank(self, local_rank: int) -> int:
        """The global rank."""
        return self._ranks[local_rank]

    def outcome(self, local_rank: int) -> Path:
        """Where the rank leaves its outcome."""
        return self._folder / f"{local_rank}.json"

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        outputs = {}
        for local_rank, variables in envs.items():
            rank = self._ranks[local_rank] = int(variables["RANK"])
            tracks = trackers.without_key if rank else partial(trackers.begin, self._environment.work_dir)
            outputs[local_rank] = self._log_tee.rank_output(rank)
            variables |= {
                **self.variables,
                **tracks(environ=os.environ),
                "TRAIN_FUNC_OUTCOME_FILE": str(self.outcome(local_rank)),
                "TRAIN_FUNC_SUPERVISOR": str(os.getpid()),
                output.VARIABLE: str(output.begin(self._environment.work_dir, rank)),
                "OMP_NUM_THREADS": str(self._environment.num_threads),
                **_without_gpu(os.environ),
            }
            pipe = self._folder / f"{local_rank}.events"
            with contextlib.suppress(OSError):  # a file system without pipes: the rank prints what it says
                self._log_tee.rank_events(rank, pipe)
                variables["TRAIN_FUNC_EVENTS"] = str(pipe)
            running(self.outcome(local_rank)).touch()
        return LogsDest(stdouts=outputs, stderrs=dict(outputs), error_files=dict.fromkeys(outputs, ""))


def _without_gpu(environ: Mapping[str, str]) -> dict[str, str]:
    """Without it accelerate, and transformers' Trainer with it, sees a world of one rank where there is no GPU."""
    if torch.cuda.device_count() or "ACCELERATE_USE_CPU" in environ:
        return {}
    return {"ACCELERATE_USE_CPU": "1"}


def _silence() -> None:
    """torch's own lines about ending processes say less than the verdict, and say it as if something were wrong."""
    for name in list(logging.Logger.manager.loggerDict):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
