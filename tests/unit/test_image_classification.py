"""Images with classes: found in folders and behind links, checked, divided, kept as they are, named where bad."""

import io
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from tests.messages import unnamed
from tests.tiny_images import CLASSES, encoded, image_of, rows_of, write_image_folder, write_tiny_resnet
from train_func import ImageClassification, Run
from train_func.errors import InvalidInput
from train_func.worker import read
from train_func.worker.tasks.image_classification import ImageClassifier


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_tiny_resnet(tmp_path_factory.mktemp("model") / "tiny"))


@pytest.fixture
def half(tmp_path, model):
    def make(dataset, **fields):
        dataset = str(dataset) if isinstance(dataset, Path) else dataset
        task = ImageClassification(**{"model": model, "dataset": dataset, **fields})
        return ImageClassifier(task, 42, None, tmp_path / "cache")

    return make


def folder_in(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


def images(folder):
    return sorted(Path(folder).glob("*/*.*"))


def folder_of(path, num_rows):
    return str(write_image_folder(path / "images", num_rows))


def table_of(rows, path):
    parquet.write_table(pa.Table.from_pylist(rows), path / "rows.parquet")
    return str(path / "rows.parquet")


def bytes_of(rows):
    """By row_id."""
    sides = [side.cast_column("image", datasets.Image(decode=False)) for side in (rows.train, rows.held_out)]
    return {row["row_id"]: row["image"]["bytes"] for side in sides for row in side}


@pytest.mark.parametrize("num_rows", [101, 40, 7])
def test_every_image_of_a_folder_is_on_one_side_with_its_class_and_the_bytes_of_its_file(half, tmp_path, num_rows):
    rows = half(folder_of(tmp_path, num_rows), held_out=0.45).rows()
    assert rows.labels == CLASSES
    both = datasets.concatenate_datasets([rows.train, rows.held_out])
    assert sorted(both["row_id"]) == list(range(num_rows))
    assert rows.held_out.num_rows == round(num_rows * 0.45)
    files = {path.read_bytes(): path.parent.name for path in (tmp_path / "images").rglob("*.png")}
    for side in (rows.train, rows.held_out):
        for row in side.cast_column("image", datasets.Image(decode=False)):
            assert files.pop(row["image"]["bytes"]) == rows.labels[row["label"]]
    assert files == {}


@pytest.mark.parametrize("kind", ["folder", "parquet"])
def test_images_that_change_while_they_are_read_are_refused_and_not_kept(half, tmp_path, monkeypatch, kind):
    folder = folder_of(tmp_path, 8)
    rows = [{"image": {"bytes": path.read_bytes(), "path": None}, "label": path.parent.name} for path in images(folder)]
    dataset = folder if kind == "folder" else table_of(rows, tmp_path)
    changed = images(folder)[3] if kind == "folder" else Path(dataset)
    made = half(dataset, held_out=0.5)
    store = made._store

    def overtaken(*args):
        if kind == "folder":
            changed.write_bytes(changed.read_bytes() + b"\0")
        else:
            table_of(rows[::-1], tmp_path)
        return store(*args)

    monkeypatch.setattr(made, "_store", overtaken)
    with pytest.raises(InvalidInput, match=changed.name) as refused:
        made.rows()
    assert refused.value.cause == "data"
    assert not [*(tmp_path / "cache/images").glob("*.arrow")]


def test_splits_are_folders_and_held_out_may_name_one_or_a_folder_of_its_own(half, tmp_path):
    for split, num_rows, seed in (("train", 40, 0), ("val", 9, 1)):
        write_image_folder(tmp_path / "data" / split, num_rows, seed=seed)
    train, val = str(tmp_path / "data/train"), str(tmp_path / "data/val")
    for dataset, held_out, addresses in (
        (str(tmp_path / "data"), "val", {"dataset"}),
        (train, val, {"dataset", "held_out"}),
    ):
        found = half(dataset, held_out=held_out)
        rows = found.rows()
        assert (rows.train.num_rows, rows.held_out.num_rows) == (40, 9)
        assert rows.held_out["row_id"][:] == list(range(40, 49))
        assert set(found.check().fingerprints) == {*addresses, "model"}
    by_share = half(str(tmp_path / "data")).check()
    assert by_share.facts["num_rows"] == 40
    assert any("'val' (9 rows)" in note for note in by_share.notes)


def test_folder_bytes_and_image_features_give_the_same_rows_and_held_out_content(half, tmp_path):
    folder = folder_of(tmp_path, 40)
    paths = sorted((tmp_path / "images").rglob("*.png"))
    stored = [{"image": path.read_bytes(), "label": path.parent.name} for path in paths]
    table = datasets.Dataset.from_list([{"image": str(path), "label": path.parent.name} for path in paths]).cast_column(
        "image", datasets.Image()
    )
    table.save_to_disk(tmp_path / "paths")
    named = datasets.ClassLabel(names=list(CLASSES))
    given = {
        "folder": folder,
        "parquet": table_of(stored, tmp_path),
        "DataFrame": pd.DataFrame(stored),
        "Dataset": table,
        "names": table.cast_column("label", named),
        "saved folder": str(tmp_path / "paths"),
    }
    found = {name: half(dataset) for name, dataset in given.items()}
    expected, held_out = bytes_of(found["folder"].rows()), set()
    for of in found.values():
        rows, report = of.rows(), of.check()
        assert (bytes_of(rows), rows.labels, report.faults) == (expected, CLASSES, [])
        held_out.add(report.held_out_sha256)
    assert len(held_out) == 1


def test_a_file_of_paths_is_refused_because_they_are_those_of_one_machine(half, tmp_path):
    paths = sorted(str(path) for path in write_image_folder(tmp_path / "images", 12).rglob("*.png"))
    rows = [{"image": {"bytes": None, "path": path}, "label": "ab"[at % 2]} for at, path in enumerate(paths)]
    (fault,) = half(table_of(rows, tmp_path)).check().faults
    assert unnamed(fault[1], "'image'", "12 of 12", "row 1") == []


def test_names_order_the_classes_of_a_folder_and_rename_none(half, tmp_path):
    folder = folder_of(tmp_path, 40)
    assert half(folder, labels=("plain", "dots", "bars")).rows().labels == ("plain", "dots", "bars")
    (fault,) = half(folder, labels=("cats", "dots", "bars")).check().faults
    assert unnamed(fault[1], "'plain'", "cats") == []


def test_what_stands_beside_the_images_is_told_and_neither_counted_nor_carried(half, tmp_path):
    folder = folder_of(tmp_path, 40)
    before = half(folder).check()
    (tmp_path / "images/notes.txt").write_text("of mine")
    (tmp_path / "images/.DS_Store").write_bytes(b"\0")
    (tmp_path / "images/empty").mkdir()
    after = half(folder).check()
    notes = "\n".join(after.notes)
    assert unnamed(notes, "notes.txt", "empty") == []
    assert ".DS_Store" not in notes
    assert after.fingerprints == before.fingerprints
    assert len(after.inputs["dataset"].files) == 40
    assert "images/bars/000.png" in after.inputs["dataset"].files
    (tmp_path / "images/bars/000.png").rename(tmp_path / "images/dots/000.png")
    assert half(folder).check().fingerprints["dataset"] != before.fingerprints["dataset"]


def test_a_folder_in_a_store_is_the_same_as_here(half, tmp_path):
    folder = folder_of(tmp_path, 40)
    found, here = half((tmp_path / "images").as_uri()).check(), half(folder).check()
    assert found.fingerprints["dataset"] == here.fingerprints["dataset"]
    assert found.held_out_sha256 == here.held_out_sha256


def test_images_of_other_modes_become_rgb_and_that_is_told_where_something_is_lost(half, tmp_path):
    rows = rows_of(40)
    for at, mode in ((1, "RGBA"), (2, "L"), (3, "P"), (4, "CMYK"), (5, "LA"), (6, "1")):
        image = image_of(at)[0].convert(mode)
        rows[at]["image"] = encoded(image, "JPEG" if mode == "CMYK" else "PNG")
    found = half(table_of(rows, tmp_path))
    assert found.check().faults == []
    (note,) = [note for note in found.check().notes if "RGB" in note]
    assert any("2 of 40" in note and "white" in note for note in found.check().notes)
    assert unnamed(note, "3 of 40", "CMYK", "LA", "RGBA") == []
    processor = found.fetch() and found.load(CLASSES, "fp32")[1]
    batch = found.collator(processor, training=False)(list(found.encode(found.rows().train, processor)))
    assert tuple(batch["pixel_values"].shape) == (32, 3, 24, 24)


def damaged(number, kind):
    image = image_of(number)[0]
    if kind == "cut":
        return encoded(image)[:200]
    if kind == "cut jpeg":
        return encoded(image.resize((400, 400)), "JPEG")[:-2000]
    if kind == "no image":
        return b"<html>not found</html>"
    if kind == "empty":
        return b""
    if kind == "deep":
        return encoded(Image.fromarray(np.full((30, 30), 40_000, np.uint16)))
    file = io.BytesIO()
    Image.new("1", (10_000, 6_000)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize("kind", ["cut", "cut jpeg", "no image", "empty", "deep", "huge"])
def test_an_image_that_cannot_be_used_is_named_before_any_worker_starts(half, tmp_path, kind):
    folder = folder_of(tmp_path, 40)
    for name in ("bars/003.png", "dots/001.png"):
        (tmp_path / "images" / name).write_bytes(damaged(1, kind))
    (fault,) = half(folder).check().faults
    assert fault[0] == "data"
    assert unnamed(fault[1], "training", "2 of 40", "bars/003.png", "dots/001.png", "row 2") == []


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda path: (path / "empty").mkdir() or path / "empty", ["images", "folder per class"]),
        (lambda path: (path / "a.png").write_bytes(damaged(0, "cut")) and path, ["1 image", "a.png", "class"]),
        (lambda path: write_image_folder(path / "t", 7).rename(path / "one") / "bars", ["class"]),
    ],
)
def test_a_folder_without_classes_is_refused(half, tmp_path, make, facts):
    (fault,) = half(str(make(tmp_path))).check().faults
    assert unnamed(fault[1], "dataset=", *facts) == []


