"""Weights: how those of a model are told apart, and the checks that all ranks train and hold the same ones.

What is published is compared whole, once, and not at the evaluations, which may come after every step. Of a model with
adapters of peft only these are saved; their base stays as it was loaded. No checkpoint holds weights that are no finite
numbers, and they are not published.
"""

import copy
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.lr_scheduler import LRScheduler

from train_func.errors import InvalidInput
from train_func.text import counted, listed
from train_func.worker.rank import world


def has_adapters(model: nn.Module) -> bool:
    """Tells whether peft has put adapters beside frozen weights, which nothing trains."""
    peft: Any = sys.modules.get("peft")  # where it was not imported, no model is of it
    return peft is not None and isinstance(model, peft.PeftModel) and any(True for _ in _base(model))


def _base(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    parameters = model.named_parameters(remove_duplicate=False)
    return ((name, parameter) for name, parameter in parameters if not parameter.requires_grad)


def base_names(model: nn.Module) -> frozenset[str]:
    """Returns the names of the frozen weights below adapters; none of a model without adapters."""
    return frozenset(name for name, _ in _base(model)) if has_adapters(model) else frozenset()


def own_weights(model: nn.Module, base: frozenset[str] | None = None) -> dict[str, Any]:
    """Returns the model's state dict; of one with adapters without its frozen weights.

    ``base``: the ``base_names`` when its training began. What was frozen later has been trained, and is its own.
    """
    frozen = base_names(model) if base is None else base_names(model) & base
    state: dict[str, Any] = model.state_dict()
    return {name: value for name, value in state.items() if name not in frozen} if frozen else state


def copy_own_weights(model: nn.Module, base: frozenset[str]) -> dict[str, torch.Tensor]:
    """Returns a copy of the model's ``own_weights`` on the CPU."""
    return {name: value.detach().cpu().clone() for name, value in own_weights(model, base).items()}


def frozen_names(model: nn.Module) -> list[str]:
    """Returns the names of the parameters that are not trained now."""
    return [name for name, parameter in model.named_parameters() if not parameter.requires_grad]


def frozen(model: torch.nn.Module) -> frozenset[int]:
    """Returns the addresses of the weights that are not trained, as those below an adapter."""
    return frozenset(value.data_ptr() for value in model.parameters() if not value.requires_grad)


def freeze(model: nn.Module, names: Iterable[str]) -> None:
    """Has these parameters not trained, and all others trained."""
    frozen = {*names}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad == (name in frozen):
            parameter.requires_grad_(name not in frozen)


def load_own_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Loads what ``own_weights`` returned; raises RuntimeError, as torch does, where names are missing or too many."""
    if not has_adapters(model):
        model.load_state_dict(weights)
        return
    keys = model.load_state_dict(weights, strict=False)
    missing = set(keys.missing_keys) - {name for name, _ in _base(model)}
    if wrong := sorted(missing) + keys.unexpected_keys:
        raise RuntimeError(f"the adapters are not those of the model: {', '.join(wrong[:5])}")


def load_optimizer(optimizer: Any, state: dict[str, Any]) -> None:
    """Loads a state as ``optimizer.load_state_dict`` does, and keeps its types, for which that takes a parameter's."""
    optimizer.load_state_dict(state)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in state["param_groups"] for number in group["params"]]
    for number, parameter in zip(numbers, parameters, strict=True):
        for name, saved in state["state"].get(number, {}).items():
            now = optimizer.state[parameter][name]
            if isinstance(saved, torch.Tensor) and saved.dtype != now.dtype:
                optimizer.state[parameter][name] = saved.to(now.device, copy=True)


FIRST = "first_lr"  # in a checkpoint alone: the rate that the loop begins with, where it has no schedule
# Of an optimizer's group, and of a schedule. What else a group holds may be state: some optimizers count steps there.
OPTIONS = ("lr", FIRST, "initial_lr", "max_lr", "min_lr", "weight_decay", "betas", "eps", "momentum")
CYCLED = ("betas", "momentum")  # state, where a schedule of cycles moves them against the rate
RATES = ("base_lrs", "max_lrs", "eta_min", "min_lrs", "default_min_lr")


