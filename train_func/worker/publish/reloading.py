"""Reloading: a model as it is loaded from the files that are published computes what the trained one computes.

It is loaded as ``job.load()`` does it, on rank 0, into the memory of its machine, and both are given a few rows.
Measured: one model in float32 has logits that differ by 4e-7 of their size, adapters merged into their base too, and by
1e-2 where one of them is in bfloat16. Another model, such as adapters on a base that is not theirs, differs by 0.3 or
more.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from torch import nn

from train_func.layout import PIPELINE
from train_func.process_tree import unreclaimable_bytes
from train_func.published_model import are_adapters, are_causal, class_of, loaded, object_in
from train_func.text import sized
from train_func.worker.inputs.model_loading import without_progress_bars
from train_func.worker.training import evaluation
from train_func.worker.training.loader import take_row_ids, undisturbed
from train_func.worker.training.plan import ROW_ID, features_of
from train_func.worker.training.trainer import Trainer
from train_func.worker.training.weights import has_adapters

MAX_ROWS, MAX_TOKENS = 4, 32  # that both are given: seconds of a CPU for a model of billions
MOST, MOST_OF_HALF = 0.02, 0.15  # of the size of the logits, by which they may differ; of weights of 16 bits
SPARE = 1.25  # of the size of the model that is loaded, which has to be free
TRIAL = 0.05  # standard deviation of what is added to adapters before they are trained, which change nothing yet

Inputs = Mapping[str, Any]


def inputs_of(trainer: Trainer, held_out: Dataset | None) -> Inputs | None:
    """A batch of held-out rows, else of those that the Trainer evaluates; None where there are none such.

    ``held_out``: those of session.data, None where the function has not loaded them.
    """
    sets = trainer.eval_dataset
    rows = next(iter(sets.values()), None) if isinstance(sets, dict) else sets
    if held_out is not None:
        rows = held_out if sets is None else evaluation.covering(sets, held_out)
    return batch_of(trainer.collator("evaluation"), rows)


def batch_of(collate: Callable[[Any], Inputs], rows: Any) -> Inputs | None:
    """Of the first rows; None where they are no rows for ``collate``."""
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
    """What was published cannot be compared; the text says why."""


def difference(model: Any, folder: Path, inputs: Inputs | None, base: Callable[[], Path | None]) -> str | None:
    """Says how the model that is loaded from ``folder`` differs from ``model``, which was saved there; None: not.

    None also where there is nothing to compare: the files are no model of transformers, or ``load`` takes none such.

    Args:
        inputs: of the model, a batch of rows; None where there are none.
        base: the folder of the model that it is adapters of; None where it is not known.

    Raises:
        NotLoaded: it cannot be loaded, or does not fit in the memory that is free.
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
            kind, under = _kind(model, folder), base() if is_adapted else None
            if kind is None or (is_adapted and under is None):
                return None
            again = loaded(folder, kind, under)
            made = _outputs(again, few)
    except Exception as error:
        raise NotLoaded(f"load() cannot load what is published: {type(error).__name__}: {error}") from error
    if is_adapted and _is_quantised(model):
        raise NotLoaded(
            "the adapters were trained on a quantised base, and load() puts them on the base as it was before; measure "
            "what it returns"
        )
    most = MOST if all(of.itemsize > 2 for of in _dtypes(model) | _dtypes(again)) else MOST_OF_HALF
    found = _distance(expected, made)
    if found <= most or _distance(expected, _outputs(model, few)) > most:  # or it draws something
        return None
    return (
        f"the model that load() makes of the published files is not the trained one: of {_num_rows(few)} rows its "
        f"outputs differ by {found:.0%} of their size, and rounding explains {most:.0%}. What the function has changed "
        "in the model beside its trained weights is not in the files, such as weights of the base below adapters, "
        "buffers, code, or settings"
    )


def _kind(model: Any, folder: Path) -> Any:
    """The class that loads it: that of the pipeline, or without one its own."""
    use = object_in(folder / PIPELINE).get("task") or ("text-generation" if has_adapters(model) else None)
    if use:
        return class_of(use)[0]
    return type(model) if isinstance(model, transformers.PreTrainedModel) else None


