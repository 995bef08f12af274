"""A table that a notebook holds is saved once, by content, and read back as it was."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import PIL.Image
import pyarrow.parquet as parquet
import pytest

from tests.halves import split_rows
from tests.messages import unnamed
from tests.runs import a_run
from tests.tiny_images import rows_of
from train_func import tables
from train_func.errors import InvalidInput
from train_func.tasks import TextClassification
from train_func.worker.inputs.reader import read

CLASSES = ("bad", "so so", "good")
# 101 rows in pieces of 40: the last one is short.
ROWS = [{"text": f"review {number}, as it came", "label": number % 3} for number in range(101)]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(tables, "ROWS", 40)
    return tmp_path / "home"


@pytest.fixture
def frame():
    return pd.DataFrame(ROWS)


def named(table, **fields) -> str:
    return a_run(dataset=table, **fields).task.dataset


def refusal(table, **fields) -> str:
    with pytest.raises(InvalidInput) as caught:
        a_run(dataset=table, **fields)
    return str(caught.value)


def test_a_frame_is_a_file_below_the_home_with_its_rows_in_their_order(frame, home):
    path = named(frame)
    assert Path(path).relative_to(home).parts[0] == "inputs"
    assert read(path).to_list() == ROWS


def test_the_same_rows_are_saved_once(frame, home):
    assert named(frame) == named(frame.copy()) == named(pd.concat([frame[:7], frame[7:]]))
    assert len(list((home / "inputs").glob("*/*.parquet"))) == 1


def test_order_values_and_types_are_content(frame):
    others = [frame[::-1], frame.assign(label=frame.label + 1), frame.assign(label=frame.label.astype("int8"))]
    assert len({named(table) for table in [frame, *others]}) == 4


def test_another_process_and_another_home_give_the_same_bytes(frame, tmp_path):
    code = f"""
import hashlib, json, sys
from pathlib import Path
import pandas as pd
import PIL.Image
from train_func import TextClassification, tables
tables.ROWS = {tables.ROWS}
path = TextClassification(model="m", dataset=pd.DataFrame(json.loads(sys.stdin.read()))).dataset
print(path, hashlib.sha256(Path(path).read_bytes()).hexdigest())
"""
    other = {**os.environ, "TRAIN_FUNC_HOME": str(tmp_path / "other")}
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(ROWS), env=other, capture_output=True, text=True, check=True
    )
    (there, sha256), here = done.stdout.split(), Path(named(frame))
    assert Path(there).relative_to(tmp_path / "other") == here.relative_to(tmp_path / "home")
    assert sha256 == hashlib.sha256(here.read_bytes()).hexdigest()


def test_an_index_without_a_name_is_only_the_number_of_the_row(frame):
    chosen = frame[frame.label > 0]
    assert list(chosen.index) != list(range(len(chosen)))
    assert named(chosen) == named(chosen.reset_index(drop=True))


def test_an_index_with_a_name_is_a_column(frame):
    rows = read(named(frame.assign(number=np.arange(101)).set_index("number")))
    assert rows.column_names == ["number", "text", "label"]
    assert rows["number"][:] == list(range(101))


def test_a_dataset_keeps_its_selection_its_order_and_the_names_of_its_classes():
    features = datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=list(CLASSES)))
    rows = datasets.Dataset.from_list(ROWS, features=features).shuffle(seed=7).select(range(99))
    path = named(rows)
    assert path == named(datasets.Dataset.from_dict(rows.to_dict(), features=features))
    assert read(path).to_list() == rows.to_list()
    assert (
        split_rows(TextClassification(model="m", dataset=rows), 42, None, Path(path).parent / "cache").labels == CLASSES
    )


def test_a_column_that_a_frame_lacks_is_told_of_the_frame_and_not_of_its_file(frame, tmp_path):
    with pytest.raises(InvalidInput) as refused:
        split_rows(TextClassification(model="m", dataset=frame, label="stars"), 42, None, tmp_path / "cache")
    assert unnamed(refused.value, "dataset", "DataFrame", "'stars'", "'text', 'label'") == []
    assert "parquet" not in str(refused.value)


def test_a_changed_file_is_written_anew(frame):
    path = Path(named(frame))
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert named(frame) == str(path)
    assert path.read_bytes() == whole


@pytest.mark.parametrize("kind", ["PIL", "numpy"])
def test_images_that_cannot_be_saved_are_to_be_given_in_a_form_that_can(kind):
    pixels = [np.full((5, 7, 3), number, dtype=np.uint8) for number in range(9)]
    images = [PIL.Image.fromarray(of) for of in pixels] if kind == "PIL" else pixels
    frame = pd.DataFrame({"image": images, "label": [number % 2 for number in range(9)]})
    said = refusal(frame)
    assert unnamed(said, "column 'image'", "bytes of image files", "datasets.Dataset.from_dict(frame.to_dict") == []
    assert "drop(" not in said
    if kind == "PIL":
        whole = datasets.Dataset.from_dict(frame.to_dict("list"))
        assert isinstance(whole.features["image"], datasets.Image)
        assert whole.num_rows == 9


def test_all_columns_that_cannot_be_saved_are_named_beside_the_other_faults(frame, home):
    frame["mixed"], frame["things"] = [1, "two"] * 50 + [3], object()
    said = refusal(frame, workers=0)
    assert not [path for path in home.rglob("*") if path.is_file()]
    assert said.startswith("3 faults:")
    assert "column 'mixed'" in said
    assert "frame.drop(columns=['things'])" in said
    assert "workers=0" in said


def test_a_column_named_twice_is_refused(frame):
    assert unnamed(refusal(frame[["text", "label", "text"]]), "more than one", "'text'") == []


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        (lambda rows: datasets.DatasetDict(test=rows, train=rows), "dataset=splits['train'], held_out=splits['test']"),
        (lambda rows: datasets.DatasetDict(train=rows), "dataset=splits['train']"),
        (lambda rows: rows.to_iterable_dataset(), "without streaming=True"),
        (lambda rows: rows.with_transform(lambda batch: batch), "dataset.map(...)"),
    ],
    ids=["splits", "one split", "stream", "transform"],
)
def test_what_is_no_table_of_rows_is_refused_with_the_remedy(change, remedy):
    assert remedy in refusal(change(datasets.Dataset.from_list(ROWS)))


def test_the_file_has_no_trace_of_the_pieces_of_a_table(frame):
    rows = datasets.concatenate_datasets([datasets.Dataset.from_list(ROWS[:3]), datasets.Dataset.from_list(ROWS[3:])])
    path = named(rows)
    assert path == named(datasets.Dataset.from_list(ROWS))
    assert parquet.ParquetFile(path).num_row_groups == 3


def test_images_are_saved_in_small_groups_the_same_from_paths_and_from_their_content(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "ROWS_WITH_FILES", 30)
    paths = []
    for number, row in enumerate(rows_of(101)):
        paths.append(tmp_path / f"{number}.png")
        paths[-1].write_bytes(row["image"] + bytes(2000 * (number % 7)))
    by_path = datasets.Dataset.from_dict({"image": list(map(str, paths))}).cast_column("image", datasets.Image())
    content = [{"bytes": path.read_bytes(), "path": path.name} for path in paths]
    backwards = datasets.Dataset.from_dict({"image": content[::-1]}).cast_column("image", datasets.Image())
    path = named(by_path)
    assert path == named(backwards.select(range(100, -1, -1)))
    assert parquet.read_table(path)["image"].to_pylist() == content
    assert parquet.ParquetFile(path).num_row_groups == 4
