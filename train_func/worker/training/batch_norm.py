"""Batch statistics: the running means and variances of BatchNorm, the same after every step at any number of ranks.

A forward pass over a micro-batch leaves the buffers as they are and its own statistics aside. After the step those of
all ranks change the buffers in the order of the plan, as if one process had gone through the micro-batches. Buffers of
other layers that a pass changes are not merged; a note names them.
"""

import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from train_func.errors import InvalidInput
from train_func.text import counted, listed
from train_func.worker.rank import world

ABSENT = -1.0  # the number of a micro-batch that a rank has not
MOST_SHOWN = 5  # layers, or buffers


def check_layers(model: nn.Module) -> None:
    """Raises InvalidInput (cause "code") naming layers whose statistics depend on the ranks and cannot be merged."""
    layers = dict(model.named_modules())
    synced = [name for name, layer in layers.items() if isinstance(layer, nn.SyncBatchNorm)]
    tracking = [name for name, layer in layers.items() if isinstance(layer, _InstanceNorm) and _tracks(layer)]
    faults = []
    if synced:
        faults.append(
            f"{_has(model, synced)} of SyncBatchNorm: {listed(synced, MOST_SHOWN)}. It normalises by the rows that all "
            "ranks have at the same moment, so a step would depend on the number of ranks. Take BatchNorm1d, "
            "BatchNorm2d or BatchNorm3d, whose running statistics are merged over the ranks, or GroupNorm, which needs "
            "none"
        )
    if tracking:
        faults.append(
            f"{_has(model, tracking)} of InstanceNorm with track_running_stats=True: {listed(tracking, MOST_SHOWN)}. "
            "Their running statistics are those of one rank, so the evaluation would depend on the number of ranks. "
            "Take track_running_stats=False, the default, or GroupNorm"
        )
    if faults:
        raise InvalidInput(faults, cause="code")


def _has(model: nn.Module, names: Sequence[str]) -> str:
    return f"{type(model).__name__} has {counted(len(names), 'layer')}"


