"""The coordinator: the supervisor of worker 0 decides for all workers of a job.

Each worker reports the last milestone that it has reached, at once and then every second, and the answer is an order.
Nobody else decides anything, so no two workers can disagree. What follows from a report is a pure function of the
state, the report and the time; ``tests/unit/test_coordinator.py`` is its table.

    phase        ends when                                        order to a worker
    FORMING      all workers are there, and each has reported     WAIT
                 since they were complete
    CLAIMING     worker 0 has the lease of the next attempt       CLAIM for worker 0, WAIT for the others
    PREPARING    every worker has its inputs                      PREPARE(start)
    RUNNING      the ranks of every worker have ended well        START(address, members)
    FINISHING    worker 0 has published the result                FINISH
    DONE                                                          DONE
    STOPPING     every worker is ready for the next round         STOP(verdict)
    OVER                                                          STOP(verdict), then EXIT

A round is one attempt of the group. A worker of the next round waits, or is told to EXIT when there will be none.

The first worker that failed by itself ends the round for all. A worker that only lost its peers is heard and may have
to wait for ROOT seconds: another one may still be writing down why it failed. A rank that has left its loop over the
steps is a fault only where a rank of another worker went on.

A worker is lost when its connection ends or after SILENCE seconds without a report. A coordinator that stood still
itself, as on a machine that slept, has lost nobody. A lost worker ends the group: the operator starts all pods again.
After a lost rank the same pods begin another round. While the group finishes only worker 0 counts, which publishes.

The lease in the store is the fence: worker 0 claims it before each round, so two groups never share an attempt.
"""

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from train_func import exits
from train_func.records import Verdict
from train_func.text import counted, listed

PRESENT = 5.0  # seconds after which a worker that has not reported again counts as gone, while the group forms
SILENCE = 15.0  # the same once it has formed
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


class Kind(StrEnum):
    """What a worker is told to do."""

    WAIT = "wait"
    CLAIM = "claim"
    PREPARE = "prepare"
    START = "start"
    FINISH = "finish"
    DONE = "done"
    STOP = "stop"
    EXIT = "exit"


class Phase(StrEnum):
    """What the group does."""

    FORMING = "forming"
    CLAIMING = "claiming"
    PREPARING = "preparing"
    RUNNING = "running"
    FINISHING = "finishing"
    DONE = "done"
    STOPPING = "stopping"
    OVER = "over"


AT_WORK = (Phase.CLAIMING, Phase.PREPARING, Phase.RUNNING)


@dataclass(frozen=True)
class Report:
    """What a worker says."""

    worker: int
    pod: str
    """Tells its process from all others."""
    round: int = 1
    status: Status = Status.READY
    verdict: Verdict | None = None
    """Why it failed, or was stopped."""
    left: Verdict | None = None
    """The verdict that holds if a rank of it has left its steps while another worker's went on."""
    went_on: bool = False
    waits: bool = False
    """Whether every rank of it waits for others."""
    start: str = ""
    """How the round starts, as worker 0 has claimed it."""
    address: str = ""
    """Where rank 0 listens for the other ranks."""

    def to_json(self) -> str:
        """Returns the message to the coordinator."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads the message of a worker."""
        plain = json.loads(text)
        verdicts = {name: _verdict_of(plain[name]) for name in ("verdict", "left")}
        return cls(**{**plain, **verdicts, "status": Status(plain["status"])})


@dataclass(frozen=True)
class Order:
    """What a worker is told; ``round``: of the group, 0 while it forms."""

    kind: Kind
    round: int = 0
    why: str = ""
    """What is waited for."""
    start: str = ""
    address: str = ""
    members: tuple[int, ...] = ()
    verdict: Verdict | None = None
    all_wait: bool = False
    """Whether every rank of every worker waits for others."""

    def to_json(self) -> str:
        """Returns the answer to a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads the answer of the coordinator."""
        plain = json.loads(text)
        values = {"kind": Kind(plain["kind"]), "members": tuple(plain["members"])}
        return cls(**{**plain, **values, "verdict": _verdict_of(plain["verdict"])})


