"""A store that cannot replace an object by its version: that is told once at the start, and the training goes on."""

import pytest
import torch

from tests.runs import a_run
from tests.s3_servers import only_these
from tests.swapless_server import swapless_server
from train_func.errors import StorageFailed
from train_func.events import CheckpointSaved, Note
from train_func.exits import USAGE, exit_of
from train_func.records import RunRecord
from train_func.storage import open_store
from train_func.worker.checkpoint.lead import Fenced
from train_func.worker.pod import reporting
from train_func.worker.training.checkpointing import Checkpointing, Parts

ADDRESS = "s3://a-bucket/runs"
IS_DUE = [1, 0, 0, 0]  # as votes


@pytest.fixture
def said(monkeypatch):
    said = []
    monkeypatch.setattr(reporting, "_sink", [said.append])
    return said


@pytest.fixture(params=["ignores If-Match", "answers 501 to If-Match"])
def server(request, monkeypatch):
    with swapless_server(*(["If-Match"] if "501" in request.param else [])) as running:
        only_these(monkeypatch, running.environment)
        yield running


def training(attempt, folder):
    record = RunRecord(run=a_run(), name="a-run", generation=1, store=ADDRESS, function="f", source_sha256="0" * 64)
    return Checkpointing(open_store(ADDRESS), record, attempt, number=0, made_of={}, folder=folder / str(attempt))


def save(checkpointing, step):
    checkpointing.decide(IS_DUE, step, lambda: Parts({"w": torch.full((7,), float(step))}, {"used": []}))
    checkpointing.close()


def test_that_a_store_cannot_swap_is_told_once_and_the_training_is_saved_and_gone_on_with(server, said, tmp_path):
    first = training(1, tmp_path)
    assert first.restore(torch.device("cpu")) is None
    for step in (7, 40, 41):
        save(first, step)
    assert [type(event) for event in said] == [Note, *[CheckpointSaved] * 3]
    assert "If-Match" in said[0].text
    said.clear()
    second = training(2, tmp_path)
    assert second.restore(torch.device("cpu")).step == 41
    save(second, 101)
    assert [type(event) for event in said if isinstance(event, Note | CheckpointSaved)] == [Note, CheckpointSaved]
    assert training(3, tmp_path).restore(torch.device("cpu")).step == 101


def test_an_attempt_that_was_followed_by_another_stops_at_its_next_save_all_the_same(server, said, tmp_path):
    first = training(1, tmp_path)
    save(first, 7)
    second = training(2, tmp_path)
    with pytest.raises(Fenced):
        save(first, 8)
    assert second.restore(torch.device("cpu")).step == 7


def test_what_a_server_has_not_is_told_at_once_and_is_no_server_that_is_away(monkeypatch):
    with swapless_server("If-None-Match") as server:
        only_these(monkeypatch, server.environment)
        with pytest.raises(StorageFailed) as failed:
            open_store(ADDRESS).put("run/lease", b"x", if_absent=True)
        assert (failed.value.reason, failed.value.retryable) == ("unsupported", False)
        assert exit_of(failed.value).code == USAGE
        assert "If-None-Match" in str(failed.value)
        assert server.num_refused == 1