def test_images_behind_links_are_used_and_a_link_that_leads_back_is_refused(half, tmp_path):
    folder = write_image_folder(tmp_path / "images", 40)
    expected = bytes_of(half(folder).rows())
    (folder / "dots").rename(tmp_path / "elsewhere")
    (folder / "dots").symlink_to(tmp_path / "elsewhere")
    (folder / "bars/003.png").rename(tmp_path / "one.png")
    (folder / "bars/003.png").symlink_to(tmp_path / "one.png")
    found = half(folder)
    assert bytes_of(found.rows()) == expected
    assert found.check().notes == half(folder).check().notes
    (tmp_path / "elsewhere/back").symlink_to(folder)
    (fault,) = half(folder).check().faults
    assert unnamed(fault[1], "dots/back", "link") == []


def test_images_and_classes_that_are_links_to_nothing_are_named(half, tmp_path):
    folder = write_image_folder(tmp_path / "images", 40)
    for name in ("bars/003.png", "dots/001.png"):
        (folder / name).unlink()
        (folder / name).symlink_to("../.git/annex/objects/none.png")
    (folder / "bars/.hidden.png").symlink_to("none.png")
    ((cause, fault),) = half(folder).check().faults
    assert cause == "data"
    assert unnamed(fault, "2 of 40", "bars/003.png", "dots/001.png", "links") == []
    assert ".hidden" not in fault
    (folder / "plain").rename(tmp_path / "elsewhere")
    (folder / "plain").symlink_to(tmp_path / "nowhere")
    faults = "\n".join(fault for _, fault in half(folder).check().faults)
    assert unnamed(faults, "plain", "links") == []


