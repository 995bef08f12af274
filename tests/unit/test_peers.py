"""What supervisors tell each other, over the store of worker 0, as another worker reaches it."""

import threading
import time
from types import SimpleNamespace

import pytest

from train_func.records import Verdict
from train_func.worker.stop import Stop
from train_func.worker.supervisor import group as group_module
from train_func.worker.supervisor.group import Peers, PeersLost
from train_func.worker.supervisor.group_store import GroupStore, Host, RemoteStore

LIMIT = 60  # seconds
KEY = b"of this job"


@pytest.fixture
def group():
    """Makes the members of one group over a fresh store."""
    hosts = []

    def make(num_workers, *workers, **seconds):
        store = GroupStore(num_workers)
        hosts.append(Host(store, KEY, 0))
        return [
            Peers(
                RemoteStore("127.0.0.1", hosts[-1].port, KEY) if worker else store,
                worker=worker,
                num_workers=num_workers,
                stop=Stop(),
                **seconds,
            )
            for worker in workers or range(num_workers)
        ]

    yield make
    for host in hosts:
        host.close()


def at_once(*calls):
    """Results of the calls, each in a thread of its own."""
    results = [None] * len(calls)

    def run(number):
        try:
            results[number] = calls[number]()
        except PeersLost as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    return results


class GoesBetweenTwoCalls:
    """A store whose host has gone when its first answer is heard: that there is what was asked for."""

    def __init__(self):
        self.is_gone = False

    def __getattr__(self, name):
        def call(*args):
            if self.is_gone:
                raise ConnectionResetError("reset by peer")
            self.is_gone = name == "check"
            return name == "check"

        return call


@pytest.mark.parametrize("call", [Peers.look, Peers.hear_start, Peers.hear_meeting_point, Peers.inputs_brought])
def test_a_host_that_goes_between_two_calls_is_a_lost_peer_and_no_fault_of_the_supervisor(call):
    made = Peers(GoesBetweenTwoCalls(), worker=1, num_workers=2, stop=Stop())
    made._looked = float("-inf")
    made._store.is_gone = call is Peers.inputs_brought
    with pytest.raises(PeersLost):
        call(made)


def verdict(worker, code=70):
    return Verdict(code, "code", "a typo", worker)


def test_all_begin_another_attempt_together_and_hear_nothing_of_the_one_before(group):
    first, second, third = group(3)
    second.tell(verdict(1, code=147))
    assert (
        at_once(*[lambda member=member: member.begin_again(LIMIT) for member in (first, second, third)]) == [True] * 3
    )
    assert third.verdict(0.1) is None
    first.tell_start("attempt 2")
    assert second.hear_start() == "attempt 2"


def test_where_one_leaves_there_is_no_other_attempt(group):
    first, second, third = group(3)
    begins = [lambda member=member: member.begin_again(LIMIT) for member in (first, second)]
    assert at_once(*begins, lambda: third.leave(0.0)) == [False, False, None]


def test_who_comes_late_for_another_attempt_hears_what_was_decided(group):
    first, second, third = group(3)
    assert at_once(*[lambda member=member: member.begin_again(0.1) for member in (second, third)]) == [False, False]
    assert not first.begin_again(LIMIT)


def test_the_host_waits_for_all_others_also_when_it_says_twice_that_it_leaves(group):
    first, second, _ = group(3)
    second.leave(0.0)
    second.leave(0.0)
    started = time.monotonic()
    first.leave(0.3)
    assert time.monotonic() - started >= 0.3


def test_what_the_first_says_is_heard_by_the_others(group):
    first, *others = group(3)
    heard = at_once(*[other.hear_start for other in others], lambda: first.tell_start("attempt 7"))
    assert heard[:2] == ["attempt 7"] * 2


def test_the_first_verdict_counts(group):
    first, second, third = group(3)
    assert first.verdict(0.1) is None
    assert second.tell(verdict(1)) == verdict(1)
    assert third.tell(verdict(2)) == verdict(1)
    assert first.verdict(LIMIT) == verdict(1)
    with pytest.raises(PeersLost, match="worker 1 has ended") as caught:
        first.look()
    assert caught.value.verdict == verdict(1)


