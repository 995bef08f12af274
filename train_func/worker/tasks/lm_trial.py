"""Tries a language model on a few random tokens: whether it sees those it has to predict, and what its loss is."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from train_func.errors import InvalidInput

NUM_TOKENS = 8
# Of what a token's own logits change by: what other tokens' may change by, from rounding alone.
ROUNDING = {torch.float32: 1e-4, torch.float64: 1e-4}  # of other types 5e-2
# What is raised where a model takes other inputs than tokens: its training says so, to the function that gives them.
ENLARGED = 100.0  # times that logits are those of small weights: a cap on them shows only in large ones
OTHER_INPUTS = (TypeError, AttributeError, RuntimeError, ValueError, AssertionError)


def refuse_encoder(model: Any, where: str, advice: str) -> None:
    """Raises InvalidInput (cause "model") when the logits of a token depend on tokens behind it."""
    ids = random_ids(model).repeat(2, 1)
    ids[1, -1] = (ids[1, -1] + 1) % num_words(model)
    try:
        with evaluated(model):
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
    """Whether its loss is the cross entropy of what ``head`` makes of what ``decoder`` returns, with nothing added.

    Some models scale their logits, or cap them, or add to the loss how evenly their experts are used.
    """
    if getattr(model.config.get_text_config(), "output_router_logits", False):
        return False
    ids = random_ids(model)
    try:
        with evaluated(model):
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
    """Within, the head is given larger values."""
    hook = head.register_forward_pre_hook(lambda _, given: (given[0] * ENLARGED, *given[1:]))
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def evaluated(model: Any) -> Iterator[None]:
    """Within, the model drops nothing and keeps nothing for gradients."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def random_ids(model: Any) -> torch.Tensor:
    """Of one row, the same for every call."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, num_words(model), (1, NUM_TOKENS), generator=generator)
    return ids.to(next(model.parameters()).device)


def num_words(model: Any) -> int:
    """Of its vocabulary."""
    return int(model.config.get_text_config().vocab_size)


def type_of(model: Any) -> torch.dtype:
    """Of its weights."""
    found: torch.dtype = next(model.parameters()).dtype
    return found