def keep_first_rates(optimizer: Any) -> None:
    """Writes into each group the rate that it begins with, as most schedules do: ``own_options`` needs it."""
    for group in optimizer.param_groups:
        if "lr" in group:
            group.setdefault("initial_lr", copy.deepcopy(group["lr"]))  # a tensor would change with it


@contextmanager
def own_options(objects: Sequence[Any]) -> Iterator[None]:
    """Leaves optimizers and schedules their options, while the block loads into them what another run has saved.

    A rate keeps its place in its schedule: it is the same share of the rate that the schedule begins with. The form of
    a schedule stays that of the other run: gamma, step_size, T_max, total_steps, patience and factor.
    """
    optimizers = [item for item in objects if hasattr(item, "param_groups")]
    schedules = [schedule for item in objects for schedule in _schedules(item)]
    options = [[_some(group, OPTIONS) for group in optimizer.param_groups] for optimizer in optimizers]
    rates = [_some(vars(schedule), RATES) for schedule in schedules]
    yield
    for optimizer, options_of_groups in zip(optimizers, options, strict=True):
        for group, own in zip(optimizer.param_groups, options_of_groups, strict=True):
            saved = _some(group, OPTIONS)
            for name in saved:
                del group[name]
            group.update(own)
            if "max_momentum" in group:
                group.update(_some(saved, CYCLED))
            first, first_saved = own.get("initial_lr", own.get("lr")), saved.get("initial_lr", saved.get(FIRST))
            if first and first_saved:
                group["lr"] = first * (saved["lr"] / first_saved)
    for schedule, own in zip(schedules, rates, strict=True):
        vars(schedule).update(own, _last_lr=[group["lr"] for group in schedule.optimizer.param_groups])


