"""Reloading: checks that the published files, once loaded, compute the same as the trained model.

Rank 0 loads them as ``job.load()`` does, into the memory of its machine, and runs both models on a few rows. In
measurements, logits of the same model in float32 differ by 4e-7 of their size, also with adapters merged into their
base, and by 1e-2 if one of them is in bfloat16. Logits of another model, such as adapters on a wrong base, differ by
0.3 or more.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from datasets import Dataset
from torch import nn

from train_func.process.process_tree import unreclaimable_bytes
from train_func.published_model import are_adapters, are_causal, class_of, loaded, object_in
from train_func.text import sized
from train_func.wire.layout import PIPELINE
from train_func.worker.inputs.model_loading import without_progress_bars
from train_func.worker.training.loader import take_row_ids, undisturbed
from train_func.worker.training.plan import ROW_ID, features_of
from train_func.worker.training.weights import has_adapters

MAX_ROWS, MAX_TOKENS = 4, 32  # that both are given: seconds of a CPU for a model of billions
MOST, MOST_OF_HALF = 0.02, 0.15  # of the size of the logits, by which they may differ; of weights of 16 bits
SPARE = 1.25  # of the size of the model that is loaded, which has to be free
TRIAL = 0.05  # standard deviation of what is added to adapters before they are trained, which change nothing yet

Inputs = Mapping[str, Any]


def batch_of(collate: Callable[[Any], Inputs], rows: Any) -> Inputs | None:
    """Returns a batch of the first rows; None if there are none, or ``collate`` cannot take them."""
    if not isinstance(rows, Dataset):
        return None
    try:
        features = features_of(rows, list(range(min(MAX_ROWS, len(rows)))))
        if ROW_ID in rows.column_names:
            take_row_ids(features)
        with undisturbed():
            return collate(features)
    except Exception:  # the function's own, which may be made for other rows
        return None


class NotLoaded(Exception):
    """The published files cannot be compared; the text says why."""


def difference(model: Any, folder: Path, inputs: Inputs | None, base: Callable[[], Path | None]) -> str | None:
    """Returns how the model in ``folder``, once loaded, differs from ``model``, which was saved there; None if not.

    It is also None if there is nothing to compare: the files are no model of transformers, or ``load`` has no way to
    load such a model.

    Args:
        inputs: a batch of rows for the model; None if there are none.
        base: returns the folder of the adapters' base; None if it is not known.

    Raises:
        NotLoaded: the model cannot be loaded, or does not fit in the free memory.
    """
    is_adapted = are_adapters(folder)
    if inputs is None or not callable(getattr(model, "save_pretrained", None)):
        return None
    if is_adapted and not are_causal(folder):
        return None
    few = _few(inputs)
    try:
        expected = _outputs(model, few)
    except Exception:  # it takes other inputs, such as labels
        return None
    _check_memory(model, is_adapted=is_adapted)
    try:
        with undisturbed(), without_progress_bars():
            use = object_in(folder / PIPELINE).get("task") or ("text-generation" if has_adapters(model) else None)
            own_kind = type(model) if isinstance(model, transformers.PreTrainedModel) else None
            kind, under = class_of(use)[0] if use else own_kind, base() if is_adapted else None
            if kind is None or (is_adapted and under is None):
                return None
            again = loaded(folder, kind, under)
            outputs = _outputs(again, few)
    except Exception as error:
        raise NotLoaded(f"load() cannot load what is published: {type(error).__name__}: {error}") from error
    if is_adapted and any(getattr(module, "is_quantized", False) for module in model.modules()):
        raise NotLoaded(
            "the adapters were trained on a quantised base, and load() puts them on the base as it was before; measure "
            "what it returns"
        )
    most = MOST if all(dtype.itemsize > 2 for dtype in _dtypes(model) | _dtypes(again)) else MOST_OF_HALF
    distance = _distance(expected, outputs)
    if distance <= most or _distance(expected, _outputs(model, few)) > most:  # or it draws something
        return None
    num_rows = max((len(value) for value in few.values() if isinstance(value, torch.Tensor) and value.ndim), default=0)
    return (
        f"the model that load() makes of the published files is not the trained one: of {num_rows} rows its "
        f"outputs differ by {distance:.0%} of their size, and rounding explains {most:.0%}. The files do not have "
        "changes of the model other than its trained weights, such as weights of the base below adapters, buffers, "
        "code, or settings"
    )


def _few(inputs: Inputs) -> dict[str, Any]:
    """Returns some rows of a batch with their first tokens, or their last tokens if rows begin with padding."""
    ids, mask = inputs.get("input_ids"), _mask(inputs)
    length = ids.shape[1] if isinstance(ids, torch.Tensor) and ids.ndim == 2 else None
    is_left_padded = mask is not None and not bool(mask[:MAX_ROWS, 0].all())
    tokens = slice(-MAX_TOKENS, None) if is_left_padded else slice(MAX_TOKENS)
    few = {}
    for name, value in inputs.items():
        if name in ("labels", "label"):
            continue
        if isinstance(value, torch.Tensor) and value.ndim:
            value = value[:MAX_ROWS]
            value = value[:, tokens] if value.ndim == 2 and value.shape[1] == length else value
        few[name] = value
    return few


def _mask(inputs: Inputs) -> torch.Tensor | None:
    """Returns the tensor that is 0 at the padding of a row, if there is one."""
    mask = inputs.get("attention_mask")
    return mask if isinstance(mask, torch.Tensor) and mask.ndim == 2 and mask.numel() else None


def _outputs(model: Any, inputs: Inputs) -> dict[Any, torch.Tensor]:
    """Returns the outputs of the model, computed in its own precision, as float32 and without padding.

    Calls forward without the wrapper of accelerate, which rounds.
    """
    device = next(model.parameters()).device
    moved = {name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in inputs.items()}
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            result = type(model).forward(model, **moved)
    finally:
        for module in training:
            module.training = True
    parts = result if isinstance(result, tuple) else [result]
    named = result.items() if isinstance(result, Mapping) else enumerate(parts)
    outputs = {name: value.detach().float().cpu() for name, value in named if isinstance(value, torch.Tensor)}
    if (mask := _mask(inputs)) is not None:
        is_token = mask.bool().cpu()
        outputs = {name: value[is_token] if value.shape[:2] == mask.shape else value for name, value in outputs.items()}
    # Some mask with infinite numbers.
    return {name: value.nan_to_num(0, 0, 0) for name, value in outputs.items() if value.ndim}


def _distance(expected: Mapping[Any, torch.Tensor], actual: Mapping[Any, torch.Tensor]) -> float:
    """Returns the largest difference of an output, as a share of its size; infinity if shapes differ."""
    if {name: value.shape for name, value in expected.items()} != {name: value.shape for name, value in actual.items()}:
        return float("inf")
    shares = [0.0]
    for name, value in expected.items():
        size, off = value.norm().item(), (actual[name] - value).norm().item()
        shares.append(off / size if size else off)
    return max(shares)


def _dtypes(model: nn.Module) -> set[torch.dtype]:
    return {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}


def _check_memory(model: nn.Module, *, is_adapted: bool) -> None:
    """Raises NotLoaded if a second model would not fit in memory; adapters are loaded with a base in float32."""
    size = sum(weight.numel() * (4 if is_adapted else weight.itemsize) for weight in model.parameters())
    free = psutil.virtual_memory().available
    if limit := os.environ.get("TRAIN_FUNC_MEMORY"):
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        free = min(free, int(limit) - ranks * unreclaimable_bytes([os.getpid()]))
    if free < SPARE * size:
        raise NotLoaded(
            f"a second one, of {sized(size)}, does not fit in the memory that is free, {sized(max(free, 0))}"
        )


@contextmanager
def trial_adapters(model: nn.Module) -> Iterator[None]:
    """Makes untrained adapters act like trained ones while the block runs; else only the base would be compared."""
    trained = [weight for weight in model.parameters() if weight.requires_grad] if has_adapters(model) else []
    before = [weight.detach().clone() for weight in trained]
    try:
        with undisturbed(), torch.no_grad():
            for weight in trained:
                weight.add_(TRIAL * torch.randn_like(weight))
        yield
    finally:
        with torch.no_grad():
            for weight, value in zip(trained, before, strict=True):
                weight.copy_(value)
