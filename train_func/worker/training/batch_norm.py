"""Batch statistics: the running means and variances of BatchNorm, the same after every step at any number of ranks.

A forward pass over a micro-batch leaves the buffers as they are and its own statistics aside. After the step those of
all ranks change the buffers in the order of the plan, as if one process had gone through the micro-batches. Buffers of
other layers that a pass changes are not merged; a note names them.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
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
    """The statistics of the BatchNorm layers of some models; without such layers nothing is exchanged."""

    def __init__(self, models: Sequence[nn.Module], num_slots: int) -> None:
        """``num_slots``: micro-batches that a rank has in a step, at most."""
        merged = {
            layer: name
            for model in models
            for name, layer in model.named_modules()
            if isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm) and _tracks(layer)
        }
        self._layers = [_Layer(layer, name) for layer, name in merged.items()]
        self._others = [
            (path, module) for model in models for path, module in model.named_modules() if module not in merged
        ]
        """Modules of which a note tells once if a forward pass changes their buffers."""
        self._changed: list[str] | None = None
        """The names of such buffers, when rank 0 has looked."""
        self._is_settled = not any(True for _ in self._named_others())
        """Whether all ranks know them."""
        self._num_slots = num_slots
        self._rows: list[torch.Tensor] = []
        """One for each micro-batch of this rank in the step: its number, how often each layer was called, and what the
        calls of each add up to."""
        self._dtype = torch.float32  # at least
        for layer in self._layers:
            for buffer in layer.buffers:
                self._dtype = torch.promote_types(self._dtype, buffer.dtype)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Lets forward passes of ``micro_batch`` leave their statistics aside, in its body; no others."""
        if self._layers and (dynamo := sys.modules.get("torch._dynamo")):
            dynamo.reset()  # what torch.compile has made before does not look for hooks
        with ExitStack() as hooks:
            for layer in self._layers:
                hooks.callback(layer.module.register_forward_pre_hook(layer.before).remove)
                hooks.callback(layer.module.register_forward_hook(layer.after, always_call=True).remove)
            yield

    @contextmanager
    def micro_batch(self, number: int, *, counts: bool) -> Iterator[None]:
        """Surrounds forward and backward of one; where it does not count, it is normalised by the running statistics.

        ``number``: in its global batch.

        Raises:
            InvalidInput: (cause "code") a layer has changed its statistics, and its hooks were not called.
        """
        for layer in self._layers:
            layer.begin(counts=counts)
        looks = counts and world.rank() == 0 and self._changed is None
        before = {name: buffer.clone() for name, buffer in self._named_others()} if looks else {}
        try:
            yield
        finally:
            for layer in self._layers:
                layer.counts = None
        if looks:
            self._tell_others(before)
        for layer in self._layers:
            layer.check_hooks()
        if self._layers and counts:
            device = self._layers[0].buffers[0].device
            head = torch.tensor([number, *(layer.num_calls for layer in self._layers)], device=device)
            sums = [part for layer in self._layers for part in layer.sums]
            self._rows.append(torch.cat([part.to(self._dtype) for part in (head, *sums)]))

    def _named_others(self) -> Iterator[tuple[str, torch.Tensor]]:
        for path, module in self._others:
            for name, buffer in module.named_buffers(prefix=path, recurse=False):
                if buffer.layout == torch.strided and not buffer.is_meta:
                    yield name, buffer

    def _tell_others(self, before: dict[str, torch.Tensor]) -> None:
        after = dict(self._named_others())
        same = {name: before[name].dtype == value.dtype for name, value in after.items() if name in before}
        changed = [name for name, is_same in same.items() if not (is_same and before[name].equal(after[name]))]
        self._changed = changed
        if changed:
            world.note(
                f"a forward pass changes these buffers of the model: {listed(changed, MOST_SHOWN)}. They are not "
                "merged over the ranks: each rank makes other passes, and the buffers of rank 0 are kept. So the "
                "result may depend on the number of ranks: compare runs of one number of ranks, or take layers whose "
                "buffers stay as they are"
            )

    @torch.no_grad()
    def merge(self) -> None:
        """Changes the buffers after the micro-batches of a step, on every rank alike; collective."""
        if not self._is_settled and world.size() > 1:
            self._changed = world.gather(self._changed)[0]
        self._is_settled = self._is_settled or self._changed is not None
        if self._changed:
            for name, buffer in self._named_others():
                if name in self._changed:
                    world.spread(buffer)
        if not self._layers:
            return
        buffers = [buffer for layer in self._layers for buffer in layer.buffers]
        widths = torch.tensor([2 * len(layer.buffers[0]) for layer in self._layers])
        running = torch.cat([buffer.to(self._dtype) for buffer in buffers])
        begin = 1 + len(self._layers)  # of the sums in a row
        mine = running.new_full((self._num_slots, begin + len(running)), ABSENT)
        for slot, row in zip(mine, self._rows, strict=False):
            slot.copy_(row)
        self._rows.clear()
        rows = torch.cat(world.gather_tensors(mine))
        calls = rows[:, 1:begin].tolist()
        tracked = [float(layer.module.num_batches_tracked or 0) for layer in self._layers]
        for number, at in sorted((number, at) for at, number in enumerate(rows[:, 0].tolist())):
            if number == ABSENT:
                continue
            pairs = [layer.shares(*pair) for layer, *pair in zip(self._layers, calls[at], tracked, strict=True)]
            left, scale = torch.tensor(pairs, dtype=torch.float64).T.repeat_interleave(widths, dim=1).to(running)
            running = running * left + rows[at, begin:] * scale
            tracked = [before + now for before, now in zip(tracked, calls[at], strict=True)]
        for buffer, merged in zip(buffers, torch.split(running, [*map(len, buffers)]), strict=True):
            buffer.copy_(merged)
        for layer, total in zip(self._layers, tracked, strict=True):
            if layer.module.num_batches_tracked is not None:
                layer.module.num_batches_tracked.fill_(int(total))


