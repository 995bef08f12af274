"""Attention and dropout for training on a CPU, in the place of those of torch, which are slow there.

With dropout torch computes attention in float32 and draws a float for every probability; without, its backward pass is
slow. Both were half of a step of a BERT. Here the scores of a few heads, as many as the caches hold, are computed in
the precision of the training and become probabilities in place. What the backward pass needs of them is one number
each: a probability, whose sign bit says that it was dropped.

Dropout draws one number of torch's generator per call, as the seed of a generator of numpy that gives the bits of all
its probabilities. Steps seeds the former by micro-batch, so the model is the same at any number of ranks, after a
resume, and where gradient checkpointing computes a layer again. A probability is dropped where 15 random bits (31 in
float32) are below a threshold: for 0.1 that is 3277 of 32768, and what stays is divided by exactly 1 - 3277 / 32768. So
do the layers nn.Dropout, with 16 bits.

The attention computes what transformers' "sdpa" does, and takes that name while a training is under way. So a model
keeps its configuration, one that was given another attention keeps that, and whatever is not done here is left to
torch.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.autograd.function import once_differentiable

SDPA = "sdpa"
BLOCK = 2**22  # bytes of the scores that are computed at once
LONG = 4  # times the size of a head: of more tokens, without dropout, probabilities are computed twice, not kept
LONGEST = 2048  # tokens, without dropout; of more it was not measured, and a head's scores fill the caches
INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}  # whose bits are those of the numbers
SMALLEST = 2**14  # elements of a layer's values below which torch's dropout is faster
NOT_HERE = ("cache", "output_attentions", "position_bias", "softcap")  # other arguments that "sdpa" looks at


@contextmanager
def attention_of_steps() -> Iterator[None]:
    """Lets models that train on a CPU use ``attend``, if they are of transformers and have "sdpa", and ``drop``."""
    with ExitStack() as replaced:
        if nn.Dropout.forward is _TORCH and _replace_sdpa(replaced):  # not the user's own, nor a training within one
            nn.Dropout.forward = _dropout  # type: ignore[assignment, method-assign]
            replaced.callback(setattr, nn.Dropout, "forward", _TORCH)
        yield


def _replace_sdpa(replaced: ExitStack) -> bool:
    """Returns whether it was not replaced by other code; without models of transformers there is nothing to replace."""
    if "transformers.modeling_utils" not in sys.modules:
        return True
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if AttentionInterface()[SDPA] is not sdpa_attention_forward:
        return False
    AttentionInterface.register(SDPA, _attention)
    replaced.callback(AttentionInterface.register, SDPA, sdpa_attention_forward)
    return True


_TORCH = nn.Dropout.forward


def _dropout(layer: nn.Dropout, values: torch.Tensor) -> torch.Tensor:
    """What a layer nn.Dropout does."""
    if (
        not layer.training
        or layer.inplace
        or not 0 < layer.p < 1
        or torch.compiler.is_compiling()
        or values.device.type != "cpu"
        or values.dtype not in INTEGERS
        or values.numel() < SMALLEST
    ):
        return _TORCH(layer, values)
    return drop(values, layer.p)


def _attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What transformers calls; see its sdpa_attention_forward."""
    is_cast = torch.is_autocast_enabled("cpu")
    dtype = torch.get_autocast_dtype("cpu") if is_cast else query.dtype
    if (
        not module.training
        or torch.compiler.is_compiling()
        or query.device.type != "cpu"
        or dtype not in INTEGERS
        or not (is_cast or query.dtype == key.dtype == value.dtype)
        or query.shape[::2] != key.shape[::2]  # rows and tokens
        or (attention_mask is not None and (attention_mask.dtype != torch.bool or attention_mask.ndim != 4))
        or any(others.get(name) is not None and others[name] is not False for name in NOT_HERE)
        or not is_faster(query.shape, dtype, dropout)
    ):
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(  # type: ignore[no-any-return]
            module, query, key, value, attention_mask, dropout, scaling, is_causal, **others
        )
    if attention_mask is None and (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        attention_mask = torch.ones(1, 1, query.shape[-2], query.shape[-2], dtype=torch.bool).tril_()
    query, key, value = (of.to(dtype) for of in (query, key, value))
    return attend(query, key, value, attention_mask, dropout, scaling), None


def is_faster(shape: torch.Size, dtype: torch.dtype, dropout: float) -> bool:
    """Returns whether ``attend`` is faster than torch's for queries of this shape.

    With dropout it keeps a third of what torch's keeps; without, more by at most four times what the queries take.
    """
    return 0 < dropout < 1 or (dropout == 0 and dtype == torch.bfloat16 and shape[-2] <= LONGEST)


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> torch.Tensor:
    """Returns softmax(query key^T * scale + mask) value, with dropout of the probabilities: rows, tokens, heads, size.

    A query that may look at no key gives zeros. Products, and what is kept of them, have the type of the inputs; a
    softmax is computed in float32.

    Args:
        query: rows, heads, tokens, size; bfloat16 or float32, as ``key`` and ``value``.
        key: with as many tokens; each of its heads may serve several of the queries, in their order.
        value: as ``key``, maybe of another size.
        mask: rows or 1, heads or 1, tokens, tokens: True where a query looks at a key.
        dropout: share of the probabilities that are dropped, below 1.
        scale: 1 / sqrt(size) by default.
    """
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = (of.repeat_interleave(groups, dim=1) for of in (key, value))
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    out: torch.Tensor = _Attend.apply(query, key, value, mask, dropout, scale)  # type: ignore[no-untyped-call]
    return out


@dataclass(frozen=True)
class _Block:
    """Heads whose scores are computed at once: all those of some rows, or some of one row."""

    rows: slice
    heads: slice

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns this part of rows, heads, tokens, size; with rows and heads as one."""
        return tensor[self.rows, self.heads].flatten(0, 1)

    def of_mask(self, mask: torch.Tensor) -> torch.Tensor:
        """Returns this part of rows or 1, heads or 1, tokens, keys."""
        return mask[self.rows if mask.shape[0] > 1 else slice(1), self.heads if mask.shape[1] > 1 else slice(1)]

    def put(self, values: torch.Tensor, into: torch.Tensor) -> None:
        """Sets this part of rows, tokens, heads, size."""
        part = into[self.rows, :, self.heads].transpose(1, 2)
        part.copy_(values.view(part.shape))


def _blocks(query: torch.Tensor) -> list[_Block]:
    num_rows, num_heads, num_tokens, _ = query.shape
    num_at_once = max(1, BLOCK // max(1, num_tokens**2 * query.element_size()))
    of_rows = max(1, num_at_once // num_heads)
    of_heads = -(-num_heads // -(-num_heads // num_at_once))  # of one size, as far as that goes
    starts = product(range(0, num_rows, of_rows), range(0, num_heads, of_heads))
    return [_Block(slice(row, row + of_rows), slice(head, head + of_heads)) for row, head in starts]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        dropout: float,
        scale: float,
    ) -> torch.Tensor:
        query, key, value = (of.contiguous() for of in (query, key, value))  # products of others take twice as long
        num_rows, num_heads, num_tokens, _ = query.shape
        out = query.new_empty(num_rows, num_tokens, num_heads, value.shape[-1])
        bits = 8 * query.element_size() - 1
        threshold = round(dropout * 2**bits)
        stays = 1 - threshold / 2**bits
        generator = np.random.SFC64(int(torch.randint(2**63 - 1, ()))) if threshold else None
        blocks, biases, kept = _blocks(query), _Biases.of(mask, query.dtype), []
        for block in blocks:
            probabilities = _probabilities(query, key, scale, block, biases)
            if generator or num_tokens <= LONG * query.shape[-1]:
                kept.append(probabilities)
            if generator:
                _mark(probabilities, threshold, generator)
                probabilities = torch.relu(probabilities)
            block.put(_product(probabilities, block.of(value), 1 / stays), out)
        ctx.save_for_backward(query, key, value, out, mask, *kept)
        ctx.blocks, ctx.stays, ctx.scale = blocks, stays, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradient of a score: its probability * (gradient of that - mean of those of its query).

        The mean is computed of ``out``.
        """
        query, key, value, out, mask, *kept = ctx.saved_tensors
        biases = _Biases.of(None if kept else mask, query.dtype)
        means = (gradient * out).sum(-1, keepdim=True, dtype=torch.float32).to(query.dtype).transpose(1, 2)
        gradient = gradient.transpose(1, 2).contiguous()
        of_query, of_key, of_value = (of.new_empty(of.transpose(1, 2).shape) for of in (query, key, value))
        for number, block in enumerate(ctx.blocks):
            queries, keys, values, arriving = (block.of(of) for of in (query, key, value, gradient))
            probabilities = kept[number] if kept else _probabilities(query, key, ctx.scale, block, biases)
            used = probabilities
            if ctx.stays < 1:
                used, probabilities = torch.relu(probabilities), torch.abs(probabilities)
            block.put(_product(used.transpose(1, 2), arriving, 1 / ctx.stays), of_value)
            scores = _product(arriving, values.transpose(1, 2), 1 / ctx.stays)
            scores.mul_(used).addcmul_(probabilities, block.of(means), value=-1)
            block.put(_product(scores, keys, ctx.scale), of_query)
            block.put(_product(scores.transpose(1, 2), queries, ctx.scale), of_key)
        return *(of.transpose(1, 2) for of in (of_query, of_key, of_value)), None, None, None


@dataclass(frozen=True)
class _Biases:
    """What a mask does to scores."""

    added: torch.Tensor | None
    blind: torch.Tensor | None
    """Queries that look at no key, if there are such."""

    @classmethod
    def of(cls, mask: torch.Tensor | None, dtype: torch.dtype) -> "_Biases":
        if mask is None:
            return cls(None, None)
        blind = ~mask.any(-1, keepdim=True)
        added = torch.full(mask.shape, -torch.inf, dtype=dtype).masked_fill_(mask, 0)
        return cls(added, blind if blind.any() else None)


def _probabilities(
    query: torch.Tensor, key: torch.Tensor, scale: float, block: _Block, biases: _Biases
) -> torch.Tensor:
    """Returns the probabilities of a block, before dropout; with rows and heads as one."""
    scores = _product(block.of(query), block.of(key).transpose(1, 2), scale)
    parts = scores.view(*query[block.rows, block.heads].shape[:2], *scores.shape[1:])
    if biases.added is not None:
        parts.add_(block.of_mask(biases.added))
    torch.softmax(scores, -1, out=scores)
    if biases.blind is not None:
        parts.masked_fill_(block.of_mask(biases.blind), 0)
    return scores


def _product(left: torch.Tensor, right: torch.Tensor, factor: float) -> torch.Tensor:
    """Returns ``left @ right * factor``, rounded once."""
    out = left.new_empty(len(left), left.shape[1], right.shape[2])
    return torch.baddbmm(out, left, right, beta=0, alpha=factor, out=out)


def _mark(probabilities: torch.Tensor, threshold: int, generator: np.random.SFC64) -> None:
    """Sets the sign bit of those that are dropped, where the other bits of a random number are below the threshold."""
    numbers = probabilities.view(INTEGERS[probabilities.dtype])
    num_words = -(-numbers.numel() * numbers.element_size() // 8)
    words = torch.from_numpy(generator.random_raw(num_words).view(np.int64)).view(numbers.dtype)
    drawn = words[: numbers.numel()].view(numbers.shape)
    sign = torch.iinfo(numbers.dtype).min
    numbers.bitwise_or_(drawn.bitwise_and_(~sign).sub_(threshold).bitwise_and_(sign))


def drop(values: torch.Tensor, rate: float) -> torch.Tensor:
    """Returns ``values``, bfloat16 or float32, with this share of them set to 0, and the others made larger."""
    generator, threshold = np.random.SFC64(int(torch.randint(2**63 - 1, ()))), min(round(rate * 2**16), 2**16 - 1)
    words = torch.from_numpy(generator.random_raw(-(-values.numel() // 4)).view(np.int16))
    stays = words[: values.numel()].view(values.shape) >= threshold - 2**15
    return values * stays.to(values.dtype).mul_(1 / (1 - threshold / 2**16))