def _some(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _schedules(item: Any) -> list[LRScheduler]:
    """Returns the schedule and those that it is made of; none if ``item`` is no schedule."""
    schedule = getattr(item, "scheduler", item)  # accelerate wraps it
    if not isinstance(schedule, LRScheduler):
        return []
    return [schedule, *(inner for part in getattr(schedule, "_schedulers", ()) for inner in _schedules(part))]


def kind_of(item: Any) -> str:
    """Returns the name of an object's class; of an optimizer or a schedule that accelerate wraps, the class within."""
    return type(getattr(item, "optimizer" if hasattr(item, "param_groups") else "scheduler", item)).__name__


def base_sha256(model: nn.Module) -> str:
    """Returns the SHA-256 of the frozen weights: adapters that were trained on others are worth nothing on these.

    Billions of them are hashed in many seconds: to be called once in a training.
    """
    digest = hashlib.sha256()
    for name, value in sorted(_base(model), key=lambda named: named[0]):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(_bytes(value).numpy().data)
    return digest.hexdigest()


ROUNDING = 1e-4  # of a parameter's length: ranks on unlike machines drift apart by less, one step on its own by more


def fingerprint(model: nn.Module) -> str:
    """Returns the SHA-256 of the model's ``own_weights``: equal where all are, bit for bit."""
    digest = hashlib.sha256()
    for name, value in sorted(own_weights(model).items()):
        digest.update(name.encode())
        if isinstance(value, torch.Tensor):
            digest.update(str((value.dtype, tuple(value.shape))).encode())
            digest.update(_bytes(value).numpy().data)
    return digest.hexdigest()


def mark_of(model: nn.Module) -> list[float]:
    """Returns the length of every tensor, which tells weights from others at the cost of reading them once."""
    tensors = [value.detach() for _, value in sorted(own_weights(model).items()) if isinstance(value, torch.Tensor)]
    dense = [value for value in tensors if value.layout == torch.strided and not value.is_quantized]
    exact = (torch.float32, torch.float64)
    return [float(torch.linalg.vector_norm(value if value.dtype in exact else value.float())) for value in dense]


def agree(model: nn.Module, step: int) -> None:
    """Collective: gives every rank the weights of rank 0; ``step``: which they are trained to.

    Buffers, such as the running means of a normalisation, differ where ranks see different rows, and parameters by
    rounding.

    Raises:
        InvalidInput: (on every rank; cause "code") when parameters differ by more, so that training was wrong.
    """
    spread_buffers(model)
    if world.size() == 1 or len(set(world.gather(fingerprint(model)))) == 1:
        return
    apart = []
    for name, parameter in model.named_parameters():
        mine, zeros = parameter.detach(), parameter.detach().clone()
        world.spread(zeros)
        if torch.equal(_bytes(mine), _bytes(zeros)):
            continue
        rounding = max(ROUNDING, torch.finfo(mine.dtype).eps if mine.is_floating_point() else 0.0)
        if not (mine.float() - zeros.float()).norm() <= rounding * zeros.float().norm():  # also where that is nan
            apart.append(name)
    differing = {name for names in world.gather(apart) for name in names}
    if differing:
        names = [name for name, _ in model.named_parameters() if name in differing]
        raise InvalidInput(
            f"After step {step} the ranks hold different weights in {counted(len(names), 'parameter')} of "
            f"{type(model).__name__}: {listed(names)}. They have not trained one model. Either something changed the "
            "model on one rank alone, such as a callback or a line below `if session.rank == 0`: do it on every rank. "
            "Or the ranks do not exchange the gradients of these layers, because they are called outside of the "
            "model's forward, or were added after training had begun: call them in forward, and add them before",
            cause="code",
        )
    world.note("the ranks held different weights; all have those of rank 0 now")
    take_rank_zeros(model)


def spread_buffers(model: nn.Module) -> None:
    """Gives every rank the buffers that rank 0 has; collective."""
    for buffer in model.buffers():
        world.spread(buffer)


def take_rank_zeros(model: nn.Module) -> None:
    """Collective: gives every rank the weights that rank 0 has."""
    for tensor in (*model.parameters(), *model.buffers()):
        world.spread(tensor)


def _bytes(value: torch.Tensor) -> torch.Tensor:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


def check_finite(modules: Iterable[nn.Module], when: str, *, whole: bool = False) -> None:
    """Raises InvalidInput (cause "divergence") where weights of one of the modules are not finite; ``when`` is shown.

    ``whole``: weights that are not trained are looked at too, of which there may be billions below an adapter. They
    may hold infinity, as a mask does, and so may a buffer that is no running statistic.
    """
    for module in modules:
        _refuse(infinite_faults(module, whole=whole), type(module).__name__, when)


def check_update(parameters: Mapping[str, nn.Parameter], step: int, ranks: Sequence[int]) -> None:
    """Raises InvalidInput (cause "divergence") where a step has made weights of gradients that were not finite.

    Weights that are finite were not updated: a GradScaler, whose gradients overflow on purpose, leaves out such a step.

    Args:
        parameters: that are trained, by name.
        step: its number.
        ranks: whose gradients were not finite.
    """
    if faults := _not_finite(parameters):
        who = "rank" if len(ranks) == 1 else "ranks"
        raise InvalidInput(
            f"The gradients of step {step} are not finite on {who} {listed(ranks)}, and its update has made weights of "
            f"them: {_sentence(faults, 'the model')}. A finite loss has such gradients where, for example, the root of "
            "0 or a norm of zeros is taken: look in the loss and in the rows of that step for this",
            cause="divergence",
        )


def check_finite_tensors(tensors: Mapping[str, Any], when: str) -> list[str]:
    """Refuses nan in a state dict, which does not say what is trained, and returns the names of what holds infinity."""
    faults = _not_finite(tensors)
    _refuse({name: word for name, word in faults.items() if word == "nan"}, "the state dict", when)
    return [name for name, word in faults.items() if word != "nan"]


def _refuse(faults: Mapping[str, str], owner: str, when: str) -> None:
    if faults:
        fault = f"{when}{_sentence(faults, owner)}. They are neither saved nor published"
        raise InvalidInput(fault, cause="divergence")


def _sentence(faults: Mapping[str, str], owner: str) -> str:
    names = listed([f"{name} ({word})" for name, word in faults.items()])
    return f"{counted(len(faults), 'tensor')} of {owner} {'is' if len(faults) == 1 else 'are'} not finite: {names}"


def infinite_faults(module: nn.Module, *, whole: bool = False) -> dict[str, str]:
    """Returns the weights and running statistics that are not finite, by name: "nan" or "infinity"."""
    tensors: dict[str, Any] = {}
    frozen = set()
    for name, parameter in module.named_parameters():
        if whole or parameter.requires_grad:
            tensors[name] = parameter
        if not parameter.requires_grad:
            frozen.add(name)
    for path, layer in module.named_modules():
        if isinstance(layer, _NormBase):
            for name in ("running_mean", "running_var"):
                tensors[f"{path}.{name}" if path else name] = getattr(layer, name)
    return {name: word for name, word in _not_finite(tensors).items() if word == "nan" or name not in frozen}


def _not_finite(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Returns what holds nan or infinity, by name, and which of the two. Each device is asked once."""
    flags: dict[torch.device, dict[str, torch.Tensor]] = {}
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor) or not value.is_floating_point() or value.layout != torch.strided:
            continue
        local: Any = value.detach()
        local = local.to_local() if hasattr(local, "to_local") else local  # this rank's part of a sharded one
        if local.is_meta or not local.numel():
            continue
        bounds = torch.stack(torch.aminmax(local.float() if local.element_size() == 1 else local))  # nan where one is
        flags.setdefault(local.device, {})[name] = torch.stack([bounds.isnan().any(), bounds.isinf().any()])
    rows = [
        (name, row)
        for of_device in flags.values()
        for name, row in zip(of_device, torch.stack([*of_device.values()]).tolist(), strict=True)
    ]
    return {name: "nan" if is_nan else "infinity" for name, (is_nan, is_infinite) in rows if is_nan or is_infinite}


def divergence(step: str, loss: float, row_ids: Sequence[Any], model: nn.Module, learning_rate: float) -> InvalidInput:
    """Collective: makes the error to raise where the loss of a step is not finite.

    ``row_ids``: of the micro-batches of this rank whose loss is not.
    """
    rows = sorted(row for ids in world.gather([*row_ids]) for row in ids)
    faults = infinite_faults(model, whole=True)
    before = f". Before that step, {_sentence(faults, type(model).__name__)}" if faults else ""
    return InvalidInput(
        f"The loss of {step} is {loss}, and so it is for micro-batches of these row ids: {listed(rows, 50)}{before}. "
        f"learning_rate={learning_rate:g} may be too high (fine-tuning usually takes 1e-5 to 1e-4): lower it, or look "
        "in those rows for what is not finite",
        cause="divergence",
    )


def state_faults(state: Mapping[str, Any]) -> list[str]:
    """Returns what of a module's state dict cannot be published, and what to do; empty when all can be."""
    faults = []
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            if value.is_quantized or value.layout != torch.strided:
                faults.append(
                    f"its {name} is a {'quantised' if value.is_quantized else 'sparse'} tensor, which safetensors "
                    "cannot hold: publish a state dict in which it is dense (dequantize(), to_dense()), or write it "
                    "to a file"
                )
        elif not _is_json(value):
            faults.append(
                f"its {name} is an extra state of type {type(value).__name__}, which is neither a tensor nor plain "
                "JSON: let get_extra_state return a tensor, or a dict of numbers, texts, lists and dicts; or publish "
                "a state dict without it, and write it to a file"
            )
    return faults


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
