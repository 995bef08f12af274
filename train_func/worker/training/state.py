"""The state of a Trainer between two steps: what a checkpoint keeps of it, and how a new one goes on from that.

All ranks log, evaluate, save and stop after the same step, whichever rank's callback asked for it. transformers reads
the flags that callbacks set on each rank by itself. Clocks and files differ between ranks; a rank that evaluates or
leaves the loop alone waits forever for the others. Here a flag takes effect once the ranks have counted it together:
requests to act (``Actions``) after a step, an epoch, a log and an evaluation; votes to stop (``StopVotes``) along with
the items of the next step, or at the end of an epoch.
"""

import dataclasses
import random
from collections.abc import Iterator, Sequence
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

    def __init__(self, callbacks: CallbackHandler) -> None:
        """Requests that ``callbacks`` make in ``on_log`` are put off until the ranks count them; transformers would
        follow them at once."""
        self._callbacks = callbacks
        self._differ = True
        self._put_off: set[str] = set()
        call_event = callbacks.call_event

        def collected(event: str, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
            before = flags_of(control, ACTIONS)
            after: TrainerControl = call_event(event, args, state, control, **kwargs)
            if event == "on_step_begin":
                self._put_off.clear()  # as transformers takes back its flags
            elif event == "on_log":
                new = flags_of(after, ACTIONS) - before
                self._put_off |= new
                set_flags(after, ACTIONS, flags_of(after, ACTIONS) - new)
            return after

        callbacks.call_event = collected

    def begin(self, device: torch.device) -> None:
        """Collective, before an epoch: finds out whether any rank has callbacks by which ranks may differ."""
        own = sum(not is_of_libraries(callback) for callback in self._callbacks.callbacks)
        self._differ = bool(world.total(torch.tensor(own, device=device)))

    def agree(self, control: TrainerControl, device: torch.device) -> None:
        """Collective: sets the flags of ``control`` that a callback has set on any rank."""
        if not self._differ:
            return
        own = flags_of(control, ACTIONS) | self._put_off
        self._put_off.clear()
        counts = world.total(torch.tensor([int(flag in own) for flag in ACTIONS], device=device)).tolist()
        set_flags(control, ACTIONS, {flag for flag, count in zip(ACTIONS, counts, strict=True) if count})


class StopVotes:
    """This rank's votes, one per flag, since they were last counted."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    def collect(self, callbacks: CallbackHandler) -> None:
        """From now on, flags that ``callbacks`` set become votes after every event."""
        call_event = callbacks.call_event

        def collected(*args: Any, **kwargs: Any) -> TrainerControl:
            control: TrainerControl = call_event(*args, **kwargs)
            self._asked |= flags_of(control, STOPS)
            set_flags(control, STOPS, set())
            return control

        callbacks.call_event = collected

    @property
    def asked(self) -> list[str]:
        """The flags that this rank votes for."""
        return sorted(self._asked)

    def ask(self, flags: Sequence[str]) -> None:
        """Votes for ``flags``."""
        self._asked |= set(flags)

    def cast(self) -> list[int]:
        """One number per flag, to be added up over the ranks."""
        return [int(flag in self._asked) for flag in STOPS]

    def decide(self, counts: Sequence[int], control: TrainerControl) -> bool:
        """Sets the flags of ``control`` that any rank has voted for; returns whether there is one.

        ``counts``: those of ``cast``, summed over all ranks.
        """
        decided = {flag for flag, count in zip(STOPS, counts, strict=True) if count}
        self.clear()
        set_flags(control, STOPS, decided)
        return bool(decided)

    def clear(self) -> None:
        """Forgets the votes."""
        self._asked.clear()


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
# What transformers sums up of the losses between two logs, and over the training.
_SUMS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step")


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
        "losses": {name: float(getattr(trainer, name)) for name in _SUMS},
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


def of_rank(trainer: "Trainer", used: Any, votes: list[str]) -> dict[str, Any]:
    """What each rank has for itself; ``used``: ids of the rows it has used in the epoch.

    Raises:
        InvalidInput: (cause "code") a callback's state holds what is neither a tensor nor plain, which it names.
    """
    callbacks = [[type(of).__name__, of.state().get("attributes", {})] for of in _stateful(trainer)]
    State.of({f"{name}[{number}]": kept for number, (name, kept) in enumerate(callbacks)}, "callbacks")
    return {
        "used": used,
        "votes": votes,
        "callbacks": callbacks,
        "flos": float(trainer.current_flos),
        "random": random_state(),
    }


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


def restore_losses(trainer: "Trainer", training: dict[str, Any]) -> None:
    """Puts back the sums of losses, which transformers sets to nothing when it begins."""
    for name in _SUMS:
        kept, now = training["losses"][name], getattr(trainer, name)
        setattr(trainer, name, torch.full_like(now, kept) if isinstance(now, torch.Tensor) else type(now)(kept))


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
