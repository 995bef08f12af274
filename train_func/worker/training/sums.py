"""Sums: the gradients of a step, added in one order, so that every number of ranks trains to the same bits.

The cut of a global batch into micro-batches and the seed of each do not depend on the number of ranks. What did was the
order of adding: a rank summed up its own micro-batches, and then the ranks were averaged. Additions of floating-point
numbers are rounded, so another grouping gives other last bits. Here the grouping belongs to the step:

- The micro-batches are the leaves of a binary tree by their number. A node with more than one leaf splits at the
  largest power of two below their number, and is the sum of its two halves: ``left + right``, rounded once.
- A rank has a run of neighbours, which is a few whole nodes. A sum is made as soon as both halves are there, so that
  beside the gradient of this moment at most one waits for each level of the tree.
- In the end each rank owns a slice of every gradient. It gets that slice of all nodes, adds them in the order of the
  tree, and gives the sum to all. Two exchanges of as many bytes as a ring all-reduce has, where a rank has one node.
  Ranks of one machine share its network, and each sends to all others, where a ring passes each byte on once.

Sums of integers with a scale were the alternative. They do not depend on any order, but each step needs the largest
value of every tensor first, twice the bytes, and rounds to a grid, where a tree rounds less than adding in a row does.

The gradient of a micro-batch is complete before it is added: ``.grad`` is taken away after each one. What was in it
before the first counts as its part, as with one rank, and is dropped on the others. A parameter that a micro-batch
gives no gradient adds nothing: -0.0 where there has to be a number, as x + -0.0 is x for all x. DistributedDataParallel
is kept from its own exchange while a step is under way.
"""

import ctypes
from cmath import isfinite
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import cycle
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from train_func.errors import InvalidInput
from train_func.text import counted, listed
from train_func.worker.rank import marks, world

Node = tuple[int, int]
"""A half-open interval of micro-batches."""
Value = TypeVar("Value")
Gradients = list[torch.Tensor | None]

Piece = tuple[int, int, int]
"""Some elements of a gradient: the number of its parameter, the first, and the one behind the last."""

BUCKET = 1 << 23  # bytes that are exchanged at once: smaller ones wait, larger ones take memory
NUM_BUFFERS = 2  # buckets under way at once: one to the owners of its slices, another one back from them
MALLOC = {-1: (2**31 - 1, 128 << 10), -4: (0, 1 << 16)}  # M_TRIM_THRESHOLD and M_MMAP_MAX: while it trains, by default
SHARDED = ("device_mesh", "_fsdp_flattened", "ds_id")  # of a parameter of which each rank holds a part: FSDP, DeepSpeed


@cache
def tree(num_leaves: int) -> frozenset[Node]:
    """Returns the nodes of the tree over so many micro-batches."""
    nodes, waiting = set[Node](), [(0, num_leaves)] if num_leaves else []
    while waiting:
        begin, end = waiting.pop()
        nodes.add((begin, end))
        if end - begin > 1:
            middle = begin + (1 << ((end - begin - 1).bit_length() - 1))
            waiting += [(begin, middle), (middle, end)]
    return frozenset(nodes)


def push(
    waiting: list[tuple[Node, Value]],
    node: Node,
    value: Value,
    nodes: frozenset[Node],
    add: Callable[[Value, Value], Value],
) -> None:
    """Puts a node behind its neighbours that wait, and adds up those that are the halves of a node."""
    waiting.append((node, value))
    while len(waiting) > 1:
        (left, of_left), (right, of_right) = waiting[-2:]
        whole = left[0], right[1]
        if whole not in nodes:
            return
        waiting[-2:] = [(whole, add(of_left, of_right))]


@cache
def nodes_of(begin: int, end: int, num_leaves: int) -> tuple[Node, ...]:
    """Returns the largest nodes that a run of micro-batches is made of."""
    waiting: list[tuple[Node, None]] = []
    for leaf in range(begin, end):
        push(waiting, (leaf, leaf + 1), None, tree(num_leaves), lambda left, right: None)
    return tuple(node for node, _ in waiting)


