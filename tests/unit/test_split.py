"""Training and held-out rows of a run: disjoint, in proportion, and the same whenever and wherever they are made."""

import csv
from pathlib import Path

import datasets
import numpy as np
import pytest

from tests.messages import unnamed
from tests.runs import a_run
from train_func.errors import InvalidInput
from train_func.worker.tasks.text_classification import TextClassifier
from train_func.worker.tasks.train_eval_split import stratified_sample


@pytest.fixture
def rows(tmp_path):
    """Writes a csv of so many different texts with the labels 1, 2, ... in turn, and says where."""

    def write(num_rows, num_classes=3, name="reviews.csv", word="food"):
        path = tmp_path / name
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label"])
            writer.writerows((f"{word} {i}", i % num_classes + 1) for i in range(num_rows))
        return str(path)

    return write


@pytest.fixture
def prepared(tmp_path):
    def make(dataset, **fields):
        run = a_run(dataset=dataset, **fields)
        return TextClassifier(run.task, run.seed, None, tmp_path / "cache").rows()

    return make


@pytest.fixture
def refusal(prepared):
    def make(dataset, **fields):
        with pytest.raises(InvalidInput) as caught:
            prepared(dataset, **fields)
        assert caught.value.cause == "data"
        return str(caught.value)

    return make


def save_splits(folder: Path, **splits: int) -> str:
    tables = {
        name: datasets.Dataset.from_dict(
            {"text": [f"{name} {i}" for i in range(num)], "label": [i % 2 for i in range(num)]},
            features=datasets.Features(text=datasets.Value("string"), label=datasets.ClassLabel(names=["bad", "good"])),
        )
        for name, num in splits.items()
    }
    datasets.DatasetDict(tables).save_to_disk(folder)
    return str(folder)


@pytest.mark.parametrize("num_rows", [101, 40, 9])
def test_every_row_is_on_one_side_and_keeps_its_text_label_and_place(rows, prepared, num_rows):
    found = prepared(rows(num_rows), held_out=1 / 3)
    both = datasets.concatenate_datasets([found.train, found.held_out]).sort("row_id")
    assert both["row_id"][:] == list(range(num_rows))
    assert both["text"][:] == [f"food {i}" for i in range(num_rows)]
    assert both["label"][:] == [i % 3 for i in range(num_rows)]
    assert found.labels == ("1", "2", "3")
    assert found.held_out.num_rows == round(num_rows / 3)
    assert found.train.column_names == found.held_out.column_names == ["text", "label", "row_id"]


def test_every_class_keeps_its_share_on_both_sides_and_the_seed_decides_which_rows(rows, prepared):
    path = rows(101)
    first, again, other = (prepared(path, seed=seed) for seed in (1, 1, 2))
    assert np.bincount(first.held_out["label"][:]).tolist() == [7, 7, 6]
    assert np.bincount(first.train["label"][:]).tolist() == [27, 27, 27]
    assert first.held_out["row_id"][:] == again.held_out["row_id"][:] != other.held_out["row_id"][:]


def test_the_rows_of_a_seed_and_a_stream_never_change_and_ascend():
    codes, expected = np.arange(40) % 5, [2, 6, 7, 10, 11, 19, 25, 33]
    for other in (0, 1):
        np.random.seed(other)
        assert stratified_sample(codes, 8, seed=42, stream=2, leave=1).tolist() == expected
    assert stratified_sample(codes, 8, seed=42, stream=1, leave=1).tolist() != expected
    assert stratified_sample(codes, 8, seed=2**32 - 1, stream=2, leave=1).tolist() != expected


def test_a_named_split_is_held_out_with_row_ids_of_its_own(tmp_path, prepared):
    path = save_splits(tmp_path / "saved", train=40, test=7, validation=9)
    found = prepared(path, held_out="test")
    assert found.train["row_id"][:] == list(range(40))
    assert found.held_out["row_id"][:] == list(range(40, 47))
    assert found.held_out["text"][0] == "test 0"
    assert found.labels == ("bad", "good")
    assert found.notes == []


