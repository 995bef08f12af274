"""Reads an image folder: one folder of images per class, or such folders per split (train, test, ...)."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa

from train_func.counted import counted, listed
from train_func.worker.inputs.locate import Wanted

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
IMAGE, LABEL, TRAIN = "image", "label", "train"
IS_FOLDER = b"train_func.image_folder"  # in the schema of its tables: labels are names of classes, images are paths
STORED = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # what `datasets` calls Image
_FEATURES = {IMAGE: {"_type": "Image"}, LABEL: {"_type": "Value", "dtype": "string"}}
_SCHEMA = pa.schema(
    [(IMAGE, STORED), (LABEL, pa.string())],
    metadata={b"huggingface": json.dumps({"info": {"features": _FEATURES}}).encode(), IS_FOLDER: b"1"},
)
MAX_SHOWN = 5


@dataclass(frozen=True)
class ImageFolder:
    """Its tables name the files of the images, which are read later."""

    splits: Mapping[str, pa.Table]
    files: tuple[str, ...]
    """The images, by their paths from the folder."""
    notes: tuple[str, ...]


def images_in(folder: Path) -> list[PurePosixPath]:
    """The images in a folder and below, by their paths from it, in order; what is hidden is left out."""
    found = (PurePosixPath(path.relative_to(folder).as_posix()) for path in folder.rglob("*") if _is_image(path))
    return sorted(path for path in found if not any(part.startswith((".", "__MACOSX")) for part in path.parts))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES and path.is_file()


def read_image_folder(wanted: Wanted, folder: Path, images: list[PurePosixPath]) -> ImageFolder:
    """``images``: what ``images_in`` has found there.

    Raises:
        InvalidInput: images stand in no folder of a class.
    """
    has_splits = _has_splits(images)
    num_above = 2 if has_splits else 1
    stray = [path for path in images if len(path.parts) <= num_above]
    if stray:
        below = "a split's folder" if has_splits else str(folder)
        raise wanted.fault(
            f"{counted(len(stray), 'image')} with no class: {listed(stray, MAX_SHOWN)}. Directly below {below} a "
            "folder per class is expected, named as the class, with its images in it"
        )
    by_split = defaultdict(list)
    for path in images:
        by_split[path.parts[0] if has_splits else "all"].append(path)
    splits = {name: _table(folder, paths, num_above) for name, paths in by_split.items()}
    return ImageFolder(splits, tuple(map(str, images)), tuple(_notes(wanted, folder, images)))


def _has_splits(images: list[PurePosixPath]) -> bool:
    """Whether the folders at the top are splits: one is called train, and its images lie in folders of their own."""
    of_train = [path for path in images if path.parts[0] == TRAIN]
    return bool(of_train) and all(len(path.parts) > 2 for path in of_train)


def _table(folder: Path, images: list[PurePosixPath], num_above: int) -> pa.Table:
    paths = pa.array([str(folder / path) for path in images], pa.string())
    stored = pa.StructArray.from_arrays([pa.nulls(len(images), pa.binary()), paths], names=["bytes", "path"])
    labels = pa.array([path.parts[num_above - 1] for path in images], pa.string())
    return pa.Table.from_arrays([stored, labels], schema=_SCHEMA)


def _notes(wanted: Wanted, folder: Path, images: list[PurePosixPath]) -> list[str]:
    """What lies there and is not used."""
    tops = {path.parts[0] for path in images}
    hidden = (".", "__MACOSX")
    empty = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(hidden)]
    notes = []
    if empty := [name for name in empty if name not in tops]:
        notes.append(f"{wanted.field}={wanted.address!r}: no image in {listed(empty, MAX_SHOWN)}")
    others = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    unread = sorted(path.relative_to(folder).as_posix() for path in others if path.suffix.lower() not in SUFFIXES)
    if unread:
        notes.append(
            f"{wanted.field}={wanted.address!r}: {counted(len(unread), 'file')} left out, with endings other than "
            f"{', '.join(SUFFIXES)}: {listed(unread, MAX_SHOWN)}"
        )
    return notes
