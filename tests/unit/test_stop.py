"""A signal to stop that is sent again takes nothing from the first."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time

import pytest

from train_func.worker.rank import stop_flag as stop_flag_module
from train_func.worker.stop import RESERVE_SECONDS, Stop

SIGNALS = {"term": signal.SIGTERM, "int": signal.SIGINT}


@pytest.fixture(autouse=True)
def handlers():
    before = {number: signal.getsignal(number) for number in SIGNALS.values()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("sent", ["term", "int", "term term", "int term", "int int"])
def test_the_first_signal_counts_and_the_work_has_the_grace_period(sent):
    stop = Stop()
    stop.install()
    begun = time.monotonic()
    for name in sent.split():
        os.kill(os.getpid(), SIGNALS[name])
    assert stop.work_until - begun >= stop.grace - RESERVE_SECONDS
    assert stop.name == f"SIG{sent.split()[0].upper()}"


@pytest.fixture
def stop_flag(monkeypatch):
    """That of a rank whose function begins."""
    for name, value in {"_names": [], "_num_deferring": 0, "_is_stopped": False}.items():
        monkeypatch.setattr(stop_flag_module, name, value)
    stop_flag_module.install()
    return stop_flag_module


def term():
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_function_that_is_on_its_way_out_is_not_stopped_again(stop_flag):
    saved = []
    with pytest.raises(stop_flag.StopSignal):
        try:
            term()
        finally:
            term()
            saved.append("its own")
    assert saved == ["its own"]


def test_a_signal_within_a_loop_that_is_broken_off_ends_the_function_behind_it(stop_flag):
    def steps():
        with stop_flag.defer():
            yield from range(7)

    with pytest.raises(stop_flag.StopSignal):
        for step in steps():
            term()
            if step == 3:
                break
        time.sleep(60)
    assert step == 3


def test_a_signal_that_comes_before_the_function_ends_it_where_it_begins(stop_flag):
    stop_flag.hold()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)  # a rank has no other thread then
    assert not stop_flag.requested()
    with pytest.raises(stop_flag.StopSignal):
        stop_flag.accept()


def test_what_a_function_does_after_its_last_step_is_interrupted_too(stop_flag):
    with stop_flag.defer():
        done = ["step"]
    with pytest.raises(stop_flag.StopSignal):
        term()
    assert (done, stop_flag.has_interrupted()) == (["step"], True)


@pytest.mark.parametrize("when", ["in a step", "after the training"])
def test_a_child_of_a_rank_ends_when_it_is_told_to(stop_flag, when):
    with stop_flag.defer() if when == "in a step" else contextlib.nullcontext():
        child = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
        child.start()
        child.terminate()
        child.join(60)
    assert child.exitcode == -signal.SIGTERM
