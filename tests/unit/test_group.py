"""The members of a group: they find a lead, wait for one another, hear why a round ends, begin again, and leave."""

import math
import signal
import socket
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.local_jobs import until
from tests.recorded_jobs import a_record
from train_func.errors import StorageFailed
from train_func.wire import exits
from train_func.wire.records import Lease, Verdict
from train_func.worker.stop import Stop, Stopped, WithinGrace
from train_func.worker.supervisor import connection, coordinator, lead
from train_func.worker.supervisor.connection import Connection, Host
from train_func.worker.supervisor.coordinator import (
    GATHER_SECONDS,
    REGATHER_SECONDS,
    Coordinator,
    GroupPhase,
    GroupState,
    Order,
    Report,
    Status,
)
from train_func.worker.supervisor.group import Member, PeersLost, meet
from train_func.worker.supervisor.lead import ElectedLead, LeadRecord, Replaced, Way, reserved_port

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
@pytest.mark.parametrize(("worker", "message"), [(1, "worker 2"), (2, "another worker leads")])
def test_a_coordinator_that_has_gone_is_a_lost_peer_and_no_fault_of_the_supervisor(call, worker, message):
    def ask(report):
        raise ConnectionRefusedError

    with pytest.raises(PeersLost, match=message):
        call(Member(Way(ask, "127.0.0.1", lead=2), Report(worker, f"pod {worker}", 1), Stop()))


def test_a_worker_that_is_busy_reports_all_the_same():
    has_reported = threading.Semaphore(0)

    def ask(report):
        has_reported.release()
        return Order(GroupPhase.START, 1)

    member = Member(Way(ask, "127.0.0.1", lead=0), Report(1, "pod 1", 1), Stop())
    threading.Thread(target=member.beat, daemon=True).start()
    assert [has_reported.acquire(timeout=LIMIT) for _ in range(3)] == [True] * 3


LEADS = a_record().keys.leads(0)


class Seeks:
    """A worker of an elastic group that seeks its lead, and whose clock runs by hand."""

    def __init__(self, store, worker, monkeypatch, *, min_workers=1):
        environment = SimpleNamespace(
            worker=worker,
            pod=f"pod {worker}",
            endpoint="127.0.0.1:1",
            group_key=KEY,
            num_workers=4,
            min_workers=min_workers,
        )
        self.lead, self.now = ElectedLead(environment, store, a_record()), 100.0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=lambda seconds: time.sleep(0.01))
        for module in (lead, coordinator):
            monkeypatch.setattr(module, "time", clock)

    def find(self, seconds=0, tell=lambda second: None, *, is_left=True):
        """Seeks for these seconds; returns the way to the lead, or the last error."""
        for second in range(seconds + 1):
            try:
                return self.lead.find(is_left=is_left)
            except OSError as error:
                last = error
            self.now += 1.0
            tell(second)
        return last


@pytest.fixture
def seeks(store, monkeypatch):
    yield lambda worker, **options: Seeks(store, worker, monkeypatch, **options)
    put_lead(store, 99, 1)  # which ends the threads of all others


def put_lead(store, number, port, **fields):
    record = LeadRecord(worker=0, pod="pod 0", address=f"127.0.0.1:{port}", **fields)
    store.put(f"{LEADS}/{number}.json", record.to_json())


@pytest.mark.parametrize("is_left", [True, False], ids=["of its group", "of a newcomer"])
def test_a_lead_that_cannot_be_reached_is_replaced_only_once_it_shows_no_more_that_it_lives(store, seeks, is_left):
    with reserved_port() as port:
        put_lead(store, 1, port)
        worker = seeks(1)
        refused = worker.find(40, lambda second: put_lead(store, 1, port, beat=second), is_left=is_left)
        assert (type(refused), f"127.0.0.1:{port}" in str(refused)) == (OSError, True)
        assert worker.find(40, is_left=is_left).lead == 1
    assert store.names(LEADS) == ["1.json", "2.json"]


