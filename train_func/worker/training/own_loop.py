"""The steps of an own loop: this rank's micro-batches of a plan with their weights, and the audit of every epoch."""

import contextlib
import dis
import math
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import default_collate

from train_func.counted import counted, listed
from train_func.errors import InvalidInput
from train_func.worker.pod import progress_mark, sessions, stop_flag
from train_func.worker.pod.progress_mark import Phase
from train_func.worker.training import audit, world
from train_func.worker.training.batch_statistics import BatchStatistics, check_layers
from train_func.worker.training.own_state import OwnState
from train_func.worker.training.plan import STEPS, as_tensors, facts_of, row_ids_of, rows_of
from train_func.worker.training.plan_loader import Collator, PlanLoader
from train_func.worker.training.randomness import seed_for
from train_func.worker.training.weighing import LABELS, Items, Step, is_shift_in_doubt, items_of_loop

BATCH, TOKENS = "batch", "input_ids"
ROUNDING = 1e-3  # of a gradient's length: unlike machines differ by less, and other rows make it differ by more
Lengths = list[tuple[int, float]]  # of each gradient: how many numbers it has, and how long it is


@dataclass(frozen=True)
class OwnStep:
    """One step of the optimizer; iterated over once, it gives this rank's micro-batches and their weights.

    A weight makes the sum of ``weight * loss`` over all micro-batches, averaged over the ranks as DDP does, the mean
    over the global batch, where each loss is the mean over its micro-batch: over its labelled tokens where the batch
    has ``labels`` of tokens, else over its rows. A loss that shifts the labels leaves out the first of each row. The
    weight is 0 for rows that only fill a rank's place in a small batch.
    """

    number: int
    """From 1, over all epochs."""
    epoch: int
    """From 1."""
    num_rows: int
    """Of the global batch."""
    _step: Step
    _items: Items
    _seed: int
    _loop: sessions.Loop = field(repr=False)
    _used: list[Any] = field(repr=False)
    _statistics: BatchStatistics = field(repr=False)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        for inputs in self._step:
            part = self._step.now
            self._used.extend(part.place.row_ids)
            progress_mark.mark(Phase.OWN if self._step.is_at_last else Phase.STEP)
            seed_for("forward", self._seed, part.place.step, part.place.micro)
            with self._statistics.micro_batch(part.place.micro, counts=bool(part.weight)):
                batch = inputs[BATCH]
                if not part.num_items and isinstance(batch, Mapping):
                    batch = self._items.with_labels(copy(batch))  # whose loss counts nothing, and would be nan
                yield batch, part.weight / self._step.weight * world.size()
        self._statistics.merge()
        self._loop.num_done = self.number


class _Wrapping:
    """Holds a batch of any class, with its labels, by which it is weighed, beside it."""

    def __init__(self, collate: Collator) -> None:
        self._collate = collate

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        batch = self._collate(features)
        known = {name: batch[name] for name in (*LABELS, TOKENS) if isinstance(batch, Mapping) and name in batch}
        return {BATCH: batch, **known}


def _stacked(features: list[dict[str, Any]]) -> dict[str, Any]:
    """Each column stacked, as torch's default_collate does it.

    Raises:
        InvalidInput: (cause "code") a column cannot be stacked; names it.
    """
    return {name: _column(name, [row[name] for row in features]) for name in features[0]}


def _column(name: str, values: list[Any]) -> Any:
    if isinstance(values[0], dict) and any(isinstance(value, bytes) for value in values[0].values()):
        raise InvalidInput(
            f"the rows of a batch of session.steps have files in their column {name!r}, which are not decoded: a dict "
            f"with {listed(sorted(values[0]))}. Give session.steps the rows of session.data with the columns as they "
            "are, or a function that makes a batch of a list of rows, as collate=...",
            cause="code",
        )
    try:
        return default_collate(values)
    except (TypeError, RuntimeError, ValueError) as error:
        shapes = {f"shape {tuple(of.shape)}" if isinstance(of, torch.Tensor) else type(of).__name__ for of in values}
        raise InvalidInput(
            f"the rows of a batch of session.steps cannot be stacked: their column {name!r} holds "
            f"{listed(sorted(shapes))}. Values of one shape, or texts, are expected: remove the column, or give "
            "session.steps a function that makes a batch of a list of rows, as collate=DataCollatorWithPadding(...)",
            cause="code",
        ) from error


