"""A store that is away is waited for, up to a stated limit, and asked for nothing twice that it has done."""

from types import SimpleNamespace

import pytest

from tests.messages import unnamed
from train_func.errors import StorageFailed
from train_func.worker import store_wait
from train_func.worker.stop import Stop
from train_func.worker.store_wait import patient, patiently


class Away:
    """A call that finds the store away a few times."""

    def __init__(self, times, reason="unreachable"):
        self.times, self.reason, self.calls = times, reason, 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        if self.calls <= self.times:
            raise StorageFailed("no answer", reason=self.reason)
        return "there"


def test_the_wait_for_a_store_has_an_end_and_other_faults_have_none():
    with pytest.raises(StorageFailed, match="no answer"):
        patiently(Away(9), Stop(), seconds=1)
    denied = Away(9, reason="denied")
    with pytest.raises(StorageFailed):
        patiently(denied, Stop())
    assert denied.calls == 1


class Flaky:
    """A store that is away for the first calls of each kind."""

    address = "file:///srv/store"

    def __init__(self, times, kind=Away):
        self._calls, self._times, self._kind = {}, times, kind

    def __getattr__(self, name):
        return self._calls.setdefault(name, self._kind(self._times))

    def num_calls(self, name):
        return self._calls[name].calls


def test_a_patient_store_waits_with_each_call_and_does_none_twice_that_was_done(capsys, monkeypatch):
    monkeypatch.setattr(store_wait, "PAUSE", 0.01)
    flaky = Flaky(1)
    waiting = patient(flaky, Stop(), 60, "publish")
    assert [waiting.get("a"), waiting.get("b"), waiting.put("c", b"")] == ["there"] * 3
    assert (flaky.num_calls("get"), flaky.num_calls("put")) == (3, 2)
    (said,) = capsys.readouterr().out.splitlines()  # and not one with every try
    assert unnamed(said, "publish", "no answer") == []


class Slow(Away):
    """Such a call that takes a while of this clock, whatever comes of it."""

    def __init__(self, times, now, seconds):
        super().__init__(times)
        self._now, self._seconds = now, seconds

    def __call__(self, *arguments, **options):
        self._now[0] += self._seconds
        return super().__call__()


@pytest.fixture
def now(monkeypatch):
    """The clock of the wait for a store."""
    now = [1000.0]
    monkeypatch.setattr(store_wait, "PAUSE", 0.01)
    monkeypatch.setattr(store_wait, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize(("seconds", "waited"), [(3.0, 60.0), (600.0, 600.0)])
def test_the_wait_for_a_store_is_counted_from_the_failure_behind_the_last_success(now, seconds, waited):
    """An upload that takes longer than the whole wait, and fails at its end, is done once more."""
    waiting = patient(Flaky(1, lambda times: Slow(times, now, seconds)), Stop(), 60, "publish")
    assert [waiting.upload("a"), waiting.put("b"), waiting.upload("c"), waiting.get("d")] == ["there"] * 4
    waiting = patient(Flaky(9**9, lambda times: Slow(times, now, seconds)), Stop(), 60, "publish")
    begun = now[0]
    with pytest.raises(StorageFailed, match="no answer"):
        waiting.upload("a")
    assert now[0] - begun - seconds == waited
