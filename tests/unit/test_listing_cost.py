"""What a question about a run costs does not grow with the number of its objects: counted before a real S3 server."""

import os

import pytest

from tests.s3_servers import only_these, s3_server
from tests.stored_runs import put_end, put_run
from tests.tcp_proxy import tcp_proxy
from train_func import Local, attach
from train_func.client import stored_run
from train_func.client.backend import provisional
from train_func.client.runs import stored_runs
from train_func.client.stored_run import state_in_store
from train_func.errors import InvalidInput, JobNotFound
from train_func.run import Run
from train_func.storage import open_store
from train_func.wire.records import EndRecord, SubmissionRecord
from train_func.worker.inputs.locate import Wanted, stored
from train_func.worker.publish.publication import _newer

RECORD = provisional(Run(workers=2), "s3://unnamed")
NUM_RUNS = 7
LARGE = 40  # objects, each with a long name, so that listing them shows in the bytes that are answered


class Backend:
    """Where attach looks."""

    def __init__(self, address):
        self.address = address

    def store_address(self):
        return self.address


class Count:
    """Requests and bytes that came back, seen by the proxy."""

    def __init__(self, proxy):
        self.requests = self.bytes = 0
        proxy.on_request, proxy.on_reply = self._request, self._reply

    def _request(self, data):
        self.requests += data.startswith((b"GET ", b"HEAD "))
        return data

    def _reply(self, data, request):
        self.bytes += len(data)
        return data


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
            store.put(f"{RECORD.name}/{folder}/{'long' * 20}-{number}", b"x")
    place = {"backend": "Local", "place": "here", "identity": {}, "found_by": {}, "options": {}, "manifest": {}}
    submission = SubmissionRecord(run=RECORD, cells={}, **place).to_json()
    for key in ("submissions/1.json", "generations/2/submissions/1.json", "generations/2/result.json"):
        store.put(f"{RECORD.name}/{key}", submission)
    end = EndRecord(attempt=1, worker=0, exit_code=64, cause="input", message="")
    put_end(store, RECORD, end)
    return store


def attach_to_unknown(store):
    with pytest.raises(JobNotFound, match=f"it holds: {RECORD.name}"):
        attach("nothing-of-that-name", on=Backend(store.address))


def generation(store):
    assert stored_run.newest_generation(store, RECORD.name) == 2


def state(store):
    assert state_in_store(store, RECORD.keys) == "Failed"


def newer(store):
    assert _newer(store, RECORD)


def missing_input(store):
    wanted = Wanted("dataset", f"{store.address}/missing.csv", "dataset")
    with pytest.raises(InvalidInput, match=f"near it: .*{RECORD.name}/"):
        stored(wanted, store)


QUESTIONS = [attach_to_unknown, generation, state, newer]


@pytest.mark.parametrize("question", [*QUESTIONS, missing_input])
def test_a_question_about_a_run_reads_no_more_where_the_run_has_more_objects(server, monkeypatch, question):
    counts = []
    with tcp_proxy(server.port) as proxy:
        only_these(monkeypatch, {**server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint})
        for name in ("few", "many"):
            counts.append(Count(proxy))
            question(open_store(f"s3://{server.bucket}/{name}"))
    few, many = counts
    assert few.requests == many.requests > 0
    assert many.bytes < 1.5 * few.bytes


def test_the_table_of_runs_asks_the_store_a_few_times_for_each(server, monkeypatch, tmp_path):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    with tcp_proxy(server.port) as proxy:
        only_these(monkeypatch, {**server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint})
        store = open_store(f"s3://{server.bucket}/table")
        for seed in range(NUM_RUNS):
            record = put_run(store, Run(workers=2, seed=seed))
            for number in range(7):
                store.put(f"{record.name}/attempts/1/metrics/{number}", b"x")
        count = Count(proxy)
        found, _ = stored_runs("", Local(store=store.address))
    assert [run["state"] for run in found] == ["Succeeded"] * NUM_RUNS
    # The names of all, and of models in place; of each its listing, its record and its result.
    assert count.requests == 2 + NUM_RUNS * 3


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_about_a_run_in_a_folder_reads_no_more_folders_where_there_are_more(tmp_path, monkeypatch, question):
    read, scan = [], os.scandir
    for num_objects in (1, LARGE):
        store = open_store((tmp_path / f"store-{num_objects}").as_uri())
        for number in range(num_objects):
            for folder in ("attempts/1/model", "generations/2/attempts/1/model"):
                part = tmp_path / f"store-{num_objects}/{RECORD.name}/{folder}/part-{number}"
                part.mkdir(parents=True)
                (part / "file").write_bytes(b"x")
        fill(store, 1)
        scanned = []
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", lambda path, scanned=scanned: scanned.append(path) or scan(path))
            question(store)
        read.append(len(scanned))
    assert read[0] == read[1] > 0
