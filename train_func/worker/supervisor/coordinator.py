"""The coordinator: the supervisor of one worker, the lead, decides for all workers of a job.

Each worker reports the last milestone that it has reached, at once and then every second. The answer is the phase of
the group, which is an order. Only the lead decides, so no two workers can disagree. What follows from a report
is a pure function of the state, the report and the time; ``tests/unit/test_coordinator.py`` is its table.

    phase      ends when                                         a worker then
    WAIT       the workers are there, and each has reported      reports again
               since they were complete
    CLAIM      the lead has the lease of the next attempt        claims it, if it is the lead
    PREPARE    every worker has its inputs and its imports       brings the inputs, and imports
    START      the ranks of every worker have ended well         runs its ranks
    FINISH     the lead has published the result                 keeps its files; the lead publishes
    DONE                                                         leaves
    STOP       every worker is ready for the next round          ends its ranks, and is ready
    EXIT                                                         ends its ranks, and leaves

A round is one attempt of the group, and an order holds for the workers of its round. The lead of a group of a fixed
size is worker 0 (``lead.py``).

The first worker that failed by itself ends the round for all. A worker that only lost its peers may have to wait for
ROOT_SECONDS, because another worker may still be recording why it failed. A rank that has left its loop over the steps
is a fault only if a rank of another worker went on.

A worker is lost if it has not reported for SILENCE_SECONDS, or for AWAY_SECONDS after its connection ended; a living
worker connects again at once. A coordinator that stood still itself, as on a machine that slept, counts no worker as
lost. A lost worker ends a group of a fixed size: the operator starts all pods again. After a lost rank the same pods
begin another round. While the group finishes, only the lead counts, because it publishes; a worker that fails then
waits for the outcome.

An elastic group goes on without a worker that is lost or has to stop, if ``min_workers`` are left: the others begin the
next round. A worker that joins while a round runs prepares meanwhile. When it is ready the round ends, at the same step
on all ranks, and the next round has the new worker: at most one change in RESIZE_SECONDS. At its start, also after the
loss of all workers, the group waits GATHER_SECONDS for all of them before it begins with fewer. If only the lead and
some others are lost, the rest wait REGATHER_SECONDS for one another, because they notice the loss within two seconds of
one another. A worker that joins meanwhile prepares too; if the rest are too few, the first ones that are ready join.

The lease in the store is the fence: the lead claims it before each round, so two groups never share an attempt.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from train_func.text import counted, listed
from train_func.wire import exits
from train_func.wire.codec import Record
from train_func.wire.records import Lease, Verdict
from train_func.worker.supervisor.usage import Usage

PRESENT_SECONDS = 5.0  # after which a worker that has not reported again counts as gone, while the group forms
SILENCE_SECONDS = 15.0  # the same once it has formed
AWAY_SECONDS = 2.0  # the same after its connection has ended
ROOT_SECONDS = 3.0  # for the root of a failure to show itself
NEXT_ROUND_SECONDS = 60.0  # for all workers to be ready for another round, since the first was
GATHER_SECONDS = 30.0  # for which an elastic group waits for all its workers at its start, since it has enough
REGATHER_SECONDS = 3.0  # for which those that are left without their lead wait for one another
RESIZE_SECONDS = 10.0  # between the beginning of a round and a change of its size for a worker that comes


class Status(StrEnum):
    """The last milestone of a worker in its round."""

    READY = "ready"
    PREPARED = "prepared"
    ENDED = "ended"
    PUBLISHED = "published"
    FAILED = "failed"
    LEFT = "left"


class GroupPhase(StrEnum):
    """The phase of the group, which is also the order to its workers."""

    WAIT = "wait"
    CLAIM = "claim"
    PREPARE = "prepare"
    START = "start"
    FINISH = "finish"
    DONE = "done"
    STOP = "stop"
    EXIT = "exit"


@dataclass(frozen=True)
class Report(Record):
    """The report of a worker."""

    worker: int
    pod: str
    """Identifies the process of the worker."""
    round: int = 0
    """0 until it belongs to a group."""
    status: Status = Status.READY
    verdict: Verdict | None = None
    """Why the worker failed or was stopped."""
    left: Verdict | None = None
    """The verdict if a rank of the worker has left its steps while a rank of another worker went on."""
    went_on: bool = False
    waits: bool = False
    """Whether every rank of the worker waits for others."""
    expects: int = 0
    """Known number of workers left of a group that lost its lead; 0 if the worker was in none."""
    lease: Lease | None = None
    """The lease of the round's attempt, which the lead has claimed."""
    refused: Verdict | None = None
    """Why nothing starts under the lease: the attempts of the run are used up."""
    address: str = ""
    """The address at which rank 0 listens for the other ranks."""
    usage: Usage | None = None
    """The resource usage while ranks run; None in the reports between two measurements."""
    heard: float = 0.0
    """Time of the report by the coordinator's clock."""


