"""Reads an image folder: one folder of images per class, or such folders per split (train, test, ...)."""

import json
import os
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa

from train_func.storage.store import key_fault
from train_func.text import counted, listed
from train_func.wire.layout import INPUTS
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.locate import Reference

# Of images that Pillow reads; it reads some documents and films too.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".apng", ".webp", ".avif", ".gif", ".tif", ".tiff", ".bmp", ".dib"),
    *(".jp2", ".j2k", ".jpf", ".jpx", ".ico", ".tga", ".qoi", ".pbm", ".pgm", ".ppm", ".pnm"),
)
HIDDEN = (".", "__MACOSX", "lost+found")  # how names begin that are left out
IMAGE, LABEL, TRAIN = "image", "label", "train"
IS_FOLDER = b"train_func.image_folder"  # in the schema of its tables: labels are names of classes, images are paths
STORED = pa.struct([("bytes", pa.binary()), ("path", pa.string())])  # what `datasets` calls Image
_FEATURES = {IMAGE: {"_type": "Image"}, LABEL: {"_type": "Value", "dtype": "string"}}
_SCHEMA = pa.schema(
    [(IMAGE, STORED), (LABEL, pa.string())],
    metadata={b"huggingface": json.dumps({"info": {"features": _FEATURES}}).encode(), IS_FOLDER: b"1"},
)
MAX_SHOWN = 5
_SPLIT = re.compile(r"(val|valid|validation|test|dev|eval)([^a-z].*)?", re.IGNORECASE)  # test, val_2


@dataclass(frozen=True)
class ImageFolder:
    """An image folder, whose tables name the files of the images; the files are read later."""

    splits: Mapping[str, pa.Table]
    files: tuple[str, ...]
    """The images, by their paths from the folder."""
    notes: tuple[str, ...]


def read_image_folder(reference: Reference, folder: Path) -> ImageFolder | None:
    """Reads a folder of images; returns None where no image lies in it or below.

    Raises:
        InvalidInput: an image is in no folder of a class, is a link to nothing, or has a name that no store accepts;
            a class has no image.
        OSError: a folder cannot be read.
    """
    files = _files_in(reference, folder)
    images = [path for path in files if path.suffix.lower() in SUFFIXES]
    if not images:
        return None
    _check_files(reference, folder, images, [path for path in files if not path.suffix])
    has_splits = _has_splits(reference, images)
    num_above = 2 if has_splits else 1
    stray = [path for path in images if len(path.parts) <= num_above]
    if stray:
        below = "a split's folder" if has_splits else str(folder)
        raise reference.fault(
            f"{counted(len(stray), 'image')} with no class: {listed(stray, MAX_SHOWN)}. Directly below {below} a "
            "folder per class is expected, named as the class, with its images in it"
        )
    folders = {path.parts[:num_above] for path in files if len(path.parts) > num_above}
    if barren := sorted(folders - {path.parts[:num_above] for path in images}):
        endings = sorted({path.suffix.lower() or "none" for path in files if path.parts[:num_above] in barren})
        raise reference.fault(
            f"no image can be read in {listed([PurePosixPath(*parts) for parts in barren], MAX_SHOWN, show=_shown)}, "
            f"whose files have the endings {listed(endings, MAX_SHOWN)}: a folder here is a class. Convert its files, "
            "to JPEG or PNG for example, or move it elsewhere"
        )
    by_split = defaultdict(list)
    for path in images:
        by_split[path.parts[0] if has_splits else "all"].append(path)
    splits = {}
    for name, of_split in by_split.items():
        paths = pa.array([str(folder / path) for path in of_split], pa.string())
        stored = pa.StructArray.from_arrays([pa.nulls(len(paths), pa.binary()), paths], names=["bytes", "path"])
        labels = pa.array([path.parts[num_above - 1] for path in of_split], pa.string())
        splits[name] = pa.Table.from_arrays([stored, labels], schema=_SCHEMA)
    return ImageFolder(splits, tuple(map(str, images)), tuple(_notes(reference, folder, files)))


def _files_in(reference: Reference, folder: Path) -> list[PurePosixPath]:
    """Returns the paths of all files in a folder and below it, also behind links, in order, without hidden ones."""
    names = fingerprint.names_in(folder, HIDDEN)
    if back := [folder / name for name in names if (folder / name).is_dir()]:
        raise reference.fault(f"{_shown(back[0])} is a link to a folder that it lies in; remove it")
    return sorted(map(PurePosixPath, names))


def _check_files(reference: Reference, folder: Path, images: list[PurePosixPath], bare: list[PurePosixPath]) -> None:
    """Refuses names that no store accepts, and links to nothing; ``bare``: files without an ending."""
    faults = {path: key_fault(f"{INPUTS}/{'0' * 64}/{folder.name}/{path}") for path in images}
    if named := [(path, fault) for path, fault in faults.items() if fault]:
        raise reference.fault(
            f"{counted(len(named), 'image')} with names that no store accepts: "
            f"{listed([f'{_shown(path)} ({fault})' for path, fault in named], MAX_SHOWN)}; rename the files or folders"
        )
    if missing := [path for path in (*images, *bare) if not (folder / path).is_file()]:
        raise reference.fault(
            f"{len(missing)} of {counted(len(images) + len(bare), 'file')} are links to nothing, or no files: "
            f"{listed(missing, MAX_SHOWN, show=_shown)}; "
            "fetch the files that they link to, as git annex get or dvc pull do, or remove them"
        )


def _shown(path: object) -> str:
    """Returns a name for messages; bytes that are not UTF-8 are written as \\x.."""
    return os.fsencode(str(path)).decode(errors="backslashreplace")


def _has_splits(reference: Reference, images: list[PurePosixPath]) -> bool:
    """Returns whether the top folders are splits: one of them is called train, and has folders with images."""
    of_train = [path for path in images if path.parts[0] == TRAIN]
    if not of_train or any(len(path.parts) <= 2 for path in of_train):
        return False
    siblings = sorted({path.parts[0] for path in images if len(path.parts) > 1} - {TRAIN})
    if siblings and not any(_SPLIT.fullmatch(name) for name in siblings):
        raise reference.fault(
            f"the folder {TRAIN!r} has folders in it, as a split has; beside it: {listed(siblings, MAX_SHOWN)}. If "
            "these are splits, give one of them the name val, valid, validation, test, dev or eval; if all are "
            f"classes, give {TRAIN!r} another name, or put its images directly in it"
        )
    return True


def _notes(reference: Reference, folder: Path, files: list[PurePosixPath]) -> list[str]:
    """Returns notes on folders and files that are not used."""
    tops = {path.parts[0] for path in files if path.suffix.lower() in SUFFIXES}
    folders = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(HIDDEN)]
    notes = []
    if empty := [name for name in folders if name not in tops]:
        notes.append(f"{reference.field}={reference.address!r}: no image in {listed(empty, MAX_SHOWN, show=_shown)}")
    if unread := [path for path in files if path.suffix.lower() not in SUFFIXES]:
        notes.append(
            f"{reference.field}={reference.address!r}: {counted(len(unread), 'file')} left out, with endings other "
            f"than {', '.join(SUFFIXES)}: {listed(unread, MAX_SHOWN, show=_shown)}"
        )
    return notes
