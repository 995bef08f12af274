"""Gradients of a loop of one's own: a note where the ranks have not exchanged them when an optimizer first uses them.

Each rank has its own share of the rows, so without DDP, or another exchange, each trains a model of its own.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from train_func.counted import counted, listed
from train_func.worker.pod import sessions
from train_func.worker.training import world

ROUNDING = 1e-3  # of a gradient's length: unlike machines differ by less, and other rows make it differ by more
Lengths = list[tuple[int, float]]  # of each gradient: how many numbers it has, and how long it is


class FirstGradients:
    """The gradients that the optimizers of this rank use first, from ``watch`` on."""

    def __init__(self) -> None:
        self._lengths: dict[int, tuple[int, torch.Tensor]] = {}

    def watch(self) -> None:
        """Begins to look at them; ``compare`` and ``close`` end that."""
        self._hook = register_optimizer_step_pre_hook(self._look) if world.size() > 1 else None

    def compare(self) -> None:
        """Collective, once a step is done: a note where the gradients of other ranks are not those of rank 0."""
        if self._hook is None:
            return
        self.close()
        own: Lengths = [(size, length.item()) for size, length in self._lengths.values()]
        if apart := ranks_apart(world.gather(own)):
            of = f"{'rank' if len(apart) == 1 else 'ranks'} {listed(apart)}"
            note = (
                f"the ranks do not train one model: when the optimizer made its first step, {of} had other gradients "
                f"than rank 0, in {counted(len(own), 'parameter')}. Each rank has its own share of the rows, and "
                "the model of rank 0 is published. Wrap the model before the loop, model = "
                "DistributedDataParallel(model), and call that; or average the gradients over the ranks before each "
                "optimizer.step()"
            )
            world.note(note)
            sessions.here.notes.append(note)

    def close(self) -> None:
        """Looks at no further one."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _look(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for parameter in _parameters(optimizer):
            gradient = parameter.grad
            if gradient is not None and id(parameter) not in self._lengths and _is_whole(parameter, gradient):
                wide = torch.promote_types(gradient.dtype, torch.float32)
                length = torch.linalg.vector_norm(gradient, dtype=wide)
                self._lengths[id(parameter)] = gradient.numel(), length


def _parameters(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _is_whole(parameter: torch.Tensor, gradient: torch.Tensor) -> bool:
    """Whether the rank holds all of it, and not a part as with FSDP or DeepSpeed."""
    is_part = any(hasattr(parameter, name) for name in ("device_mesh", "_fsdp_flattened", "ds_id"))
    return not is_part and gradient.layout is torch.strided and gradient.is_floating_point()


def ranks_apart(lengths: Sequence[Lengths]) -> list[int]:
    """The ranks with other gradients than rank 0; none where the ranks hold parameters of other shapes."""
    zero = lengths[0]
    sizes = [size for size, _ in zero]
    alike = [rank for rank, own in enumerate(lengths) if [size for size, _ in own] == sizes]
    return [rank for rank in alike if any(map(_differ, (of for _, of in zero), (of for _, of in lengths[rank])))]


def _differ(one: float, other: float) -> bool:
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other) > ROUNDING * max(one, other)
    return repr(one) != repr(other)
