"""An input that changed after the submission is named, whichever task it belongs to."""

import pytest

from tests.runs import a_run
from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.run import Run
from train_func.task import StoredTask
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
