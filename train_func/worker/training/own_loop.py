"""A loop of one's own over Steps: what it saves, how rows become batches, and what such a loop may do wrong.

Between two steps a checkpoint keeps the objects that the loop has named. Nothing says what the loop trains, nor how its
loss treats labels, so both are looked at before the first step: the gradients of all models that it has named, of those
in DistributedDataParallel and of whatever an optimizer has are summed over the ranks when a step's last micro-batch is
done. An optimizer that would step before that, or has other parameters, is refused.
"""

import contextlib
import copy
import dis
import gc
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import default_collate

from train_func.errors import InvalidInput
from train_func.text import counted, listed
from train_func.worker.checkpoint.checkpointing import LAST_SECONDS, Checkpointing, Parts, Resumption
from train_func.worker.checkpoint.state import State
from train_func.worker.rank import end, marks, stop_flag, world
from train_func.worker.rank.marks import Phase
from train_func.worker.training import audit, weights
from train_func.worker.training.attention import attention_of_steps
from train_func.worker.training.audit import check_same_plan
from train_func.worker.training.batch_norm import BatchStatistics, check_layers
from train_func.worker.training.loader import Collator, PlanLoader, undisturbed
from train_func.worker.training.plan import STEPS, PlanFacts, facts_of, rows_of
from train_func.worker.training.progress import Progress
from train_func.worker.training.steps import Step, Steps
from train_func.worker.training.sums import Sums, memory_of_steps, parameters_of, signature
from train_func.worker.training.weighing import Items, check_shift, items_of_loop
from train_func.worker.training.weights import (
    base_sha256,
    frozen,
    has_adapters,
    load_optimizer,
    load_own_weights,
    own_weights,
    state_faults,
)


