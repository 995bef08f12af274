"""Weights: how those of a model are told apart, and the checks that all ranks train and hold the same ones.

What is published is compared whole, once. An evaluation, which may come after every step, compares where the ranks are.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train_func.counted import counted, listed
from train_func.errors import InvalidInput
from train_func.worker.training import world
from train_func.worker.training.adapted import base_sha256, has_adapters, own_weights

ROUNDING = 1e-4  # of a parameter's length: ranks on unlike machines drift apart by less, one step on its own by more
SAMPLED = 1024  # values of a tensor that a mark looks at


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of all values of the model, also below adapters: equal only where each is the same bit for bit."""
    digest = hashlib.sha256(base_sha256(model).encode() if has_adapters(model) else b"")
    for name, value in sorted(own_weights(model).items()):
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(_bytes(value).numpy().data)
    return digest.hexdigest()


@dataclass(frozen=True)
class Mark:
    """Tells the weights that were measured from others, without reading all of them."""

    step: int
    """That they are of."""
    sample: str
    """Digest of some values of every tensor: nearly every change by ``.data`` changes one."""
    version: int
    """Of the parameters: every other change raises it."""


def mark_of(model: nn.Module, step: int) -> Mark:
    """Of the weights as they are on this rank, of step number ``step``."""
    return Mark(step, _sample(model), _version(model))


def after_loading(mark: Mark, model: nn.Module, step: int) -> Mark:
    """The mark of what was measured at ``step``, whose weights have just been loaded into the model."""
    return replace(mark, version=_version(model)) if mark.step == step else mark


def meet_for_evaluation(model: nn.Module, step: int) -> None:
    """Collective: all ranks have the weights of one step, and their buffers are those of rank 0 from now on.

    Raises:
        InvalidInput: (on every rank; cause "code") when the ranks have the weights of different steps.
    """
    steps = world.gather(step)
    if len(set(steps)) > 1:
        differences = ", ".join(f"of step {of} on rank {rank}" for rank, of in enumerate(steps))
        raise InvalidInput(
            f"The ranks evaluate different weights: {differences}. Evaluate on all ranks after the same step",
            cause="code",
        )
    _spread_buffers(model)


def agree(model: nn.Module, step: int) -> None:
    """Collective: the weights are the same on every rank from now on: those of rank 0, trained to that step.

    Buffers, such as the running means of a normalisation, differ where ranks see different rows, and parameters by
    rounding.

    Raises:
        InvalidInput: (on every rank; cause "code") when parameters differ by more, so that training was wrong.
    """
    _spread_buffers(model)
    if world.size() == 1 or len(set(world.gather(fingerprint(model)))) == 1:
        return
    differing = {name for of_rank in world.gather(_differing(model)) for name in of_rank}
    if differing:
        raise _different(model, [name for name, _ in model.named_parameters() if name in differing], step)
    world.note("the ranks held different weights; all have those of rank 0 now")
    take_rank_zeros(model)


def _spread_buffers(model: nn.Module) -> None:
    for buffer in model.buffers():
        world.spread(buffer)


def _version(model: nn.Module) -> int:
    return sum(parameter._version for parameter in model.parameters())


def _sample(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(own_weights(model).items()):
        digest.update(name.encode())
        if isinstance(value, torch.Tensor) and value.numel():
            flat = value.detach().reshape(-1)
            positions = torch.linspace(0, len(flat) - 1, min(len(flat), SAMPLED), dtype=torch.float64)
            digest.update(_bytes(flat[positions.long().to(flat.device)]).numpy().data)
    return digest.hexdigest()


def take_rank_zeros(model: nn.Module) -> None:
    """Collective: gives every rank the weights that rank 0 has."""
    for tensor in (*model.parameters(), *model.buffers()):
        world.spread(tensor)


def _differing(model: nn.Module) -> list[str]:
    """Collective: parameters that are not those of rank 0 here, not even roughly; they stay as they are."""
    names = []
    for name, parameter in model.named_parameters():
        own = parameter.detach()
        zeros = own.clone()
        world.spread(zeros)
        if torch.equal(_bytes(own), _bytes(zeros)):
            continue
        rounding = max(ROUNDING, torch.finfo(own.dtype).eps if own.is_floating_point() else 0.0)
        if not (own.float() - zeros.float()).norm() <= rounding * zeros.float().norm():  # also when it is not a number
            names.append(name)
    return names


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def _different(model: nn.Module, names: list[str], step: int) -> InvalidInput:
    where = f"{counted(len(names), 'parameter')} of {type(model).__name__}"
    return InvalidInput(
        f"After step {step} the ranks hold different weights in {where}: {listed(names)}. They have not trained one "
        "model. Either something changed the model on one rank alone, such as a callback or a line below "
        "`if session.rank == 0`: do it on every rank. Or the ranks do not exchange the gradients of these layers, "
        "because they are called outside of the model's forward, or were added after training had begun: call them in "
        "forward, and add them before",
        cause="code",
    )


class Exchanged:
    """The parameters whose gradients DDP exchanges: those that were trained when it was made."""

    def __init__(self, models: Iterable[object]) -> None:
        """To be made before anything can have changed what is trained; looks at what is in DDP among ``models``."""
        parallel = [of.module for of in models if isinstance(of, DistributedDataParallel)]
        self._known = [
            (model, {id(of) for of in model.parameters() if of.requires_grad}) for model in parallel if world.size() > 1
        ]

    def check(self, step: int) -> None:
        """Before step ``step``, from 1.

        Raises:
            InvalidInput: (cause "code") naming the parameters that have begun to be trained since.
        """
        for model, known in self._known:
            begun = [name for name, of in model.named_parameters() if of.requires_grad and id(of) not in known]
            if begun:
                raise InvalidInput(
                    f"Before step {step}, requires_grad of {counted(len(begun), 'parameter')} of "
                    f"{type(model).__name__} was set: {listed(begun)}. They were frozen when "
                    "DistributedDataParallel was made, so the ranks do not exchange their gradients, and each would "
                    "train weights of its own. Leave them unfrozen from the start, in a parameter group of the "
                    "optimizer whose learning rate is 0 until then; or train in two runs, the second of the model that "
                    "the first has published",
                    cause="code",
                )


def check_gradients_exchanged(model: nn.Module) -> None:
    """After the last backward pass of a step: the gradients of all parameters are those of all ranks.

    DDP waits for every parameter's gradient before it exchanges those of its bucket. Where one never comes, it
    raises in the next step's forward pass; this step, and training when it is its last, would end with different
    weights on each rank.

    Raises:
        InvalidInput: (cause "code") naming the parameters that the loss does not depend on.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    try:
        model._check_reducer_finalized()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise _unused(model.module) from error


def _unused(model: nn.Module) -> InvalidInput:
    names = [name for name, parameter in model.named_parameters() if parameter.requires_grad and parameter.grad is None]
    named = f": {listed(names)}" if names else ""
    how_many = counted(len(names), "parameter") if names else "some parameters"
    return InvalidInput(
        f"The loss does not depend on {how_many} of {type(model).__name__}{named}. The ranks "
        "exchange the gradients of all parameters and wait for those that never come. Pass "
        "ddp_find_unused_parameters=True to TrainingArguments, which looks for them in every step; or, when they are "
        "never used, take them out of training with parameter.requires_grad_(False)",
        cause="code",
    )
