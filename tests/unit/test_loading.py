"""An input that changed after the submission is named, whichever task it belongs to."""

import pytest

from tests.runs import a_run
from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.run import Run
from train_func.task import StoredTask
from train_func.worker.tasks.protocol import Rows
from train_func.worker.training import loading


def test_a_changed_input_of_a_task_that_is_read_from_a_record_is_named():
    task = a_run(model="a/model", dataset="a/dataset").task
    held = {name: value for name, value in task.to_dict().items() if name != "kind"}
    stored = StoredTask(named=task.kind, held=held)  # as a task of a user's own module is, until it is loaded
    record = RunRecord(
        run=Run(task=stored),
        name="a-run",
        generation=1,
        store="",
        function="f",
        source_sha256="",
        fingerprints={"dataset": "before"},
    )
    with pytest.raises(InvalidInput, match="a/dataset .* a-run") as refused:
        loading._check_unchanged(record, {"dataset": "now"}, "data")
    assert refused.value.cause == "data"


class Tuner:
    """A worker half that has something to tell of its model."""

    model_notes = ("it never stops",)

    def rows(self):
        return Rows([], [], {})

    def fetch(self):
        return {}

    def load(self, labels, precision):
        return "model", "processor"


def test_what_a_task_has_to_tell_of_its_model_is_told_when_it_is_loaded(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(loading.world, "note", told.append)
    monkeypatch.setattr(loading, "worker_half", lambda *_: Tuner())
    record = RunRecord(
        run=a_run(), name="a-run", generation=1, store="", function="f", source_sha256="", fingerprints={}
    )
    assert loading.Loading(record, None, tmp_path).model("fp32") == ("model", "processor")
    assert told == ["it never stops"]
