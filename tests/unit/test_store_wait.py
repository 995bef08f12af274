"""A store that is away is waited for, up to a stated limit, and asked for nothing twice that it has done."""

from collections import Counter
from types import SimpleNamespace

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import Clock
from train_func.errors import StorageFailed
from train_func.worker import store_wait
from train_func.worker.stop import Stop
from train_func.worker.store_wait import KEY_SECONDS, PAUSE_SECONDS, patient, patiently


class Away:
    """A store that is away for the first calls of each kind, whose answers, good or not, take a while of a clock."""

    address = "file:///srv/store"

    def __init__(self, times, *, reason="unreachable", clock=None, seconds=0.0):
        self._times, self._reason, self._clock, self._seconds = times, reason, clock, seconds
        self.calls = Counter()

    def __getattr__(self, name):
        def call(*arguments, **options):
            self.calls[name] += 1
            if self._clock:
                self._clock.seconds += self._seconds
            if self.calls[name] <= self._times:
                raise StorageFailed("no answer", reason=self._reason)
            return "there"

        return call


def test_the_wait_for_a_store_has_an_end_and_other_faults_have_none():
    with pytest.raises(StorageFailed, match="no answer"):
        patiently(Away(9).get, Stop(), seconds=1)
    denied = Away(9, reason="denied")
    with pytest.raises(StorageFailed):
        patiently(denied.get, Stop())
    assert denied.calls["get"] == 1


def test_a_patient_store_waits_with_each_call_and_does_none_twice_that_was_done(capsys, monkeypatch):
    monkeypatch.setattr(store_wait, "PAUSE_SECONDS", 0.01)
    away = Away(1)
    waiting = patient(away, Stop(), 60, "publish")
    assert [waiting.get("a"), waiting.get("b"), waiting.put("c", b"")] == ["there"] * 3
    assert away.calls == {"get": 3, "put": 2}
    (said,) = capsys.readouterr().out.splitlines()  # and not one with every try
    assert unnamed(said, "publish", "no answer") == []


def test_a_key_that_was_good_before_may_be_refused_for_a_minute(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(store_wait, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(Stop, "pause", lambda stop, seconds: None)
    refused = Away(9**9, reason="credentials", clock=clock, seconds=1.0)
    begun = clock()
    with pytest.raises(StorageFailed, match="no answer"):
        patient(refused, Stop(), 900, "publish").put("a")
    assert KEY_SECONDS - PAUSE_SECONDS <= clock() - begun <= KEY_SECONDS + PAUSE_SECONDS
    with pytest.raises(StorageFailed):
        patiently(refused.get, Stop())  # nothing says that it ever was
    assert refused.calls["get"] == 1


@pytest.mark.parametrize(
    ("first", "then", "waited"),
    [("unreachable", "credentials", 30 + KEY_SECONDS), ("credentials", "unreachable", 930.0), ("unproven", "", 900.0)],
)
def test_each_kind_of_failure_has_its_own_wait(monkeypatch, first, then, waited):
    clock = Clock()
    monkeypatch.setattr(store_wait, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(Stop, "pause", lambda stop, seconds: None)
    begun = clock()

    def put(*_):
        clock.seconds += 1.0
        raise StorageFailed("no answer", reason=first if clock() - begun <= 30 or not then else then)

    with pytest.raises(StorageFailed, match="no answer"):
        patient(SimpleNamespace(put=put), Stop(), 900, "publish").put("a")
    assert waited - PAUSE_SECONDS <= clock() - begun <= waited + PAUSE_SECONDS


@pytest.mark.parametrize(("seconds", "waited"), [(3.0, 60.0), (600.0, 600.0)])
def test_the_wait_for_a_store_is_counted_from_the_failure_behind_the_last_success(monkeypatch, seconds, waited):
    """An upload that takes longer than the whole wait, and fails at its end, is done once more."""
    clock = Clock()
    monkeypatch.setattr(store_wait, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(store_wait, "time", SimpleNamespace(monotonic=clock))
    waiting = patient(Away(1, clock=clock, seconds=seconds), Stop(), 60, "publish")
    assert [waiting.upload("a"), waiting.put("b"), waiting.upload("c"), waiting.get("d")] == ["there"] * 4
    waiting = patient(Away(9**9, clock=clock, seconds=seconds), Stop(), 60, "publish")
    begun = clock()
    with pytest.raises(StorageFailed, match="no answer"):
        waiting.upload("a")
    assert clock() - begun - seconds == waited
