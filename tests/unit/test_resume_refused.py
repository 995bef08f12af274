"""Where no checkpoint can be gone on from, the error advises what helps, and a resume that was refused is forgotten."""

import json
import re
from dataclasses import replace

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import RecordedJob
from tests.stored_runs import put_checkpoint, put_run
from train_func import InvalidInput, Local, Run, StorageFailed
from train_func.client.diagnose import explain
from train_func.client.identity import stored
from train_func.client.unfinished import resumed
from train_func.records import EndRecord, RankRecord
from train_func.storage import open_store
from train_func.worker.checkpoint.store import Checkpoints
from train_func.worker.rank.end import of_error

RUN, OTHER = Run(parameters={"lr": 0.1}), Run(parameters={"lr": 0.2})
FAULT = "none can be used"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def other(store):
    found = put_run(store, OTHER, code=70)
    put_checkpoint(store, found, step=7)
    return found


def put_failed(store, record, error):
    """The end of a worker whose rank ended with this error."""
    outcome = of_error(error)
    rank = RankRecord(rank=0, exit_code=outcome.exit_code, error=outcome.failure)
    end = EndRecord(
        attempt=1,
        worker=0,
        exit_code=outcome.exit_code,
        cause=outcome.cause,
        message="",
        submitted=record.submitted,
        ranks=(rank,),
    )
    store.put(record.keys.attempt(1).end(0), end.to_json())


def resuming(store, other):
    """A run that was submitted with resume= of the other."""
    record = replace(put_run(store, RUN, code=70), resumes=other.name, resumes_generation=other.generation)
    store.put(record.keys.run, json.dumps(record.to_dict()).encode())
    return record


def refused(of, kind=StorageFailed):
    error = kind(FAULT, reason="damaged") if kind is StorageFailed else kind(FAULT, cause="code")
    error.checkpoints_of = of
    return error


def advice(record, store):
    (found,) = re.findall("next: (.*)", str(explain(record, RecordedJob("exit_1"), store, "attach(...)")))
    return found


def test_damaged_checkpoints_of_its_own_are_answered_with_a_fresh_training(store):
    record = put_run(store, RUN, code=70)
    put_checkpoint(store, record, step=7)
    put_failed(store, record, refused(record.name))
    assert "fresh=True" in advice(record, store)
    put_failed(store, record, StorageFailed("an input is damaged", reason="damaged"))
    assert "fresh=True" not in advice(record, store)


@pytest.mark.parametrize("kind", [StorageFailed, InvalidInput])
def test_those_of_another_run_are_answered_with_a_submission_without_resume(store, other, kind):
    record = resuming(store, other)
    put_failed(store, record, refused(other.name, kind))
    found = advice(record, store)
    assert ("without resume=" in found, other.name in found, record.name in found) == (True, True, False)


@pytest.mark.parametrize(
    ("error", "is_kept"), [(ValueError("a mistake"), True), (refused("this"), True), (refused("other"), False)]
)
def test_a_submission_without_resume_forgets_one_that_was_refused_and_no_other(store, other, capsys, error, is_kept):
    record = resuming(store, other)
    if getattr(error, "checkpoints_of", "") == "other":
        error.checkpoints_of = other.name
    put_failed(store, record, error)
    asked = replace(stored(store, record.name, 1), resumes="", resumes_generation=0)
    found = resumed(asked, None, Local(), store, is_known=True, fresh=False)
    assert (found.resumes, found.resumes_generation) == ((other.name, 1) if is_kept else ("", 0))
    assert (other.name in capsys.readouterr().out) is not is_kept


@pytest.mark.parametrize("changes", [{"epochs": 1}, {"batch_size": 8}, {"seed": 7}])
def test_a_run_with_another_plan_is_refused_before_a_worker_starts(store, other, changes):
    asked = replace(other, name="sums-0123456789ab", run=replace(RUN, **changes))
    with pytest.raises(InvalidInput) as caught:
        resumed(asked, other.name, Local(), store, is_known=False, fresh=False)
    (name,) = changes
    assert {name} == set(re.findall(r"(epochs|batch_size|seed)=", str(caught.value)))
    same = replace(asked, run=RUN)
    assert resumed(same, other.name, Local(), store, is_known=False, fresh=False).resumes == other.name


@pytest.mark.parametrize("left", ["nothing", "files without a manifest", "a damaged manifest"])
def test_what_is_wrong_with_the_checkpoints_of_another_run_names_that_run(store, other, tmp_path, left):
    if left != "a damaged manifest":
        for entry in store.list(f"{other.keys.checkpoints}/"):
            store.delete(entry.key)
    if left == "files without a manifest":
        store.put(f"{other.keys.checkpoints_of(0)}/1-7/training.safetensors", b"all that was uploaded")
    own = Checkpoints(store, replace(other, name="sums-0123456789ab"), 1, "fingerprint")
    with pytest.raises(StorageFailed) as caught:
        own.newest(tmp_path, other)
    assert caught.value.checkpoints_of == other.name
    assert "without resume" in str(caught.value)


def test_a_run_with_a_checkpoint_that_is_none_of_the_others_is_not_gone_on_with_from_the_other(store, other):
    record = put_run(store, RUN, code=70)
    put_checkpoint(store, record, step=3)
    with pytest.raises(InvalidInput) as caught:
        resumed(record, other.name, Local(), store, is_known=True, fresh=False)
    assert unnamed(str(caught.value), other.name, record.name, "step 3", "remove(") == []
    assert stored(store, record.name, 1).resumes == ""


@pytest.mark.parametrize("named", ["the other", "a beginning of it", "the one that went on with it"])
def test_a_run_that_went_on_with_the_other_goes_on_behind_its_own_step(store, other, named):
    record = resuming(store, other)
    put_checkpoint(store, record, step=9)
    name = {"the other": other.name, "a beginning of it": other.name[:-2]}.get(named)
    if name is None:
        between = replace(put_run(store, Run(parameters={"lr": 0.3}), code=70), resumes=other.name)
        store.put(between.keys.run, json.dumps(between.to_dict()).encode())
        name = between.name
    asked = replace(stored(store, record.name, 1), resumes="", resumes_generation=0)
    found = resumed(asked, name, Local(), store, is_known=True, fresh=False)
    assert (found.resumes, found.resumes_generation) == (other.name, 1)