def test_a_split_comes_before_a_folder_of_its_name(tmp_path, prepared, refusal, monkeypatch):
    path = save_splits(tmp_path / "saved", train=40, test=7)
    monkeypatch.chdir(tmp_path)
    for name in ("test", "train", "validation"):
        save_splits(tmp_path / name, all=9)
    found = prepared(path, held_out="test")
    assert found.held_out.num_rows == 7
    assert set(found.fingerprints) == {"dataset"}
    assert found.notes == []
    assert "'train'" in refusal(path, held_out="train")
    assert prepared(path, held_out="./test").held_out.num_rows == 9
    assert prepared(path, held_out="validation").held_out.num_rows == 9


def test_with_a_share_the_other_splits_are_left_alone_and_that_is_said(tmp_path, prepared):
    found = prepared(save_splits(tmp_path / "saved", train=40, test=7))
    assert found.train.num_rows + found.held_out.num_rows == 40
    (note,) = (each for each in found.notes if "held_out=" in each)
    assert unnamed(note, "'train'", "'test'", "7 rows") == []


def test_a_split_that_is_not_there_is_refused_with_those_that_are(tmp_path, refusal):
    path = save_splits(tmp_path / "saved", train=40, test=7)
    assert unnamed(refusal(path, held_out="validation"), "held_out='validation'", "'test'") == []
    assert unnamed(refusal(path, held_out="train"), "held_out='train'") == []


def test_a_file_that_changes_while_it_is_read_is_refused_and_its_rows_are_not_kept(rows, tmp_path):
    run = a_run(dataset=rows(40))

    class Overtaken(TextClassifier):
        def split(self, sources, findings):
            rows(40, word="service")
            return super().split(sources, findings)

    with pytest.raises(InvalidInput, match=r"reviews\.csv") as refused:
        Overtaken(run.task, run.seed, None, tmp_path / "cache").rows()
    assert refused.value.cause == "data"
    assert not [*(tmp_path / "cache/rows").glob("*[!k]")]


def test_a_file_is_held_out(rows, prepared, refusal):
    path, other = rows(40), rows(9, name="other.csv", word="service")
    found = prepared(path, held_out=other)
    assert (found.train.num_rows, found.held_out.num_rows) == (40, 9)
    assert found.held_out["text"][0] == "service 0"
    assert found.fingerprints != prepared(path).fingerprints
    assert "held_out='nowhere.csv'" in refusal(path, held_out="nowhere.csv")


def test_missing_columns_of_both_sides_are_named_with_those_that_are_there(rows, refusal, tmp_path):
    other = tmp_path / "other.csv"
    other.write_text("review,grade\nfine,1\n")
    said = refusal(rows(40), held_out=str(other), label="stars")
    assert unnamed(said, "2 faults", f"held_out={str(other)!r}: no column", "text='text'", "'review', 'grade'") == []
    assert said.count("label='stars'") == 2


@pytest.mark.parametrize("num", [101, 30])
def test_samples_are_all_rows_used_in_proportion(rows, prepared, num):
    found = prepared(rows(200, num_classes=2), samples=num)
    assert found.train.num_rows + found.held_out.num_rows == num
    assert found.held_out.num_rows == round(num / 5)
    counts = np.bincount([*found.train["label"], *found.held_out["label"]])
    assert abs(int(counts[0]) - int(counts[1])) <= 1


def test_samples_of_two_splits_are_divided_as_the_splits_are(tmp_path, prepared):
    path = save_splits(tmp_path / "saved", train=400, test=100)
    found = prepared(path, held_out="test", samples=50)
    assert (found.train.num_rows, found.held_out.num_rows) == (40, 10)
    assert min(found.held_out["row_id"]) >= 400


def test_more_samples_than_rows_take_all_and_say_so(rows, prepared):
    found = prepared(rows(40), samples=41)
    assert found.train.num_rows + found.held_out.num_rows == 40
    (note,) = (each for each in found.notes if "samples=41" in each)
    assert unnamed(note, 40) == []


