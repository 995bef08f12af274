"""Weighing: how much each micro-batch counts in its step, so that the step is one mean over its global batch.

A loss is a mean over the items of the micro-batch: its labels, or its rows. Items are counted in the collated tensors
that the loss is computed from: padded, cut and masked, as the collator has left them.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers.trainer_pt_utils import find_batch_size

from train_func.worker.training import world
from train_func.worker.training.loader import PLACE, Place

IGNORED = -100  # an integer label that no loss counts
LABELS = ("shift_labels", "labels")  # the first that is there is what the loss looks at


def num_items(inputs: Mapping[str, Any], shifts_labels: bool) -> int:
    """Over how many items a loss of ``inputs`` is the mean: labels other than IGNORED, or rows.

    ``shifts_labels``: each token's label is the next token, so the first label of a row is never looked at.
    """
    name = next((name for name in LABELS if isinstance(inputs.get(name), torch.Tensor)), None)
    if name is None:
        return find_batch_size(inputs) or 0
    labels: torch.Tensor = inputs[name]
    if name == "labels" and shifts_labels:
        labels = labels[..., 1:]
    return labels.numel() if labels.is_floating_point() else int(labels.ne(IGNORED).sum())


def divisor(items: int, device: torch.device) -> torch.Tensor:
    """num_items_in_batch as transformers gives it; never 0."""
    return torch.tensor(max(items, 1), device=device)


def with_labels(inputs: Any) -> Any:
    """``inputs``, in which no token has a label, with labels: a mean over none of them would have no finite gradient.

    For micro-batches that count nothing, and are computed because the other ranks wait for this one's gradients.
    """
    for name in LABELS:
        if isinstance(inputs.get(name), torch.Tensor):
            inputs[name] = inputs[name].masked_fill(inputs[name].eq(IGNORED), 0)
    return inputs


@dataclass(frozen=True)
class MicroBatch:
    """What the step knows of one of its micro-batches beside its tensors."""

    place: Place
    num_items: int
    """Of the loss, those of a filler included."""

    @property
    def weight(self) -> int:
        """Items that count in the step."""
        return self.num_items if self.place.row_ids else 0


class Step(list[Any]):
    """This rank's micro-batches of one step, in the shape in which transformers' training loop goes through them."""

    def __init__(self, batches: Iterable[Any], shifts_labels: bool, device: torch.device) -> None:
        """Collective. Takes off ``batches`` where in the plan they stand, which is not for the user's code to see."""
        super().__init__(batches)
        self._parts = [MicroBatch(inputs.pop(PLACE), num_items(inputs, shifts_labels)) for inputs in super().__iter__()]
        own = torch.tensor(sum(part.weight for part in self._parts), device=device)
        self.weight = max(int(world.total(own)), 1)
        """Items of the global batch, over all ranks; 1 where there are none."""
        self.now = self._parts[0]
        """The one that the loop has come to."""

    def __iter__(self) -> Iterator[Any]:
        for part, inputs in zip(self._parts, super().__iter__(), strict=True):
            self.now = part
            yield inputs
