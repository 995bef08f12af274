"""What a task loads: an input that changed since is named, and rows like those of the task become its batches."""

import pytest
from datasets import Image

from tests.runs import a_run
from tests.tiny_images import SIZE, write_image_folder
from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.run import Run
from train_func.tasks import ImageClassification, StoredTask
from train_func.worker import loading
from train_func.worker.tasks.image_decoding import ImageCollator
from train_func.worker.tasks.protocol import Rows


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


@pytest.fixture
def images(tmp_path):
    """The loading of a task with images, for a module of the function's own."""
    dataset = str(write_image_folder(tmp_path / "images", 12))
    task = ImageClassification(model=None, dataset=dataset, held_out=0.5, size=SIZE)
    store = (tmp_path / "store").as_uri()
    record = RunRecord(run=Run(task=task), name="a-run", generation=1, store=store, function="f", source_sha256="")
    return loading.Loading(record, None, tmp_path / "cache")


def test_the_rows_of_a_task_and_some_of_them_become_its_batches_and_changed_ones_do_not(images):
    _, processor = images.model("fp32")
    rows, _ = images.data(processor)
    for alike in (rows, rows.select([4, 1]), rows.shuffle(seed=1), rows.filter(lambda row: row["label"] == 0)):
        assert isinstance(images.collator(alike), ImageCollator)
    decoded = rows.cast_column("pixel_values", Image())
    for other in (decoded, rows.add_column("weight", [1.0] * len(rows)), rows.with_transform(lambda part: part)):
        assert images.collator(other) is None


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
