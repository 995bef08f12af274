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
from transformers.trainer_utils import PredictionOutput

from train_func.errors import InvalidInput
from train_func.worker.training import audit, weights, world
from train_func.worker.training.coverage import Coverage, RowIds, count
from train_func.worker.training.loader import Collator, take_row_ids
from train_func.worker.training.plain import plain
from train_func.worker.training.plan import ROW_ID, features_of, lengths_of, row_ids_of
from train_func.worker.training.randomness import seed_for
from train_func.worker.training.weighing import num_items

if TYPE_CHECKING:
    from train_func.worker.training.trainer import Trainer

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Measured:
    """One evaluation. ``metrics`` have plain names (accuracy, loss, ...)."""

    step: int
    weights: str
    """Fingerprint of the weights that were measured."""
    rows: str
    """Fingerprint of the data set that they were measured on."""
    metrics: dict[str, Any]
    coverage: Coverage

    def __str__(self) -> str:
        return " ".join(
            f"{name}={value:.4f}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.metrics.items()
            if isinstance(value, (float, int, str))
        )


@dataclass(frozen=True)
class _Predictions:
    """What the model says of all rows, in the order of the rows, on every rank."""

    logits: Any
    labels: Any
    loss: float | None
    coverage: Coverage


@dataclass(frozen=True)
class _Part:
    """What one batch gave. ``logits``, ``labels``: first dimension rows."""

    positions: Ints
    row_ids: tuple[Any, ...]
    loss: float | None
    """Mean over its items, of which there are ``weight``."""
    weight: int
    logits: Any
    labels: Any


def measure(trainer: "Trainer", rows: Dataset, ignore_keys: list[str] | None) -> Measured:
    """Collective: the metrics of ``rows``, which every rank has whole.

    Raises:
        InvalidInput: (cause "code", on every rank) when ranks have different rows, or a row is not in the metric
            exactly once.
    """
    ids = audit.check_rows_alike(rows, None, "held-out")
    used = weights.agree(trainer.accelerator.unwrap_model(trainer.model))
    made = _predict_all(trainer, rows, ids, ignore_keys, "held_out")
    metrics = world.together(lambda: _metrics(trainer, made))
    return Measured(trainer.state.global_step, used, rows._fingerprint, metrics, made.coverage)


def predict(trainer: "Trainer", rows: Dataset, ignore_keys: list[str] | None, prefix: str) -> PredictionOutput:
    """Collective: predictions for ``rows``, which every rank has whole, in their order; they may lack labels and ids.

    Raises:
        InvalidInput: (cause "code", on every rank) when ranks have different rows.
    """
    if isinstance(rows, Dataset) and ROW_ID not in rows.column_names:
        audit.check_contents_alike(rows, "given")
        rows = rows.add_column(ROW_ID, np.arange(len(rows)))
    ids = audit.check_rows_alike(rows, None, "given")
    weights.agree(trainer.accelerator.unwrap_model(trainer.model))
    made = _predict_all(trainer, rows, ids, ignore_keys, "predicted")
    metrics = world.together(lambda: _metrics(trainer, made)) if made.labels is not None else {"rows": len(rows)}
    return PredictionOutput(made.logits, made.labels, {f"{prefix}_{name}": value for name, value in metrics.items()})


def covering(sets: Any, rows: Dataset) -> Dataset:
    """The data set among ``sets`` (an eval_dataset, one or a dict of them) that has the rows of ``rows``, else those.

    A function may have given them other columns; they are the same rows when they have the same ids.
    """
    wanted = np.sort(row_ids_of(rows))
    for part in sets.values() if isinstance(sets, dict) else [sets]:
        has_ids = isinstance(part, Dataset) and ROW_ID in part.column_names
        if has_ids and np.array_equal(np.sort(row_ids_of(part)), wanted):
            return part
    return rows


def metric_names(sets: Any) -> set[str]:
    """Names that an evaluation without ``compute_metrics`` may have, as metric_for_best_model spells them."""
    parts = [f"{name}_" for name in sets] if isinstance(sets, dict) else [""]
    return {f"{part}{name}" for part in parts for name in ("loss", "accuracy", "rows")}


def _predict_all(
    trainer: "Trainer", rows: Dataset, ids: RowIds, ignore_keys: list[str] | None, what: str
) -> _Predictions:
    if not len(rows):
        raise InvalidInput(f"The {what.replace('_', '-')} rows are none: give at least one", cause="code")
    batches = batches_of(lengths_of(rows), trainer.args.per_device_eval_batch_size)
    collator = trainer.collator("evaluation")
    trainer.model.eval()
    mine = list(enumerate(batches))[world.rank() :: world.size()]
    own = world.together(lambda: [_predict(trainer, rows, *batch, collator, ignore_keys) for batch in mine])
    parts = sorted((part for of_rank in world.gather(own) for part in of_rank), key=lambda part: int(part.positions[0]))
    coverage = count(ids, [np.asarray(part.row_ids) for part in parts])
    numbers = " ".join(f"{name}={value}" for name, value in coverage.counts("in_metric_once").items())
    world.say(f"audit {what} {numbers} world_size={world.size()}")
    if not coverage.exact:
        raise InvalidInput(f"The {what.replace('_', '-')} rows are not used once each: {coverage}", cause="code")
    order = np.argsort(np.concatenate([part.positions for part in parts]))
    logits, labels = (_in_order(values, order) for values in zip(*((p.logits, p.labels) for p in parts), strict=True))
    loss, counted = None, [part for part in parts if part.weight]  # a mean over no item is no number
    if counted and all(part.loss is not None for part in counted):
        loss = float(np.average([part.loss for part in counted], weights=[part.weight for part in counted]))
    return _Predictions(logits, labels, loss, coverage)


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
    weight = num_items(inputs, trainer._loss_shifts_labels)
    with trainer.accelerator.autocast():
        loss, logits, labels = trainer.prediction_step(trainer.model, inputs, False, ignore_keys)
    if trainer.preprocess_logits_for_metrics is not None:
        logits = trainer.preprocess_logits_for_metrics(logits, labels)
    mean = None if loss is None else loss.item()
    return _Part(positions, row_ids, mean, weight, nested_numpify(logits), _numpy_or_none(labels))


def _numpy_or_none(labels: Any) -> Any:
    return None if labels is None else nested_numpify(labels)


def _metrics(trainer: "Trainer", made: _Predictions) -> dict[str, Any]:
    """Computed from all rows in the order of the data set."""
    logits, labels = made.logits, made.labels
    metrics: dict[str, Any] = {}
    if trainer.compute_metrics is not None:
        metrics |= plain(trainer.compute_metrics(EvalPrediction(predictions=logits, label_ids=labels)))
    elif _are_classes(logits, labels):
        metrics["accuracy"] = float((logits.argmax(-1) == labels).mean())
    if made.loss is not None:
        metrics["loss"] = made.loss
    return {**metrics, "rows": made.coverage.num_rows}


def _are_classes(logits: Any, labels: Any) -> bool:
    """Whether each row has one class out of several; anything else has no accuracy that everybody would count alike."""
    return (
        isinstance(logits, np.ndarray)
        and isinstance(labels, np.ndarray)
        and logits.ndim == 2
        and logits.shape[1] >= 2
        and labels.shape == logits.shape[:1]
        and np.issubdtype(labels.dtype, np.integer)
    )


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
