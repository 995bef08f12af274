"""The state of a loop of one's own: the objects that a checkpoint keeps, and where in the plan the loop is."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train_func.errors import InvalidInput
from train_func.worker.checkpoint.state import State
from train_func.worker.training import finite, world
from train_func.worker.training.adapted import base_sha256, has_adapters, load_own_weights, own_weights
from train_func.worker.training.audit import check_same_plan
from train_func.worker.training.checkpointing import Checkpointing, Parts, Restored, Trainings
from train_func.worker.training.own_files import state_faults
from train_func.worker.training.plan import STEPS, PlanFacts
from train_func.worker.training.trainer_state import (
    frozen,
    kept_row_ids,
    load_optimizer,
    random_state,
    restore_random,
    row_ids_in,
)
from train_func.worker.training.weights import Exchanged


class OwnState:
    """Collective, as Checkpointing: restores its objects when it is made, and saves them between steps."""

    def __init__(self, trainings: Trainings, objects: Mapping[str, Any], device: torch.device) -> None:
        """Raises InvalidInput (cause "code") for an object without state_dict and load_state_dict."""
        self._plan: dict[str, int | str] | None = None
        """What identifies it, once session.steps was given one."""
        self._objects = {name: of.module if _is_ddp(of) else of for name, of in objects.items()}
        world.on_all_ranks(self._check)
        if not any(hasattr(of, "param_groups") for of in self._objects.values()):
            world.note(
                "session.checkpoint was given no optimizer: after a restart it begins anew, and the result may differ; "
                "give it beside the model, as in session.checkpoint(model, optimizer)"
            )
        self._bases = {name: _base(of) for name, of in self._objects.items() if isinstance(of, nn.Module)}
        """Names of the weights that every attempt loads and none trains, below adapters."""
        world.on_all_ranks(self._check_states)
        self.exchanged = Exchanged(objects.values())
        self._checkpointing: Checkpointing = trainings.begin(_made_of(self._objects))
        self._restored: Restored | None = self._checkpointing.restore(device)
        if self._restored:
            for name, of in self._objects.items():
                _load(of, self._restored.training["objects"][name])

    @property
    def models(self) -> list[nn.Module]:
        """Those among its objects."""
        return [of for of in self._objects.values() if isinstance(of, nn.Module)]

    def _state(self, name: str, of: Any) -> Any:
        state = of.state_dict()
        if not self._bases.get(name):
            return state
        left_out = self._bases[name] & _base(of)  # a loop may begin to train what was frozen, or end to train a layer
        return {own: value for own, value in state.items() if own not in left_out}

    def _check(self) -> None:
        wrong = {name: of for name, of in self._objects.items() if not _has_state(of)}
        faults = [f"session.checkpoint: {name} is a {type(of).__name__}" for name, of in wrong.items()]
        if not self._objects:
            faults = ["session.checkpoint was given nothing"]
        if faults:
            expected = (
                "models, optimizers, schedulers and other objects with state_dict and load_state_dict are expected"
            )
            raise InvalidInput([f"{fault}: {expected}" for fault in faults], cause="code")

    def _check_states(self) -> None:
        """Raises InvalidInput for what no checkpoint holds; says what ``session.publish`` would refuse."""
        finite.check(self.models, "Before the first step, ", whole=True)
        states = {name: self._state(name, of) for name, of in self._objects.items()}
        State.of(states, "session.checkpoint")
        for name, of in self._objects.items():
            if isinstance(of, nn.Module) and not hasattr(of, "save_pretrained"):
                for fault in state_faults(states[name]):
                    world.note(f"session.publish({type(of).__name__}) will be refused: {fault}")

    def begin(self, facts: PlanFacts) -> tuple[int, list[Any]]:
        """The number of steps that are done, and ids of the rows that this rank has used in their epoch.

        Raises:
            InvalidInput: (cause "code", on every rank) the checkpoint was saved with another plan.
        """
        self._plan = facts.identity
        restored, self._restored = self._restored, None
        if restored is None:
            return 0, []
        world.on_all_ranks(partial(check_same_plan, restored, facts, STEPS))
        restore_random(restored.rank["random"])
        return restored.step, [row for of in (restored.rank, *restored.lost) for row in row_ids_in(of["used"])]

    def votes(self) -> list[int]:
        """Of this rank, to be added up over the ranks and given to ``decide``."""
        return self._checkpointing.votes()

    def decide(self, counts: Sequence[int], step: int, used: Sequence[Any], *, is_over: bool = False) -> None:
        """Between two steps, ``step`` of them done: saves and stops, where that was voted for."""

        def parts() -> Parts:
            self._check_finite(step)
            objects = {name: self._state(name, of) for name, of in self._objects.items()}
            training = {"objects": objects, "plan": self._plan}
            rank = {"used": kept_row_ids([*used]), "random": random_state()}
            # Nothing counts as lasting: a loop may change its weights at any moment, also by their .data.
            return Parts(training, rank, frozen=frozenset().union(*map(frozen, self.models)))

        self._checkpointing.decide(counts, step, parts, is_over=is_over)

    def end(self, step: int, device: torch.device) -> None:
        """When all steps are done: what was begun is saved, and a signal that has come meanwhile stops the ranks."""
        counts = world.total(torch.tensor(self.votes(), device=device)).tolist()
        self.decide(counts, step, [], is_over=True)
        world.on_all_ranks(partial(self._check_finite, step))
        world.on_rank_zero(self._checkpointing.close)

    def _check_finite(self, step: int) -> None:
        finite.check(self.models, f"After step {step}, ")

    def close(self) -> None:
        """When the loop is left, in whatever way: what was begun is saved. Not collective."""
        self._checkpointing.close()


def _has_state(of: Any) -> bool:
    return callable(getattr(of, "state_dict", None)) and callable(getattr(of, "load_state_dict", None))


def _is_ddp(of: Any) -> bool:
    return isinstance(of, DistributedDataParallel)


def _base(model: nn.Module) -> frozenset[str]:
    return frozenset(model.state_dict()) - own_weights(model).keys() if has_adapters(model) else frozenset()


def _load(of: Any, state: Any) -> None:
    if isinstance(of, torch.optim.Optimizer):
        load_optimizer(of, state)
    elif isinstance(of, nn.Module):
        load_own_weights(of, state)
    else:
        of.load_state_dict(state)


def _made_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """What two loops have in common of which one can go on from the other's checkpoint."""
    made = {
        name: [[own, str(of.dtype), list(of.shape)] for own, of in held.named_parameters()]
        if isinstance(held, nn.Module)
        else type(held).__name__
        for name, held in objects.items()
    }
    bases = {name: base_sha256(of) for name, of in objects.items() if isinstance(of, nn.Module) and has_adapters(of)}
    return {"objects": made, **({"bases": bases} if bases else {})}
