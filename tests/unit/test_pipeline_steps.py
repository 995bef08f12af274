"""The steps of a pipeline, called as a component calls them: what each refuses, and what no step fails for."""

import contextlib
import json
import types

import pytest

from tests.runs import a_run
from tests.stored_runs import put_end, put_run
from tests.unit.test_in_place import put_model
from train_func import InvalidInput, JobFailed, Run, StorageFailed, attach
from train_func.client.model.promote import in_place
from train_func.client.stored_run import mark_cancelled
from train_func.pipeline import jobs, step_functions
from train_func.storage import open_store
from train_func.wire.events import now
from train_func.wire.records import EndRecord
from train_func.worker.tasks.protocol import Rows

SUBMITTED, BEFORE, AFTER = (f"2026-01-02T03:0{minute}:05.000+00:00" for minute in (4, 3, 5))


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAIN_FUNC_STORE", (tmp_path / "store").as_uri())
    return open_store((tmp_path / "store").as_uri())


@pytest.mark.parametrize(
    "by",
    [
        ("Bad Name", ""),
        ("reviews", "loss"),
        ("reviews", "accuracy"),  # of a run without a task nothing tells the held-out rows
    ],
)
def test_what_the_model_could_not_be_promoted_by_is_refused_before_it_is_trained(store, by):
    dataset = types.SimpleNamespace(metadata={})
    with pytest.raises(InvalidInput):
        step_functions.prepare(json.dumps(Run().to_dict()), dataset, "Local", "{}", *by)


def test_the_generation_that_was_trained_is_promoted_while_a_newer_one_is_in_training(store):
    trained = put_model(store, 0.1)
    put_run(store, Run(parameters={"lr": 0.1}), generation=2, code=None)
    assert attach(trained.name).record.generation == 2
    assert step_functions.promote(trained.name, "reviews", "", "Local", generation=trained.generation)
    assert in_place(store, "reviews").generation == 1


@pytest.mark.parametrize(("began", "is_refused"), [("", False), (BEFORE, True), (AFTER, False)])
@pytest.mark.parametrize(("code", "cause"), [(70, "code"), (74, "storage"), (None, "cancelled")])
def test_what_has_ended_for_good_since_the_pipeline_run_began_is_not_tried_again(store, began, is_refused, code, cause):
    record = put_run(store, Run(), code=None, submitted=SUBMITTED)
    if code:
        end = EndRecord(attempt=1, worker=0, exit_code=code, cause=cause, message="", submitted=SUBMITTED)
        put_end(store, record, end)
    else:
        store.put(record.keys.cancelled(1), json.dumps({"time": SUBMITTED}).encode())
    job = attach(record.name)
    with pytest.raises(JobFailed) if is_refused else contextlib.nullcontext() as refused:
        jobs.check_retry(job, store, began)
    if not is_refused:
        return
    assert (refused.value.cause, refused.value.retryable) == (cause, False)
    assert began in str(refused.value)


def test_a_job_that_was_submitted_before_the_pipeline_run_and_cancelled_during_it_is_not_tried_again(store):
    record = put_run(store, Run(), code=None, submitted=SUBMITTED)
    began = now()
    mark_cancelled(store, record.keys)
    with pytest.raises(JobFailed):
        jobs.check_retry(attach(record.name), store, began)


def test_a_model_with_classes_of_its_own_is_refused_with_those_of_both(store, monkeypatch):
    class Half:
        has_one_class = True

        def rows(self):
            return Rows(None, {"label": [0, 1]}, {}, ("late", "lost"))

        def classes(self, use, rows):
            return ["late", "LABEL_1"]

    job = types.SimpleNamespace(record=put_run(store, a_run()), load=lambda: None)
    monkeypatch.setattr(jobs, "worker_half", lambda *given: Half())
    with pytest.raises(InvalidInput) as refused:
        jobs.confusion_of(job, store)
    assert refused.value.cause == "model"
    assert all(label in str(refused.value) for label in ("LABEL_1", "late", "lost"))


@pytest.mark.parametrize("error", [StorageFailed("worker-0.log", reason="damaged"), ValueError("<of a page>")])
def test_no_fault_of_the_report_fails_the_step_that_has_trained(error, tmp_path):
    class Damaged:
        def report(self, path, texts):
            raise error

    jobs.write_report(Damaged(), str(tmp_path / "report"))
    page = (tmp_path / "report").read_text()
    assert (type(error).__name__ in page, "<of" in page) == (True, False)
