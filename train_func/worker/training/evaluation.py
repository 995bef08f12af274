"""Evaluation: every held-out row once in the metric, dealt over the ranks, the same result on all of them.

Batches do not depend on the number of ranks, so neither does the metric.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from datasets import Dataset
from transformers import EvalPrediction
from transformers.trainer_pt_utils import nested_concat, nested_numpify

from train_func.errors import InvalidInput
from train_func.worker.training import world
from train_func.worker.training.coverage import Coverage, RowIds, count
from train_func.worker.training.loader import Collator, take_row_ids
from train_func.worker.training.plan import features_of, lengths_of
from train_func.worker.training.randomness import seed_for

if TYPE_CHECKING:
    from train_func.worker.training.trainer import Trainer

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Measured:
    """One evaluation. ``metrics`` have plain names (accuracy, loss, ...)."""

    step: int
    metrics: dict[str, float]
    coverage: Coverage

    def __str__(self) -> str:
        return " ".join(
            f"{name}={value:.4f}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.metrics.items()
        )

    def covers(self, rows: Dataset, step: int) -> bool:
        """Whether it was made of all these rows, after this step."""
        return self.step == step and self.coverage.num_rows == len(rows)


@dataclass(frozen=True)
class _Part:
    """What one batch gave. ``logits``, ``labels``: first dimension rows."""

    positions: Ints
    row_ids: tuple[Any, ...]
    loss: float | None
    """Mean over its rows."""
    logits: Any
    labels: Any


def measure(trainer: "Trainer", rows: Dataset, ids: RowIds, ignore_keys: list[str] | None) -> Measured:
    """Collective. ``ids``: of ``rows``, the same on all ranks.

    Raises:
        InvalidInput: (cause "code", on every rank) when a row is not in the metric exactly once.
    """
    batches = batches_of(lengths_of(rows), trainer.args.per_device_eval_batch_size)
    collator = trainer.collator("evaluation")
    trainer.model.eval()
    mine = list(enumerate(batches))[world.rank() :: world.size()]
    own = world.together(lambda: [_predict(trainer, rows, *batch, collator, ignore_keys) for batch in mine])
    parts = sorted((part for of_rank in world.gather(own) for part in of_rank), key=lambda part: int(part.positions[0]))
    coverage = count(ids, [np.asarray(part.row_ids) for part in parts])
    numbers = " ".join(f"{name}={value}" for name, value in coverage.counts("in_metric_once").items())
    world.say(f"audit held_out {numbers} world_size={world.size()}")
    if not coverage.exact:
        raise InvalidInput(f"The metric does not cover every held-out row once: {coverage}", cause="code")
    return Measured(trainer.state.global_step, world.together(lambda: _metrics(trainer, parts)), coverage)


def batches_of(lengths: Ints, batch_size: int) -> list[Ints]:
    """Positions of rows of similar length, the longest first; neighbours go to different ranks at like cost."""
    order = np.argsort(-lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def _predict(
    trainer: "Trainer", rows: Dataset, number: int, positions: Ints, collator: Collator, ignore_keys: list[str] | None
) -> _Part:
    seed_for("evaluate", trainer.args.seed, trainer.state.global_step, number)
    features = features_of(rows, positions.tolist())
    row_ids = take_row_ids(features)
    inputs = collator(features)
    with trainer.accelerator.autocast():
        loss, logits, labels = trainer.prediction_step(trainer.model, inputs, False, ignore_keys)
    if trainer.preprocess_logits_for_metrics is not None:
        logits = trainer.preprocess_logits_for_metrics(logits, labels)
    mean = None if loss is None else loss.item()
    return _Part(positions, row_ids, mean, nested_numpify(logits), nested_numpify(labels))


def _metrics(trainer: "Trainer", parts: list[_Part]) -> dict[str, float]:
    """Computed from all rows in the order of the data set."""
    order = np.argsort(np.concatenate([part.positions for part in parts]))
    logits, labels = (_in_order(values, order) for values in zip(*((p.logits, p.labels) for p in parts), strict=True))
    metrics: dict[str, float] = {}
    if trainer.compute_metrics is not None:
        own = trainer.compute_metrics(EvalPrediction(predictions=logits, label_ids=labels))
        metrics |= {name: value.item() if isinstance(value, np.generic) else value for name, value in own.items()}
    elif isinstance(logits, np.ndarray) and labels is not None and logits.ndim == labels.ndim + 1:
        metrics["accuracy"] = float((logits.argmax(-1) == labels).mean())
    if all(part.loss is not None for part in parts):
        weights = [len(part.positions) for part in parts]
        metrics["loss"] = float(np.average([part.loss for part in parts], weights=weights))
    return {**metrics, "rows": len(order)}


def _in_order(values: tuple[Any, ...], order: Ints) -> Any:
    if values[0] is None:
        return None
    joined = values[0]
    for value in values[1:]:
        joined = nested_concat(joined, value)
    return _take(joined, order)


def _take(values: Any, order: Ints) -> Any:
    if isinstance(values, (list, tuple)):
        return type(values)(_take(value, order) for value in values)
    return values[order]
