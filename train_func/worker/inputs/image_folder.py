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
from train_func.worker.inputs.locate import Wanted

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
    """Its tables name the files of the images, which are read later."""

    splits: Mapping[str, pa.Table]
    files: tuple[str, ...]
    """The images, by their paths from the folder."""
    notes: tuple[str, ...]


def read_image_folder(wanted: Wanted, folder: Path) -> ImageFolder | None:
    """Reads a folder of images; returns None where no image lies in it or below.

    Raises:
        InvalidInput: an image stands in no folder of a class, is a link to nothing, or has a name that no store takes;
            no file of a class is an image; or a folder cannot be read.
    """
    found = _files_in(wanted, folder)
    images = [path for path in found if path.suffix.lower() in SUFFIXES]
    if not images:
        return None
    _check_files(wanted, folder, images, [path for path in found if not path.suffix])
    has_splits = _has_splits(wanted, images)
    num_above = 2 if has_splits else 1
    stray = [path for path in images if len(path.parts) <= num_above]
    if stray:
        below = "a split's folder" if has_splits else str(folder)
        raise wanted.fault(
            f"{counted(len(stray), 'image')} with no class: {listed(stray, MAX_SHOWN)}. Directly below {below} a "
            "folder per class is expected, named as the class, with its images in it"
        )
    others = {path.parts[:num_above] for path in found if len(path.parts) > num_above}
    if barren := sorted(others - {path.parts[:num_above] for path in images}):
        endings = sorted({path.suffix.lower() or "none" for path in found if path.parts[:num_above] in barren})
        raise wanted.fault(
            f"no image can be read in {listed([PurePosixPath(*of) for of in barren], MAX_SHOWN, show=_shown)}, whose "
            f"files have the endings {listed(endings, MAX_SHOWN)}: a folder here is a class. Convert its files, to "
            "JPEG or PNG for example, or move it elsewhere"
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
    return ImageFolder(splits, tuple(map(str, images)), tuple(_notes(wanted, folder, found)))


def _files_in(wanted: Wanted, folder: Path) -> list[PurePosixPath]:
    """The files in a folder and below, also behind links, by their paths from it, in order; none that is hidden."""
    try:
        names = fingerprint.names_in(folder, HIDDEN)
    except OSError as error:
        raise wanted.fault(f"cannot be read: {error}") from None
    if back := [folder / name for name in names if (folder / name).is_dir()]:
        raise wanted.fault(f"{_shown(back[0])} is a link to a folder that it lies in; remove it")
    return sorted(map(PurePosixPath, names))


def _check_files(wanted: Wanted, folder: Path, images: list[PurePosixPath], bare: list[PurePosixPath]) -> None:
    """``bare``: files without an ending; one that leads nowhere may be the link of a class."""
    faults = {path: key_fault(f"{INPUTS}/{'0' * 64}/{folder.name}/{path}") for path in images}
    if named := [(path, fault) for path, fault in faults.items() if fault]:
        raise wanted.fault(
            f"{counted(len(named), 'image')} with names that no store takes: "
            f"{listed([f'{_shown(path)} ({fault})' for path, fault in named], MAX_SHOWN)}; rename the files or folders"
        )
    if missing := [path for path in (*images, *bare) if not (folder / path).is_file()]:
        raise wanted.fault(
            f"{len(missing)} of {counted(len(images) + len(bare), 'file')} are links to nothing, or no files: "
            f"{listed(missing, MAX_SHOWN, show=_shown)}; "
            "bring what they mean, as git annex get or dvc pull do, or remove them"
        )


def _shown(path: object) -> str:
    """Returns a name for messages; bytes that are not UTF-8 are written as \\x.."""
    return os.fsencode(str(path)).decode(errors="backslashreplace")


def _has_splits(wanted: Wanted, images: list[PurePosixPath]) -> bool:
    """Returns whether the folders at the top are splits: one is called train, and its images lie in folders in it."""
    of_train = [path for path in images if path.parts[0] == TRAIN]
    if not of_train or any(len(path.parts) <= 2 for path in of_train):
        return False
    others = sorted({path.parts[0] for path in images if len(path.parts) > 1} - {TRAIN})
    if others and not any(_SPLIT.fullmatch(name) for name in others):
        raise wanted.fault(
            f"the folder {TRAIN!r} has folders in it, as a split has; beside it: {listed(others, MAX_SHOWN)}. If "
            "these are splits, give one of them the name val, valid, validation, test, dev or eval; if all are "
            f"classes, give {TRAIN!r} another name, or put its images directly in it"
        )
    return True


def _notes(wanted: Wanted, folder: Path, found: list[PurePosixPath]) -> list[str]:
    """Returns what lies there and is not used."""
    tops = {path.parts[0] for path in found if path.suffix.lower() in SUFFIXES}
    others = [path.name for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith(HIDDEN)]
    notes = []
    if empty := [name for name in others if name not in tops]:
        notes.append(f"{wanted.field}={wanted.address!r}: no image in {listed(empty, MAX_SHOWN, show=_shown)}")
    if unread := [path for path in found if path.suffix.lower() not in SUFFIXES]:
        notes.append(
            f"{wanted.field}={wanted.address!r}: {counted(len(unread), 'file')} left out, with endings other than "
            f"{', '.join(SUFFIXES)}: {listed(unread, MAX_SHOWN, show=_shown)}"
        )
    return notes
