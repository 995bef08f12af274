"""Images are read in pieces: what is in memory at once does not grow with the data set."""

import contextlib

import datasets
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from tests.tiny_images import rows_of
from train_func import ImageClassification
from train_func.errors import InvalidInput
from train_func.worker.inputs import parquet_file
from train_func.worker.tasks import images
from train_func.worker.tasks.image_classification import ImageClassifier

NUM_ROWS, EACH, PIECE = 41, 500_000, 2_000_000  # bytes of an image, and read at once


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    monkeypatch.setattr(parquet_file, "PIECE", PIECE)
    monkeypatch.setattr(images, "BATCH_BYTES", PIECE)


@contextlib.contextmanager
def of_its_own():
    """Arrow's second pool, which nothing else uses, so that its maximum is that of what is tested."""
    before, own = pa.default_memory_pool(), pa.system_memory_pool()
    pa.set_memory_pool(own)
    yield own
    pa.set_memory_pool(before)


def large_rows(form):
    """Decoders stop where an image ends, and leave the zeros after it."""
    rows = rows_of(NUM_ROWS)
    made = [{**row, "image": row["image"] + bytes(EACH - len(row["image"]))} for row in rows]
    return made if form == "bytes" else [{**row, "image": {"bytes": row["image"], "path": None}} for row in made]


def starts(path, tmp_path):
    task = ImageClassification(model=None, size=24, dataset=str(path))
    return ImageClassifier(task, 42, None, tmp_path / "cache").rows()


def test_a_parquet_file_of_images_is_never_whole_in_memory_and_not_read_at_the_next_start(tmp_path):
    files = {form: tmp_path / f"{form}.parquet" for form in ("bytes", "Image")}
    for form, path in files.items():
        parquet.write_table(pa.Table.from_pylist(large_rows(form)), path, row_group_size=4, compression="none")
        starts(path, tmp_path)
    with of_its_own() as memory:
        for path in files.values():
            starts(path, tmp_path)
        assert memory.max_memory() < EACH
        for path in files.values():
            rows = starts(path, tmp_path / "other")
        assert memory.max_memory() < NUM_ROWS * EACH / 2
    kept = rows.train.cast_column("image", datasets.Image(decode=False))
    assert {len(image["bytes"]) for image in kept["image"]} == {EACH}


def test_images_of_a_folder_are_kept_in_pieces_of_bytes(tmp_path):
    for number, row in enumerate(large_rows("bytes")):
        path = tmp_path / "images" / row["label"] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(row["image"])
    starts(tmp_path / "images", tmp_path)
    (kept,) = (tmp_path / "cache/images").glob("*.arrow")
    sizes = [sum(len(image["bytes"]) for image in piece["image"].to_pylist()) for piece in pa.ipc.open_stream(kept)]
    assert sum(sizes) == NUM_ROWS * EACH
    assert max(sizes) < PIECE + EACH


def test_a_parquet_file_that_is_damaged_among_its_images_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(rows_of(NUM_ROWS)), path)
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)  # where the images begin
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="rows.parquet") as caught:
        starts(path, tmp_path)
    assert caught.value.cause == "data"
    assert not list((tmp_path / "cache/images").glob("*.arrow"))