class OwnState:
    """Collective, as Checkpointing: restores its objects when it is made, and saves them between steps."""

    def __init__(
        self, begin: Callable[[dict[str, Any]], Checkpointing], objects: Mapping[str, Any], device: torch.device
    ) -> None:
        """``begin``: the checkpoints of the next training, told what it is made of.

        Raises InvalidInput (cause "code") for an object without state_dict and load_state_dict."""
        is_ddp = {name: isinstance(of, DistributedDataParallel) for name, of in objects.items()}
        self._objects = {name: of.module if is_ddp[name] else of for name, of in objects.items()}
        self._bases = {name: weights.base_names(of) for name, of in self._objects.items() if isinstance(of, nn.Module)}
        # Only saved: in the live groups a schedule that is made later would find them.
        self._first_rates = {
            name: [copy.deepcopy(group.get("lr")) for group in of.param_groups]
            for name, of in self._objects.items()
            if hasattr(of, "param_groups")
        }
        world.on_all_ranks(self._check)
        optimizers = [of for of in self._objects.values() if hasattr(of, "param_groups")]
        if not optimizers:
            world.note(
                "session.checkpoint was given no optimizer: after a restart it begins anew, and the result may differ; "
                "give it beside the model, as in session.checkpoint(model, optimizer)"
            )
        made = {
            name: [[own, str(of.dtype), list(of.shape)] for own, of in held.named_parameters()]
            if isinstance(held, nn.Module)
            else weights.kind_of(held)
            for name, held in self._objects.items()
        }
        bases = {
            name: base_sha256(of)
            for name, of in self._objects.items()
            if isinstance(of, nn.Module) and has_adapters(of)
        }
        self.checkpointing = begin({"objects": made, **({"bases": bases} if bases else {})})
        self._restored: Resumption | None = self.checkpointing.restore(device)
        if self._restored:
            parts, is_own = [*self._objects.values()], self._restored.is_own
            with contextlib.nullcontext() if is_own else weights.own_options(parts):
                self._load(self._restored.training)
            for group in (group for optimizer in optimizers for group in optimizer.param_groups):
                group.pop(weights.FIRST, None)
            if is_own and (published := self._restored.training.get("published_in_loop")):
                end.here.lacks.update(published)
                _note_once(
                    "session.publish was called in an earlier attempt, in the body of the loop over session.steps. "
                    f"This attempt goes on behind step {self._restored.step}: unless it publishes again, in the body "
                    "or a model behind the loop, the result will lack that. Where that is a model, or all that "
                    "there was, this attempt will fail"
                )

    def _load(self, training: dict[str, Any]) -> None:
        for name, of in self._objects.items():
            saved = training["objects"][name]
            if isinstance(of, torch.optim.Optimizer):
                load_optimizer(of, saved)
            elif isinstance(of, nn.Module):
                weights.freeze(of, training["frozen"][name])
                load_own_weights(of, saved)
            else:
                of.load_state_dict(saved)

    @property
    def models(self) -> list[nn.Module]:
        """The models among its objects."""
        return [of for of in self._objects.values() if isinstance(of, nn.Module)]

    def _state(self, name: str, of: Any) -> Any:
        if isinstance(of, nn.Module):
            return own_weights(of, self._bases[name])
        state = of.state_dict()
        if (rates := self._first_rates.get(name)) and "param_groups" in state:
            groups = state["param_groups"]  # which may be the live ones; a loop may have added some
            first = [{**group, weights.FIRST: rate} for group, rate in zip(groups, rates, strict=False)]
            return {**state, "param_groups": [*first, *groups[len(rates) :]]}
        return state

    def _check(self) -> None:
        """Raises InvalidInput for what no checkpoint holds; says what ``session.publish`` would refuse."""
        expected = "models, optimizers, schedulers and other objects with state_dict and load_state_dict are expected"
        faults = [] if self._objects else [f"session.checkpoint was given nothing: {expected}"]
        for name, of in self._objects.items():
            if not all(callable(getattr(of, method, None)) for method in ("state_dict", "load_state_dict")):
                faults.append(f"session.checkpoint: {name} is a {type(of).__name__}: {expected}")
        if faults:
            raise InvalidInput(faults, cause="code")
        weights.check_finite(self.models, "Before the first step, ", whole=True)
        states = {name: self._state(name, of) for name, of in self._objects.items()}
        State.of(states, "session.checkpoint")
        for name, of in self._objects.items():
            if isinstance(of, nn.Module) and not hasattr(of, "save_pretrained"):
                for fault in state_faults(states[name]):
                    world.note(f"session.publish({type(of).__name__}) will be refused: {fault}")

    def parts(self, is_pending: Callable[[nn.Parameter], bool] = lambda parameter: False) -> Parts:
        """Returns what is saved between two steps; ``is_pending``: whether a later step needs this one's gradient."""
        objects = {name: self._state(name, of) for name, of in self._objects.items()}
        modules = {name: of for name, of in self._objects.items() if isinstance(of, nn.Module)}
        names = {name: weights.frozen_names(of) for name, of in modules.items()}
        gradients = {
            name: {own: value.grad for own, value in of.named_parameters() if is_pending(value)}
            for name, of in modules.items()
        }
        published = sorted(end.here.published_in_loop | end.here.lacks)
        training = {"objects": objects, "frozen": names, "gradients": gradients, "published_in_loop": published}
        # Nothing counts as lasting: a loop may change its weights at any moment, also by their .data.
        return Parts(training, {}, frozen=frozenset().union(*map(frozen, self.models)))

    def take_restored(self, facts: PlanFacts) -> Resumption | None:
        """Returns what the loop goes on from, once, and puts back the gradients that its next step adds to.

        Raises:
            InvalidInput: (cause "code", on every rank) the checkpoint was saved with another plan.
        """
        restored, self._restored = self._restored, None
        if restored:
            world.on_all_ranks(partial(check_same_plan, restored, facts, STEPS))
            for name, gradients in restored.training.get("gradients", {}).items():
                parameters = dict(self._objects[name].named_parameters())
                for own, gradient in gradients.items():
                    parameters[own].grad = gradient.to(parameters[own].device)
        return restored

    def end(self, step: int) -> None:
        """Collective, when all steps are done: what was begun is saved."""
        world.on_all_ranks(partial(weights.check_finite, self.models, f"After step {step}, "))
        world.on_rank_zero(partial(self.checkpointing.close, LAST_SECONDS))

    def close(self) -> None:
        """Saves what was begun, when the loop is left in whatever way. Not collective."""
        self.checkpointing.close()


def _stacked(features: list[dict[str, Any]]) -> dict[str, Any]:
    """Each column stacked, as torch's default_collate does it.

    Raises:
        InvalidInput: (cause "code") a column cannot be stacked; names it.
    """
    batch = {}
    for name, first in features[0].items():
        if isinstance(first, dict) and any(isinstance(value, bytes) for value in first.values()):
            raise InvalidInput(
                f"the rows of a batch of session.steps have files in their column {name!r}, which are not decoded: a "
                f"dict with {listed(sorted(first))}. Give session.steps the rows of session.data with the columns as "
                "they are, or a function that makes a batch of a list of rows, as collate=...",
                cause="code",
            )
        values = [row[name] for row in features]
        try:
            batch[name] = default_collate(values)
        except (TypeError, RuntimeError, ValueError) as error:
            shapes = {
                f"shape {tuple(of.shape)}" if isinstance(of, torch.Tensor) else type(of).__name__ for of in values
            }
            raise InvalidInput(
                f"the rows of a batch of session.steps cannot be stacked: their column {name!r} holds "
                f"{listed(sorted(shapes))}. Values of one shape, or texts, are expected: remove the column, or give "
                "session.steps a function that makes a batch of a list of rows, as "
                "collate=DataCollatorWithPadding(...)",
                cause="code",
            ) from error
    return batch