def parameters_of(models: Iterable[nn.Module], optimizers: Iterable[Any]) -> list[tuple[str, nn.Parameter]]:
    """Returns what may be trained, by name: the parameters of the models, and then what else the optimizers have."""
    named = [pair for model in models for pair in model.named_parameters()]
    for optimizer in optimizers:
        for place, group in enumerate(optimizer.param_groups):
            name = f"{type(optimizer).__name__}.param_groups[{place}]"
            named += [(f"{name}[{number}]", of) for number, of in enumerate(group["params"])]
    once = {id(of): (name, of) for name, of in reversed(named) if of.is_floating_point() or of.is_complex()}
    return [*once.values()][::-1]


def signature(parameters: Iterable[torch.Tensor]) -> list[tuple[Any, ...]]:
    """Returns shape, type and checksum of each, by which ranks agree on an order; exact on any processor."""
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    real = (torch.view_as_real(of.detach()) if of.is_complex() else of.detach() for of in parameters)
    return [(tuple(of.shape), str(of.dtype), int(of.view(sizes[of.element_size()]).sum())) for of in real]


@contextmanager
def memory_of_steps() -> Iterator[None]:
    """Keeps freed memory with the process, in its body; it is given back to the system at the end.

    Gradients come and go with every micro-batch, and new pages for them cost a tenth of a step.
    """
    malloc = ctypes.CDLL(None)
    if not hasattr(malloc, "malloc_trim"):  # which glibc alone has
        yield
        return
    for option, (value, _) in MALLOC.items():
        malloc.mallopt(option, value)
    try:
        yield
    finally:
        for option, (_, default) in MALLOC.items():
            malloc.mallopt(option, default)
        malloc.malloc_trim(0)


