"""What a question about a run costs does not grow with the number of its objects: counted before a real S3 server."""

import os
from collections import Counter

import pytest

from tests.s3_servers import only_these, s3_server
from tests.stored_runs import put_end, put_run
from tests.tcp_proxy import tcp_proxy
from train_func import Local, attach
from train_func.client import stored_run
from train_func.client.backend import provisional
from train_func.client.runs import stored_runs
from train_func.client.stored_attempts import state_in_store
from train_func.errors import InvalidInput, JobNotFound
from train_func.run import Run
from train_func.storage import open_store
from train_func.wire.records import EndRecord, SubmissionRecord
from train_func.worker.inputs.locate import Reference, stored

RECORD = provisional(Run(workers=2), "s3://unnamed")
NUM_RUNS = 7
LARGE = 40  # objects, each with a long name, so that listing them shows in the bytes that are answered


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))


def counted(proxy):
    """Requests, and bytes that come back from now on, as the proxy sees them."""
    count = Counter(requests=0, bytes=0)

    def request(data):
        count["requests"] += data.startswith((b"GET ", b"HEAD "))
        return data

    def reply(data, request):
        count["bytes"] += len(data)
        return data

    proxy.on_request, proxy.on_reply = request, reply
    return count


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Holds a store ``few`` and a store ``many``."""
    with s3_server("minio", tmp_path_factory.mktemp("minio")) as running, pytest.MonkeyPatch.context() as patched:
        only_these(patched, running.environment)
        for name, num_objects in (("few", 1), ("many", LARGE)):
            fill(open_store(f"s3://{running.bucket}/{name}"), num_objects)
        yield running


def fill(store, num_objects):
    """One run with so many objects, a later generation of it, and an input."""
    for number in range(num_objects):
        for folder in ("attempts/1/model", "generations/2/attempts/1/model"):
            store.put(f"{RECORD.name}/{folder}/{'long' * 20}-{number}/file", b"x")
    place = {"backend": "Local", "place": "here", "identity": {}, "found_by": {}, "options": {}, "manifest": {}}
    submission = SubmissionRecord(run=RECORD, cells={}, **place).to_json()
    for key in ("submissions/1.json", "generations/2/submissions/1.json", "generations/2/result.json"):
        store.put(f"{RECORD.name}/{key}", submission)
    put_end(store, RECORD, EndRecord(attempt=1, worker=0, exit_code=64, cause="input", message=""))
    return store


def attach_to_unknown(store):
    with pytest.raises(JobNotFound, match=f"it holds: {RECORD.name}"):
        attach("nothing-of-that-name", on=Local(store=store.address))


def generation(store):
    assert stored_run.newest_generation(store, RECORD.name) == 2


def state(store):
    assert state_in_store(store, RECORD.keys) == "Failed"


def missing_input(store):
    reference = Reference("dataset", f"{store.address}/missing.csv", "dataset")
    with pytest.raises(InvalidInput, match=f"near it: .*{RECORD.name}/"):
        stored(reference, store)


QUESTIONS = [attach_to_unknown, generation, state]


@pytest.mark.parametrize("question", [*QUESTIONS, missing_input])
def test_a_question_about_a_run_reads_no_more_where_the_run_has_more_objects(server, monkeypatch, question):
    with tcp_proxy(server.port) as proxy:
        only_these(monkeypatch, {**server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint})
        counts = []
        for name in ("few", "many"):
            counts.append(counted(proxy))
            question(open_store(f"s3://{server.bucket}/{name}"))
    few, many = counts
    assert few["requests"] == many["requests"] > 0
    assert many["bytes"] < 1.5 * few["bytes"]


def test_the_table_of_runs_asks_the_store_a_few_times_for_each(server, monkeypatch):
    with tcp_proxy(server.port) as proxy:
        only_these(monkeypatch, {**server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint})
        store = open_store(f"s3://{server.bucket}/table")
        for seed in range(NUM_RUNS):
            record = put_run(store, Run(workers=2, seed=seed))
            for number in range(7):
                store.put(f"{record.name}/attempts/1/metrics/{number}", b"x")
        count = counted(proxy)
        found, _ = stored_runs("", Local(store=store.address))
    assert [run["state"] for run in found] == ["Succeeded"] * NUM_RUNS
    # The names of all, and of models in place; of each its listing, its record and its result.
    assert count["requests"] == 2 + NUM_RUNS * 3


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_about_a_run_in_a_folder_reads_no_more_folders_where_there_are_more(tmp_path, monkeypatch, question):
    read, scan = [], os.scandir
    for num_objects in (1, LARGE):
        store, scanned = fill(open_store((tmp_path / f"{num_objects}").as_uri()), num_objects), []
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", lambda path, scanned=scanned: scanned.append(path) or scan(path))
            question(store)
        read.append(len(scanned))
    assert read[0] == read[1] > 0
