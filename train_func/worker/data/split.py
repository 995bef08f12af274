"""Prepares what a run trains on and is measured on, as `datasets`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from datasets import Dataset

from train_func.storage import Store
from train_func.tasks import TextClassification
from train_func.worker.data.train_eval_split import split_rows


@dataclass(frozen=True)
class Prepared:
    """Both sides have the columns ``text``, ``label`` (index into ``labels``) and ``row_id``.

    ``row_id`` is the row's position in the data set; ids of a held-out split or file of its own go on from there.
    """

    train: Dataset
    held_out: Dataset
    labels: tuple[str, ...]
    notes: list[str]
    fingerprints: Mapping[str, str]
    """Of what the rows were read from, by the field of the task that names it."""


def prepare(task: TextClassification, seed: int, store: Store | None, cache: Path) -> Prepared:
    """The rows of the task: the same on every rank and machine, because only the data and the seed decide.

    With a share as ``held_out``, so many of the rows are drawn with the seed, from each class in proportion; a name
    takes that split, an address that file. ``samples`` is the number of rows used, training and held-out together:
    they are drawn first, from each class in proportion, and then divided by the share, or as the two splits are.

    Raises:
        InvalidInput: with every fault of the data at once.
        StorageFailed: the store is away or denies.
    """
    divided = split_rows(task, seed, store, cache)
    return Prepared(
        train=Dataset(divided.train),
        held_out=Dataset(divided.held_out),
        labels=divided.labels,
        notes=divided.notes,
        fingerprints=divided.fingerprints,
    )
