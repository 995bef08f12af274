"""The state of a Trainer between two steps: what a checkpoint keeps of it, and how a new one goes on from that.

All ranks log, evaluate, save and stop after the same step, whichever rank's callback asked for it. transformers reads
the flags that callbacks set on each rank by itself. Clocks and files differ between ranks; a rank that evaluates or
leaves the loop alone waits forever for the others. Here a flag takes effect once the ranks have counted it together:
requests to act (``Actions``) after a step, an epoch, a log and an evaluation; votes to stop (``STOPS``) along with the
items of the next step, or at the end of an epoch (see Steps).
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerControl
from transformers.trainer_callback import CallbackHandler, ExportableState, TrainerCallback, TrainerState
from transformers.trainer_utils import SchedulerType

from train_func.worker.checkpoint.checkpointing import Resumption
from train_func.worker.checkpoint.state import State
from train_func.worker.rank import world
from train_func.worker.training.weights import (
    base_sha256,
    freeze,
    frozen_names,
    has_adapters,
    kind_of,
    load_optimizer,
    load_own_weights,
    own_options,
    own_weights,
)

if TYPE_CHECKING:
    from transformers import Trainer


ACTIONS = ("should_log", "should_evaluate", "should_save")
STOPS = ("should_training_stop", "should_epoch_stop")
ALIKE = ("transformers", "train_func")  # packages whose callbacks set the same flags on every rank


class Actions:
    """Requests to log, evaluate and save, which all ranks follow together.

    Callbacks of transformers and of this package ask on all ranks alike. Without other callbacks nothing is exchanged,
    because every exchange waits for the device.
    """

    def __init__(self, callbacks: CallbackHandler, device: torch.device) -> None:
        self._callbacks, self._device, self._differ = callbacks, device, True

    def begin(self) -> None:
        """Collective, before an epoch: finds out whether any rank has callbacks by which ranks may differ."""
        foreign = sum(not is_of_libraries(callback) for callback in self._callbacks.callbacks)
        self._differ = bool(world.total(torch.tensor(foreign, device=self._device)))

    def agree(self, control: TrainerControl) -> None:
        """Collective: sets the flags of ``control`` that a callback has set on any rank."""
        if not self._differ:
            return
        votes = [int(getattr(control, flag)) for flag in ACTIONS]
        counts = world.total(torch.tensor(votes, device=self._device)).tolist()
        set_flags(control, ACTIONS, {flag for flag, count in zip(ACTIONS, counts, strict=True) if count})


def is_of_libraries(callback: Any) -> bool:
    """Tells whether a callback is one of transformers or of this package."""
    return type(callback).__module__.split(".")[0] in ALIKE


def flags_of(control: TrainerControl, flags: Sequence[str]) -> set[str]:
    """Returns those of ``flags`` that are set."""
    return {flag for flag in flags if getattr(control, flag)}


def set_flags(control: TrainerControl, flags: Sequence[str], chosen: set[str]) -> None:
    """Sets those of ``flags`` that are chosen, and no other."""
    for flag in flags:
        setattr(control, flag, flag in chosen)


LIBRARIES = {"torch", "transformers", "peft", "train_func"}


def made_of(trainer: "Trainer") -> dict[str, Any]:
    """Returns what must be equal, beside the plan, for one training to go on from the checkpoint of another."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    parameters = model.named_parameters()
    weights = [[name, str(value.dtype), list(value.shape), value.requires_grad] for name, value in parameters]
    made = {"weights": weights, "optimizer": _optimizer_name(trainer), "schedule": _schedule_name(trainer)}
    return {**made, **({"base": base_sha256(model)} if has_adapters(model) else {})}


def _optimizer_name(trainer: "Trainer") -> str:
    """Returns the class of the optimizer that the Trainer was given, or else the name of the one that it will make."""
    if trainer.optimizer is not None:
        return kind_of(trainer.optimizer)
    if trainer.optimizer_cls_and_kwargs:
        return str(trainer.optimizer_cls_and_kwargs[0].__name__)
    return str(trainer.args.optim)


def _schedule_name(trainer: "Trainer") -> str:
    """Returns the class of the schedule that the Trainer was given, or else of the one that it will make."""
    if trainer.lr_scheduler is not None:
        return kind_of(trainer.lr_scheduler)
    name = SchedulerType(trainer.args.lr_scheduler_type)
    return {"reduce_lr_on_plateau": "ReduceLROnPlateau", "greedy": "GreedyLR"}.get(name.value, "LambdaLR")


