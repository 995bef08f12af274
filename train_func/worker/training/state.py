"""The state of a Trainer between two steps: what a checkpoint keeps of it, and how a new one goes on from that.

All ranks log, evaluate, save and stop after the same step, whichever rank's callback asked for it. transformers reads
the flags that callbacks set on each rank by itself. Clocks and files differ between ranks; a rank that evaluates or
leaves the loop alone waits forever for the others. Here a flag takes effect once the ranks have counted it together:
requests to act (``Actions``) after a step, an epoch, a log and an evaluation; votes to stop (``STOPS``) along with the
items of the next step, or at the end of an epoch (see Steps).
"""

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import TrainerControl
from transformers.trainer_callback import CallbackHandler, ExportableState, TrainerCallback, TrainerState

from train_func.worker.checkpoint.state import State
from train_func.worker.rank import world
from train_func.worker.training.weights import base_sha256, has_adapters, load_own_weights, own_weights

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
        own = sum(not is_of_libraries(callback) for callback in self._callbacks.callbacks)
        self._differ = bool(world.total(torch.tensor(own, device=self._device)))

    def agree(self, control: TrainerControl) -> None:
        """Collective: sets the flags of ``control`` that a callback has set on any rank."""
        if not self._differ:
            return
        own = [int(getattr(control, flag)) for flag in ACTIONS]
        counts = world.total(torch.tensor(own, device=self._device)).tolist()
        set_flags(control, ACTIONS, {flag for flag, count in zip(ACTIONS, counts, strict=True) if count})


def is_of_libraries(callback: Any) -> bool:
    """Whether it is one of transformers or of this package."""
    return type(callback).__module__.split(".")[0] in ALIKE


def flags_of(control: TrainerControl, flags: Sequence[str]) -> set[str]:
    """Those of ``flags`` that are set."""
    return {flag for flag in flags if getattr(control, flag)}


def set_flags(control: TrainerControl, flags: Sequence[str], chosen: set[str]) -> None:
    """Sets those of ``flags`` that are chosen, and no other."""
    for flag in flags:
        setattr(control, flag, flag in chosen)


LIBRARIES = {"torch", "transformers", "peft", "train_func"}


@dataclasses.dataclass
class Losses:
    """What is summed up of the losses of steps."""

    since_log: torch.Tensor
    total: float = 0.0
    """Of those before."""
    step: int = 0
    """That was logged last."""

    def mean_since_log(self, step: int) -> float:
        """The mean of those since the last log, which is that of ``step`` from now on."""
        since = self.since_log.item()
        mean = since / (step - self.step)
        self.since_log.zero_()
        self.total, self.step = self.total + since, step
        return mean

    def mean(self, num_steps: int) -> float:
        """The mean of all."""
        return (self.total + self.since_log.item()) / max(num_steps, 1)

    def kept(self) -> dict[str, float]:
        """As a checkpoint keeps them."""
        return {"since_log": self.since_log.item(), "total": self.total, "step": self.step}

    def restore(self, kept: Mapping[str, float]) -> None:
        """The inverse of ``kept``."""
        self.since_log.fill_(kept["since_log"])
        self.total, self.step = kept["total"], int(kept["step"])


def made_of(trainer: "Trainer") -> dict[str, Any]:
    """What two trainings have in common of which one can go on from the other's checkpoint, beside their plan."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    weights = [[name, str(of.dtype), list(of.shape), of.requires_grad] for name, of in model.named_parameters()]
    return {"weights": weights, **({"base": base_sha256(model)} if has_adapters(model) else {})}


def of_training(trainer: "Trainer") -> dict[str, Any]:
    """What all ranks have alike; its tensors are those of the training themselves."""
    scaler = getattr(trainer.accelerator, "scaler", None)
    kept = dataclasses.asdict(trainer.state)
    for name in ("stateful_callbacks", "is_local_process_zero", "is_world_process_zero"):
        del kept[name]  # of each rank
    return {
        "model": own_weights(trainer.accelerator.unwrap_model(trainer.model)),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": trainer.lr_scheduler.state_dict(),
        "scaler": scaler.state_dict() if scaler else None,
        "progress": kept,
    }


def lasting(trainer: "Trainer") -> frozenset[int]:
    """Addresses of the tensors that nothing but the optimizer's step changes.

    None where code of the function's own runs within a step: it may write to their ``.data``, which raises no version.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    if any(_runs_in_step(of) for of in trainer.callback_handler.callbacks) or not _is_known(trainer, *model.modules()):
        return frozenset()
    of_optimizer = (of for state in trainer.optimizer.state.values() for of in state.values())
    tensors = [*model.parameters(), *(of for of in of_optimizer if isinstance(of, torch.Tensor))]
    return frozenset(tensor.data_ptr() for tensor in tensors)


