"""What a task loads: an input that changed since is named, and rows like those of the task become its batches."""

import pytest
from datasets import Image

from tests.tiny_images import SIZE, write_image_folder
from train_func.run import Run
from train_func.tasks import ImageClassification
from train_func.wire.records import RunRecord
from train_func.worker import loading
from train_func.worker.tasks.image_decoding import ImageCollator


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