def _verdict_of(plain: Mapping[str, Any] | None) -> Verdict | None:
    return Verdict(**plain) if plain else None


@dataclass(frozen=True)
class Presence:
    """A worker as the coordinator knows it."""

    pod: str
    heard: float
    report: Report


@dataclass(frozen=True)
class Failure:
    """A worker that has failed in this round."""

    time: float
    worker: int
    verdict: Verdict
    went_on: bool = False


@dataclass(frozen=True)
class State:
    """The group between two reports."""

    num_workers: int
    phase: Phase = Phase.FORMING
    round: int = 1
    members: Mapping[int, Presence] = field(default_factory=dict)
    looked: float = 0.0
    """When it was looked for silence last."""
    since: float | None = None
    """When the group was complete (FORMING), or the first worker ready for the next round (STOPPING)."""
    failures: tuple[Failure, ...] = ()
    verdict: Verdict | None = None


def hear(state: State, report: Report, now: float) -> State:
    """Returns the state after a report. That of a pod whose place another one has changes nothing."""
    state = look(state, now)
    member = state.members.get(report.worker)
    if member.pod != report.pod if member else state.phase is not Phase.FORMING:
        return state
    if member and report.status is Status.LEFT:
        state = _lose(state, report.worker, "has left")
    has_failed = any(failure.worker == report.worker for failure in state.failures)
    if report.status is Status.FAILED and report.verdict and report.round == state.round and not has_failed:
        failure = Failure(now, report.worker, report.verdict, report.went_on)
        state = replace(state, failures=(*state.failures, failure))
    return _settle(_with(state, Presence(report.pod, now, report)), now)


def look(state: State, now: float) -> State:
    """Returns the state in which silent workers are lost."""
    if now - state.looked > SILENCE / 2:  # this process stood still, and the others may have done so with it
        heard = {worker: replace(member, heard=now) for worker, member in state.members.items()}
        state = replace(state, members=heard)
    limit = PRESENT if state.phase is Phase.FORMING else SILENCE
    for worker, member in state.members.items():
        if now - member.heard >= limit:
            state = _lose(state, worker, f"has given no sign of life for {SILENCE:.0f} s")
    return _settle(replace(state, looked=now), now)


def lose(state: State, report: Report, now: float) -> State:
    """Returns the state after the connection has ended over which this report was the last one."""
    member = state.members.get(report.worker)
    if member is None or member.pod != report.pod:
        return state
    return _settle(_lose(state, report.worker, "has ended without a word"), now)


def order_for(state: State, report: Report) -> Order:
    """Returns the order to the worker that has sent this report."""
    member = state.members.get(report.worker)
    if member is None or member.pod != report.pod:
        return Order(Kind.WAIT, why=f"another pod is worker {report.worker}")
    if state.phase is Phase.FORMING:
        missing = sorted({*range(state.num_workers)} - {*state.members})
        return Order(Kind.WAIT, why=f"not there yet: {counted(len(missing), 'worker')} ({listed(missing[:9])})")
    if report.status is Status.LEFT:
        others = [other for worker, other in state.members.items() if worker != report.worker]
        have_left = all(other.report.status is Status.LEFT for other in others)
        return Order(Kind.EXIT if have_left else Kind.WAIT, state.round)
    if report.round > state.round:
        return Order(Kind.EXIT if state.phase in (Phase.OVER, Phase.DONE) else Kind.WAIT, state.round)
    lead = state.members[0].report
    match state.phase:
        case Phase.CLAIMING:
            return Order(Kind.WAIT if report.worker else Kind.CLAIM, state.round)
        case Phase.PREPARING:
            return Order(Kind.PREPARE, state.round, start=lead.start)
        case Phase.RUNNING:
            all_wait = all(other.report.waits for other in state.members.values())
            members = tuple(sorted(state.members))
            return Order(Kind.START, state.round, address=lead.address, members=members, all_wait=all_wait)
        case Phase.FINISHING:
            return Order(Kind.FINISH, state.round)
        case Phase.DONE:
            return Order(Kind.DONE, state.round)
    return Order(Kind.STOP, state.round, verdict=state.verdict)