def _runs_in_step(callback: Any) -> bool:
    """Whether it is called between the begin of a step and the optimizer's."""
    own = type(callback)
    moments = (own.on_step_begin, own.on_substep_end)
    return not is_of_libraries(callback) and moments != (TrainerCallback.on_step_begin, TrainerCallback.on_substep_end)


def _is_known(*objects: Any) -> bool:
    """Whether their classes are of libraries that leave weights alone within a step."""
    return all(type(of).__module__.split(".")[0] in LIBRARIES for of in objects)


def frozen(model: torch.nn.Module) -> frozenset[int]:
    """Addresses of the weights that are not trained, as those below an adapter."""
    return frozenset(of.data_ptr() for of in model.parameters() if not of.requires_grad)


def of_rank(trainer: "Trainer") -> dict[str, Any]:
    """What each rank has for itself.

    Raises:
        InvalidInput: (cause "code") a callback's state holds what is neither a tensor nor plain, which it names.
    """
    callbacks = [[type(of).__name__, of.state().get("attributes", {})] for of in _stateful(trainer)]
    State.of({f"{name}[{number}]": kept for number, (name, kept) in enumerate(callbacks)}, "callbacks")
    votes = sorted(flags_of(trainer.control, STOPS))
    return {"votes": votes, "callbacks": callbacks, "flos": float(trainer.current_flos)}


def restore(trainer: "Trainer", training: dict[str, Any]) -> None:
    """Puts back weights, optimizer and schedule, when transformers has made and prepared them.

    They are taken out of ``training``, so that they are not held twice.
    """
    load_own_weights(trainer.accelerator.unwrap_model(trainer.model), training.pop("model"))
    load_optimizer(trainer.optimizer, training.pop("optimizer"))
    trainer.lr_scheduler.load_state_dict(training["scheduler"])
    if scaler := getattr(trainer.accelerator, "scaler", None):
        scaler.load_state_dict(training["scaler"])


def load_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """As ``optimizer.load_state_dict``, which turns what it has for each parameter into the parameter's own type."""
    optimizer.load_state_dict(state)
    parameters = [of for group in optimizer.param_groups for of in group["params"]]
    numbers = [of for group in state["param_groups"] for of in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, saved in state["state"].get(number, {}).items():
            now = optimizer.state[parameter][name]
            if isinstance(saved, torch.Tensor) and saved.dtype != now.dtype:
                optimizer.state[parameter][name] = saved.to(now.device, copy=True)


def kept_row_ids(row_ids: list[Any]) -> Any:
    """As a checkpoint keeps them: numbers as an array."""
    found = np.asarray(row_ids)
    return found if found.dtype.kind in "iu" else row_ids


def row_ids_in(kept: Any) -> list[Any]:
    """The inverse of ``kept_row_ids``."""
    found: list[Any] = kept.tolist() if isinstance(kept, np.ndarray) else kept
    return found


def restore_progress(trainer: "Trainer", training: dict[str, Any], rank: dict[str, Any]) -> None:
    """Puts back how far the training is, and what callbacks know."""
    names = {of.name for of in dataclasses.fields(TrainerState)}
    for name, value in training["progress"].items():
        if name in names:
            setattr(trainer.state, name, value)
    trainer.current_flos = rank["flos"]
    of_callbacks = list(rank["callbacks"])
    for callback in _stateful(trainer):
        found = next((of for of in of_callbacks if of[0] == type(callback).__name__), None)
        if found:
            of_callbacks.remove(found)
            for name, value in found[1].items():
                setattr(callback, name, value)


def random_state() -> dict[str, Any]:
    """Of every generator of this process."""
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    return {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state(), "cuda": cuda}


def restore_random(state: dict[str, Any]) -> None:
    """The inverse of ``random_state``."""
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _stateful(trainer: "Trainer") -> Iterator[Any]:
    return (of for of in (*trainer.callback_handler.callbacks, trainer.control) if isinstance(of, ExportableState))