@dataclass(frozen=True)
class Order(Record):
    """The order to a worker."""

    phase: GroupPhase
    round: int = 0
    """The round of the group; 0 for a worker that does not belong to it."""
    why: str = ""
    """The reason for which the group waits."""
    lease: Lease | None = None
    refused: Verdict | None = None
    address: str = ""
    members: tuple[int, ...] = ()
    """The workers that have not left, in the order of their ranks; the lead is the first."""
    verdict: Verdict | None = None
    """Why the round ends."""
    all_wait: bool = False
    """Whether every rank of every worker waits for others."""


@dataclass(frozen=True)
class GroupState:
    """The group between two reports."""

    num_workers: int
    min_workers: int
    """Number of workers with which a round may begin; fewer than ``num_workers`` in an elastic group."""
    lead: int = 0
    """The worker with the coordinator."""
    gather: float = GATHER_SECONDS
    """Seconds to wait for all workers."""
    is_left: bool = False
    """Whether the group is the rest of one that has lost its lead."""
    phase: GroupPhase = GroupPhase.WAIT
    round: int = 1
    members: Mapping[int, Report] = field(default_factory=dict)
    """The last report of each worker of the round."""
    newcomers: Mapping[int, Report] = field(default_factory=dict)
    """The last report of each worker that came while a round ran."""
    looked: float = 0.0
    """Time of the last look for silent workers."""
    begun: float = 0.0
    """Time at which the ranks of this round started."""
    since: float | None = None
    """Time since which enough workers are there (WAIT), or one has failed or is ready for the next round (STOP)."""
    failures: tuple[Report, ...] = ()
    """Failures of workers in this round."""
    lost: frozenset[int] = frozenset()
    """The lost workers of the last round of more than one worker; none that was stopped or has left by itself."""
    verdict: Verdict | None = None

    @property
    def is_elastic(self) -> bool:
        """Returns whether rounds may have different workers."""
        return self.min_workers < self.num_workers


def hear(state: GroupState, report: Report, now: float) -> GroupState:
    """Returns the state after a report; a report from outside of the group changes nothing."""
    state = look(state, now)
    last = state.members.get(report.worker)
    if last is None or last.pod != report.pod:
        is_free = last is None and state.phase is GroupPhase.WAIT and (report.expects > 0 or not state.is_left)
        if report.round or not (is_free or state.is_elastic):
            return state
        if not is_free:
            newcomers = {**state.newcomers, report.worker: replace(report, heard=now)}
            return _settle(replace(state, newcomers=newcomers), now)
    is_known = any(other.worker == report.worker for other in state.failures)
    if report.verdict and report.round == state.round and not is_known:
        since = now if state.since is None else state.since
        state = replace(state, since=since, failures=(*state.failures, report))
    usage = last.usage if last and last.round == report.round else None
    return _settle(_with(state, replace(report, heard=now, usage=report.usage or usage)), now)


def look(state: GroupState, now: float) -> GroupState:
    """Returns the state without silent workers."""
    if now - state.looked > SILENCE_SECONDS / 2:  # this process stood still, and the others may have done so with it
        heard = {worker: replace(report, heard=now) for worker, report in state.members.items()}
        state = replace(state, members=heard)
    limit = PRESENT_SECONDS if state.phase is GroupPhase.WAIT else SILENCE_SECONDS
    newcomers = {worker: report for worker, report in state.newcomers.items() if now - report.heard < PRESENT_SECONDS}
    state = replace(state, newcomers=newcomers)
    for report in [report for report in state.members.values() if now - report.heard >= limit]:
        state = _lose(state, report)
    return _settle(replace(state, looked=now), now)


def lose(state: GroupState, report: Report, now: float) -> GroupState:
    """Returns the state after the connection of this last report has ended."""
    last = state.members.get(report.worker)
    if last is None or last.pod != report.pod:
        newcomers = {worker: other for worker, other in state.newcomers.items() if other.pod != report.pod}
        return replace(state, newcomers=newcomers)
    if state.phase is GroupPhase.WAIT:
        return _lose(state, last)
    return _with(state, replace(last, heard=min(last.heard, now + AWAY_SECONDS - SILENCE_SECONDS)))