def of_training(trainer: "Trainer", base: frozenset[str]) -> dict[str, Any]:
    """Returns what all ranks have alike; its tensors are those of the training themselves.

    ``base``: the names of the weights that were frozen below adapters when it began.
    """
    scaler = getattr(trainer.accelerator, "scaler", None)
    progress = dataclasses.asdict(trainer.state)
    for name in ("stateful_callbacks", "is_local_process_zero", "is_world_process_zero"):
        del progress[name]  # of each rank
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {
        "model": own_weights(model, base),
        "frozen": frozen_names(model),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
        "scaler": scaler.state_dict() if scaler else None,
        "progress": progress,
    }


def lasting(trainer: "Trainer") -> frozenset[int]:
    """Returns the addresses of the tensors that nothing but the optimizer's step changes.

    There are none where code of the function's own runs within a step, in its Trainer, a module or a callback: it may
    write to their ``.data``, which raises no version.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    unknown = any(type(part).__module__.split(".")[0] not in LIBRARIES for part in (trainer, *model.modules()))
    for callback in trainer.callback_handler.callbacks:
        moments = (type(callback).on_step_begin, type(callback).on_substep_end)
        is_passive = moments == (TrainerCallback.on_step_begin, TrainerCallback.on_substep_end)
        unknown |= not (is_passive or is_of_libraries(callback))
    if unknown:
        return frozenset()
    of_optimizer = (value for values in trainer.optimizer.state.values() for value in values.values())
    tensors = [*model.parameters(), *(value for value in of_optimizer if isinstance(value, torch.Tensor))]
    return frozenset(tensor.data_ptr() for tensor in tensors)


def of_rank(trainer: "Trainer") -> dict[str, Any]:
    """Returns what each rank has for itself.

    Raises:
        InvalidInput: (cause "code") a callback's state holds what is neither a tensor nor plain, which it names.
    """
    callbacks = [[type(part).__name__, part.state().get("attributes", {})] for part in _stateful(trainer)]
    State.of({f"{name}[{number}]": values for number, (name, values) in enumerate(callbacks)}, "callbacks")
    votes = sorted(flags_of(trainer.control, STOPS))
    return {"votes": votes, "callbacks": callbacks, "flos": float(trainer.current_flos)}


def restore(trainer: "Trainer", restored: Resumption) -> None:
    """Puts back weights, which of them are frozen, optimizer and schedule, when transformers has prepared them.

    Of another run's checkpoint rates, weight decay and betas are not taken, and the form of the schedule is, as its
    T_max or patience. The weights and the optimizer's state are taken out of ``restored``, so that they are not held
    twice.
    """
    training, model = restored.training, trainer.accelerator.unwrap_model(trainer.model)
    freeze(model, training["frozen"])
    load_own_weights(model, training.pop("model"))
    parts = [trainer.optimizer, trainer.lr_scheduler]
    with contextlib.nullcontext() if restored.is_own else own_options(parts):
        load_optimizer(trainer.optimizer, training.pop("optimizer"))
        trainer.lr_scheduler.load_state_dict(training["scheduler"])
    if scaler := getattr(trainer.accelerator, "scaler", None):
        scaler.load_state_dict(training["scaler"])


def restore_progress(trainer: "Trainer", restored: Resumption) -> None:
    """Puts back how far the training is, and what callbacks know."""
    rank, names = restored.rank, {field.name for field in dataclasses.fields(TrainerState)}
    if not restored.is_own:
        names -= {"logging_steps", "eval_steps", "save_steps"}  # of the arguments, which may be others now
    for name, value in restored.training["progress"].items():
        if name in names:
            setattr(trainer.state, name, value)
    trainer.current_flos = rank["flos"]
    saved = list(rank["callbacks"])
    for callback in _stateful(trainer):
        entry = next((entry for entry in saved if entry[0] == type(callback).__name__), None)
        if entry:
            saved.remove(entry)
            for name, value in entry[1].items():
                setattr(callback, name, value)


def _stateful(trainer: "Trainer") -> Iterator[Any]:
    parts = (*trainer.callback_handler.callbacks, trainer.control)
    return (part for part in parts if isinstance(part, ExportableState))