def steps(
    part: Dataset,
    device: torch.device,
    collate: Collator | None,
    state: OwnState | None = None,
    of_task: Callable[[Dataset], Collator | None] = lambda rows: None,
    *,
    shifts_labels: bool | None = None,
) -> Generator[OwnStep, None, None]:
    """Collective: what ``Session.steps`` gives.

    ``state``: what is saved between two steps, and gone on from; ``of_task``: makes batches of such rows.
    """
    facts = world.on_all_ranks(lambda: facts_of(part, STEPS))
    collate = collate or world.on_all_ranks(lambda: of_task(rows_of(part, STEPS)))
    part = part if collate else world.on_all_ranks(lambda: as_tensors(part))
    expected = row_ids_of(rows_of(part, STEPS))
    audit.check_plan_part(part, facts, STEPS)
    loader = PlanLoader(part, facts, _Wrapping(collate or _stacked))
    done, used = state.begin(facts) if state else (0, [])
    begun = done
    models = state.models if state else []
    for model in models:
        world.on_all_ranks(partial(check_layers, model))
    statistics = BatchStatistics(models, facts.accumulation)
    items = items_of_loop(models, shifts_labels=shifts_labels)
    progress_mark.begin(done)
    with contextlib.ExitStack() as left:
        loop = left.enter_context(_loop(sessions.Loop(facts.num_epochs * facts.steps_per_epoch, done)))
        left.enter_context(statistics.watched())
        if state:
            left.enter_context(stop_flag.deferred())
            left.callback(state.close)
        left.callback(progress_mark.mark, Phase.OUTSIDE)
        gradients = _FirstGradients()
        gradients.watch()
        left.callback(gradients.close)
        for epoch in range(done // facts.steps_per_epoch, facts.num_epochs):
            loader.set_epoch(epoch, done % facts.steps_per_epoch * facts.accumulation)
            entries = iter(loader)
            while done < (epoch + 1) * facts.steps_per_epoch:
                batches, votes = islice(entries, facts.accumulation), state.votes() if state else ()
                step = Step(batches, items or Items(), device, votes)
                if shifts_labels is None and done == begun:
                    world.on_all_ranks(partial(_check_labels, step, items))
                if state and done > begun:
                    state.decide(step.votes, done, used)
                done += 1
                progress_mark.mark(Phase.STEP)
                if state:
                    state.exchanged.check(done)
                rows = step.now.place.batch_rows
                yield OwnStep(done, epoch + 1, rows, step, items or Items(), facts.seed, loop, used, statistics)
                _check_merged(statistics, done)
                gradients.compare()
                progress_mark.step_done(done)
            progress_mark.mark(Phase.OUTSIDE)  # until the first step of the next epoch
            audit.check_epoch(epoch + 1, expected, np.asarray(used, dtype=expected.dtype))
            used = []
        if state:
            state.end(done, device)


_DROPS = ("POP_TOP", "POP_ITER")  # what Python does where break or return leaves a loop, and no error ends it


@contextlib.contextmanager
def _loop(loop: sessions.Loop) -> Iterator[sessions.Loop]:
    """Notes the loop as long as it has not come to its end, and by which line it was left."""
    sessions.here.loops.append(loop)
    try:
        yield loop
    except GeneratorExit:
        frame = sys._getframe()
        while frame.f_back and frame.f_code is not steps.__code__:
            frame = frame.f_back
        if function := frame.f_back:
            loop.left_at = function.f_code, function.f_lineno
            if dis.opname[function.f_code.co_code[function.f_lasti]] in _DROPS:
                sessions.here.tell_left(loop)
        raise
    except BaseException:
        sessions.here.loops.remove(loop)
        raise
    sessions.here.loops.remove(loop)


def _check_labels(step: Step, items: Items | None) -> None:
    """Raises InvalidInput where a mean over labels depends on what is not known: whether the loss shifts them."""
    if not any(is_shift_in_doubt(inputs, items) for inputs in step.batches):
        return
    if items is None:
        raise InvalidInput(
            "session.steps: the labels of a batch are its input_ids, and session.checkpoint was given no model of "
            "transformers whose loss tells whether it shifts them, so that the first label of each row does not count. "
            "Say it: session.steps(plan, shifts_labels=True), as for a language model that predicts the next token, or "
            "shifts_labels=False; or give the model to session.checkpoint(model, optimizer) before",
            cause="code",
        )
    raise InvalidInput(
        "session.steps: the loss of the model that session.checkpoint was given shifts labels, so that the first label "
        "of each row does not count; but the labels of a batch are not its input_ids, as such a loss expects them. Say "
        "it: session.steps(plan, shifts_labels=False) where the loop has shifted them itself, as with "
        "input_ids=ids[:, :-1] and labels=ids[:, 1:], or shifts_labels=True where the loss shifts them",
        cause="code",
    )


def _check_merged(statistics: BatchStatistics, step: int) -> None:
    """Raises InvalidInput when the loop has left a step before its end, which merges the statistics of the ranks."""
    if not statistics.are_merged:
        raise InvalidInput(
            f"step {step} of session.steps was left before its end, so the running statistics of BatchNorm are not "
            "merged over the ranks. Go through all of a step, without break or next(): for batch, weight in step",
            cause="code",
        )


class _FirstGradients:
    """The gradients that the optimizers of this rank use first, from ``watch`` on.

    Each rank has its own share of the rows, so without DDP, or another exchange, each trains a model of its own.
    """

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
        if apart := _ranks_apart(world.gather(own)):
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


def _ranks_apart(lengths: Sequence[Lengths]) -> list[int]:
    """The ranks with other gradients than rank 0; none where the ranks hold parameters of other shapes."""
    zero = lengths[0]
    sizes = [size for size, _ in zero]
    alike = [rank for rank, own in enumerate(lengths) if [size for size, _ in own] == sizes]
    return [rank for rank in alike if any(map(_differ, (of for _, of in zero), (of for _, of in lengths[rank])))]


def _differ(one: float, other: float) -> bool:
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other) > ROUNDING * max(one, other)
    return repr(one) != repr(other)
