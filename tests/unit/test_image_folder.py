"""A folder of images: what counts as one, what is behind links, and what is refused because it would be lost."""

from tests.messages import unnamed
from tests.tiny_images import write_image_folder
from tests.unit.test_image_classification import bytes_of
from train_func import ImageClassification
from train_func.worker.tasks.image_classification import ImageClassifier


def half(folder, tmp_path, **fields):
    task = ImageClassification(**{"model": None, "size": 24, "dataset": str(folder), **fields})
    return ImageClassifier(task, 42, None, tmp_path / "cache")


def folder_in(path):
    path.mkdir(parents=True, exist_ok=True)
    return path


def test_images_behind_links_are_used_and_a_link_that_leads_back_is_refused(tmp_path):
    folder = write_image_folder(tmp_path / "images", 40)
    expected = bytes_of(half(folder, tmp_path).rows())
    (folder / "dots").rename(tmp_path / "elsewhere")
    (folder / "dots").symlink_to(tmp_path / "elsewhere")
    (folder / "bars/003.png").rename(tmp_path / "one.png")
    (folder / "bars/003.png").symlink_to(tmp_path / "one.png")
    found = half(folder, tmp_path)
    assert bytes_of(found.rows()) == expected
    assert found.check().notes == half(folder, tmp_path).check().notes
    (tmp_path / "elsewhere/back").symlink_to(folder)
    (fault,) = half(folder, tmp_path).check().faults
    assert unnamed(fault[1], "dots/back", "link") == []


def test_images_and_classes_that_are_links_to_nothing_are_named(tmp_path):
    folder = write_image_folder(tmp_path / "images", 40)
    for name in ("bars/003.png", "dots/001.png"):
        (folder / name).unlink()
        (folder / name).symlink_to("../.git/annex/objects/none.png")
    (folder / "bars/.hidden.png").symlink_to("none.png")
    ((cause, fault),) = half(folder, tmp_path).check().faults
    assert cause == "data"
    assert unnamed(fault, "2 of 40", "bars/003.png", "dots/001.png", "links") == []
    assert ".hidden" not in fault
    (folder / "plain").rename(tmp_path / "elsewhere")
    (folder / "plain").symlink_to(tmp_path / "nowhere")
    faults = "\n".join(fault for _, fault in half(folder, tmp_path).check().faults)
    assert unnamed(faults, "plain", "links") == []


def test_folders_named_as_splits_are_splits_and_others_with_them(tmp_path):
    for seed, name in enumerate(("train", "Test_2", "mine")):
        write_image_folder(tmp_path / "data" / name, 12, seed=seed)
    rows = half(tmp_path / "data", tmp_path, held_out="mine").rows()
    assert (rows.train.num_rows, rows.held_out.num_rows) == (12, 12)


def test_a_class_called_train_is_not_taken_for_a_split(tmp_path):
    for number, name in enumerate(("train/2019", "train/2020", "valley/2019", "valley/2020")):
        made = write_image_folder(tmp_path / "made" / name, 12, seed=number)
        (made / "dots").rename(folder_in(tmp_path / "data" / name) / "05")
    (fault,) = half(tmp_path / "data", tmp_path).check().faults
    assert unnamed(fault[1], "'train'", "valley", "splits", "classes") == []
    (tmp_path / "data/train").rename(tmp_path / "data/trains")
    assert half(tmp_path / "data", tmp_path).rows().labels == ("trains", "valley")


def test_held_out_images_without_folders_of_classes_are_refused_with_the_classes_that_are_trained(tmp_path):
    write_image_folder(tmp_path / "data/train", 12)
    write_image_folder(tmp_path / "val", 12, seed=1).joinpath("dots").rename(
        folder_in(tmp_path / "data/val") / "images"
    )
    (fault,) = half(tmp_path / "data", tmp_path, held_out="val").check().faults
    assert unnamed(fault[1], "'images'", "'bars'", "'dots'", "'plain'") == []
    assert "samples" not in fault[1]
