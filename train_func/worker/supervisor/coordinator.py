"""The coordinator: the supervisor of worker 0 decides for all workers of a job.

Each worker reports the last milestone that it has reached, at once and then every second. The answer is the phase of
the group, which is an order. Only worker 0 decides, so no two workers can disagree. What follows from a report
is a pure function of the state, the report and the time; ``tests/unit/test_coordinator.py`` is its table.

    phase      ends when                                         a worker then
    WAIT       all workers are there, and each has reported      reports again
               since they were complete
    CLAIM      worker 0 has the lease of the next attempt        claims it, if it is worker 0
    PREPARE    every worker has its inputs                       brings the inputs
    START      the ranks of every worker have ended well         runs its ranks
    FINISH     worker 0 has published the result                 keeps its files; worker 0 publishes
    DONE                                                         leaves
    STOP       every worker is ready for the next round          ends its ranks, and is ready
    EXIT                                                         ends its ranks, and leaves

A round is one attempt of the group: an order is for the workers that are in its round.

The first worker that failed by itself ends the round for all. A worker that only lost its peers is heard and may have
to wait for ROOT seconds: another one may still be writing down why it failed. A rank that has left its loop over the
steps is a fault only where a rank of another worker went on.

A worker is lost that has not reported for SILENCE seconds, or for AWAY seconds after its connection ended: one that
lives connects again at once. A coordinator that stood still itself, as on a machine that slept, has lost none. A lost
worker ends the group: the operator starts all pods again. After a lost rank the same pods begin another round. While
the group finishes only worker 0 counts, which publishes; a worker that fails then waits for the outcome.

The lease in the store is the fence: worker 0 claims it before each round, so two groups never share an attempt.
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

PRESENT = 5.0  # seconds after which a worker that has not reported again counts as gone, while the group forms
SILENCE = 15.0  # the same once it has formed
AWAY = 2.0  # the same after its connection has ended
ROOT = 3.0  # for the root of a failure to show itself
AGAIN = 60.0  # for all workers to be ready for another round, since the first was


class Status(StrEnum):
    """The last milestone of a worker in its round."""

    READY = "ready"
    PREPARED = "prepared"
    ENDED = "ended"
    PUBLISHED = "published"
    FAILED = "failed"
    LEFT = "left"


class Phase(StrEnum):
    """What the group does, and what its workers are told to do."""

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
    """What a worker says."""

    worker: int
    pod: str
    """Tells its process from all others."""
    round: int = 0
    """0 until it belongs to a group."""
    status: Status = Status.READY
    verdict: Verdict | None = None
    """Why it failed, or was stopped."""
    left: Verdict | None = None
    """The verdict that holds if a rank of it has left its steps while another worker's went on."""
    went_on: bool = False
    waits: bool = False
    """Whether every rank of it waits for others."""
    lease: Lease | None = None
    """Of the attempt of this round, as worker 0 has claimed it."""
    refused: Verdict | None = None
    """Why nothing is started under it: the attempts of the run are used up."""
    address: str = ""
    """Where rank 0 listens for the other ranks."""
    heard: float = 0.0
    """When, by the clock of the coordinator."""


@dataclass(frozen=True)
class Order(Record):
    """What a worker is told."""

    phase: Phase
    round: int = 0
    """The round of the group; 0 for a worker that does not belong to it."""
    why: str = ""
    """What is waited for."""
    lease: Lease | None = None
    refused: Verdict | None = None
    address: str = ""
    members: tuple[int, ...] = ()
    """The workers that have not left."""
    verdict: Verdict | None = None
    """Why the round ends."""
    all_wait: bool = False
    """Whether every rank of every worker waits for others."""


@dataclass(frozen=True)
class State:
    """The group between two reports."""

    num_workers: int
    phase: Phase = Phase.WAIT
    round: int = 1
    members: Mapping[int, Report] = field(default_factory=dict)
    """The last report of each worker."""
    looked: float = 0.0
    """When it was looked for silence last."""
    since: float | None = None
    """When the group was complete (WAIT), a worker had failed, or was ready for the next round (STOP)."""
    failures: tuple[Report, ...] = ()
    """By which workers said that they have failed in this round."""
    verdict: Verdict | None = None


def hear(state: State, report: Report, now: float) -> State:
    """Returns the state after a report. That of a pod which is of no group, or of another one, changes nothing."""
    state = look(state, now)
    last, is_forming = state.members.get(report.worker), state.phase is Phase.WAIT
    if (last.pod != report.pod if last else not is_forming) or (is_forming and report.round):
        return state
    is_known = any(other.worker == report.worker for other in state.failures)
    if report.verdict and report.round == state.round and not is_known:
        since = now if state.since is None else state.since
        state = replace(state, since=since, failures=(*state.failures, report))
    return _settle(_with(state, replace(report, heard=now)), now)


def look(state: State, now: float) -> State:
    """Returns the state in which silent workers have left."""
    if now - state.looked > SILENCE / 2:  # this process stood still, and the others may have done so with it
        heard = {worker: replace(report, heard=now) for worker, report in state.members.items()}
        state = replace(state, members=heard)
    limit = PRESENT if state.phase is Phase.WAIT else SILENCE
    for report in [report for report in state.members.values() if now - report.heard >= limit]:
        state = _lose(state, report)
    return _settle(replace(state, looked=now), now)