def order_for(state: GroupState, report: Report) -> Order:
    """Returns the order to the sender of this report."""
    last = state.members.get(report.worker)
    if last is None or last.pod != report.pod:
        if report.worker in state.newcomers:
            return Order(GroupPhase.PREPARE, why="the others go on; it joins them at the end of a step")
        return Order(GroupPhase.WAIT, why=f"another pod is worker {report.worker}")
    if state.phase is GroupPhase.WAIT:
        missing = sorted({*range(state.num_workers)} - {*state.members})
        why = f"not there yet: {counted(len(missing), 'worker')} ({listed(missing[:9])})"
        return Order(GroupPhase.WAIT, state.round if report.round else 0, why=why)
    lead, reports = state.members[state.lead], state.members.values()
    living = (report.worker for report in reports if report.status is not Status.LEFT)
    return Order(
        state.phase,
        state.round,
        lease=lead.lease,
        refused=lead.refused,
        address=lead.address,
        members=tuple(sorted(living, key=lambda worker: (worker != state.lead, worker))),
        verdict=state.verdict,
        all_wait=all(report.waits for report in reports),
    )


def usages_of(state: GroupState) -> dict[int, Usage]:
    """Returns the last reported usage of each worker of the round."""
    reports = state.members.values()
    return {report.worker: report.usage for report in reports if report.usage and report.status is not Status.LEFT}


def _with(state: GroupState, report: Report) -> GroupState:
    return replace(state, members={**state.members, report.worker: report})


def _lose(state: GroupState, report: Report) -> GroupState:
    """Returns the state without a lost worker; while the group forms, its place is free at once."""
    if state.phase is not GroupPhase.WAIT:
        was_stopped = report.verdict is not None and report.verdict.exit_code == exits.STOPPED
        lost = state.lost if was_stopped or report.status is Status.LEFT else state.lost | {report.worker}
        return replace(_with(state, replace(report, status=Status.LEFT)), lost=lost)
    members = {worker: member for worker, member in state.members.items() if worker != report.worker}
    return replace(state, members=members, since=None)


def _settle(state: GroupState, now: float) -> GroupState:
    while (after := _next(state, now)) != state:
        state = after
    return state


def _next(state: GroupState, now: float) -> GroupState:
    """Returns the state after one transition; the same state if there is none."""
    reports, lead = state.members.values(), state.members.get(state.lead)
    statuses = {report.status if report.round == state.round else Status.FAILED for report in reports}
    match state.phase:
        case GroupPhase.WAIT if joining := _joining(state):
            members = {**state.members, **{worker: state.newcomers[worker] for worker in joining}}
            newcomers = {worker: report for worker, report in state.newcomers.items() if worker not in joining}
            return replace(state, members=members, newcomers=newcomers)
        case GroupPhase.WAIT if lead and len(reports) >= state.min_workers:
            since = now if state.since is None else state.since
            expected = max(report.expects for report in reports) or state.num_workers
            is_complete = len(reports) >= expected or now - since >= state.gather
            if is_complete and all(report.heard >= since for report in reports):
                return replace(state, since=None, phase=GroupPhase.CLAIM)
            return replace(state, since=since)
        case GroupPhase.CLAIM | GroupPhase.PREPARE | GroupPhase.START if verdict := _verdict(state, now):
            return _stop(state, verdict)
        case GroupPhase.CLAIM if lead and lead.lease and lead.round == state.round:
            return replace(state, phase=GroupPhase.PREPARE)
        case GroupPhase.PREPARE if statuses == {Status.PREPARED}:
            return replace(state, phase=GroupPhase.START, begun=now)
        case GroupPhase.START if statuses == {Status.ENDED}:
            return replace(state, phase=GroupPhase.FINISH)
        case GroupPhase.START if (joining := _joining(state)) and now - state.begun >= RESIZE_SECONDS:
            message = f"{counted(len(joining), 'worker')} joined the group: {listed(joining)}"
            return _stop(state, Verdict(exits.RESIZED, "preemption", message, state.lead))
        case GroupPhase.FINISH if lead and lead.status is Status.PUBLISHED:
            return replace(state, phase=GroupPhase.DONE)
        case GroupPhase.FINISH if lead and (verdict := lead.verdict):
            return _stop(state, verdict)
        case GroupPhase.STOP:
            return _begin_again(state, now)
    return state


