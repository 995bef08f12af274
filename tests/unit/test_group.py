"""The members of a group: they wait for one another, hear why a round ends, begin again, and leave."""

import signal
import threading
import time
from dataclasses import replace

import pytest

from train_func.wire import exits
from train_func.wire.records import Lease, Verdict
from train_func.worker.stop import Stop, Stopped, WithinGrace
from train_func.worker.supervisor.connection import Connection, Host
from train_func.worker.supervisor.coordinator import Coordinator, GroupPhase, GroupState, Order, Report, Status
from train_func.worker.supervisor.group import Member, PeersLost
from train_func.worker.supervisor.lead import Way

LIMIT = 60  # seconds
KEY = b"of this job"


def formed(num_workers):
    """The members of a group that has formed: worker 0, and others that reach it over a connection."""
    coordinator = Coordinator(GroupState(num_workers, num_workers))
    port = Host(coordinator, KEY, 0).port
    ways = [coordinator.report, *(Connection("127.0.0.1", port, KEY).report for _ in range(1, num_workers))]
    reports = [Report(worker, f"pod {worker}") for worker in range(num_workers)]
    while 0 in [way(report).round for way, report in zip(ways, reports, strict=True)]:
        pass
    return [
        Member(Way(way, "127.0.0.1", lead=0), replace(report, round=1), Stop())
        for way, report in zip(ways, reports, strict=True)
    ]


def running(num_workers):
    members = formed(num_workers)
    members[0].tell(lease=Lease(attempt=7), address="127.0.0.1:29500")
    for member in members:
        member.tell(status=Status.PREPARED)
    return members


def finishing(num_workers):
    members = running(num_workers)
    for member in members:
        member.tell(status=Status.ENDED)
    return members


def at_once(*calls):
    """Results of the calls, each in a thread of its own."""
    results = [None] * len(calls)

    def run(number):
        try:
            results[number] = calls[number]()
        except (PeersLost, Stopped) as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    return results


def verdict(worker, code=exits.CODE, **fields):
    return Verdict(code, exits.cause_of(code), "a typo", worker, **fields)


def asked_to_stop(member):
    member._stop._on_signal(signal.SIGTERM, None)


def test_a_worker_that_waits_hears_a_signal():
    first, _ = running(2)
    waits, _ = at_once(lambda: first.hear(GroupPhase.FINISH, status=Status.ENDED), lambda: asked_to_stop(first))
    assert isinstance(waits, Stopped)


def test_a_worker_whose_ranks_have_ended_waits_for_the_result_within_its_grace_period():
    first, second = finishing(2)
    second._stop.grace = 1000.0
    asked_to_stop(second)
    waits = at_once(
        lambda: second.hear(GroupPhase.DONE, stop=WithinGrace(second._stop)).phase,
        lambda: time.sleep(0.3) or first.tell(status=Status.PUBLISHED).phase,
    )
    assert waits == [GroupPhase.DONE] * 2


def test_all_begin_another_round_together_and_hear_nothing_of_the_one_before():
    members = running(3)
    members[1].fail(verdict(1, exits.KILLED))
    assert at_once(*[member.begin_again for member in members]) == [True] * 3
    assert at_once(*[member.look for member in members]) == [None] * 3
    members[0].tell(lease=Lease(attempt=8))
    assert members[1].hear(GroupPhase.PREPARE).lease == Lease(attempt=8)


def test_worker_0_leaves_last():
    first, second, third = finishing(3)
    left = []
    waiting = threading.Thread(target=lambda: left.append(first.leave(LIMIT)), daemon=True)
    waiting.start()
    second.leave(LIMIT)
    second.leave(LIMIT)
    waiting.join(0.3)
    assert not left
    third.leave(LIMIT)
    waiting.join(LIMIT)
    assert left


CALLS = {
    "look": lambda member: [member.tell(), member.look()],
    "hear": lambda member: member.hear(GroupPhase.START),
    "again": lambda member: member.begin_again() or member.look(),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_coordinator_that_has_gone_is_a_lost_peer_and_no_fault_of_the_supervisor(call):
    def ask(report):
        raise ConnectionRefusedError

    with pytest.raises(PeersLost, match="worker 2"):
        call(Member(Way(ask, "127.0.0.1", lead=2), Report(1, "pod 1", 1), Stop()))


def test_a_worker_that_is_busy_reports_all_the_same():
    has_reported = threading.Semaphore(0)

    def ask(report):
        has_reported.release()
        return Order(GroupPhase.START, 1)

    member = Member(Way(ask, "127.0.0.1", lead=0), Report(1, "pod 1", 1), Stop())
    threading.Thread(target=member.beat, daemon=True).start()
    assert [has_reported.acquire(timeout=LIMIT) for _ in range(3)] == [True] * 3