def lose(state: State, report: Report, now: float) -> State:
    """Returns the state after the connection has ended over which this report was the last one."""
    last = state.members.get(report.worker)
    if last is None or last.pod != report.pod:
        return state
    if state.phase is Phase.WAIT:
        return _lose(state, last)
    return _with(state, replace(last, heard=min(last.heard, now + AWAY - SILENCE)))


def order_for(state: State, report: Report) -> Order:
    """Returns the order to the worker that has sent this report."""
    last = state.members.get(report.worker)
    if last is None or last.pod != report.pod:
        return Order(Phase.WAIT, why=f"another pod is worker {report.worker}")
    if state.phase is Phase.WAIT:
        missing = sorted({*range(state.num_workers)} - {*state.members})
        return Order(Phase.WAIT, why=f"not there yet: {counted(len(missing), 'worker')} ({listed(missing[:9])})")
    lead, reports = state.members[0], state.members.values()
    return Order(
        state.phase,
        state.round,
        lease=lead.lease,
        refused=lead.refused,
        address=lead.address,
        members=tuple(sorted(report.worker for report in reports if report.status is not Status.LEFT)),
        verdict=state.verdict,
        all_wait=all(report.waits for report in reports),
    )


def _with(state: State, report: Report) -> State:
    return replace(state, members={**state.members, report.worker: report})


def _lose(state: State, report: Report) -> State:
    """While the group forms the place is free at once."""
    if state.phase is not Phase.WAIT:
        return _with(state, replace(report, status=Status.LEFT))
    members = {worker: member for worker, member in state.members.items() if worker != report.worker}
    return replace(state, members=members, since=None)


def _settle(state: State, now: float) -> State:
    while (after := _next(state, now)) != state:
        state = after
    return state


def _next(state: State, now: float) -> State:
    """Returns the state after one transition; the same one where there is none."""
    reports = state.members.values()
    statuses = {report.status if report.round == state.round else Status.FAILED for report in reports}
    match state.phase:
        case Phase.WAIT if len(reports) == state.num_workers:
            complete = now if state.since is None else state.since
            if all(report.heard >= complete for report in reports):
                return replace(state, since=None, phase=Phase.CLAIM)
            return replace(state, since=complete)
        case Phase.CLAIM | Phase.PREPARE | Phase.START if verdict := _verdict(state, now):
            return _stop(state, verdict)
        case Phase.CLAIM if state.members[0].lease and state.members[0].round == state.round:
            return replace(state, phase=Phase.PREPARE)
        case Phase.PREPARE if statuses == {Status.PREPARED}:
            return replace(state, phase=Phase.START)
        case Phase.START if statuses == {Status.ENDED}:
            return replace(state, phase=Phase.FINISH)
        case Phase.FINISH if state.members[0].status is Status.PUBLISHED:
            return replace(state, phase=Phase.DONE)
        case Phase.FINISH if verdict := state.members[0].verdict:
            return _stop(state, verdict)
        case Phase.STOP:
            num_ready = sum(report.round > state.round for report in reports)
            since = now if state.since is None and num_ready else state.since
            if Status.LEFT in {report.status for report in reports} or (since is not None and now - since >= AGAIN):
                return replace(state, phase=Phase.EXIT)
            if num_ready < len(reports):
                return replace(state, since=since)
            return State(state.num_workers, Phase.CLAIM, state.round + 1, state.members, state.looked)
    return state


def _stop(state: State, verdict: Verdict) -> State:
    """Another round may follow where a rank was lost and no worker was asked to stop."""
    may_follow = verdict.root_cause and verdict.retryable and verdict.exit_code != exits.STOPPED
    return replace(state, phase=Phase.STOP if may_follow else Phase.EXIT, since=None, verdict=verdict)


def _verdict(state: State, now: float) -> Verdict | None:
    """Returns why the round ends, if it does and that is known."""
    reports, verdicts = state.members.values(), [failure.verdict for failure in state.failures if failure.verdict]
    for verdict in verdicts:
        if verdict.root_cause:
            return verdict
    for left in (report.left for report in reports if report.left):
        if any(failure.went_on and failure.worker != left.worker for failure in state.failures):
            return left
    for lost in (report.worker for report in reports if report.status is Status.LEFT):
        if all(failure.worker != lost for failure in state.failures):
            message = f"worker {lost} has ended without a word, or cannot be reached"
            return Verdict(exits.PEER, "peer", message, lost, root_cause=False)
    has_left = any(report.status is Status.LEFT for report in reports)
    waits = len(verdicts) < len(reports) and state.since is not None and now - state.since < ROOT
    return None if not verdicts or (waits and not has_left) else verdicts[0]


class Coordinator:
    """The state of a group, in the memory of worker 0, and the orders that follow from it."""

    def __init__(self, num_workers: int) -> None:
        self._lock = threading.Lock()
        self._state = State(num_workers, looked=time.monotonic())

    def report(self, report: Report) -> Order:
        """Takes a report; returns the order to its worker."""
        with self._lock:
            self._state = hear(self._state, report, time.monotonic())
            return order_for(self._state, report)

    def lose(self, report: Report) -> None:
        """Takes notice that the connection of this last report has ended."""
        with self._lock:
            self._state = lose(self._state, report, time.monotonic())