def _tracks(layer: Any) -> bool:
    return bool(layer.track_running_stats) and layer.running_mean is not None


class _Layer:
    """One layer, whose buffers give way to others while it is called."""

    def __init__(self, module: Any, name: str) -> None:
        self.module, self.name = module, name
        self.counts: bool | None = None
        """Whether the micro-batch counts that is worked on; None between two."""
        self.num_calls = 0
        self.sums: list[torch.Tensor] = []
        """What the calls add up to: the means, and the variances."""
        self._restore: Callable[[], None] | None = None
        self._is_aside = self._is_seen = False

    @property
    def buffers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The running statistics, read anew each time: what prepares a model for several ranks may replace them."""
        return self.module.running_mean, self.module.running_var

    def begin(self, *, counts: bool) -> None:
        self.counts, self.num_calls, self._is_seen = counts, 0, False
        self._mean_before = self.module.running_mean.clone()
        self.sums = [torch.zeros_like(buffer) for buffer in self.buffers] if counts else []

    def check_hooks(self) -> None:
        """Raises InvalidInput after a micro-batch whose statistics changed, and of which no call was seen."""
        if not self._is_seen and not torch.equal(self._mean_before, self.module.running_mean):
            raise InvalidInput(
                f"the layer {self.name or type(self.module).__name__} has changed its running statistics, and its "
                "forward hooks were not called, so they cannot be merged over the ranks. Call the layer itself, not "
                "its forward method, and give torch.compile the model inside of train_func",
                cause="code",
            )

    def shares(self, num_calls: float, num_before: float) -> tuple[float, float]:
        """Returns what ``num_calls`` passes leave of the buffers, and what each of their sums counts.

        ``num_before``: passes before these. A layer without momentum has the mean of all passes.
        """
        if self.module.momentum is not None:  # read anew each time: a schedule may change it
            return (1 - self.module.momentum) ** num_calls, 1.0
        total = num_before + num_calls
        return (num_before / total, 1 / total) if num_calls else (1.0, 0.0)

    def before(self, module: Any, inputs: tuple[Any, ...]) -> None:
        """Is called before the pass begins."""
        self._is_seen = True
        if self.counts is None or not module.training:
            return
        values = inputs[0] if inputs and isinstance(inputs[0], torch.Tensor) else None
        has_one = values is not None and values.ndim >= 2 and values.numel() // max(1, values.shape[1]) < 2
        if not self.counts or has_one:  # of each channel: one value has no variance
            module.training, self._restore = False, lambda: setattr(module, "training", True)
            return
        buffers, momentum = dict(module._buffers), module.momentum
        module._buffers["running_mean"], module._buffers["running_var"] = map(torch.zeros_like, self.buffers)
        module._buffers["num_batches_tracked"] = None
        module.momentum = 1.0  # so that nothing is left but what this pass finds
        self._is_aside = True

        def restore() -> None:
            module._buffers.update(buffers)
            module.momentum = momentum

        self._restore = restore

    def after(self, module: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Is called after the pass, or an error in it."""
        restore, self._restore = self._restore, None
        is_aside, self._is_aside = self._is_aside, False
        if restore is None:
            return
        statistics = (module.running_mean, module.running_var)
        restore()
        if is_aside and torch._C._current_graph_task_id() < 0:  # else computed again for gradients: counted already
            self.num_calls += 1
            for total, value in zip(self.sums, statistics, strict=True):
                if module.momentum is None:
                    total.add_(value)
                else:
                    total.mul_(1 - module.momentum).add_(value, alpha=module.momentum)