def _few(inputs: Inputs) -> dict[str, Any]:
    """Some rows of a batch, and their first tokens; the last ones where rows begin with padding."""
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
    """The tensor that is 0 where a row has padding in the place of a token, if there is one."""
    mask = inputs.get("attention_mask")
    return mask if isinstance(mask, torch.Tensor) and mask.ndim == 2 and mask.numel() else None


def _num_rows(inputs: Inputs) -> int:
    return max((len(of) for of in inputs.values() if isinstance(of, torch.Tensor) and of.ndim), default=0)


def _outputs(model: Any, inputs: Inputs) -> dict[Any, torch.Tensor]:
    """All that it computes of tokens and rows in its own precision, in float32: not what it computes of padding.

    What accelerate has put around forward rounds it.
    """
    device = next(model.parameters()).device
    moved = {name: of.to(device) if isinstance(of, torch.Tensor) else of for name, of in inputs.items()}
    with _evaluating(model), torch.no_grad():
        made = type(model).forward(model, **moved)
    named = made.items() if isinstance(made, Mapping) else enumerate(made if isinstance(made, tuple) else [made])
    outputs = {name: value.detach().float().cpu() for name, value in named if isinstance(value, torch.Tensor)}
    if (mask := _mask(inputs)) is not None:
        is_token = mask.bool().cpu()
        outputs = {name: value[is_token] if value.shape[:2] == mask.shape else value for name, value in outputs.items()}
    # Some mask with infinite numbers.
    return {name: value.nan_to_num(0, 0, 0) for name, value in outputs.items() if value.ndim}


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [of for of in model.modules() if of.training]
    model.eval()
    try:
        yield
    finally:
        for of in training:
            of.training = True


def _distance(expected: Mapping[Any, torch.Tensor], found: Mapping[Any, torch.Tensor]) -> float:
    """The largest of all outputs, as a share of their size; infinite where they are not alike."""
    if {name: of.shape for name, of in expected.items()} != {name: of.shape for name, of in found.items()}:
        return float("inf")
    shares = [0.0]
    for name, of in expected.items():
        size, off = of.norm().item(), (found[name] - of).norm().item()
        shares.append(off / size if size else off)
    return max(shares)


def _is_quantised(model: nn.Module) -> bool:
    """Whether transformers has quantised weights when it loaded them, of the whole model or of a part."""
    return any(getattr(module, "is_quantized", False) for module in model.modules())


def _dtypes(model: nn.Module) -> set[torch.dtype]:
    return {of.dtype for of in model.parameters() if of.is_floating_point()}


def _check_memory(model: nn.Module, *, is_adapted: bool) -> None:
    """Raises NotLoaded where a second one would not fit; adapters are loaded with a base in float32."""
    sizes = [of.numel() * (4 if is_adapted else of.itemsize) for of in model.parameters()]
    free = _free_bytes()
    if free is not None and free < SPARE * sum(sizes):
        raise NotLoaded(
            f"a second one, of {sized(sum(sizes))}, does not fit in the memory that is free, {sized(max(free, 0))}"
        )


def _free_bytes() -> int | None:
    """Of this worker; None where it is not known."""
    limit = os.environ.get("TRAIN_FUNC_MEMORY")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return min(free, int(limit) - ranks * unreclaimable_bytes([os.getpid()])) if limit else free


@contextmanager
def tried_adapters(model: nn.Module) -> Iterator[None]:
    """Within, adapters that were not trained yet are as if they were: with others the base alone would be compared."""
    trained = [of for of in model.parameters() if of.requires_grad] if has_adapters(model) else []
    before = [of.detach().clone() for of in trained]
    try:
        with undisturbed(), torch.no_grad():
            for of in trained:
                of.add_(TRIAL * torch.randn_like(of))
        yield
    finally:
        with torch.no_grad():
            for of, was in zip(trained, before, strict=True):
                of.copy_(was)
