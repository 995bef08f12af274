"""A signal to stop that is sent again takes nothing from the first; only Ctrl-C pressed twice hurries."""

import os
import signal
import time

import pytest

from train_func.worker.pod import stop_flag
from train_func.worker.pod.stop import RESERVE, Stop

SIGNALS = {"term": signal.SIGTERM, "int": signal.SIGINT, "alarm": signal.SIGALRM}


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS.values()}
    timer = signal.setitimer(signal.ITIMER_REAL, 0)  # of pytest's time-out
    yield
    signal.setitimer(signal.ITIMER_REAL, *timer)
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("sent", "is_hurried"),
    [
        ("term", False),
        ("int", False),
        ("term term", False),
        ("int term", False),
        ("term int", False),
        ("int int", True),
    ],
)
def test_only_an_interrupt_that_comes_twice_ends_the_work_at_once(sent, is_hurried):
    stop = Stop()
    stop.install()
    begun = time.monotonic()
    for name in sent.split():
        os.kill(os.getpid(), SIGNALS[name])
    left = stop.work_until - begun
    assert left <= 1 if is_hurried else left >= stop.grace - RESERVE
    assert stop.name == f"SIG{sent.split()[0].upper()}"


def fresh(monkeypatch, grace=0.0):
    for name, value in {"_names": [], "_has_trained": False, "_last_seconds": 0.0}.items():
        monkeypatch.setattr(stop_flag, name, value)
    stop_flag.install(grace)


def test_a_function_that_is_on_its_way_out_is_not_stopped_again(monkeypatch):
    fresh(monkeypatch)
    saved = []
    with pytest.raises(stop_flag.StopSignal):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            saved.append("its own")
    assert saved == ["its own"]


def test_a_signal_within_a_loop_that_is_broken_off_ends_the_function_behind_it(monkeypatch):
    fresh(monkeypatch)

    def steps():
        with stop_flag.deferred():
            yield from range(7)

    with pytest.raises(stop_flag.StopSignal):
        for step in steps():
            os.kill(os.getpid(), signal.SIGTERM)
            if step == 3:
                break
        time.sleep(60)
    assert step == 3


def test_a_signal_that_comes_before_the_function_ends_it_where_it_begins(monkeypatch):
    stop_flag.hold()
    fresh(monkeypatch)
    os.kill(os.getpid(), signal.SIGTERM)
    assert not stop_flag.requested()
    with pytest.raises(stop_flag.StopSignal):
        stop_flag.accept()


def test_a_function_that_has_trained_may_come_to_its_end(monkeypatch):
    fresh(monkeypatch, grace=1000)
    stop_flag.has_trained()
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop_flag.requested()
    stop_flag.ignore()  # it has returned


def test_a_signal_after_the_last_step_lets_it_come_to_its_end_too(monkeypatch):
    fresh(monkeypatch, grace=1000)
    with stop_flag.deferred():
        stop_flag.has_trained()
        os.kill(os.getpid(), signal.SIGTERM)
    assert stop_flag.requested()
    stop_flag.ignore()


def test_a_last_step_that_takes_all_the_time_leaves_none_for_the_rest(monkeypatch):
    fresh(monkeypatch, grace=1e-6)
    with pytest.raises(stop_flag.StopSignal), stop_flag.deferred():
        os.kill(os.getpid(), signal.SIGTERM)
        stop_flag.has_trained()


def test_a_signal_in_a_later_training_that_saves_nothing_ends_the_function_at_once(monkeypatch):
    fresh(monkeypatch, grace=1000)
    stop_flag.has_trained()
    stop_flag.trains()
    with pytest.raises(stop_flag.StopSignal):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_function_that_goes_on_long_after_that_is_stopped_in_time(monkeypatch):
    fresh(monkeypatch, grace=0.2)
    stop_flag.has_trained()
    begun = time.monotonic()
    with pytest.raises(stop_flag.StopSignal):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    assert time.monotonic() - begun < 60


def test_another_training_that_has_begun_meanwhile_stops_between_two_steps(monkeypatch):
    fresh(monkeypatch, grace=1000)
    stop_flag.has_trained()
    os.kill(os.getpid(), signal.SIGTERM)
    stop_flag.trains()
    done = []
    with pytest.raises(stop_flag.StopSignal), stop_flag.deferred():
        os.kill(os.getpid(), signal.SIGALRM)  # the time is up
        done.append("step")
    assert done == ["step"]
