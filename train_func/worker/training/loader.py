"""The loader of one rank's part of the plan: entry after entry, epoch after epoch, distributed no further.

What is drawn at random depends on the place in the plan, not on the number of ranks nor on what was drawn before.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import BatchSampler, DataLoader, Sampler

from train_func.errors import TrainFuncError
from train_func.worker.training.plan import PAD_TO, ROW_ID, PlanFacts

Purpose = Literal["collate", "forward", "evaluate"]
_PURPOSES: dict[Purpose, int] = {"collate": 0, "forward": 1, "evaluate": 2}


def seed_for(purpose: Purpose, seed: int, step: int, micro: int) -> None:
    """Seeds every generator of this process for one micro-batch of one step; ``micro`` may be -1."""
    place = np.random.SeedSequence([seed, step, micro + 1, _PURPOSES[purpose]])
    number = int(place.generate_state(1, np.uint64)[0]) >> 1
    random.seed(number)
    np.random.seed(number % 2**32)  # what a user's collator may draw from
    _seed_torch(number)


def _seed_torch(number: int) -> None:
    """As torch.manual_seed, which formats a stack for each kind of device that is not there."""
    if _has_accelerator():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restores the state of all random generators at the end of the block."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


PLACE = "place_in_the_plan"
Collator = Callable[[list[dict[str, Any]]], Any]


@dataclass(frozen=True)
class Place:
    """Which micro-batch a batch of tensors is; stands among them under PLACE until the step begins."""

    step: int
    """Of the run, from 0."""
    micro: int
    batch_rows: int
    """Rows of the global batch."""
    row_ids: tuple[Any, ...]
    """Of this micro-batch; empty when its one row only fills it."""


class PlanLoader(DataLoader[Any]):
    """Serves the micro-batches of one epoch; its sampler knows which."""

    def __init__(self, part: Dataset, facts: PlanFacts, collator: Collator, **others: Any) -> None:
        """``others``: what torch's loader takes for its processes and their memory."""
        entries = EntriesOfEpoch(facts.steps_per_epoch * facts.accumulation)
        super().__init__(
            part,
            batch_sampler=BatchSampler(entries, batch_size=1, drop_last=False),
            collate_fn=_Collate(collator, facts.seed),
            generator=torch.Generator(),  # its own, so that it draws nothing from the process's
            **others,
        )


class EntriesOfEpoch(Sampler[int]):
    """Where the entries of an epoch stand in the part."""

    def __init__(self, num_entries: int) -> None:
        self.num_entries = num_entries
        self.epoch = self.skipped = 0
        """The one to serve next, from 0, and how many of its first entries not to serve."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch * self.num_entries + self.skipped, (self.epoch + 1) * self.num_entries))

    def __len__(self) -> int:
        return self.num_entries


class _Collate:
    """Turns an entry of the plan into padded tensors, its random choices seeded by its place.

    Or into what the collator has raised: torch would keep no more than its text of another process.
    """

    def __init__(self, collator: Collator, seed: int) -> None:
        self.collator, self.seed = collator, seed

    def __call__(self, entries: list[dict[str, Any]]) -> Any:
        (entry,) = entries
        seed_for("collate", self.seed, entry["step"], entry["micro"])
        row_ids = take_row_ids(entry["features"])
        place = Place(entry["step"], entry["micro"], entry["batch_rows"], row_ids if entry["rows"] else ())
        try:
            batch = copy(self.collator(entry["features"]))  # of any class that the collator makes
        except TrainFuncError as error:
            return error
        batch[PLACE] = place
        return batch


def entries_of(loader: Any) -> EntriesOfEpoch | None:
    """Those that a loader serves, also of one that Accelerate has put around it; None where it serves no plan."""
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    return sampler if isinstance(sampler, EntriesOfEpoch) else None


def take_row_ids(features: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Takes the ids off the rows, whose other columns go to the model."""
    return tuple(feature.pop(ROW_ID) for feature in features)


def padded(collator: Any) -> Any:
    """A collator of transformers such that it pads to lengths that the matrix kernels like."""
    if getattr(collator, "pad_to_multiple_of", PAD_TO) is not None:
        return collator
    collator.pad_to_multiple_of = PAD_TO
    return collator