def test_all_workers_wait_only_while_each_of_them_says_so(group):
    first, second, third = group(3)
    assert [first.tell_waiting(True), second.tell_waiting(True), first.tell_waiting(True)] == [False] * 3
    assert third.tell_waiting(True)
    assert first.tell_waiting(True)
    assert not second.tell_waiting(False)
    assert not first.tell_waiting(True)


def test_the_group_finishes_when_the_ranks_of_all_workers_have_ended_and_not_before(group):
    first, second, third = group(3)
    ended = []

    def end(number, member):
        member.ranks_ended()
        ended.append(number)

    threads = [threading.Thread(target=end, args=pair, daemon=True) for pair in enumerate((first, second))]
    for thread in threads:
        thread.start()
    threads[0].join(0.3)
    assert not ended
    end(2, third)
    for thread in threads:
        thread.join(LIMIT)
    assert sorted(ended) == [0, 1, 2]


def stopped(worker):
    return Verdict(143, "preemption", "the worker was asked to stop by SIGTERM", worker)


def finishing(group, number, **options):
    members = group(number, **options)
    assert at_once(*[member.ranks_ended for member in members]) == [None] * number
    return members


def test_while_the_group_finishes_the_end_of_another_worker_ends_none(group):
    first, second, third = finishing(group, 3, beat=0.01, silence=0.2)
    second.tell(stopped(1))
    heard = at_once(third.hear_published, lambda: time.sleep(0.5) or first.tell_published())
    assert heard == [None, None]


def test_a_failure_of_worker_0_while_the_group_finishes_is_heard(group):
    first, second = finishing(group, 2, beat=0.01)
    first.tell(Verdict(74, "storage", "no space is left", 0))
    with pytest.raises(PeersLost) as lost:
        second.hear_published()
    assert lost.value.verdict.exit_code == 74


def test_where_a_worker_was_told_to_stop_before_all_ranks_have_ended_none_finishes(group):
    one, two = group(2)
    two.tell(stopped(1))
    with pytest.raises(PeersLost) as lost:
        one.ranks_ended()
    assert lost.value.verdict == stopped(1)


def test_the_host_of_the_store_leaves_last(group):
    host, guest = group(2)
    left = []
    waiting = threading.Thread(target=lambda: left.append(host.leave(LIMIT) or "host"), daemon=True)
    waiting.start()
    waiting.join(0.3)
    assert not left
    guest.leave(LIMIT)
    waiting.join(LIMIT)
    assert left == ["host"]


def test_who_waits_for_the_others_learns_that_one_has_failed(group):
    first, second = group(2)
    second.tell(verdict(1))
    with pytest.raises(PeersLost) as caught:
        first.ranks_ended()
    assert caught.value.verdict == verdict(1)


def test_silence_of_the_neighbour_is_noticed(group, monkeypatch):
    first, second = group(2, beat=0.02, silence=1.5)
    silent = threading.Event()
    monkeypatch.setattr(second, "_store", _Muted(second._store, silent))
    second.begin()
    end = time.monotonic() + 2
    while time.monotonic() < end:
        first.look()
        time.sleep(0.02)
    silent.set()
    end = time.monotonic() + LIMIT
    with pytest.raises(PeersLost, match="worker 1 .* sign of life"):
        while time.monotonic() < end:
            first.look()
            time.sleep(0.02)


def test_a_group_that_stood_still_has_lost_nobody(group, monkeypatch):
    """As on a machine that slept: no beat came, and no look asked for one."""
    first, second = group(2)
    second.begin()
    first.look()
    clock = time.monotonic()
    monkeypatch.setattr(group_module, "time", SimpleNamespace(monotonic=lambda: clock, sleep=time.sleep))
    first.look()
    clock += 1000
    first.look()
    clock += 2
    first.look()


class _Muted:
    """A worker's view of the store through which, from a moment on, nothing it says gets out."""

    def __init__(self, store, silent):
        self._store, self._silent = store, silent

    def __getattr__(self, name):
        return getattr(self._store, name)

    def set(self, key, value):
        if not self._silent.is_set():
            self._store.set(key, value)