def _joining(state: GroupState) -> list[int]:
    """Returns the newcomers of the next round, once all are ready, or in WAIT enough of them; else none."""
    ready = sorted(worker for worker, report in state.newcomers.items() if report.status is Status.PREPARED)
    is_enough = state.phase is GroupPhase.WAIT and len({*state.members, *ready}) >= state.min_workers
    return ready if is_enough or len(ready) == len(state.newcomers) else []


def _begin_again(state: GroupState, now: float) -> GroupState:
    """Returns the state of the next round, once its workers are ready for it.

    An elastic group goes on with the remaining workers and the newcomers.
    """
    living = {worker: report for worker, report in state.members.items() if report.status is not Status.LEFT}
    ready = {worker: report for worker, report in living.items() if report.round > state.round}
    since = now if state.since is None and ready else state.since
    is_late = since is not None and now - since >= NEXT_ROUND_SECONDS
    if not state.is_elastic and (is_late or len(living) < len(state.members)):
        return replace(state, phase=GroupPhase.EXIT)
    if state.lead not in ready or not (is_late or len(ready) == len(living)):
        return replace(state, since=since)
    joining = {worker: state.newcomers[worker] for worker in _joining(state) if worker not in ready}
    members = {**ready, **joining}
    return replace(
        GroupState(state.num_workers, state.min_workers, state.lead, state.gather),
        phase=GroupPhase.CLAIM if len(members) >= state.min_workers else GroupPhase.WAIT,
        round=state.round + 1,
        members=members,
        newcomers={worker: report for worker, report in state.newcomers.items() if worker not in members},
        looked=state.looked,
        lost=frozenset() if len(members) > 1 else state.lost,
    )


def _stop(state: GroupState, verdict: Verdict) -> GroupState:
    """Returns the state of a group whose round ends.

    Another round may follow if a rank was lost and no worker was asked to stop; in an elastic group it always may. None
    follows if the store refuses the key of these pods.
    """
    is_of_rank = verdict.root_cause and verdict.exit_code != exits.STOPPED
    may_follow = verdict.retryable and verdict.exit_code != exits.KEY and (is_of_rank or state.is_elastic)
    return replace(state, phase=GroupPhase.STOP if may_follow else GroupPhase.EXIT, since=None, verdict=verdict)


def _verdict(state: GroupState, now: float) -> Verdict | None:
    """Returns the reason for which the round ends; None while it goes on or the reason is not known."""
    reports, verdicts = state.members.values(), [failure.verdict for failure in state.failures if failure.verdict]
    for verdict in verdicts:
        if verdict.root_cause:
            return verdict
    for left in (report.left for report in reports if report.left):
        if any(failure.went_on and failure.worker != left.worker for failure in state.failures):
            return left
    for lost in (report.worker for report in reports if report.status is Status.LEFT):
        if all(failure.worker != lost for failure in state.failures):
            return lost_verdict(lost)
    has_left = any(report.status is Status.LEFT for report in reports)
    waits = len(verdicts) < len(reports) and state.since is not None and now - state.since < ROOT_SECONDS
    return None if not verdicts or (waits and not has_left) else verdicts[0]


def lost_verdict(worker: int) -> Verdict:
    """Returns the verdict on a worker that has gone or does not answer."""
    message = f"worker {worker} left no record (killed?), or cannot be reached"
    return Verdict(exits.PEER, "peer", message, worker, root_cause=False)


class Coordinator:
    """The state of a group, in the memory of its lead, and the orders that follow from it."""

    def __init__(self, state: GroupState) -> None:
        self._lock = threading.Lock()
        self._state = replace(state, looked=time.monotonic())
        self.is_retired = False

    def report(self, report: Report) -> Order:
        """Takes a report; returns the order to its worker. Raises OSError once another worker leads the group."""
        if self.is_retired:
            raise OSError("another worker leads the group")
        with self._lock:
            self._state = hear(self._state, report, time.monotonic())
            return order_for(self._state, report)

    def retire(self) -> None:
        """Ends the answers, because another worker leads the group."""
        self.is_retired = True

    def has_enough(self) -> bool:
        """Returns whether enough workers are there for a round, and at least half of the last group."""
        state = self._state
        living = {worker for worker, report in state.members.items() if report.status is not Status.LEFT}
        half = (len(living | state.lost) + 1) // 2
        return len(living | state.newcomers.keys()) >= max(state.min_workers, half)

    def usages(self) -> dict[int, Usage]:
        """Returns the last reported usage of each worker."""
        return usages_of(self._state)

    def lose(self, report: Report) -> None:
        """Notes that the connection of this last report has ended."""
        with self._lock:
            self._state = lose(self._state, report, time.monotonic())
