"""Tells once which buffers a forward pass in training changes, beside those that are merged over the ranks."""

from collections.abc import Container, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from train_func.counted import listed
from train_func.worker.training import world

MOST_SHOWN = 5  # buffers


class OtherBuffers:
    """Those of some models, but not of the layers whose statistics are merged."""

    def __init__(self, models: Sequence[nn.Module], merged: Container[nn.Module]) -> None:
        self._models, self._merged = models, merged
        self._is_told = False

    @contextmanager
    def told_of(self, *, counts: bool) -> Iterator[None]:
        """Around a micro-batch. After the first of rank 0 that counts, a note names the buffers that have changed."""
        if self._is_told or not counts or world.rank():
            yield
            return
        self._is_told = True
        before = {name: buffer.clone() for name, buffer in self._named()}
        yield
        after = {name: buffer for name, buffer in self._named() if name in before}
        if changed := [name for name, buffer in after.items() if _differ(before[name], buffer)]:
            world.note(
                f"a forward pass changes these buffers of the model: {listed(changed, MOST_SHOWN)}. They are not "
                "merged over the ranks: each rank makes other passes, and the buffers of rank 0 are kept. So the "
                "result may depend on the number of ranks: compare runs of one number of ranks, or take layers whose "
                "buffers stay as they are"
            )

    def _named(self) -> Iterator[tuple[str, torch.Tensor]]:
        for model in self._models:
            for path, module in model.named_modules():
                if module not in self._merged:
                    buffers = module.named_buffers(prefix=path, recurse=False)
                    yield from ((name, buffer) for name, buffer in buffers if _has_values(buffer))


def _has_values(buffer: torch.Tensor) -> bool:
    return buffer.layout == torch.strided and not buffer.is_meta


def _differ(before: torch.Tensor, after: torch.Tensor) -> bool:
    return before.dtype != after.dtype or not torch.equal(before, after.to(before.device))
