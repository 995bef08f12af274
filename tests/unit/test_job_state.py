"""One word for a job: from its conditions while it is there, from the store when a cluster has forgotten it."""

from dataclasses import replace

import pytest

from tests.stored_runs import put_end, put_submission
from train_func.client.backend import provisional
from train_func.client.status import Condition, JobStatus
from train_func.client.stored_attempts import state_in_store
from train_func.client.stored_run import state_of
from train_func.run import Run
from train_func.wire.layout import AttemptKeys
from train_func.wire.records import EndRecord


def status(*conditions: tuple[str, str], reason: str = "", interrupted: bool = False) -> JobStatus:
    made = tuple(Condition(kind, value, reason, "") for kind, value in conditions)
    return JobStatus(conditions=made, interrupted=interrupted)


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (status(), "Created"),
        (status(("Created", "True")), "Created"),
        (status(("Created", "True"), ("Running", "True")), "Running"),
        (status(("Running", "False"), ("Restarting", "True")), "Restarting"),
        (status(("Running", "False"), ("Suspended", "True")), "Suspended"),
        (status(("Suspended", "False"), ("Running", "True")), "Running"),
        (status(("Running", "False"), ("Succeeded", "True")), "Succeeded"),
        (status(("Running", "False"), ("Failed", "True")), "Failed"),
        (status(("Failed", "True"), reason="Cancelled"), "Cancelled"),
        (status(("Running", "True"), interrupted=True), "Interrupted"),
    ],
)
def test_the_newest_true_condition_is_the_word(found, word):
    assert state_of(found, published=lambda: False) == word


def test_a_job_that_lost_its_controller_after_publishing_has_succeeded():
    assert state_of(status(("Running", "True"), interrupted=True), published=lambda: True) == "Succeeded"


@pytest.mark.parametrize(("kept", "word"), [(False, "Cancelled"), (True, "Succeeded")])
def test_a_job_that_was_cancelled_has_succeeded_where_its_model_was_published_all_the_same(store, kept, word):
    """On a cluster, where nothing of it is left, and on this machine."""
    record = provisional(Run(workers=2), store.address)
    for key in (MARK | RESULT) if kept else MARK:
        store.put(f"{record.keys.prefix}/{key}", b"{}")
    there = status(("Running", "False"), ("Failed", "True"), reason="Cancelled")
    assert [state_of(there, published=lambda: kept), state_in_store(store, record.keys)] == [word] * 2


RESULT, MARK = {"result.json": b"{}"}, {"cancelled/0.json": b"{}"}


def attempt(number: int, **codes: int) -> dict[str, bytes]:
    """What counts of end records; ``w0=1``: worker 0 ended with exit code 1."""
    folder = AttemptKeys(f"attempts/{number}")
    ends = [an_end(number, int(worker[1:]), code) for worker, code in codes.items()]
    return {folder.lease: b"{}", **{folder.end_mark_key(end.facts): b"" for end in ends}}


def an_end(number: int, worker: int, code: int, submitted: str = "") -> EndRecord:
    return EndRecord(attempt=number, worker=worker, exit_code=code, cause=None, message="", submitted=submitted)


@pytest.mark.parametrize(
    ("kept", "word"),
    [
        ({}, "Absent"),
        (RESULT, "Succeeded"),
        (RESULT | MARK, "Succeeded"),
        (RESULT | attempt(1, w0=70, w1=70), "Failed"),  # by what its function did after it had published
        (RESULT | attempt(1, w0=147, w1=145), "Succeeded"),
        (MARK, "Cancelled"),
        (MARK | attempt(1, w0=65), "Cancelled"),
        (attempt(1, w0=65), "Failed"),
        (attempt(1, w0=145, w1=70), "Failed"),
        (attempt(1, w0=143, w1=143), "Absent"),
        (attempt(1), "Absent"),
        (attempt(9, w0=143) | attempt(10, w0=70), "Failed"),
        (attempt(1, w0=0, w1=0), "Succeeded"),
        (attempt(1, w1=0), "Succeeded"),  # no worker ends so before the result is published
        (attempt(1, w0=0, w1=143) | attempt(2, w1=146), "Succeeded"),  # worker 1 began again, and found no peer
        (attempt(1, w0=0, w1=143) | attempt(2, w1=146) | attempt(3, w1=71), "Succeeded"),
        (attempt(1, w0=0, w1=70), "Failed"),
        (attempt(1, w0=143, w1=149) | attempt(2, w1=0), "Succeeded"),  # worker 0 never came back
        (RESULT | attempt(1, w0=143, w1=149) | attempt(2, w1=143), "Succeeded"),  # and worker 1 was evicted at the end
        (attempt(1, w0=0, w1=145) | attempt(2, w1=146), "Succeeded"),
        (attempt(1, w0=0, w1=145) | attempt(2, w0=70, w1=70), "Failed"),  # worker 0 was lost before all were done
        (attempt(1, w0=0, w1=145) | attempt(2, w0=70, w1=70) | attempt(3, w1=146), "Failed"),
        (attempt(1, w0=70, w1=70) | attempt(2, w1=146), "Failed"),
        (attempt(1, w0=70) | attempt(2, w0=0, w1=0), "Succeeded"),
        (attempt(1, w0=143) | attempt(2, w0=143) | attempt(3, w0=77), "Failed"),
    ],
)
def test_of_a_job_that_is_gone_the_store_tells_what_became(store, kept, word):
    record = provisional(Run(workers=2), store.address)
    for key, value in kept.items():
        store.put(f"{record.keys.prefix}/{key}", value)
    store.put(f"{record.keys.prefix}/attempts/1/model/worker-0.json", b"not a record")
    assert state_in_store(store, record.keys) == word


def test_what_became_of_an_earlier_submission_is_not_what_became_of_the_newest(store):
    record = provisional(Run(workers=2), store.address)

    def submit(moment):
        put_submission(store, replace(record, submitted=moment))

    def end(number, worker, code):
        put_end(store, record, an_end(number, worker, code, "2026-11-21T14:00:00"))

    submit("2026-11-21T14:00:00")
    end(1, 0, 70)
    assert state_in_store(store, record.keys) == "Failed"
    end(2, 0, 0)
    end(3, 1, 146)
    assert state_in_store(store, record.keys) == "Succeeded"
    submit("2026-11-21T15:00:00")
    assert state_in_store(store, record.keys) == "Absent"