class BatchStatistics:
    """Those of the layers of some models; without such layers every call returns at once, and nothing is exchanged."""

    def __init__(self, models: Sequence[nn.Module], num_slots: int) -> None:
        """``num_slots``: micro-batches that a rank has in a step, at most."""
        found = {of: name for model in models for name, of in model.named_modules() if _has_statistics(of)}
        self._layers = [_Layer(layer, name) for layer, name in found.items()]
        self._others = _OtherBuffers(models, found)
        self.are_merged = True
        """Whether no micro-batch has begun since ``merge``."""
        self._num_slots = num_slots
        self._rows: list[torch.Tensor] = []
        """Of this rank's micro-batches of the step; see ``_row``."""
        if self._layers:
            buffers = [buffer for layer in self._layers for buffer in layer.buffers]
            self._widths = torch.tensor([2 * len(layer.buffers[0]) for layer in self._layers])
            kind = torch.float32  # at least
            for buffer in buffers:
                kind = torch.promote_types(kind, buffer.dtype)
            self._kind = kind

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, forward passes of ``micro_batch`` leave their statistics aside; all others are left alone."""
        if self._layers and (dynamo := sys.modules.get("torch._dynamo")):
            dynamo.reset()  # what torch.compile has made before does not look for hooks
        with ExitStack() as hooks:
            for layer in self._layers:
                hooks.callback(layer.module.register_forward_pre_hook(layer.before).remove)
                hooks.callback(layer.module.register_forward_hook(layer.after, always_call=True).remove)
            yield

    @contextmanager
    def micro_batch(self, number: int, *, counts: bool) -> Iterator[None]:
        """Around forward and backward of one; where it does not count, it is normalised by the running statistics.

        ``number``: in its global batch.

        Raises:
            InvalidInput: (cause "code") a layer has changed its statistics, and its hooks were not called.
        """
        self.are_merged = not self._layers
        for layer in self._layers:
            layer.begin(counts=counts)
        try:
            with self._others.told_of(counts=counts):
                yield
        finally:
            for layer in self._layers:
                layer.end()
        for layer in self._layers:
            layer.check_hooks()
        if self._layers and counts:
            self._rows.append(self._row(number))

    def _row(self, number: int) -> torch.Tensor:
        """The number, how often each layer was called, and what the calls of each add up to."""
        device = self._layers[0].buffers[0].device
        head = torch.tensor([number, *(layer.num_calls for layer in self._layers)], dtype=self._kind, device=device)
        return torch.cat([head, *(part.to(self._kind) for layer in self._layers for part in layer.sums)])

    @torch.no_grad()
    def merge(self) -> None:
        """Collective, after the micro-batches of a step: changes the buffers, on every rank alike."""
        self.are_merged = True
        if not self._layers:
            return
        buffers = [buffer for layer in self._layers for buffer in layer.buffers]
        running = torch.cat([buffer.to(self._kind) for buffer in buffers])
        num_layers = len(self._layers)
        own = running.new_full((self._num_slots, 1 + num_layers + len(running)), ABSENT)
        for slot, row in zip(own, self._rows, strict=False):
            slot.copy_(row)
        self._rows.clear()
        found = torch.cat(world.gather_tensors(own))
        numbers = found[:, 0].tolist()
        order = sorted((number, at) for at, number in enumerate(numbers) if number != ABSENT)
        calls = found[:, 1 : 1 + num_layers].tolist()
        tracked = [layer.num_tracked for layer in self._layers]
        for _, at in order:
            kept, scale = self._shares(calls[at], tracked)
            running = running * kept.to(running) + found[at, 1 + num_layers :] * scale.to(running)
            tracked = [before + now for before, now in zip(tracked, calls[at], strict=True)]
        for buffer, merged in zip(buffers, torch.split(running, [len(of) for of in buffers]), strict=True):
            buffer.copy_(merged)
        for layer, total in zip(self._layers, tracked, strict=True):
            layer.set_num_tracked(total)

    def _shares(self, calls: list[float], before: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
        """By which the running statistics, and the sums of a micro-batch, are multiplied: a number for each value."""
        pairs = [layer.shares(*of) for layer, *of in zip(self._layers, calls, before, strict=True)]
        kept, scale = torch.tensor(pairs, dtype=torch.float64).T.repeat_interleave(self._widths, dim=1)
        return kept, scale


def _has_statistics(layer: nn.Module) -> bool:
    """Whether its forward pass changes buffers by what it is given."""
    is_plain = isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm)
    return is_plain and _tracks(layer)


def _tracks(layer: Any) -> bool:
    return bool(layer.track_running_stats) and layer.running_mean is not None


class _Layer:
    """One layer, whose buffers give way to others while it is called."""

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        self._counts: bool | None = None
        """Of the micro-batch that is worked on; None between two."""
        self._restore: Any = None
        self._is_aside = self._is_seen = False

    @property
    def momentum(self) -> float | None:
        """None: the buffers are the mean of all that there were. Read anew each time: a schedule may change it."""
        momentum: float | None = self.module.momentum
        return momentum

    @property
    def buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Read anew each time: what prepares a model for several ranks may put others in their place."""
        return self.module.running_mean, self.module.running_var

    def begin(self, *, counts: bool) -> None:
        self._counts, self.num_calls, self._is_seen = counts, 0, False
        self._mean_before = self.module.running_mean.clone()
        self.sums = [torch.zeros_like(buffer) for buffer in self.buffers] if counts else []

    def end(self) -> None:
        self._counts = None

    def check_hooks(self) -> None:
        """After a micro-batch. Raises InvalidInput when its statistics changed and no call of it was seen."""
        if not self._is_seen and not torch.equal(self._mean_before, self.module.running_mean):
            raise InvalidInput(
                f"the layer {self.name or type(self.module).__name__} has changed its running statistics, and its "
                "forward hooks were not called, so they cannot be merged over the ranks. Call the layer itself, not "
                "its forward method, and give torch.compile the model inside of train_func",
                cause="code",
            )

    @property
    def num_tracked(self) -> float:
        """Forward passes that the buffers tell of."""
        return float(self.module.num_batches_tracked or 0)

    def set_num_tracked(self, number: float) -> None:
        if self.module.num_batches_tracked is not None:
            self.module.num_batches_tracked.fill_(int(number))

    def shares(self, num_calls: float, num_before: float) -> tuple[float, float]:
        """What ``num_calls`` passes leave of the buffers, and what each of their sums counts."""
        if self.momentum is not None:
            return (1 - self.momentum) ** num_calls, 1.0
        total = num_before + num_calls
        return (num_before / total, 1 / total) if num_calls else (1.0, 0.0)

    def before(self, module: Any, given: tuple[Any, ...]) -> None:
        """The pass before it begins."""
        self._is_seen = True
        if self._counts is None or not module.training:
            return
        if not self._counts or _num_values(given) < 2:  # one value has no variance
            module.training, self._restore = False, lambda: setattr(module, "training", True)
            return
        held, momentum = dict(module._buffers), module.momentum
        module._buffers["running_mean"], module._buffers["running_var"] = map(torch.zeros_like, self.buffers)
        module._buffers["num_batches_tracked"] = None
        module.momentum = 1.0  # so that nothing is left but what this pass finds
        self._is_aside = True

        def restore() -> None:
            module._buffers.update(held)
            module.momentum = momentum

        self._restore = restore

    def after(self, module: Any, given: tuple[Any, ...], output: Any) -> None:
        """The pass, or an error in it."""
        restore, self._restore = self._restore, None
        is_aside, self._is_aside = self._is_aside, False
        if restore is None:
            return
        found = (module.running_mean, module.running_var)
        restore()
        if is_aside and torch._C._current_graph_task_id() < 0:  # else computed again for gradients: counted already
            self.num_calls += 1
            for own, now in zip(self.sums, found, strict=True):
                if self.momentum is None:
                    own.add_(now)
                else:
                    own.mul_(1 - self.momentum).add_(now, alpha=self.momentum)


def _num_values(given: tuple[Any, ...]) -> int:
    """Of each channel, in what a layer is given: (rows, channels, ...)."""
    values = given[0] if given and isinstance(given[0], torch.Tensor) else None
    return 2 if values is None or values.ndim < 2 else values.numel() // max(1, values.shape[1])


class _OtherBuffers:
    """The buffers that a forward pass of some models changes, without those of the layers that are merged."""

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