class Sums:
    """The sums of one training's gradients."""

    def __init__(
        self, parameters: Sequence[tuple[str, nn.Parameter]], parallel: Sequence[DistributedDataParallel] = ()
    ) -> None:
        """``parameters``: what may be trained, by names for messages, in one order on all ranks; ``parallel``: what
        exchanges gradients by itself."""
        whole = [(name, of) for name, of in parameters if not any(hasattr(of, part) for part in SHARDED)]
        self._names, self._parameters = [name for name, _ in whole], [of for _, of in whole]
        self._ids, ids = {id(of) for _, of in parameters}, {id(of) for of in self._parameters}
        self._sharded = [of for _, of in parameters if id(of) not in ids]
        self._strides = [torch.empty_like(of, device="meta").stride() for of in self._parameters]
        self._parallel = parallel
        by_ddp = {id(of) for model in parallel for of in model.parameters()}
        self._alone = ids - by_ddp if world.size() > 1 else set[int]()
        self._memory: dict[tuple[str, int, torch.dtype, torch.device], torch.Tensor] = {}
        self._waiting: list[tuple[Node, Gradients]] = []
        self._runs: Sequence[Node] = ()
        self.tree = tree(0)
        self.nodes: list[tuple[Node, ...]] = []
        """The nodes that each rank has at the end of the step, which together span all of it."""
        self.is_open = False
        """Whether a step has begun whose gradients are not the sums yet."""
        self._num_steps = 0
        self._hooks: dict[int, RemovableHandle] | None = None
        self._late: set[int] = set()
        self._used: set[int] = set()

    @property
    def is_partial(self) -> bool:
        """Returns whether gradients are those of a part of a step."""
        return self.is_open and [*self._runs] != [(0, 1)]

    def knows(self, parameter: torch.Tensor) -> bool:
        """Returns whether its gradients are summed here."""
        return id(parameter) in self._ids

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Notices, in its body, the gradients that are computed between two steps, where they are summed here alone."""
        self._hooks = {}
        self._watch_more()
        try:
            yield
        finally:
            for hook in self._hooks.values():
                hook.remove()
            self._hooks = None

    def _watch_more(self) -> None:
        if self._hooks is None:
            return
        for of in self._parameters:
            if id(of) in self._alone and of.requires_grad and id(of) not in self._hooks:
                hook = of.register_post_accumulate_grad_hook(self._computed)  # type: ignore[no-untyped-call]
                self._hooks[id(of)] = hook

    def _computed(self, parameter: torch.Tensor) -> None:
        if not self.is_open:
            self._late.add(id(parameter))

    def is_sum(self, parameter: torch.Tensor) -> bool:
        """Returns whether nothing was added to its gradient since the last step, as far as ``watch`` noticed."""
        return id(parameter) not in self._late

    def use(self, parameters: Iterable[torch.Tensor]) -> None:
        """Notes that an optimizer updates these with their gradients."""
        self._used.update(map(id, parameters))

    def is_pending(self, parameter: torch.Tensor) -> bool:
        """Returns whether it has a gradient that no optimizer has used since the last step."""
        return id(parameter) not in self._used and _is_left(parameter.grad)

    def check_alike(self, *, whole: bool) -> None:
        """Checks that all ranks begin with the same parameters; ``whole``: their values too.

        Raises:
            InvalidInput: (cause "code", on every rank) naming those that differ.
        """
        if world.size() == 1:
            return
        shapes: list[Any] = [(tuple(of.shape), str(of.dtype)) for of in self._parameters]
        own = [*zip(self._names, signature(self._parameters) if whole else shapes, strict=True)]
        theirs = world.gather(own)
        differing = {name for of_rank in theirs for name, _ in {*of_rank} ^ {*theirs[0]}}
        if differing or any(len(of_rank) != len(own) for of_rank in theirs):
            raise InvalidInput(
                f"The ranks begin with different models: {counted(len(differing), 'parameter')} "
                f"{'differs' if len(differing) == 1 else 'differ'}: {listed(sorted(differing))}. Make the same model "
                "on every rank, without session.rank and with the seed that the session has set",
                cause="code",
            )

    def begin(self, runs: Sequence[Node]) -> None:
        """Begins a step, before its first micro-batch; ``runs``: what each rank has of it."""
        self._watch_more()  # what is trained from this step on
        self._runs, self._waiting, self.is_open = runs, [], True
        self._num_steps += 1
        if self._num_steps == 2 and any(_is_left(of.grad) for of in self._parameters):
            world.note(
                "the gradients of the step before are still there, and those of this step are added to them: call "
                "optimizer.zero_grad() behind optimizer.step(), unless that is meant"
            )
        num_leaves = max(end for _, end in runs)
        self.tree = tree(num_leaves)
        self.nodes = [nodes_of(begin, end, num_leaves) for begin, end in runs]
        for model in self._parallel:
            model.require_backward_grad_sync = False
        begin, end = runs[world.rank()]
        if begin > 0 or end == 0:
            self._take()

    def _take(self) -> Gradients:
        gradients: Gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None
        return gradients

    @contextmanager
    def micro_batch(self, number: int, *, counts: bool) -> Iterator[None]:
        """Surrounds a micro-batch of this rank, whose gradients are added behind it.

        ``number``: in its global batch; ``counts``: whether it adds anything.
        """
        is_kept = counts or (number == 0 and any(of.grad is not None for of in self._parameters))
        yield
        gradients = self._take()
        if number < 0:
            return
        leaf = (number, number + 1)
        value: Gradients = gradients if is_kept else [None] * len(gradients)
        push(self._waiting, leaf, value, self.tree, _add)

    def is_infinite(self) -> bool | torch.Tensor:
        """Returns whether a gradient of this rank alone is not finite, before ``end``; also if its sum is not.

        Of a GPU it returns a tensor, so that nothing waits for it.
        """
        own = [gradient for _, gradients in self._waiting for gradient in gradients if gradient is not None]
        own = [gradient for gradient in own if gradient.layout == torch.strided]
        if not own or own[0].is_cpu:  # a third of the time of norms in one tensor
            return not all(isfinite(gradient.sum().item()) for gradient in own)
        norms = torch._foreach_norm(own)
        return ~torch.stack([norm.to(own[0].device, torch.float32) for norm in norms]).isfinite().all()

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """Returns the parameters that are trained, by their names for messages."""
        named = zip(self._names, self._parameters, strict=True)
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    @torch.no_grad()
    def end(self) -> None:
        """Makes every ``.grad`` the sum over the step, on all ranks alike, behind its last micro-batch.

        Raises:
            InvalidInput: (cause "code") a gradient of several ranks is sparse.
        """
        parts = [gradients for _, gradients in self._waiting]
        self._waiting = []
        if world.size() == 1:
            (total,) = parts
        else:
            total = self._exchange(parts)
            for parameter in self._sharded:  # of which the mean over the ranks is at hand
                if parameter.grad is not None:
                    parameter.grad.mul_(world.size())
        for parameter, gradient in zip(self._parameters, total, strict=True):
            parameter.grad = gradient
        self._used.clear()
        self._late.clear()
        self.close()

    def close(self) -> None:
        """Ends the step when it is over, or is left. Not collective."""
        for model in self._parallel:
            model.require_backward_grad_sync = True
        self.is_open = False

    def _exchange(self, parts: list[Gradients]) -> Gradients:
        """Returns the sums over the ranks; takes the gradients out of ``parts`` as it sends them."""
        total: Gradients = [None] * len(self._parameters)
        if not total:
            return total
        kinds = [_kind([of[number] for of in parts]) for number in range(len(total))]
        counts = world.total(torch.tensor(kinds, dtype=torch.int32, device=self._parameters[0].device)).tolist()
        if sparse := [name for name, count in zip(self._names, counts, strict=True) if count >= SPARSE]:
            raise InvalidInput(
                f"{counted(len(sparse), 'parameter')} {'has' if len(sparse) == 1 else 'have'} sparse gradients: "
                f"{listed(sparse)}. Those of several ranks are summed as dense tensors: make the layer without "
                "sparse=True, and take an optimizer for dense gradients; or train with one rank",
                cause="code",
            )
        for number, count in enumerate(counts):
            if count:
                total[number] = next((of[number] for of in parts if of[number] is not None), None)
                total[number] = self._dense(number, total[number])
        under_way: deque[_Bucket] = deque()
        with marks.exchange():
            for bucket in self._buckets([number for number, count in enumerate(counts) if count]):
                if len(under_way) == NUM_BUFFERS:
                    under_way.popleft().write(total)
                bucket.scatter(parts)
                if under_way:
                    under_way[-1].gather()
                under_way.append(bucket)
            if under_way:
                under_way[-1].gather()
            for bucket in under_way:
                bucket.write(total)
        return total

    def _dense(self, number: int, gradient: torch.Tensor | None) -> torch.Tensor:
        """Returns a gradient as it lies in memory with one rank; a new one where there is none."""
        parameter = self._parameters[number]
        if gradient is None:
            return torch.empty_like(parameter)
        if gradient.stride() == self._strides[number]:
            return gradient
        return torch.empty_like(parameter).copy_(gradient)

    def _buckets(self, used: Iterable[int]) -> Iterator["_Bucket"]:
        """Cuts the gradients into pieces, and yields them in buckets of one type and device."""
        waiting: dict[tuple[torch.dtype, torch.device], list[Piece]] = {}
        turns = cycle(range(NUM_BUFFERS))
        for number in used:
            parameter, begin = self._parameters[number], 0
            while begin < parameter.numel():
                pieces = waiting.setdefault((parameter.dtype, parameter.device), [])
                room = BUCKET // parameter.element_size() - sum(end - start for _, start, end in pieces)
                end = min(parameter.numel(), begin + room)
                pieces.append((number, begin, end))
                if end - begin == room:
                    yield _Bucket(self, parameter, waiting.pop((parameter.dtype, parameter.device)), next(turns))
                begin = end
        for pieces in waiting.values():
            yield _Bucket(self, self._parameters[pieces[0][0]], pieces, next(turns))

    def buffer(self, name: str, turn: int, size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Returns memory that later buckets use again: to get it anew costs more than to fill it."""
        key = name, turn, dtype, device
        if key not in self._memory or self._memory[key].numel() < size:
            self._memory[key] = torch.empty(size, dtype=dtype, device=device)
        return self._memory[key][:size]

    def numel(self, number: int) -> int:
        """Returns how many elements a parameter has."""
        return self._parameters[number].numel()

    def gradient(self, number: int, gradients: Gradients, begin: int, end: int) -> torch.Tensor | None:
        """Returns a piece of a gradient in the order of its memory, if there is one."""
        gradient = gradients[number]
        if gradient is None:
            return None
        dense = gradients[number] = self._dense(number, gradient)
        return dense.as_strided((dense.numel(),), (1,))[begin:end]


