"""Weighing: what a loss is a mean over, and how much each micro-batch counts, so that a step is one mean.

Items are the labels of a micro-batch, or its rows. They are counted in the collated tensors that the loss is computed
from: padded, cut and masked, as the collator has left them.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from train_func.errors import TrainFuncError
from train_func.worker.rank import world
from train_func.worker.training.loader import PLACE, Place

IGNORED = -100  # the integer label that no loss counts, where the model does not name another
NAMED_BY = ("semantic_loss_ignore_index", "loss_ignore_index")  # configs of models for semantic segmentation
LABELS = ("shift_labels", "labels")  # the first that is there is what the loss looks at


@dataclass(frozen=True)
class Items:
    """How the items of a loss are counted."""

    shifts_labels: bool = False
    """Where tokens have labels, each one's is the next token: the first label of a row is not an item."""
    ignored: int = IGNORED
    own: Callable[[Mapping[str, Any], int], int | None] | None = None
    """The task's own count, where it has one."""

    def count(self, inputs: Mapping[str, Any], num_rows: int) -> int:
        """Labels of ``inputs`` other than the ignored one; ``num_rows`` where there is no tensor of labels."""
        if self.own and (num_items := self.own(inputs, num_rows)) is not None:
            return num_items
        name = next((name for name in LABELS if isinstance(inputs.get(name), torch.Tensor)), None)
        if name is None:
            return num_rows
        labels: torch.Tensor = inputs[name]
        if name == "labels" and self.shifts_labels and _are_of_tokens(labels, inputs.get("input_ids")):
            labels = labels[..., 1:]
        return labels.numel() if labels.is_floating_point() else int(labels.ne(self.ignored).sum())

    def with_labels(self, inputs: Any) -> Any:
        """``inputs``, in which no token has a label, with labels: a mean over none has no finite gradient.

        For micro-batches that count nothing, and are computed because the other ranks wait for this one's gradients.
        """
        for name in LABELS:
            if isinstance(inputs.get(name), torch.Tensor):
                inputs[name] = inputs[name].masked_fill(inputs[name].eq(self.ignored), 0)
        return inputs


def _are_of_tokens(labels: torch.Tensor, tokens: Any) -> bool:
    """Whether each token has a label. Rows have theirs where a head over rows sits on a language model."""
    if labels.is_floating_point() or labels.ndim < 2:
        return False
    return labels.shape == tokens.shape if isinstance(tokens, torch.Tensor) else labels.shape[-1] > 1


def items_of(
    model: nn.Module, *, shifts_labels: bool, own: Callable[[Mapping[str, Any], int], int | None] | None = None
) -> Items:
    """Those of the loss of ``model``, also where it is a module of the user's own around one of transformers.

    ``shifts_labels``: whether transformers takes the loss for one that shifts. It asks the outermost module for its
    ``loss_type``, and takes GPT-2's None for a loss that does not shift, though None stands for ForCausalLMLoss.
    """
    named = {index for of in _of_transformers(model) if (index := _ignored_by(of)) is not None}
    shifts = {_shifts(of) for of in _of_transformers(model) if _has_loss(of)}
    return Items(
        (shifts_labels or shifts == {True}) and not _is_encoder_decoder(model),
        named.pop() if len(named) == 1 else IGNORED,
        own,
    )


def items_of_loop(models: Sequence[nn.Module], *, shifts_labels: bool | None) -> Items | None:
    """Those of the loss of a loop over these models; ``shifts_labels``: what the loop itself says of it.

    None where neither tells whether the loss shifts its labels.
    """
    known = any(_has_loss(of) for model in models for of in _of_transformers(model))
    if shifts_labels is None and not known:
        return None
    found = items_of(nn.ModuleList(models), shifts_labels=False)
    return found if shifts_labels is None else replace(found, shifts_labels=shifts_labels)


def is_shift_in_doubt(inputs: Mapping[str, Any], items: Items | None) -> bool:
    """Whether what the models tell of their loss does not go with the labels of a batch; ``items``: what they tell.

    A loss that shifts labels is given the tokens themselves as labels, from the first one on but for those that do not
    count. A loop that has shifted them itself gives other ones, of which the first counts too.
    """
    labels, tokens = inputs.get("labels"), inputs.get("input_ids")
    if not isinstance(labels, torch.Tensor) or "shift_labels" in inputs or not _are_of_tokens(labels, tokens):
        return False
    counts = labels.ne(IGNORED if items is None else items.ignored)
    are_tokens = isinstance(tokens, torch.Tensor) and bool(labels.eq(tokens)[counts].all())
    if items is None:
        return are_tokens and bool(counts[..., :2].all(-1).any())
    return items.shifts_labels and not are_tokens


def _of_transformers(model: nn.Module) -> Iterator[PreTrainedModel]:
    return (module for module in model.modules() if isinstance(module, PreTrainedModel))


def _has_loss(model: PreTrainedModel) -> bool:
    """Whether transformers knows what loss its forward computes; base models compute none, and have no type either."""
    if model.loss_type is not None:
        return True
    code = getattr(inspect.unwrap(type(model).forward), "__code__", None)
    return code is not None and "loss_function" in code.co_names


def _shifts(model: PreTrainedModel) -> bool:
    return model.loss_function is ForCausalLMLoss and not _is_encoder_decoder(model)


def _is_encoder_decoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def _ignored_by(model: PreTrainedModel) -> int | None:
    """Models for images have it in their config also where their loss, over classes, does not look at it."""
    if not type(model).__name__.endswith("ForSemanticSegmentation"):
        return None
    return next((index for name in NAMED_BY if (index := getattr(model.config, name, None)) is not None), None)


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
        """Takes off ``inputs`` where in the plan they stand, which is not for the user's code to see.

        Raises what the collator has raised, where the loader that gives it in place of a batch was replaced.
        """
        if isinstance(inputs, TrainFuncError):
            raise inputs
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
