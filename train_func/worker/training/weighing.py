"""Weighing: what a loss is a mean over, and how much each micro-batch counts, so that a step is one mean.

A loss is the mean over the items of a micro-batch. A step is to be the mean over its global batch, so each micro-batch
counts as much as it has of the items: the mean of means would weigh a label in a short micro-batch more than one in a
long one, and the result would depend on the cut and on the number of ranks. Items are the labels other than the ignored
one where tokens, pixels or rows have labels, and rows where there are none. They are counted in the collated tensors
that the loss is computed from: padded, cut and masked, as the collator has left them.

Two things of a loss are not to be seen in its tensors, and are asked of the model:

- Whether it shifts the labels, as a causal language model does, which compares each token with the label of the next.
  Then the first label of each row is no item. transformers decides by ``loss_type`` and ``loss_function``; a model of
  encoder and decoder shifts its labels before. A loop of one's own may have shifted them itself, so the labels of its
  first batch are compared with the tokens, and where they do not go with what the models tell, the loop has to say it.
- Which label is ignored: -100, or what the config of a model for semantic segmentation names.

A task that knows better counts for itself (``count_own``). A micro-batch without items counts nothing. Where the other
ranks wait for its gradients it is computed all the same, with labels put in, as a mean over nothing would be nan.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from train_func.errors import InvalidInput

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IGNORED = -100  # the integer label that no loss counts, where the model does not name another
NAMED_BY = ("semantic_loss_ignore_index", "loss_ignore_index")  # configs of models for semantic segmentation
LABELS = ("shift_labels", "labels")  # the first that is there is what the loss looks at


@dataclass(frozen=True)
class Items:
    """How the items of a loss are counted."""

    shifts_labels: bool = False
    """Where tokens have labels, each one's is the next token: the first label of a row is not an item."""
    ignored: int = IGNORED
    count_own: Callable[[Mapping[str, Any], int], int | None] | None = None
    """The task's own count, where it has one."""

    def count(self, inputs: Mapping[str, Any], num_rows: int) -> int:
        """Returns the number of labels but the ignored ones; ``num_rows`` where there is no tensor of labels."""
        num_items = self.count_own(inputs, num_rows) if self.count_own else None
        if num_items is not None:
            return num_items
        name = next((name for name in LABELS if isinstance(inputs.get(name), torch.Tensor)), None)
        if name is None:
            return num_rows
        labels: torch.Tensor = inputs[name]
        if name == "labels" and self.shifts_labels and _are_of_tokens(labels, inputs.get("input_ids")):
            labels = labels[..., 1:]
        return labels.numel() if labels.is_floating_point() else int(labels.ne(self.ignored).sum())

    def with_labels(self, inputs: Any) -> Any:
        """Puts labels into ``inputs``, in which no token has one: a mean over none has no finite gradient."""
        for name in LABELS:
            if isinstance(inputs.get(name), torch.Tensor):
                inputs[name] = inputs[name].masked_fill(inputs[name].eq(self.ignored), 0)
        return inputs


def _are_of_tokens(labels: torch.Tensor, tokens: Any) -> bool:
    """Tells whether each token has a label. Rows have theirs where a head over rows sits on a language model."""
    if labels.is_floating_point() or labels.ndim < 2:
        return False
    return labels.shape == tokens.shape if isinstance(tokens, torch.Tensor) else labels.shape[-1] > 1


def items_of(
    model: nn.Module, *, shifts_labels: bool, count_own: Callable[[Mapping[str, Any], int], int | None] | None = None
) -> Items:
    """Returns the items of the loss of ``model``, which may be a module of the user's own around one of transformers.

    ``shifts_labels``: whether transformers takes the loss for one that shifts. It asks the outermost module for its
    ``loss_type``, and takes GPT-2's None for a loss that does not shift, though None stands for ForCausalLMLoss.
    """
    ignored, shifts = set[int](), set[bool]()
    for part in _of_transformers(model):
        if type(part).__name__.endswith("ForSemanticSegmentation"):  # other configs have it, and their loss ignores it
            indices = [getattr(part.config, name, None) for name in NAMED_BY]
            ignored |= {*[index for index in indices if index is not None][:1]}
        if _has_loss(part):
            from transformers.loss.loss_utils import ForCausalLMLoss

            shifts.add(part.loss_function is ForCausalLMLoss and not _is_encoder_decoder(part))
    return Items(
        (shifts_labels or shifts == {True}) and not _is_encoder_decoder(model),
        ignored.pop() if len(ignored) == 1 else IGNORED,
        count_own,
    )


