"""Weighing: how much each micro-batch counts in its step, so that the step is one mean over its global batch."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch

from train_func.worker.training import world
from train_func.worker.training.items import Items
from train_func.worker.training.loader import PLACE, Place


def divisor(items: int, device: torch.device) -> torch.Tensor:
    """num_items_in_batch as transformers gives it; never 0."""
    return torch.tensor(max(items, 1), device=device)


@dataclass(frozen=True)
class MicroBatch:
    """What the step knows of one of its micro-batches beside its tensors."""

    place: Place
    num_items: int
    """Of the loss, those of a filler included."""

    @classmethod
    def taken_from(cls, inputs: Any, items: Items) -> Self:
        """Takes off ``inputs`` where in the plan they stand, which is not for the user's code to see."""
        place: Place = inputs.pop(PLACE)
        return cls(place, items.count(inputs, num_rows=len(place.row_ids) or 1))

    @property
    def weight(self) -> int:
        """Items that count in the step."""
        return self.num_items if self.place.row_ids else 0


class Step(list[Any]):
    """This rank's micro-batches of one step, in the shape in which transformers' training loop goes through them."""

    def __init__(self, batches: Iterable[Any], items: Items, device: torch.device, votes: Sequence[int] = ()) -> None:
        """Collective. ``votes``: of this rank; they are counted in the same exchange."""
        super().__init__(batches)
        self._parts = [MicroBatch.taken_from(inputs, items) for inputs in super().__iter__()]
        own = torch.tensor([sum(part.weight for part in self._parts), *votes], device=device)
        counts: list[int] = world.total(own).tolist()
        self.weight = max(counts[0], 1)
        """Items of the global batch, over all ranks; 1 where there are none."""
        self.votes = counts[1:]
        """Of all ranks."""
        self.now = self._parts[0]
        """The one that the loop has come to."""

    def __iter__(self) -> Iterator[Any]:
        for part, inputs in zip(self._parts, super().__iter__(), strict=True):
            self.now = part
            yield inputs