class Loop:
    """The steps for one ``for``. They end where that is left, also where a bar of tqdm holds this object."""

    def __init__(self, begin: Callable[[], Generator[Step, None, None]]) -> None:
        self._begin: Callable[[], Generator[Step, None, None]] | None = begin

    def __iter__(self) -> Generator[Step, None, None]:
        """Raises InvalidInput (cause "code") the second time."""
        begin, self._begin = self._begin, None
        if begin is None:
            raise InvalidInput(
                "what session.steps has returned is gone through twice: it gives all steps of all epochs to one loop. "
                "Call session.steps again, or go through iter(session.steps(plan)) in parts",
                cause="code",
            )
        return begin()


_DROPS = ("POP_TOP", "POP_ITER")  # what Python does where break or return leaves a loop, and no error ends it


def steps(
    part: Dataset,
    device: torch.device,
    collate: Collator | None,
    state: OwnState | None = None,
    of_task: Callable[[Dataset], Collator | None] = lambda rows: None,
    *,
    shifts_labels: bool | None = None,
    report: Callable[[dict[str, Any]], object] = lambda facts: None,
) -> Generator[Step, None, None]:
    """Collective: what ``Session.steps`` gives.

    Args:
        part: of the plan, of this rank.
        device: of the batches.
        collate: makes batches of rows; None: columns are stacked.
        state: what is saved between two steps, and gone on from.
        of_task: makes batches of such rows.
        shifts_labels: as of ``Session.steps``.
        report: takes, at the end of the loop, what is published of it.
    """
    facts = world.on_all_ranks(lambda: facts_of(part, STEPS))
    collate = collate or world.on_all_ranks(lambda: of_task(rows_of(part, STEPS)))
    audit.check_plan_part(part, facts, STEPS)
    loader = PlanLoader(part, collate or _stacked, as_tensors=collate is None)
    models = state.models if state else []
    items = items_of_loop(models, shifts_labels=shifts_labels)
    restored = state.take_restored(facts) if state else None
    for model in models:
        world.on_all_ranks(partial(check_layers, model))
    statistics = BatchStatistics(models, facts.accumulation)
    sums = _sums_of(models)
    all_steps = Steps(
        part,
        facts,
        items=items or Items(),
        models=models,
        device=device,
        statistics=statistics,
        sums=sums,
        checkpointing=state.checkpointing if state else None,
        parts=partial(state.parts, sums.is_pending) if state else None,
        restored=restored,
    )
    if restored and all_steps.is_over:
        _note_once(
            "session.steps goes on behind its last step, so the body of its loop does not run again: set what is used "
            "behind the loop before it, or keep it in an object with state_dict that session.checkpoint is given"
        )
    del restored
    end.here.loops.append(all_steps.loop)
    try:
        with contextlib.ExitStack() as left:
            left.enter_context(undisturbed())  # so that a model made behind the loop is the same on every rank
            left.enter_context(memory_of_steps())
            left.enter_context(attention_of_steps())
            left.enter_context(statistics.watch())
            left.enter_context(sums.watch())
            left.callback(sums.close)
            left.callback(register_optimizer_step_pre_hook(partial(_check_update, sums)).remove)
            if state:
                left.enter_context(stop_flag.defer())
                left.callback(state.close)
            left.callback(marks.mark, Phase.OUTSIDE)
            is_first, progress = True, Progress(facts.num_epochs * facts.steps_per_epoch)
            while not all_steps.is_over:
                for step in all_steps.of_epoch(loader):
                    if shifts_labels is None and is_first:
                        world.on_all_ranks(partial(check_shift, [part.batch for part in step.parts], items))
                    is_first = False
                    marks.mark(Phase.OWN)
                    yield step
                    step.check_used()
                    _check_ended(sums, step.number)
                    marks.step_done(step.number)
                    progress.step(step.number, all_steps.num_epochs_done, step.num_rows)
                marks.mark(Phase.OUTSIDE)  # until the first step of the next epoch
                all_steps.end_epoch()
                all_steps.meet()
            if state:
                state.end(all_steps.done)
            num_steps = facts.num_epochs * facts.steps_per_epoch
            report({"step": all_steps.done, "num_steps": num_steps, "audit": audit.published(all_steps.coverage)})
    except GeneratorExit:  # the loop stays noted, and by which line it was left
        if function := sys._getframe().f_back:
            all_steps.loop.left_at = function.f_code, function.f_lineno
            if dis.opname[function.f_code.co_code[function.f_lasti]] in _DROPS:
                end.here.tell_left(all_steps.loop)
        raise
    except BaseException:
        end.here.loops.remove(all_steps.loop)
        raise
    end.here.loops.remove(all_steps.loop)


