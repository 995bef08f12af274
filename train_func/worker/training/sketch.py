"""Sketches: a few numbers for each parameter, by which ranks tell whether they hold one model without exchanging it.

The first is how far apart two of them may be, the others are projections onto fixed random directions: the distance of
two tensors is about the distance of their projections, so that rounding is told from training.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from train_func.worker.training.own_files import bare
from train_func.worker.training.weights import ROUNDING

NUM_PROJECTIONS = 4
WIDTH = 1024  # of the matrices that a tensor is cut into, of as many rows at most
SEED = 0
BUFFERS = ("running_mean", "running_var")  # of a normalisation: each rank has seen other rows


def sketch(what: object) -> dict[str, list[float]]:
    """Of each floating-point parameter of a module, or tensor of a state dict, that this rank holds as a whole.

    Nothing of what is no model, and of what cannot be read: how a training ends does not depend on it.
    """
    try:
        return {name: _sketch(value) for name, value in _parameters(what) if _is_whole(value)}
    except Exception:
        return {}


def _parameters(what: object) -> Iterator[tuple[str, Any]]:
    if isinstance(what, nn.Module):
        module = bare(what)
        if not any(type(of).__name__ == "FullyShardedDataParallel" for of in module.modules()):
            yield from module.named_parameters()
    elif isinstance(what, Mapping):
        yield from ((name, of) for name, of in what.items() if str(name).rpartition(".")[2] not in BUFFERS)


def _is_whole(value: Any) -> bool:
    """Whether it is a tensor of weights, and not the part of one that a rank holds under FSDP or DeepSpeed."""
    is_part = getattr(value, "device_mesh", None) is not None or hasattr(value, "ds_id")
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not (is_part or value.is_meta)


def _sketch(value: torch.Tensor) -> list[float]:
    generator = torch.Generator().manual_seed(SEED)
    right = _directions(generator, WIDTH, NUM_PROJECTIONS).to(value.device)
    squares, projections = value.new_zeros((), dtype=torch.float64), torch.zeros_like(right[0])
    flat = value.detach().reshape(-1)
    for start in range(0, len(flat), WIDTH * WIDTH):
        part = flat[start : start + WIDTH * WIDTH].double()
        matrix = functional.pad(part, (0, -len(part) % WIDTH)).view(-1, WIDTH)
        left = _directions(generator, len(matrix)).to(value.device)
        squares += matrix.square().sum()
        projections += left @ (matrix @ right)
    tolerance = max(ROUNDING, torch.finfo(value.dtype).eps) * math.sqrt(squares.item())
    return [tolerance, *(projections / math.sqrt(NUM_PROJECTIONS)).tolist()]


def _directions(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)
