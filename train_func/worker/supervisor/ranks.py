"""The ranks of one worker: starts them, watches them and their peers, and leaves none behind.

A rank that ends badly ends the attempt and its peers, which wait for it in an exchange. So the order in which ends are
noticed says little: a rank that lost its peer may be noticed before the peer, which may still be recording why it
failed, or be freeing the memory of a GPU. Therefore

- a rank that has recorded its own fault counts as failed at once, and all workers are told;
- if only ranks that follow are noticed, the launcher waits PATIENCE_SECONDS for the first failure;
- verdict.py decides from all ends what came first.

All ranks of a worker get its signals: SIGTERM goes to each, and a rank that has not ended within PATIENCE_SECONDS, or
the grace period of the worker, is killed with its process group. Then all other descendants of the supervisor are
killed, so that nothing of one attempt lives on in the next.

The other workers are told of a hang before any rank ends, so that each can print the stacks of its own ranks: the first
rank that ends, or goes on, would end others without a stack.

A rank is killed before the kernel would kill its whole worker for memory. A node kills all processes of a container
that exceeds its limit, the supervisor too (https://github.com/kubernetes/kubernetes/pull/117793), and nothing would be
left to say why. So the supervisor stays alive, and says what helps.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

from train_func.process.process_tree import FamilyMemory, descendants, kill_descendants, send, unreclaimable_bytes
from train_func.wire import exits
from train_func.worker.environment import Environment
from train_func.worker.rank import folders, reporting, stacks
from train_func.worker.rank.end import RankEnd, running_file
from train_func.worker.rank.marks import Mark
from train_func.worker.stop import Stop, work_seconds
from train_func.worker.supervisor.coordinator import GroupPhase, Order, Status
from train_func.worker.supervisor.group import REPORT_SECONDS, Member, PeersLost
from train_func.worker.supervisor.hangs import Hang, HangWatch
from train_func.worker.supervisor.lead import reserved_port
from train_func.worker.supervisor.log import LogTee
from train_func.worker.supervisor.rank_process import RankProcess, Template
from train_func.worker.supervisor.usage import GroupMeter, UsageMeter
from train_func.worker.supervisor.verdict import stop_verdict, worker_verdict

RANK_LOOK_SECONDS = 0.1  # between two looks at the ranks
PATIENCE_SECONDS = 2.0  # in which the first failure may be noticed, and the ranks end when asked to
EXIT_SECONDS = 30.0  # for a process whose rank has failed: to free the memory of a GPU takes a while
SHARE, AT_MOST = 0.05, 512 * 2**20  # of the memory limit, and bytes, that are left when a rank is killed


class Launcher:
    """The ranks of one attempt of a complete group."""

    def __init__(
        self,
        environment: Environment,
        log_tee: LogTee,
        stop: Stop,
        member: Member,
        template: Template,
        hang_after: float,
        watch: Callable[[Mark | None], object],
    ) -> None:
        """Starts nothing yet.

        Args:
            environment: the environment of this worker.
            log_tee: takes output and events of the ranks.
            stop: the request to stop.
            member: this worker in the group.
            template: the process that the ranks are forked from.
            hang_after: seconds without progress of a rank that count as a hang.
            watch: takes the last sign of progress of rank 0, if that runs here, several times a second, in the lead.
        """
        self._watch_in_lead = watch
        self._environment = environment
        self._patience, self._hang_after = PATIENCE_SECONDS, hang_after
        self._log_tee = log_tee
        self._stop = stop
        self._member = member
        self._template = template
        self._folder = Path(mkdtemp(prefix="ranks-", dir=environment.temporary_dir))
        self._position = environment.worker  # among the members of the attempt
        self._num_workers = environment.num_workers
        self._processes: dict[int, RankProcess] = {}  # by local rank
        self._is_complete = False
        self._hangs = HangWatch(hang_after)
        memory = environment.memory or 0  # of which the kernel's page tables and buffers are not seen here
        self._memory = FamilyMemory(memory - min(int(SHARE * memory), AT_MOST)) if memory else None
        self.out_of_memory = False
        """Whether a rank was killed because this worker came too near to its memory limit."""
        self.hang: Hang | None = None
        """The hang for which ``run`` has returned False, if it was one."""
        self._end_order: list[int] = []  # local ranks, in the order in which their ends were noticed
        self._signalled: set[int] = set()  # local ranks that were asked to stop
        self.has_ranks = False
        """Whether there may be ranks."""
        self.step = 0
        """The last step of the training that is done, known once all ranks have ended; 0 if there is none."""

    def run(self, variables: Mapping[str, str]) -> bool:
        """Runs the ranks; returns whether all of them have ended well and none has hung. No rank is left afterwards.

        Args:
            variables: variables of the ranks, besides those that identify each rank.

        Raises:
            Stopped: on a signal.
            PeersLost: another worker has ended badly.
        """
        self._stop.check()
        self.has_ranks = True
        try:
            with contextlib.ExitStack() as ports:  # the ranks meet at rank 0, at a port that is free
                address = ""
                if self._member.is_lead:
                    address = f"{self._member.address}:{ports.enter_context(reserved_port())}"
                while not self._template.is_ready(RANK_LOOK_SECONDS):  # first: else ranks of others wait for these
                    self._look_around()
                order = self._member.hear(GroupPhase.START, status=Status.PREPARED, address=address)
                self._position = order.members.index(self._environment.worker)
                self._num_workers = len(order.members)
                for local_rank in range(self._environment.num_ranks):
                    environ = self._who(local_rank, order) | dict(variables) | self._files(local_rank)
                    output_of_rank = self._log_tee.rank_output(self._rank(local_rank))
                    earlier = [process.pid for process in self._processes.values()]
                    self._processes[local_rank] = self._template.rank(environ, output_of_rank, earlier)
                self._is_complete = True
                return self._watch()
        finally:
            self._end_ranks()

    def ends(self) -> list[RankEnd]:
        """Returns the ends of the ranks, or their state."""
        return [
            RankEnd.read(
                self._outcome(local_rank),
                rank=self._rank(local_rank),
                exit_code=process.poll(),  # asked for before its files are read
                was_signalled=local_rank in self._signalled,
                order=self._end_order.index(local_rank) if local_rank in self._end_order else len(self._end_order),
                stacks=self._hangs.stacks_of(self._rank(local_rank)),
            )
            for local_rank, process in self._processes.items()
        ]

    def pids(self) -> set[int]:
        """Returns the process ids whose exit codes belong to this launcher; none until all ranks have started."""
        return {process.pid for process in self._processes.values()} if self._is_complete else set()

    def _watch(self) -> bool:
        usage_meter, group_meter = UsageMeter(self._environment.memory or 0), GroupMeter()
        while True:
            self._look_around()
            time.sleep(RANK_LOOK_SECONDS)
            self._look()
            alive = self._alive()  # read before the ends: the next pass finds the end of a rank that ends meanwhile
            if self._failed_ends():
                until = time.monotonic() + self._patience  # in which the first failure may be noticed
                while self._alive() and all(end.follows for end in self._failed_ends()) and time.monotonic() < until:
                    self._stop.pause(0.05)
                    self._look()
                roots = [end for end in self._failed_ends() if not end.follows]
                verdict = worker_verdict(roots, worker=self._environment.worker, out_of_memory=False)
                if verdict and all(end.has_own_fault for end in roots):  # each has recorded its own
                    self._member.fail(verdict)
                return False
            if not alive:
                return True
            if self._memory and not self.out_of_memory and self._memory.exceeds():
                self.out_of_memory = True
                ranks = [process.pid for process in alive.values()]
                send(max(ranks, key=lambda rank: unreclaimable_bytes([rank, *descendants(rank)])), signal.SIGKILL)
            pids = {self._rank(local_rank): process.pid for local_rank, process in alive.items()}
            if usage := usage_meter.measure(partial(self._hangs.marks, pids)):
                self._member.usage = usage
            if self._member.is_lead:
                if event := group_meter.measure(self._member.usages):
                    reporting.say(event)
                self._watch_in_lead(self._hangs.marks(pids.keys() & {0}).get(0))
            if stacks.are_asked_for():
                self._hangs.print_stacks(pids)
            if hang := self._hangs.look(pids, self._member, self._world_size):
                worker = self._environment.worker
                first = self._member.fail(hang.verdict(worker))
                if first and first.worker != worker:
                    continue  # the next look finds that end
                if self._num_workers > 1:
                    self._stop.pause(REPORT_SECONDS + 3 * RANK_LOOK_SECONDS)  # in which the others print their stacks
                self.hang = hang
                self._hangs.print_stacks(pids)
                return False

    def _look_around(self) -> None:
        """Raises if a signal has come or a peer was lost."""
        if self._stop.requested:
            self._member.fail(stop_verdict(self._environment.worker, self._stop.name))
        self._stop.check()
        try:
            self._member.look()
        except PeersLost as lost:
            if lost.verdict and lost.verdict.exit_code in (exits.STOPPED, exits.RESIZED):
                self._patience = work_seconds(self._environment.grace)  # the ranks of all workers save together
            if lost.verdict and lost.verdict.exit_code == exits.RESIZED:  # no grace period runs out meanwhile
                self._patience = max(self._patience, self._hang_after)
            if lost.verdict and lost.verdict.exit_code == exits.HANG:
                self._hangs.print_stacks({self._rank(local): rank.pid for local, rank in self._alive().items()})
            raise

    def _who(self, local_rank: int, order: Order) -> dict[str, str]:
        """Returns the variables of torchrun that identify the rank for torch, Accelerate and Lightning.

        https://docs.pytorch.org/docs/2.13/elastic/run.html#environment-variables
        """
        environment = self._environment
        rank, world_size = self._rank(local_rank), self._world_size
        address, _, port = order.address.rpartition(":")
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(environment.num_ranks),
            "GROUP_RANK": str(self._position),
            "GROUP_WORLD_SIZE": str(self._num_workers),
            "ROLE_NAME": "rank",
            "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "TORCHELASTIC_RUN_ID": environment.rendezvous_id,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            "OMP_NUM_THREADS": str(environment.num_threads),
        }

    def _files(self, local_rank: int) -> dict[str, str]:
        """Returns the variables with the paths for its outcome, events and files."""
        environment, rank = self._environment, self._rank(local_rank)
        tracks = folders.without_key if rank else partial(folders.begin_trackers, environment.work_dir)
        variables = {
            **tracks(environ=os.environ),
            **self._hangs.variables(rank),
            "TRAIN_FUNC_OUTCOME_FILE": str(self._outcome(local_rank)),
            "TRAIN_FUNC_SUPERVISOR": str(os.getpid()),
            folders.VARIABLE: str(folders.begin(environment.work_dir, rank)),
            stacks.VARIABLE: self._log_tee.rank_trace(rank, partial(self._hangs.hear, rank)),
            "TRAIN_FUNC_EVENTS": self._log_tee.rank_events(rank),
        }
        running_file(self._outcome(local_rank)).touch()
        return variables

    @property
    def _world_size(self) -> int:
        return self._num_workers * self._environment.num_ranks

    def _rank(self, local_rank: int) -> int:
        return self._position * self._environment.num_ranks + local_rank

    def _outcome(self, local_rank: int) -> Path:
        return self._folder / f"{local_rank}.json"

    def _look(self) -> None:
        for local_rank, process in self._processes.items():
            if local_rank not in self._end_order and process.poll() is not None:
                self._end_order.append(local_rank)

    def _alive(self) -> dict[int, RankProcess]:
        return {rank: process for rank, process in self._processes.items() if process.poll() is None}

    def _failed_ends(self) -> list[RankEnd]:
        return [end for end in self.ends() if end.failed and (end.exit_code is not None or end.has_own_fault)]

    def _end_ranks(self) -> None:
        """Asks the ranks to stop; kills those that do not in time, and all processes that they have started."""
        failed = {rank for rank, end in zip(self._processes, self.ends(), strict=True) if end.has_own_fault}
        begun = time.monotonic()
        self._signalled |= set(self._alive()) - failed
        for process in self._alive().values():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        while self._alive() and time.monotonic() < (
            self._stop.work_until if self._stop.requested else begun + self._patience
        ):
            time.sleep(0.02)
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        for local_rank, process in self._processes.items():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_SECONDS if local_rank in failed else self._patience)
        template = self._template.pid
        kill_descendants(self._patience, spare=() if template is None else (template,))  # what has left their groups
        for folder in self._environment.work_dir.glob("session-*"):  # of a rank that was killed; they may be large
            shutil.rmtree(folder, ignore_errors=True)
        self._log_tee.ranks_ended()
        self._member.usage = None
        self.step = self._hangs.close()
        self.has_ranks = False
