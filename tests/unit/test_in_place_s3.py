"""The model in place on real S3 servers: copied there, and raced for by steps of pipelines."""

import threading

import pytest

from tests.s3_servers import KINDS, only_these, s3_server
from tests.stored_runs import Sent, whole_model
from tests.unit.test_in_place import put_model
from train_func import StorageFailed, attach
from train_func.client.model.promote import in_place
from train_func.client.model.promote import promote as promote_in
from train_func.pipeline.step_functions import promote
from train_func.storage import open_store


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with s3_server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def store(server, tmp_path, monkeypatch):
    only_these(monkeypatch, server.environment)
    address = f"s3://{server.bucket}/{tmp_path.name.lower()}"
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAIN_FUNC_STORE", address)
    return open_store(address)


def test_a_model_is_promoted_without_being_sent_here(store):
    record, sent = put_model(store, 0.1), Sent(store)
    promote_in(sent, record, "reviews")
    assert sent.calls == []
    assert (attach("reviews").fetch() / "model.safetensors").read_text() == "weights 0.1 1"


@pytest.mark.parametrize("num_rounds", [2, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize("better", ["", "accuracy"])
def test_of_two_steps_that_promote_at_once_one_wins(store, tmp_path, better, num_rounds):
    for round_ in range(num_rounds):
        records = {lr: put_model(store, lr, accuracy=lr) for lr in (round_ + 0.25, round_ + 0.5)}
        before, ended, start = in_place(store, "reviews"), {}, threading.Barrier(len(records))

        def step(record, ended=ended, start=start):
            start.wait(60)
            try:
                ended[record.name] = promote(record.name, "reviews", better, "Local", "{}")
            except StorageFailed as failure:
                ended[record.name] = failure.reason

        threads = [threading.Thread(target=step, args=(record,)) for record in records.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        held = in_place(store, "reviews")
        (won,) = (lr for lr, record in records.items() if record.name == held.run)
        assert ended[held.run] is True
        assert [*ended.values()].count(True) == held.number - (before.number if before else 0)
        copied = whole_model(store, held.folder, tmp_path / "copy")
        assert (copied / "model.safetensors").read_text() == f"weights {won} 1"