def _with(state: State, member: Presence) -> State:
    return replace(state, members={**state.members, member.report.worker: member})


def _lose(state: State, worker: int, words: str) -> State:
    """While the group forms the place is free at once; later the worker has left, which is a failure of the round."""
    member = state.members[worker]
    if state.phase is Phase.FORMING:
        others = {other: value for other, value in state.members.items() if other != worker}
        return replace(state, members=others, since=None)
    if member.report.status is Status.LEFT:
        return state
    if not any(failure.worker == worker for failure in state.failures):
        verdict = Verdict(exits.PEER, "peer", f"worker {worker} {words}", 0, root_cause=False)
        state = replace(state, failures=(Failure(float("-inf"), worker, verdict), *state.failures))
    return _with(state, replace(member, report=replace(member.report, status=Status.LEFT)))


def _settle(state: State, now: float) -> State:
    while (after := _next(state, now)) != state:
        state = after
    return state


def _next(state: State, now: float) -> State:
    """Returns the state after one transition; the same one where there is none."""
    reports = [member.report for member in state.members.values()]
    statuses = {report.status if report.round == state.round else Status.FAILED for report in reports}
    match state.phase:
        case Phase.FORMING if len(reports) == state.num_workers:
            since = now if state.since is None else state.since
            has_formed = all(member.heard >= since for member in state.members.values())
            return replace(state, since=since, phase=Phase.CLAIMING if has_formed else Phase.FORMING)
        case Phase.CLAIMING | Phase.PREPARING | Phase.RUNNING if verdict := _verdict(state, now):
            return _stop(state, verdict)
        case Phase.CLAIMING if state.members[0].report.start:
            return replace(state, phase=Phase.PREPARING)
        case Phase.PREPARING if statuses == {Status.PREPARED}:
            return replace(state, phase=Phase.RUNNING)
        case Phase.RUNNING if statuses == {Status.ENDED}:
            return replace(state, phase=Phase.FINISHING)
        case Phase.FINISHING if state.members[0].report.status is Status.PUBLISHED:
            return replace(state, phase=Phase.DONE)
        case Phase.FINISHING if of_lead := [failure for failure in state.failures if failure.worker == 0]:
            return _stop(state, of_lead[0].verdict)
        case Phase.STOPPING:
            return _after_stop(state, reports, now)
    return state


def _after_stop(state: State, reports: list[Report], now: float) -> State:
    num_ready = sum(report.round > state.round for report in reports)
    since = state.since if state.since is not None or not num_ready else now
    if any(report.status is Status.LEFT for report in reports) or (since is not None and now - since >= AGAIN):
        return replace(state, phase=Phase.OVER)
    if num_ready < len(reports):
        return replace(state, since=since)
    return replace(state, phase=Phase.CLAIMING, round=state.round + 1, since=None, failures=(), verdict=None)


def _stop(state: State, verdict: Verdict) -> State:
    """Another round may follow where a rank was lost and nobody was asked to stop."""
    may_follow = verdict.root_cause and verdict.retryable and verdict.exit_code != exits.STOPPED
    return replace(state, phase=Phase.STOPPING if may_follow else Phase.OVER, since=None, verdict=verdict)


def _verdict(state: State, now: float) -> Verdict | None:
    """Returns why the round ends, if it does and that is known."""
    if not state.failures:
        return None
    for failure in state.failures:
        if failure.verdict.root_cause:
            return failure.verdict
    for member in state.members.values():
        left = member.report.left
        if left and any(failure.went_on and failure.worker != left.worker for failure in state.failures):
            return left
    first = state.failures[0]
    has_left = any(member.report.status is Status.LEFT for member in state.members.values())
    is_settled = has_left or len(state.failures) == len(state.members) or now - first.time >= ROOT
    return first.verdict if is_settled else None


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
        """Takes notice that the worker of this last report has gone."""
        with self._lock:
            self._state = lose(self._state, report, time.monotonic())
