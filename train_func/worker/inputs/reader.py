"""Reads a data set, in any of its formats, into one table per split."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import pyarrow as pa

from train_func.errors import InvalidInput
from train_func.inputs import DATA_SUFFIXES
from train_func.storage import Store
from train_func.tables import is_table, saved
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.cache import machine_cache
from train_func.worker.inputs.image_folder import read_image_folder
from train_func.worker.inputs.locate import LocalFiles, Reference, locate
from train_func.worker.inputs.row_files import read_conll, read_csv, read_json, read_parquet, read_tsv

if TYPE_CHECKING:
    from datasets import Dataset
    from pandas import DataFrame

ALL = "all"
FEATURES = b"huggingface"  # the key under which `datasets` keeps its features in an Arrow schema


class FileOfRows(Mapping[str, pa.Table]):
    """The split of a single file, called "all"; the file is read when its table is first used."""

    def __init__(self, read: Callable[[], pa.Table]) -> None:
        self._read = read

    @cached_property
    def table(self) -> pa.Table:
        return self._read()

    def __getitem__(self, name: str) -> pa.Table:
        if name != ALL:
            raise KeyError(name)
        return self.table

    def __iter__(self) -> Iterator[str]:
        return iter((ALL,))

    def __len__(self) -> int:
        return 1


@dataclass(frozen=True)
class RawDataset:
    """A data set as it is stored: ``splits`` maps names to tables."""

    where: str
    splits: Mapping[str, pa.Table]
    fingerprint: str
    notes: tuple[str, ...] = field(default=())
    local: LocalFiles | None = None
    """Its files on this machine; None if it comes from a store or the Hub."""
    commit: str | None = None
    """Commit on the Hub."""

    def training(self) -> str:
        """Returns the name of the split to train on.

        Raises:
            InvalidInput: several splits, and none is named train.
        """
        if len(self.splits) == 1 or "train" in self.splits:
            return "train" if "train" in self.splits else next(iter(self.splits))
        raise InvalidInput(
            f"{self.where}: none of its splits is named 'train'; it has: {', '.join(self.splits)}", cause="data"
        )


def read(
    dataset: "str | PurePath | DataFrame | Dataset",
    *,
    split: str | None = None,
    subset: str | None = None,
    revision: str = "main",
) -> "Dataset":
    """Returns the rows of a data set, to look at: the training rows, or those of ``split``.

    Args:
        dataset: as a Run takes it: Hub id, csv/tsv/json/jsonl/parquet/conll file, saved ``datasets`` folder, folder
            with a folder of images per class, store or package address, DataFrame or ``datasets.Dataset``.

    Raises:
        InvalidInput: it cannot be found or read; the message names file, row and remedy.
        StorageFailed: the store is away or denies.
    """
    from datasets import Dataset

    address = saved(dataset, "dataset") if is_table(dataset) else str(dataset)
    reference = Reference("dataset", address, "dataset", revision)
    source = read_source(reference, subset, None, machine_cache(os.environ))
    name = split or source.training()
    if name not in source.splits:
        raise InvalidInput(f"{source.where} has no split {name!r}; it has: {', '.join(source.splits)}", cause="data")
    return Dataset(source.splits[name])


def read_source(reference: Reference, subset: str | None, store: Store | None, cache: Path) -> RawDataset:
    """Returns all splits of the data set that ``reference`` means; a file is read when its table is first used.

    Raises:
        InvalidInput: it cannot be found or read; the table of a file raises it too.
        StorageFailed: the store is away or denies.
    """
    place = locate(reference, store, cache)
    if place is None:
        from train_func.worker.inputs.hub_dataset import read_hub

        commit, tables, notes = read_hub(reference, subset)
        return RawDataset(str(reference), tables, commit, notes, commit=commit)
    faults = []
    if subset is not None:
        faults.append(f"subset={subset!r}: only a Hub data set has subsets, and {place} is none; leave subset out")
    if reference.revision != "main":
        faults.append(
            f"dataset_revision={reference.revision!r}: only a Hub data set has revisions, and {place} is none"
        )
    if faults:
        raise InvalidInput(faults, cause="data")
    if place.is_dir():
        with reference.reading():
            return _folder(reference, place, cache)
    if place.suffix.lower() not in DATA_SUFFIXES:
        raise reference.fault(
            f"a file is read by its ending, which is one of {', '.join(DATA_SUFFIXES)}; unpack, rename or convert it, "
            "or give a DataFrame instead: dataset=pd.read_excel(...)"
        )
    with reference.reading():
        sha256 = fingerprint.of_file(place, cache)
    file, local = FileOfRows(partial(_read_file, reference, place)), LocalFiles.of_path(reference, place, {"": sha256})
    return RawDataset(str(place), file, sha256, local=local)


def class_names(table: pa.Table, column: str) -> tuple[str, ...]:
    """Returns the names that `datasets` stores for the integers of a column or of its lists; else none."""
    metadata = (table.schema.metadata or {}).get(FEATURES)
    feature = json.loads(metadata)["info"]["features"].get(column) if metadata else None
    while isinstance(feature, list) or (isinstance(feature, dict) and "feature" in feature):
        feature = feature[0] if isinstance(feature, list) else feature["feature"]
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
        return tuple(feature["names"])
    return ()


def _read_file(reference: Reference, path: Path) -> pa.Table:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        return read_parquet(path, leaves_bytes=bool(reference.columns))
    try:
        if suffix == ".conll":
            return read_conll(path)
        if suffix == ".csv":
            return read_csv(path, reference.columns)
        return read_tsv(path) if suffix == ".tsv" else read_json(path)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}: is no UTF-8 text: {error}; convert it, as `iconv -f WINDOWS-1252 -t UTF-8` does, or give a "
            "DataFrame instead: dataset=pd.read_csv(..., encoding=...)",
            cause="data",
        ) from None


def _folder(reference: Reference, folder: Path, cache: Path) -> RawDataset:
    names = sorted(path.name for path in folder.iterdir())
    if {"dataset_info.json", "dataset_dict.json"} & set(names):
        from train_func.worker.inputs.hub_dataset import read_saved

        files = [name for name in fingerprint.names_in(folder) if (folder / name).is_file()]
        parts = fingerprint.of_each(folder, files, cache)
        local = LocalFiles.of_path(reference, folder, parts)
        return RawDataset(str(folder), read_saved(folder), fingerprint.of_named(parts), local=local)
    if read := read_image_folder(reference, folder):
        parts = fingerprint.of_each(folder, read.files, cache)
        local = LocalFiles.of_path(reference, folder, parts)
        return RawDataset(str(folder), read.splits, fingerprint.of_named(parts), read.notes, local)
    files = [name for name in names if name.lower().endswith(DATA_SUFFIXES)]
    hint = f"; name one of its files: {', '.join(files[:5])}" if files else ""
    raise reference.fault(
        "the folder was not saved by datasets' save_to_disk: it has neither dataset_info.json nor "
        f"dataset_dict.json; and it holds no images, in a folder per class{hint}"
    )
