"""Where a run goes on: from its own checkpoints, from those of the run that resume= names, or nowhere."""

import re
import threading
from dataclasses import replace

import pytest
from transformers import TrainerCallback

from tests.distributed import small
from tests.faults.trainings import record_of
from tests.messages import refuses, unnamed
from tests.recorded_jobs import RecordedJob
from tests.stored_runs import put_checkpoint, put_end, put_run, put_submission
from train_func import InvalidInput, Local, Run, StorageFailed
from train_func.client.diagnose import explain
from train_func.client.stored_run import newest_checkpoint
from train_func.client.submit import resume_from
from train_func.storage import open_store
from train_func.wire.records import EndRecord, RankRecord
from train_func.worker import Session
from train_func.worker.checkpoint.checkpoint_store import Checkpoints
from train_func.worker.rank import end
from train_func.worker.rank.end import of_error

RUN, OTHER = Run(parameters={"lr": 0.1}), Run(parameters={"lr": 0.2})


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def other(store):
    record = put_run(store, OTHER, code=70)
    put_checkpoint(store, record, step=7)
    return record


@pytest.fixture
def resuming(store, other):
    """A run that was submitted with resume= of the other."""
    record = replace(put_run(store, RUN, code=70), resumes=other.name, resumes_generation=other.generation)
    put_submission(store, record)
    return record


def put_failed(store, record, error, checkpoints_of=""):
    """The end of a worker whose rank ended with this error."""
    error.checkpoints_of = checkpoints_of
    outcome = of_error(error)
    rank = RankRecord(rank=0, exit_code=outcome.exit_code, error=outcome.failure)
    end = {"exit_code": outcome.exit_code, "cause": outcome.cause, "message": "", "submitted": record.submitted}
    put_end(store, record, EndRecord(attempt=1, worker=0, ranks=(rank,), **end))


def damaged():
    return StorageFailed("none can be used", reason="damaged")


def advice(record, store):
    (words,) = re.findall("next: (.*)", str(explain(record, RecordedJob("exit_1"), store, "attach(...).logs()")))
    return words


def origin(store, record, name):
    """The run and the generation that the next submission goes on from."""
    asked = replace(record, resumes="", resumes_generation=0)
    found = resume_from(name, asked, Local(), store)
    return found.resumes, found.resumes_generation


def test_a_run_goes_on_behind_the_newest_step_of_its_last_training(store):
    record = put_run(store, RUN, code=1)
    put_checkpoint(store, record, step=7)
    assert newest_checkpoint(store, record.keys) == "after step 7"
    store.put(f"{record.keys.checkpoints_of(0)}/10-9/manifest.json", b"{}")  # of a later attempt
    store.put(f"{record.keys.checkpoints_of(0)}/10-12/training.safetensors", b"on its way")
    assert newest_checkpoint(store, record.keys) == "after step 9"
    put_checkpoint(store, record, step=3, training=1)
    assert unnamed(newest_checkpoint(store, record.keys), "step 3", "training 2") == []


def test_damaged_checkpoints_of_its_own_are_answered_with_a_fresh_training(store):
    record = put_run(store, RUN, code=70)
    put_checkpoint(store, record, step=7)
    put_failed(store, record, damaged(), record.name)
    assert "fresh=True" in advice(record, store)
    put_failed(store, record, StorageFailed("an input is damaged", reason="damaged"))
    assert "fresh=True" not in advice(record, store)


@pytest.mark.parametrize("error", [damaged(), InvalidInput("none can be used", cause="code")], ids=repr)
def test_those_of_another_run_are_answered_with_a_submission_without_resume(store, other, resuming, error):
    put_failed(store, resuming, error, other.name)
    words = advice(resuming, store)
    assert ("without resume=" in words, other.name in words, resuming.name in words) == (True, True, False)


