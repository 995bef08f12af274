"""A signal to stop that is sent again takes nothing from the first; only Ctrl-C pressed twice hurries."""

import os
import signal
import time

import pytest

from train_func.worker.pod import stop_flag
from train_func.worker.pod.stop import RESERVE, Stop

SIGNALS = {"term": signal.SIGTERM, "int": signal.SIGINT}


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS.values()}
    yield
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


def test_a_function_that_is_on_its_way_out_is_not_stopped_again(monkeypatch):
    monkeypatch.setattr(stop_flag, "_names", [])
    stop_flag.install()
    saved = []
    with pytest.raises(stop_flag.StopSignal):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            saved.append("its own")
    assert saved == ["its own"]


def test_a_signal_within_a_loop_that_is_broken_off_ends_the_function_behind_it(monkeypatch):
    monkeypatch.setattr(stop_flag, "_names", [])
    stop_flag.install()

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
