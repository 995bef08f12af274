"""The loss of a causal language model, computed from its labelled tokens only and a chunk at a time.

transformers' own loss computes the logits of every token at once: 8 rows of 512 tokens with 128,000 words take 2 GB,
and each step of the loss takes as much again. A few random tokens show whether a model has that loss, and whether it
sees the tokens that it has to predict.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, wraps
from types import MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import CausalLMOutputWithPast

from train_func.errors import InvalidInput
from train_func.worker.tasks.chat_tokens import NO_LABEL

MOST_LOGITS = 2**23  # of a chunk: 32 MB in float32
NUM_TOKENS = 8
# Of what a token's own logits change by: what other tokens' may change by, from rounding alone.
ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-4}  # of other types 5e-2
# What is raised where a model takes other inputs than tokens: its training says so, to the function that gives them.
ENLARGED = 100.0  # times that logits are those of small weights: a cap on them shows only in large ones
OTHER_INPUTS = (TypeError, AttributeError, RuntimeError, ValueError, AssertionError)


def in_chunks(model: Any) -> bool:
    """Makes the model compute its loss in chunks; returns False, and changes nothing, if it has another loss.

    A forward call with gradients returns the loss alone. A call without gradients and with labels returns ``logits`` of
    shape (rows, 3): the sum of the losses, the number of labelled tokens, and how many of them are the most likely
    ones. A call without labels does not change.
    """
    decoder, head = _decoder(model), model.get_output_embeddings()
    if decoder is None or head is None or not has_plain_loss(model, decoder, head):
        return False
    whole = type(model).forward

    @wraps(whole)
    def forward(self: Any, input_ids: Any = None, *args: Any, labels: Any = None, **arguments: Any) -> Any:
        if labels is None or args:
            return whole(self, input_ids, *args, labels=labels, **arguments)
        num_items = arguments.pop("num_items_in_batch", None)
        for name in ("logits_to_keep", "use_cache", "return_dict"):
            arguments.pop(name, None)
        outputs = _decoder(self)(input_ids=input_ids, use_cache=False, **arguments)
        return _measured(outputs[0], labels, self.get_output_embeddings(), num_items)

    model.forward = MethodType(forward, model)  # a copy of the model has it for itself, and a pickle can be made
    return True


def _decoder(model: Any) -> Any:
    """Returns the model without its head."""
    decoder = getattr(model, model.base_model_prefix, None)
    return decoder if isinstance(decoder, nn.Module) and decoder is not model else None


def _measured(hidden: torch.Tensor, labels: torch.Tensor, head: nn.Module, num_items: Any) -> CausalLMOutputWithPast:
    targets = labels[:, 1:].to(hidden.device)
    rows, places = targets.ne(NO_LABEL).nonzero(as_tuple=True)
    hidden, targets = hidden[rows, places], targets[rows, places]
    num_tokens = max(len(targets), 1)
    divisor = num_tokens if num_items is None else num_items
    if torch.is_grad_enabled():
        chunks = list(_chunks(hidden, targets, head))
        if len(chunks) == 1:
            return CausalLMOutputWithPast(loss=_loss(head, *chunks[0]) / divisor)
        # The logits of each chunk are computed again for its gradients, and never held for all of them.
        # A head with an adapter may drop some of its inputs: the same ones both times, by the state of the generator.
        again = partial(checkpoint, _loss, head, use_reentrant=False)
        parts = [again(*chunk) for chunk in chunks]
        return CausalLMOutputWithPast(loss=torch.stack(parts).sum() / divisor)
    scores = hidden.new_zeros((len(labels), 3), dtype=torch.float32)
    begin = 0
    for part, part_targets in _chunks(hidden, targets, head):
        logits = head(part).float()
        each = torch.stack(
            [
                cross_entropy(logits, part_targets, reduction="none"),
                torch.ones_like(part_targets, dtype=torch.float32),
                (logits.argmax(-1) == part_targets).float(),
            ],
            dim=1,
        )
        scores.index_add_(0, rows[begin : begin + len(part_targets)], each)
        begin += len(part_targets)
    return CausalLMOutputWithPast(loss=scores[:, 0].sum() / divisor, logits=scores)


def _chunks(
    hidden: torch.Tensor, targets: torch.Tensor, head: nn.Module
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    num_words = len(cast(torch.Tensor, head.weight))
    size = max(1, MOST_LOGITS // num_words)
    return zip(torch.split(hidden, size), torch.split(targets, size), strict=True)


def _loss(head: nn.Module, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(head(hidden).float(), targets, reduction="sum")


def refuse_encoder(model: Any, where: str, advice: str) -> None:
    """Raises InvalidInput (cause "model") if the logits of a token depend on later tokens."""
    ids = random_ids(model).repeat(2, 1)
    ids[1, -1] = (ids[1, -1] + 1) % num_words(model)
    try:
        with evaluation_mode(model):
            logits = model(input_ids=ids).logits.float()
    except OTHER_INPUTS:
        return
    changed = (logits[0] - logits[1]).abs().amax(dim=-1)
    if changed[:-1].max() > ROUNDING.get(type_of(model), 5e-2) * changed[-1]:
        raise InvalidInput(
            f"{where}: the logits of its tokens depend on the tokens behind them, so it would be trained on the tokens "
            f"that it has to predict: {type(model).__name__} is no causal language model as its config.json has it; "
            f"{advice}",
            cause="model",
        )


def has_plain_loss(model: Any, decoder: nn.Module, head: nn.Module) -> bool:
    """Returns whether the loss is the plain cross entropy of ``head`` over the output of ``decoder``.

    Some models scale or cap their logits, or add to the loss how evenly their experts are used.
    """
    if getattr(model.config.get_text_config(), "output_router_logits", False):
        return False
    ids = random_ids(model)
    try:
        with evaluation_mode(model):
            hidden = decoder(input_ids=ids, use_cache=False)[0]
            with _enlarged(head):
                whole, logits = model(input_ids=ids, labels=ids), head(hidden).float()
    except OTHER_INPUTS:
        return False
    # Both have done the same arithmetic, so that bfloat16 needs hardly more than float32.
    rounding = max(1e-5, torch.finfo(type_of(model)).eps)
    loss = cross_entropy(whole.logits[0, :-1].float(), ids[0, 1:])
    return (
        whole.loss is not None
        and whole.logits.shape == logits.shape
        and bool((whole.logits - logits).abs().max() <= rounding * logits.abs().max())
        and bool((whole.loss - loss).abs() <= 1e-5 * loss)
    )


@contextmanager
def _enlarged(head: nn.Module) -> Iterator[None]:
    """Enlarges the inputs of the head while the block runs."""
    hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0] * ENLARGED, *inputs[1:]))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Turns dropout and gradients of the model off while the block runs."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def random_ids(model: Any) -> torch.Tensor:
    """Draws the ids of one row, the same in every call."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, num_words(model), (1, NUM_TOKENS), generator=generator)
    return ids.to(next(model.parameters()).device)


def num_words(model: Any) -> int:
    """Returns the size of the vocabulary."""
    return int(model.config.get_text_config().vocab_size)


def type_of(model: Any) -> torch.dtype:
    """Returns the type of the weights."""
    dtype: torch.dtype = next(model.parameters()).dtype
    return dtype