def _sums_of(models: Sequence[nn.Module]) -> Sums:
    """Returns the sums of what the function trains: ``models``, and what is found among all objects of the process.

    Raises:
        InvalidInput: (cause "code", on every rank) when the ranks begin with different weights.
    """
    gc.collect()  # optimizers and models of what has ended are left out
    objects = gc.get_objects()
    optimizers = [item for item in objects if issubclass(type(item), torch.optim.Optimizer)]
    parallel = [item for item in objects if issubclass(type(item), DistributedDataParallel)]
    del objects
    if world.size() > 1:  # the order in which objects are found differs between ranks
        parallel.sort(key=lambda model: signature(model.parameters()))
        optimizers.sort(key=lambda of: signature(value for group in of.param_groups for value in group["params"]))
    parameters = parameters_of([*models, *(model.module for model in parallel)], optimizers)
    sums = Sums(parameters, parallel)
    sums.check_alike(whole=True)
    if world.size() > 1:
        _tell_apart([of for _, of in parameters])
    return sums


def _tell_apart(parameters: Sequence[nn.Parameter]) -> None:
    """Notes before the first step what keeps the ranks from training one model, or makes them do it twice."""
    hooked = [of for of in parameters if of._post_accumulate_grad_hooks]
    if not parameters:
        note = (
            "session.steps has found no parameters whose gradients it could sum over the ranks: there is no optimizer, "
            "no DistributedDataParallel, and session.checkpoint was given no model. The weights that it gives add up "
            "to 1 over all ranks: sum what is computed with them over the ranks, without a mean, or else each rank "
            "trains a model of its own on its share of the rows, and that of rank 0 is published"
        )
    elif hooked:
        note = (
            f"{counted(len(hooked), 'parameter')} that the ranks train have hooks on their gradients. Where these "
            "exchange gradients, take them out: session.steps sums all gradients over the ranks when the last "
            "micro-batch of a step is done"
        )
    else:
        return
    _note_once(note)


def _note_once(note: str) -> None:
    """Says it in the log and with the result, once in a function."""
    if note not in end.here.notes:
        world.note(note)
        end.here.notes.append(note)


def _check_update(sums: Sums, optimizer: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Looks, before an optimizer's step, whether its gradients are the sums; ``arguments``, ``named``: those of step.

    Raises InvalidInput (cause "code") where they cannot be, and notes where the function may have summed its own."""
    trained = [of for group in optimizer.param_groups for of in group["params"] if of.grad is not None]
    unknown = [of for of in trained if not sums.knows(of)]
    if sums.is_partial and len(unknown) < len(trained):
        raise InvalidInput(
            f"{type(optimizer).__name__}.step() was called for a single micro-batch of a step of session.steps. Its "
            "gradients are those of the whole global batch when the loop over the step is done: call it behind that, "
            "in the body of `for step in session.steps(plan)`, and zero_grad() behind it",
            cause="code",
        )
    if unknown and not sums.is_open and world.size() > 1:
        raise InvalidInput(
            f"{type(optimizer).__name__} trains {counted(len(unknown), 'parameter')} that session.steps did not find "
            "before the first step, so their gradients are not summed over the ranks, and each would train weights of "
            "its own. Make the models and their optimizers before `for step in session.steps(plan)`",
            cause="code",
        )
    has_closure = any(of is not None for of in (*arguments[1:], named.get("closure")))
    if world.size() > 1 and not sums.is_open and (has_closure or not all(map(sums.is_sum, trained))):
        _note_once(
            f"{type(optimizer).__name__}.step() was called with gradients that were made behind a step of "
            "session.steps, or in a closure. They are not summed over the ranks, so each rank trains weights of its "
            "own, unless the function sums them: call backward() within `for batch, weight in step`"
        )
    sums.use(trained)


def _check_ended(sums: Sums, step: int) -> None:
    """Raises InvalidInput (cause "code") when a step was left before its end, where the ranks put theirs together."""
    if sums.is_open:
        raise InvalidInput(
            f"step {step} of session.steps was left before its end, so its gradients are not summed over the ranks, "
            "and running statistics of BatchNorm not merged. Go through all of a step, without break or next(): "
            "for batch, weight in step",
            cause="code",
        )