def test_a_lead_that_may_live_gets_time_for_three_records_while_the_store_answers(store, seeks, monkeypatch):
    monkeypatch.setattr(connection, "GREETING_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        put_lead(store, 1, silent.getsockname()[1])
        worker = seeks(0)
        begun = worker.now
        for _ in range(3):
            assert isinstance(worker.find(2), OSError)
            with monkeypatch.context() as away:
                away.setattr(store, "names", refuse)
                with pytest.raises(StorageFailed):
                    worker.lead.find(is_left=True)
            worker.now += 60.0
        begun = worker.now
        assert worker.find(40).lead == 0
    assert worker.now - begun == 3 * lead.LEAD_BEAT_SECONDS
    worker = seeks(1)  # of a process that has gone
    put_lead(store, 3, 1)
    begun = worker.now
    assert worker.find(40).lead == 1
    assert worker.now - begun < 3 * lead.LEAD_BEAT_SECONDS


def refuse(*args):
    raise StorageFailed("no answer", reason="unreachable")


@pytest.mark.parametrize(("num_left", "gather"), [(2, REGATHER_SECONDS), (0, GATHER_SECONDS)])
def test_a_worker_that_leads_after_the_loss_of_all_waits_for_them_as_at_the_start(store, seeks, num_left, gather):
    worker = seeks(1)
    put_lead(store, 1, 1)
    way, begun = worker.find(40, is_left=num_left > 0), worker.now
    while way.ask(Report(1, "pod 1", expects=num_left)).phase is GroupPhase.WAIT and worker.now < begun + 100:
        worker.now += 1.0
    assert worker.now - begun == gather


def refuses(call):
    try:
        call()
    except OSError:
        return True
    return False


def beat(store):
    return LeadRecord.from_json(store.get(f"{LEADS}/1.json").data).beat


def test_a_lead_shows_that_it_lives_while_it_has_enough_workers_and_answers_none_once_it_is_replaced(
    store, seeks, monkeypatch
):
    monkeypatch.setattr(connection, "AWAY_SECONDS", 0.2)
    first = seeks(0, min_workers=2)
    way = first.find()
    record = LeadRecord.from_json(store.get(f"{LEADS}/1.json").data)
    guest = Connection("127.0.0.1", int(record.address.rpartition(":")[2]), KEY)
    way.ask(Report(0, "pod 0"))
    assert beat(store) == 0
    guest.report(Report(1, "pod 1"))
    until(lambda: beat(store) > 1, "the lead shows that it lives", LIMIT)
    put_lead(store, 2, 1)
    for ask, worker in ((way.ask, 0), (guest.report, 1)):
        until(lambda: refuses(lambda: ask(Report(worker, f"pod {worker}"))), "it answers no more", LIMIT)  # noqa: B023
    with pytest.raises(Replaced):
        first.lead.check()


@pytest.mark.parametrize("after", [0.0, lead.LEAD_SILENCE_SECONDS + 2 * lead.SECONDS_PER_WORKER, math.inf])
def test_a_worker_without_a_group_sees_whether_the_others_train_or_one_of_them_will_lead(
    store, seeks, monkeypatch, after
):
    worker, slept = seeks(1), 0.0
    put_lead(store, 1, 1)

    def sleep(seconds):
        nonlocal slept
        slept += seconds
        put_lead(store, 1, 1, beat=int(slept > after))

    monkeypatch.setattr(lead.time, "sleep", sleep)
    assert worker.lead.others_train() is math.isfinite(after)


def test_a_store_that_denies_ends_the_search_for_a_lead_at_once():
    def denies(**options):
        raise StorageFailed("wrong key", reason="denied")

    environment = SimpleNamespace(worker=1, num_workers=2, join_timeout=LIMIT)
    with pytest.raises(StorageFailed):
        meet(environment, Stop(), SimpleNamespace(where="the lead", find=denies), lambda: None, None)
