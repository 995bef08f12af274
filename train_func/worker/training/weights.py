"""Weights: how those of a model are told apart, and the checks that all ranks train and hold the same ones.

What is published is compared whole, once. An evaluation, which may come after every step, compares where the ranks are.
Of a model with adapters of peft only these are compared and saved; their base stays as it was loaded. No checkpoint
holds weights that are no finite numbers, and they are not published.
"""

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

from train_func.errors import InvalidInput
from train_func.text import counted, listed
from train_func.worker.rank import world

_hashed: WeakKeyDictionary[nn.Module, tuple[list[tuple[str, int, int]], str]] = WeakKeyDictionary()


def has_adapters(model: nn.Module) -> bool:
    """Whether peft has put adapters beside frozen weights, which nothing trains."""
    peft: Any = sys.modules.get("peft")  # where it was not imported, no model is of it
    return peft is not None and isinstance(model, peft.PeftModel) and any(True for _ in _base(model))


def _base(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, of) for name, of in model.named_parameters(remove_duplicate=False) if not of.requires_grad)


def own_weights(model: nn.Module) -> dict[str, Any]:
    """The model's state dict; of one with adapters without its frozen weights."""
    state: dict[str, Any] = model.state_dict()
    if not has_adapters(model):
        return state
    frozen = {name for name, _ in _base(model)}
    return {name: of for name, of in state.items() if name not in frozen}


def load_own_weights(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """The inverse of ``own_weights``; raises RuntimeError, as torch does, where names are missing or too many."""
    if not has_adapters(model):
        model.load_state_dict(weights)
        return
    found = model.load_state_dict(weights, strict=False)
    missing = set(found.missing_keys) - {name for name, _ in _base(model)}
    if wrong := sorted(missing) + found.unexpected_keys:
        raise RuntimeError(f"the adapters are not those of the model: {', '.join(wrong[:5])}")


def base_sha256(model: nn.Module) -> str:
    """Of the frozen weights: adapters that were trained on others are worth nothing on these.

    Billions of them are hashed in many seconds, so once only, until they lie elsewhere or an operation changes them.
    """
    base = sorted(_base(model), key=lambda named: named[0])
    state = [(name, value.data_ptr(), value._version) for name, value in base]
    if (held := _hashed.get(model)) and held[0] == state:
        return held[1]
    digest = hashlib.sha256()
    for name, value in base:
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    _hashed[model] = state, digest.hexdigest()
    return digest.hexdigest()


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


def check_finite(modules: Iterable[nn.Module], when: str, *, whole: bool = False) -> None:
    """Raises InvalidInput (cause "divergence") where weights of one of the modules are not finite; ``when`` is shown.

    ``whole``: weights that are not trained are looked at too, of which there may be billions below an adapter. They
    may hold infinity, as a mask does, and so may a buffer that is no running statistic.
    """
    for module in modules:
        _refuse(infinite_faults(module, whole=whole), type(module).__name__, when)


def check_finite_tensors(tensors: Mapping[str, Any], when: str) -> list[str]:
    """The same of a state dict, which does not say what is trained: refuses nan, and returns what holds infinity."""
    found = _not_finite(tensors)
    _refuse({name: word for name, word in found.items() if word == "nan"}, "the state dict", when)
    return [name for name, word in found.items() if word != "nan"]


def _refuse(faults: Mapping[str, str], owner: str, when: str) -> None:
    if faults:
        raise InvalidInput(f"{when}{told(faults, owner)}. They are neither saved nor published", cause="divergence")


def told(faults: Mapping[str, str], owner: str) -> str:
    """What is not finite, as a sentence without its point."""
    names = listed([f"{name} ({word})" for name, word in faults.items()])
    return f"{counted(len(faults), 'tensor')} of {owner} {'is' if len(faults) == 1 else 'are'} not finite: {names}"


def infinite_faults(module: nn.Module, *, whole: bool = False) -> dict[str, str]:
    """The weights and running statistics that are not finite, by name: "nan" or "infinity"."""
    parameters = {name: of for name, of in module.named_parameters() if whole or of.requires_grad}
    statistics = {
        f"{path}.{name}" if path else name: value
        for path, layer in module.named_modules()
        if isinstance(layer, _NormBase)
        for name, value in (("running_mean", layer.running_mean), ("running_var", layer.running_var))
    }
    frozen = {name for name, of in parameters.items() if not of.requires_grad}
    found = _not_finite({**parameters, **statistics})
    return {name: word for name, word in found.items() if word == "nan" or name not in frozen}


def _not_finite(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Those that hold nan or infinity, by name, and which of the two. The device is asked once."""
    bounds = {name: bound for name, value in tensors.items() if (bound := _bounds(value)) is not None}
    seen: dict[str, list[bool]] = {}
    for device in {of.device for of in bounds.values()}:
        there = {name: of for name, of in bounds.items() if of.device == device}
        flags = torch.stack([torch.stack([of.isnan().any(), of.isinf().any()]) for of in there.values()]).tolist()
        seen |= dict(zip(there, flags, strict=True))
    return {name: "nan" if seen[name][0] else "infinity" for name in bounds if any(seen[name])}


def _bounds(value: Any) -> torch.Tensor | None:
    """The lowest and the highest number, both nan where one is; None for what holds no floating-point numbers."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return None
    local: Any = value.detach()
    if hasattr(local, "to_local"):  # this rank's part of one that is sharded
        local = local.to_local()
    if local.layout != torch.strided:
        local = local._values() if local.layout == torch.sparse_coo else local.values()
    if local.is_complex():
        local = torch.view_as_real(local)
    if local.is_meta or not local.numel():
        return None
    if local.element_size() == 1:  # eight bits: no lowest and highest of those
        local = local.float()
    return torch.stack(torch.aminmax(local))


def divergence(step: str, loss: float, row_ids: Sequence[Any], model: nn.Module, learning_rate: float) -> InvalidInput:
    """Collective: what to raise where the loss of a step is not finite.

    ``row_ids``: of the micro-batches of this rank whose loss is not.
    """
    found = sorted(row for of_rank in world.gather([*row_ids]) for row in of_rank)
    faults = infinite_faults(model, whole=True)
    before = f". Before that step, {told(faults, type(model).__name__)}" if faults else ""
    return InvalidInput(
        f"The loss of {step} is {loss}, and so it is for micro-batches of these row ids: {listed(found, 50)}{before}. "
        f"learning_rate={learning_rate:g} may be too high (fine-tuning usually takes 1e-5 to 1e-4): lower it, or look "
        "in those rows for what is not finite",
        cause="divergence",
    )


def state_faults(state: Mapping[str, Any]) -> list[str]:
    """What of a module's state dict cannot be published, and what to do; empty when all can be."""
    return [f"its {name} is {fault}" for name, value in state.items() if (fault := _fault_of(value))]


def _fault_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dense = "publish a state dict in which it is dense"
        if value.is_quantized:
            return f"a quantised tensor, which safetensors cannot hold: {dense} (dequantize()), or write it to a file"
        sparse = f"a sparse tensor, which safetensors cannot hold: {dense} (to_dense()), or write it to a file"
        return sparse if value.layout != torch.strided else ""
    try:
        is_plain = bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        is_plain = False
    if is_plain:
        return ""
    return (
        f"an extra state of type {type(value).__name__}, which is neither a tensor nor plain JSON: let get_extra_state "
        "return a tensor, or a dict of numbers, texts, lists and dicts; or publish a state dict without it, and write "
        "it to a file"
    )
