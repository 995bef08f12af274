"""The job of a run gives signs of life in its store until another one has the run, and ends without its keys."""

import threading
import time
from types import SimpleNamespace

import pytest

from tests.stored_runs import put_run, put_submission
from train_func import Run
from train_func.errors import StorageFailed
from train_func.worker.supervisor import uploads
from train_func.worker.supervisor.uploads import Heartbeat


@pytest.mark.parametrize(("newer", "beats"), [(False, True), (True, False)])
def test_a_job_whose_run_was_submitted_again_gives_no_sign_of_life(store, newer, beats):
    record = put_run(store, Run(name="a"), code=None)
    if newer:
        put_submission(store, record)
    heartbeat = Heartbeat(store, record, "a-worker-0")
    heartbeat.start()
    heartbeat.flush(60)
    heartbeat.finish(60, is_over=True)
    assert bool(store.list(record.keys.alive)) is beats


def test_a_key_that_the_store_refuses_for_a_while_ends_the_training_and_other_faults_of_a_store_do_not(
    store, monkeypatch
):
    record, now = put_run(store, Run(name="a"), code=None), 100.0
    monkeypatch.setattr(uploads, "time", SimpleNamespace(monotonic=lambda: now))
    heartbeat = Heartbeat(store, record, "a-worker-0")
    heartbeat.start()

    def beat(reason):
        nonlocal now

        def put(*_):
            raise StorageFailed("no such key", reason=reason)

        with monkeypatch.context() as patched:
            if reason:
                patched.setattr(type(store), "put", put)
            heartbeat.flush(60)
        heartbeat.check()
        now += uploads.KEY_SECONDS

    for reason in (
        "credentials",
        "",
        "unreachable",
        "denied",
        "full",
        "unproven",
        "credentials",
    ):  # answers heal the first
        beat(reason)
    with pytest.raises(StorageFailed, match="no such key"):
        beat("credentials")
    heartbeat.finish(0, is_over=False)


def test_the_last_sign_of_life_shares_its_time_with_one_that_is_on_its_way(store, monkeypatch):
    record = put_run(store, Run(name="a"), code=None)
    first, released = threading.Event(), threading.Event()
    waits = iter([2, 60])  # seconds for which the store does not answer

    def put(*_):
        first.set()
        released.wait(next(waits))

    monkeypatch.setattr(type(store), "put", put)
    heartbeat = Heartbeat(store, record, "a-worker-0")
    heartbeat.start()
    assert first.wait(60)
    begun = time.monotonic()
    heartbeat.finish(3, is_over=True)
    assert time.monotonic() - begun < 4
    released.set()