SPARSE = 1 << 16  # more than there are ranks


def _is_left(gradient: torch.Tensor | None) -> bool:
    return gradient is not None and gradient.layout == torch.strided and bool(gradient.any())


def _kind(gradients: Gradients) -> int:
    """Returns 0 where there is no gradient, and what is at least SPARSE where one is not dense."""
    layouts = {gradient.layout for gradient in gradients if gradient is not None}
    return bool(layouts) + SPARSE * bool(layouts - {torch.strided})


def _add(left: Gradients, right: Gradients) -> Gradients:
    """Returns ``left + right``, in the memory of the left ones."""
    pairs = [(one, other) for one, other in zip(left, right, strict=True) if one is not None and other is not None]
    with torch.no_grad():
        if any(_kind([*pair]) > 1 for pair in pairs):
            for one, other in pairs:
                one.add_(other)
        elif pairs:
            torch._foreach_add_([one for one, _ in pairs], [other for _, other in pairs])
    return [other if one is None else one for one, other in zip(left, right, strict=True)]


class _Bucket:
    """Pieces of gradients of one type on one device, one behind the other, cut into a slice for each rank."""

    def __init__(self, sums: Sums, like: torch.Tensor, pieces: Sequence[Piece], turn: int) -> None:
        self._sums, self._pieces = sums, pieces
        is_staged = like.is_cuda and "cuda:gloo" in str(dist.get_backend_config())  # gloo takes few things of a GPU
        self._wire = torch.device("cpu") if is_staged else like.device
        self._width = -(-sum(end - begin for _, begin, end in pieces) // world.size())
        self._buffer = partial(sums.buffer, turn=turn, dtype=like.dtype, device=self._wire)
        self._flat = self._buffer("flat", size=world.size() * self._width)
        self._works: list[Any] = []

    def scatter(self, parts: list[Gradients]) -> None:
        """Begins to send each rank its slice of this one's nodes, and takes these out of ``parts``."""
        size, nodes = world.size(), self._sums.nodes
        sent = self._buffer("sent", size=size * len(parts) * self._width).view(size, len(parts), self._width)
        for place, gradients in enumerate(parts):
            flat = sent.view(-1) if len(parts) == 1 else self._flat
            at = 0
            for number, begin, end in self._pieces:
                piece = self._sums.gradient(number, gradients, begin, end)
                view = flat[at : at + end - begin]
                view.fill_(-0.0) if piece is None else view.copy_(piece)
                at += end - begin
                if end == self._sums.numel(number):
                    gradients[number] = None
            if len(parts) > 1:
                sent[:, place].copy_(flat.view(size, self._width))
        counts = [len(of_rank) for of_rank in nodes]
        self._slices = self._buffer("slices", size=sum(counts) * self._width).view(-1, self._width)
        self._works = [
            dist.all_to_all_single(
                _bytes(self._slices),
                _bytes(sent.view(-1, self._width)),
                counts,
                [len(parts)] * size,
                async_op=True,
            )
        ]

    def gather(self) -> None:
        """Adds up this rank's slice in the order of the tree, and begins to send it to all."""
        self._wait()
        nodes = [node for of_rank in self._sums.nodes for node in of_rank]
        waiting: list[tuple[Node, torch.Tensor]] = []
        for node, values in sorted(zip(nodes, self._slices, strict=True), key=lambda of: of[0]):
            push(waiting, node, values, self._sums.tree, torch.Tensor.add_)
        ((_, mine),) = waiting
        if self._wire.type != "cpu":
            self._works = [dist.all_gather_into_tensor(_bytes(self._flat), _bytes(mine), async_op=True)]
            return
        rows = self._flat.view(world.size(), self._width)  # gloo's own all_gather makes and fills another copy
        rows[world.rank()].copy_(mine)
        for other in range(world.size()):
            if other != world.rank():
                self._works += [dist.isend(_bytes(mine), other), dist.irecv(_bytes(rows[other]), other)]

    def _wait(self) -> None:
        for work in self._works:
            work.wait()
        self._works = []

    def write(self, total: Gradients) -> None:
        """Writes the sums to where ``total`` has gradients."""
        self._wait()
        at = 0
        for number, begin, end in self._pieces:
            piece = self._sums.gradient(number, total, begin, end)
            assert piece is not None
            piece.copy_(self._flat[at : at + end - begin])
            at += end - begin


def _bytes(values: torch.Tensor) -> torch.Tensor:
    return values.view(torch.uint8)