def test_too_few_rows_for_the_classes_are_refused(rows, refusal, tmp_path):
    path = rows(101, num_classes=5)
    assert unnamed(refusal(path, samples=9), "samples=9", "5 classes", "10 rows") == []
    said = refusal(path, held_out=0.01)
    assert unnamed(said, "held_out=0.01", "1 of 101", 100, "5 classes") == []
    assert "97 of 101" in refusal(path, held_out=0.96)
    splits = save_splits(tmp_path / "saved", train=400, test=4)
    said = refusal(splits, held_out="test", samples=50)
    assert unnamed(said, "samples=50", "400 to 4", 0) == []


def test_a_class_with_one_row_is_trained_and_not_measured(tmp_path, prepared):
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"food {i},{'rare' if i == 3 else 'ab'[i % 2]}\n" for i in range(21)))
    found = prepared(str(path))
    assert found.labels.index("rare") in found.train["label"][:]
    assert [note for note in found.notes if "'rare'" in note]


def test_a_held_out_class_that_is_never_trained_is_refused(rows, refusal):
    said = refusal(rows(40, num_classes=2), held_out=rows(9, num_classes=3, name="other.csv", word="service"))
    assert unnamed(said, "'3'") == []


def test_no_rows_are_refused_on_either_side(tmp_path, rows, refusal):
    empty = tmp_path / "empty.csv"
    empty.write_text("text,label\n")
    assert f"dataset={str(empty)!r}: 0 rows" in refusal(str(empty))
    assert f"held_out={str(empty)!r}: 0 rows" in refusal(rows(40), held_out=str(empty))


def test_a_copy_of_the_training_rows_cannot_be_held_out(rows, refusal):
    assert unnamed(refusal(rows(40), held_out=rows(40, name="copy.csv")), "40 of 40", "100.0%") == []


def stored(tmp_path):
    """The files of all rows that are stored, with the times at which they were written."""
    return {path: path.stat().st_mtime_ns for path in (tmp_path / "cache" / "rows").rglob("*.arrow")}


def sides(found):
    return [side.to_list() for side in (found.train, found.held_out)]


def test_rows_are_read_once_and_found_again_with_all_that_is_known_of_them(rows, prepared, tmp_path):
    first = prepared(rows(101), samples=500)
    files = stored(tmp_path)
    second = prepared(rows(101), samples=500, max_length=64, model="another")  # which decide nothing of the rows
    assert stored(tmp_path) == files
    assert len(files) == 2
    assert sides(second) == sides(first)
    assert (second.labels, second.notes) == (first.labels, first.notes)
    assert len(second.notes) == 1
    assert second.train._fingerprint == first.train._fingerprint


@pytest.mark.parametrize("fields", [{"seed": 7}, {"samples": 40}, {"held_out": 0.3}, {"labels": ("3", "2", "1")}])
def test_fields_that_decide_the_rows_make_others(rows, prepared, tmp_path, fields):
    first = prepared(rows(101, num_classes=3))
    other = prepared(rows(101, num_classes=3), **fields)
    assert (sides(other), other.labels) != (sides(first), first.labels)
    assert len(stored(tmp_path)) == 4


def test_a_file_that_has_changed_is_read_anew(rows, prepared):
    first = prepared(rows(101))
    second = prepared(rows(101, word="service"))
    assert second.fingerprints != first.fingerprints
    assert all(text.startswith("service") for text in second.train["text"])


@pytest.mark.parametrize("name", ["training.arrow", "held-out.arrow", "facts.json"])
def test_stored_rows_that_were_cut_short_are_made_again(rows, prepared, tmp_path, name):
    expected = sides(prepared(rows(101)))
    (path,) = (tmp_path / "cache" / "rows").rglob(name)
    path.write_bytes(path.read_bytes()[:-20])
    assert sides(prepared(rows(101))) == expected