def items_of_loop(models: Sequence[nn.Module], *, shifts_labels: bool | None) -> Items | None:
    """Returns the items of the loss of a loop over these models; ``shifts_labels``: what the loop itself says of it.

    Returns None where neither tells whether the loss shifts its labels.
    """
    is_known = any(_has_loss(part) for model in models for part in _of_transformers(model))
    if shifts_labels is None and not is_known:
        return None
    items = items_of(nn.ModuleList(models), shifts_labels=False)
    return items if shifts_labels is None else replace(items, shifts_labels=shifts_labels)


def check_shift(batches: Sequence[Any], items: Items | None) -> None:
    """Checks the batches of the first step of a loop of one's own; ``items``: what its models say of their loss.

    A loss that shifts labels is given the tokens themselves as labels, from the first one on but for those that do not
    count. A loop that has shifted them itself gives other ones, of which the first counts too.

    Raises:
        InvalidInput: (cause "code") a mean over labels depends on what is not known: whether the loss shifts them.
    """
    for inputs in batches:
        labels, tokens = (
            (inputs.get("labels"), inputs.get("input_ids")) if isinstance(inputs, Mapping) else (None, None)
        )
        if not isinstance(labels, torch.Tensor) or "shift_labels" in inputs or not _are_of_tokens(labels, tokens):
            continue
        counts = labels.ne(IGNORED if items is None else items.ignored)
        are_tokens = isinstance(tokens, torch.Tensor) and bool(labels.eq(tokens)[counts].all())
        if items is None and are_tokens and counts[..., :2].all(-1).any():
            raise InvalidInput(
                "session.steps: the labels of a batch are its input_ids, and session.checkpoint was given no model of "
                "transformers whose loss tells whether it shifts them, so that the first label of each row does not "
                "count. Say it: session.steps(plan, shifts_labels=True), as for a language model that predicts the "
                "next token, or shifts_labels=False; or give the model to session.checkpoint(model, optimizer) before",
                cause="code",
            )
        if items and items.shifts_labels and not are_tokens:
            raise InvalidInput(
                "session.steps: the loss of the model that session.checkpoint was given shifts labels, so that the "
                "first label of each row does not count; but the labels of a batch are not its input_ids, as such a "
                "loss expects them. Say it: session.steps(plan, shifts_labels=False) where the loop has shifted them "
                "itself, as with input_ids=ids[:, :-1] and labels=ids[:, 1:], or shifts_labels=True where the loss "
                "shifts them",
                cause="code",
            )


def _of_transformers(model: nn.Module) -> "Iterator[PreTrainedModel]":
    modeling: Any = sys.modules.get("transformers.modeling_utils")  # where it was not imported, no model is of it
    modules = model.modules() if modeling else ()
    return (module for module in modules if isinstance(module, modeling.PreTrainedModel))


def _has_loss(model: "PreTrainedModel") -> bool:
    """Tells whether transformers knows what loss the forward pass computes; base models compute none."""
    if model.loss_type is not None:
        return True
    code = getattr(inspect.unwrap(type(model).forward), "__code__", None)
    return code is not None and "loss_function" in code.co_names


def _is_encoder_decoder(model: nn.Module) -> bool:
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def divisor(items: int, device: torch.device) -> torch.Tensor:
    """Returns num_items_in_batch as transformers gives it; never 0."""
    return torch.tensor(max(items, 1), device=device)