@pytest.mark.parametrize("changes", [{"epochs": 1}, {"batch_size": 8}, {"seed": 7}])
def test_a_run_with_another_plan_is_refused_before_a_worker_starts(store, other, changes):
    asked = replace(other, name="sums-0123456789ab", run=replace(RUN, **changes))
    with pytest.raises(InvalidInput) as refused:
        origin(store, asked, other.name)
    assert {*changes} == set(re.findall(r"(epochs|batch_size|seed)=", str(refused.value)))
    assert origin(store, replace(asked, run=RUN), other.name) == (other.name, 1)


@pytest.mark.parametrize("left", ["nothing", "files without a manifest", "a damaged manifest"])
def test_what_is_wrong_with_the_checkpoints_of_another_run_names_that_run(store, other, tmp_path, left):
    if left != "a damaged manifest":
        for entry in store.list(f"{other.keys.checkpoints}/"):
            store.delete(entry.key)
    if left == "files without a manifest":
        store.put(f"{other.keys.checkpoints_of(0)}/1-7/training.safetensors", b"all that was uploaded")
    with pytest.raises(StorageFailed, match="without resume") as refused:
        Checkpoints(store, replace(other, name="sums-0123456789ab"), 1, "fingerprint").newest(tmp_path, other)
    assert refused.value.checkpoints_of == other.name


def test_a_run_with_a_checkpoint_that_is_none_of_the_others_is_not_gone_on_with_from_the_other(store, other):
    record = put_run(store, RUN, code=70)
    put_checkpoint(store, record, step=3)
    with refuses(other.name, record.name, "step 3", f"remove {record.name}"):
        origin(store, record, other.name)


def test_a_run_that_went_on_with_the_other_goes_on_behind_its_own_step(store, other, resuming):
    """The cell that submitted it is executed again, as it stands."""
    put_checkpoint(store, resuming, step=9)
    between = replace(put_run(store, Run(parameters={"lr": 0.3}), code=70), resumes=other.name, resumes_generation=1)
    put_submission(store, between)
    for name in (other.name, other.name[:-2], between.name):
        assert origin(store, resuming, name) == (other.name, 1)


class Notes(TrainerCallback):
    """Keeps the rates that were logged, by step, and ends the training at ``last`` when all before is saved."""

    def __init__(self, last):
        self.last, self.rates = last, {}

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "learning_rate" in logs:
            self.rates[state.global_step] = logs["learning_rate"]

    def on_step_end(self, args, state, control, **kwargs):
        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join()
        assert state.global_step < self.last, "as it was told"


@pytest.fixture
def trained(tmp_path, plain_process, monkeypatch):
    """Trains 21 steps, or up to one that fails, and returns the rates that were logged."""
    (tmp_path / "store").mkdir()

    def train(resumes="", last=99, learning_rate=1e-3, **arguments):
        monkeypatch.setattr(end, "here", end.Sessions())
        record, notes = record_of(tmp_path, resumes=resumes, workers=1, learning_rate=learning_rate), Notes(last)
        with Session({"train_func": record.to_dict()}) as session:
            small.trainer_of(session, notes, **arguments).train()
        return notes.rates

    return train


def test_a_trainer_goes_on_from_another_run_with_the_arguments_of_its_own(trained):
    with pytest.raises(AssertionError, match="as it was told"):
        trained(last=9, logging_steps=5)
    rates = trained("a-run", learning_rate=1e-4, logging_steps=1)
    assert 1 < min(rates) <= 9
    assert rates == pytest.approx({step: 1e-4 * (22 - step) / 21 for step in range(min(rates), 22)})


@pytest.mark.parametrize(
    "another", [{"optim": "sgd"}, {"lr_scheduler_type": "greedy", "eval_strategy": "epoch", "eval_rows": 4}], ids=str
)
def test_a_trainer_does_not_go_on_with_another_kind_of_optimizer_or_schedule(trained, another):
    with pytest.raises(AssertionError, match="as it was told"):
        trained(last=3)
    with pytest.raises(StorageFailed) as refused:
        trained("a-run", **another)
    assert unnamed(refused.value, "a-run", "optimizer", "schedule", "without resume") == []
