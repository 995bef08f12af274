"""The loader of one rank's part of the plan: entry after entry, epoch after epoch, distributed no further.

What is drawn at random depends on the place in the plan, not on the number of ranks nor on what was drawn before.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader, Sampler

from train_func.errors import TrainFuncError
from train_func.worker.training.plan import ROW_ID, Place, plan_of, positions_of

Purpose = Literal["collate", "forward", "evaluate"]
PAD_TO = 8  # tokens: lengths of a micro-batch are rounded up to this in half precision
_PURPOSES: dict[Purpose, int] = {"collate": 0, "forward": 1, "evaluate": 2}


def seed_for(purpose: Purpose, seed: int, step: int, micro: int) -> None:
    """Seeds every generator of this process for one micro-batch of one step; ``micro`` may be -1."""
    place = np.random.SeedSequence([seed, step, micro + 1, _PURPOSES[purpose]])
    number = int(place.generate_state(1, np.uint64)[0]) >> 1
    random.seed(number)
    np.random.seed(number % 2**32)  # what a user's collator may draw from
    _torch_seeder()(number)


@cache
def _torch_seeder() -> Callable[[int], object]:
    """Returns what seeds torch; torch.manual_seed formats a stack for each kind of device that is not there."""
    return torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed


def seed_all(seed: int) -> None:
    """Seeds every generator of this process as transformers' set_seed does."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def random_state() -> dict[str, Any]:
    """Returns the state of every random generator of this process."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random(state: dict[str, Any]) -> None:
    """Puts back what ``random_state`` returned."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


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


Collator = Callable[[list[dict[str, Any]]], Any]


class PlanLoader(DataLoader[Any]):
    """Serves the micro-batches of one epoch after another: their places and batches, or what a collator raised."""

    sampler: "EntriesOfEpoch"

    def __init__(self, part: Dataset, collator: Collator, *, as_tensors: bool = False, **others: Any) -> None:
        """Makes a loader over a rank's part of a plan.

        Args:
            part: split once.
            collator: makes a batch of rows.
            as_tensors: whether rows that have no format of their own get that of torch.
            others: what torch's loader takes for its processes and their memory.
        """
        super().__init__(
            _Micros(part, as_tensors=as_tensors),
            sampler=EntriesOfEpoch(len(part)),
            batch_size=None,
            collate_fn=_Collate(collator, plan_of(part).facts.seed),  # type: ignore[arg-type]  # one entry at a time
            generator=torch.Generator(),  # its own, so that it draws nothing from the process's
            **others,
        )


class EntriesOfEpoch(Sampler[int]):
    """Numbers the entries of an epoch, over all epochs."""

    def __init__(self, num_entries: int) -> None:
        self.num_entries = num_entries
        self.epoch = self.skipped = 0
        """The one to serve next, from 0, and how many of its first entries not to serve."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.epoch * self.num_entries + self.skipped, (self.epoch + 1) * self.num_entries))

    def __len__(self) -> int:
        return self.num_entries


class _Micros(torch.utils.data.Dataset[Any]):
    """The places and rows of a rank's micro-batches by their numbers over all epochs."""

    def __init__(self, part: Dataset, *, as_tensors: bool) -> None:
        self._plan, self._positions = plan_of(part), positions_of(part)
        rows = self._plan.rows
        self._rows = rows.with_format("torch") if as_tensors and rows.format["type"] is None else rows

    def __len__(self) -> int:
        """Number of batches of one epoch."""
        return len(self._positions)

    def __getitem__(self, number: int) -> tuple[Place, list[dict[str, Any]]]:
        epoch, entry = divmod(number, len(self._positions))
        return self._plan.entry(epoch, int(self._positions[entry]), self._rows)


class _Collate:
    """Makes a batch of the rows of a micro-batch, its random choices seeded by its place.

    What the collator raises takes the place of the batch: torch would keep no more than its text of another process.
    """

    def __init__(self, collator: Collator, seed: int) -> None:
        self._collator, self._seed = collator, seed

    def __call__(self, micro_batch: tuple[Place, list[dict[str, Any]]]) -> tuple[Place, Any]:
        place, features = micro_batch
        seed_for("collate", self._seed, place.step, place.micro)
        try:
            return place, self._collator(features)
        except TrainFuncError as error:
            return place, error


def take_row_ids(features: list[dict[str, Any]]) -> tuple[Any, ...]:
    """Takes the ids off the rows, whose other columns go to the model, and returns them."""
    return tuple(feature.pop(ROW_ID) for feature in features)


def padded(collator: Any, *, is_half: bool) -> Any:
    """Lets a collator of transformers pad to lengths that matrix kernels of half precision like, and returns it."""
    if is_half and getattr(collator, "pad_to_multiple_of", PAD_TO) is None:
        collator.pad_to_multiple_of = PAD_TO
    return collator