def test_folders_named_as_splits_are_splits_and_others_with_them(half, tmp_path):
    for seed, name in enumerate(("train", "Test_2", "mine")):
        write_image_folder(tmp_path / "data" / name, 12, seed=seed)
    rows = half(tmp_path / "data", held_out="mine").rows()
    assert (rows.train.num_rows, rows.held_out.num_rows) == (12, 12)


def test_a_class_called_train_is_not_taken_for_a_split(half, tmp_path):
    for number, name in enumerate(("train/2019", "train/2020", "valley/2019", "valley/2020")):
        made = write_image_folder(tmp_path / "made" / name, 12, seed=number)
        (made / "dots").rename(folder_in(tmp_path / "data" / name) / "05")
    (fault,) = half(tmp_path / "data").check().faults
    assert unnamed(fault[1], "'train'", "valley", "splits", "classes") == []
    (tmp_path / "data/train").rename(tmp_path / "data/trains")
    assert half(tmp_path / "data").rows().labels == ("trains", "valley")


def test_held_out_images_without_folders_of_classes_are_refused_with_the_classes_that_are_trained(half, tmp_path):
    write_image_folder(tmp_path / "data/train", 12)
    write_image_folder(tmp_path / "val", 12, seed=1).joinpath("dots").rename(
        folder_in(tmp_path / "data/val") / "images"
    )
    (fault,) = half(tmp_path / "data", held_out="val").check().faults
    assert unnamed(fault[1], "'images'", "'bars'", "'dots'", "'plain'") == []
    assert "samples" not in fault[1]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_images_on_both_sides_are_found_by_what_they_show_whatever_their_files_are(half, tmp_path, kind):
    folder, other = folder_of(tmp_path, 40), write_image_folder(tmp_path / "other", 9)
    for path in sorted(other.glob("*/*.png")):
        image = Image.open(path)
        path.unlink()
        image.save(path.with_suffix(f".{kind.lower()}"))
    (fault,) = half(folder, held_out=str(other)).check().faults
    assert unnamed(fault[1], "9 of 9", "images") == []


def test_images_that_all_show_the_same_are_refused_with_what_may_be_the_reason(half, tmp_path):
    for number in range(28):
        path = tmp_path / "clips" / CLASSES[number % 2] / f"{number}.gif"
        path.parent.mkdir(parents=True, exist_ok=True)
        later = image_of(number)[0].resize((24, 24))
        Image.new("RGB", (24, 24)).save(path, save_all=True, append_images=[later, later.rotate(90)])
    faults = "; ".join(fault for _, fault in half(str(tmp_path / "clips")).check().faults)
    assert unnamed(faults, "28 of 28", "frames") == []


def test_images_are_known_by_any_ending_that_they_have(half, tmp_path):
    folder, endings = folder_of(tmp_path, 40), [".jfif", ".jpe", ".JPG", ".avif", ".Webp", ".tif"]
    for at, path in enumerate(sorted((tmp_path / "images").glob("dots/*.png"))):
        ending = endings[at % len(endings)]
        Image.open(path).save(path.with_suffix(ending), {".jfif": "JPEG", ".jpe": "JPEG"}.get(ending))
        path.unlink()
    found = half(folder).check()
    assert (found.facts["num_rows"], found.faults) == (40, [])


def test_a_class_whose_files_are_no_images_is_refused_by_its_name(half, tmp_path):
    folder = folder_of(tmp_path, 40)
    for path in sorted((tmp_path / "images").glob("dots/*.png")):
        path.rename(path.with_suffix(".heic"))
    (fault,) = half(folder).check().faults
    assert unnamed(fault[1], "dots", ".heic") == []


def test_a_model_without_its_image_processor_is_refused(half, tmp_path):
    folder = write_tiny_resnet(tmp_path / "bare")
    (folder / "preprocessor_config.json").unlink()
    (fault,) = half(folder_of(tmp_path, 40), model=str(folder)).check().faults
    assert fault[0] == "model"
    assert unnamed(fault[1], "preprocessor_config.json", str(folder)) == []


@pytest.mark.parametrize("kind", ["ViT", "ConvNextV2", pytest.param("MobileNetV2", marks=pytest.mark.slow)])
def test_any_image_classifier_of_transformers_gets_a_new_head_and_takes_the_batches(half, tmp_path, kind):
    import transformers

    small = {
        "ViT": {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 32, "patch_size": 8},
        "ConvNextV2": {"hidden_sizes": [8, 8, 8, 8], "depths": [1, 1, 1, 1]},
        "MobileNetV2": {"image_size": 32, "depth_multiplier": 0.25, "finegrained_output": False},
    }[kind]
    config = getattr(transformers, f"{kind}Config")(num_labels=7, **small)
    getattr(transformers, f"{kind}ForImageClassification")(config).save_pretrained(tmp_path / kind)
    processor = "ConvNextImageProcessorPil" if kind == "ConvNextV2" else "ViTImageProcessorPil"
    size = {"shortest_edge": 32} if kind == "ConvNextV2" else {"height": 32, "width": 32}
    getattr(transformers, processor)(size=size).save_pretrained(tmp_path / kind)
    task = half(folder_of(tmp_path, 40), model=str(tmp_path / kind))
    assert task.check().faults == []
    rows = task.rows()
    task.fetch()
    model, made = task.load(rows.labels, "fp32")
    for is_training in (True, False):
        batch = task.collator(made, training=is_training)(list(task.encode(rows.train, made).take(4)))
        assert batch["pixel_values"].shape == (4, 3, 32, 32)
        found = model(pixel_values=batch["pixel_values"], labels=batch["labels"])
        assert found.logits.shape == (4, len(CLASSES))
        assert found.loss.isfinite()
    assert model.config.id2label == dict(enumerate(CLASSES))


def test_rows_of_a_folder_can_be_looked_at(tmp_path):
    rows = read(folder_of(tmp_path, 7))
    assert rows.num_rows == 7
    assert {(row["image"].mode, row["label"]) for row in rows} == {("RGB", name) for name in CLASSES}


@pytest.mark.parametrize(
    ("fields", "facts"),
    [
        ({"image": "label"}, ["image and label are both 'label'"]),
        ({"model": None}, ["size=None"]),
        ({"size": 32}, ["size=32", "'m'"]),
        ({"model": None, "size": 32, "model_revision": "v1"}, ["model_revision='v1'"]),
        ({"augment": "no"}, ["augment='no'"]),
    ],
)
def test_fields_that_cannot_work_make_no_task(fields, facts):
    with pytest.raises(InvalidInput) as caught:
        Run(task=ImageClassification(**{"model": "m", "dataset": "d", **fields}))
    assert unnamed(caught.value, *facts) == []
