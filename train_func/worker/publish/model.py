"""Publishes a training: the model, the files to use it, and the report on the training.

The report has the steps done, the metrics and the audit. A note warns of a model that is no better than the best
constant answer of the training rows: their most frequent class, or the mean of their numbers.
"""

import shutil
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from train_func.errors import InvalidInput, TrainFuncError
from train_func.storage import Store
from train_func.wire.layout import CARD
from train_func.wire.records import RunRecord
from train_func.worker.inputs.model_loading import without_progress_bars
from train_func.worker.publish import adapters, reloading
from train_func.worker.publish.publication import take_source
from train_func.worker.rank import world
from train_func.worker.rank.json_values import left_out_note, plain_result
from train_func.worker.tasks.streaming_metrics import Accuracy, NumberErrors
from train_func.worker.training import audit, evaluation, weights
from train_func.worker.training.plan import rows_of
from train_func.worker.training.trainer import Trainer

_REMEDY = "it may need more epochs or another learning rate"


def below_baseline(metric: object, train: Dataset, rows: Dataset, metrics: Mapping[str, Any]) -> str:
    """Returns a note on a model that is no better on ``rows`` than a constant answer; empty for other models."""
    learnt, true = _labels(train), _labels(rows)
    if learnt is None or true is None:
        return ""
    accuracy, mse = metrics.get("accuracy"), metrics.get("mse")
    are_classes = all(np.issubdtype(labels.dtype, np.integer) for labels in (learnt, true))
    if isinstance(metric, Accuracy) and are_classes and accuracy is not None:
        classes, counts = np.unique(learnt, return_counts=True)
        baseline = float(np.mean(true == classes[counts.argmax()]))
        if accuracy <= baseline < 1:
            return (
                f"the model is right no more often than its majority-class baseline: accuracy {accuracy:.3f}, baseline "
                f"{baseline:.3f}; {_REMEDY}"
            )
    if isinstance(metric, NumberErrors) and mse is not None:
        baseline = float(np.mean((true - learnt.mean(dtype=np.float64)) ** 2))
        if mse >= baseline > 0:
            return (
                f"the model predicts no better than the mean of its training rows: mse {mse:.4g}, baseline "
                f"{baseline:.4g}; {_REMEDY}, or numbers that lie between -1 and 1 (docs/training.md)"
            )
    return ""


def _metrics_of(metric: object, predictions: Mapping[str, np.ndarray] | None) -> dict[str, float]:
    """Returns what ``below_baseline`` judges by, of predictions; those of compute_metrics may have any name."""
    if predictions is None or not isinstance(metric, (Accuracy, NumberErrors)):
        return {}
    expected, predicted = predictions["expected"], predictions["predicted"]
    if isinstance(metric, Accuracy):
        return {"accuracy": float(np.mean(expected == predicted))}
    return {"mse": float(np.mean((expected - predicted) ** 2, dtype=np.float64))}


def _labels(rows: Dataset) -> "np.ndarray | None":
    """Returns the column with one class or number per row; None if there is none."""
    name = next((name for name in ("label", "labels") if name in rows.column_names), None)
    column = rows.with_format("arrow").select_columns([name])[:][name] if name and len(rows) else None
    is_one = column is not None and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    return column.to_numpy() if column is not None and is_one else None


def write_publication(
    folder: Path, trainer: Trainer, tokenizer: Any, record: RunRecord, use: Mapping[str, str]
) -> list[str]:
    """Writes model and tokenizer; returns a note if there is no tokenizer.

    ``use``: the files of the task for the use of the model, by name. Raises OSError if the disk is full.
    """
    with without_progress_bars():
        adapters.save_adapters(trainer.accelerator.unwrap_model(trainer.model), folder, record)
    (folder / CARD).unlink(missing_ok=True)  # a form that peft and the Hub's mixin write; the card has what it asks for
    notes = []
    if tokenizer is None:
        notes.append(
            "no tokenizer is published, so the model has to be given one where it is used: give Trainer "
            "processing_class=tokenizer"
        )
    else:
        tokenizer.save_pretrained(folder)
    for name, text in use.items():
        (folder / name).write_text(text)
    return notes


def rehearse(
    folder: Path,
    trainer: Trainer,
    tokenizer: Any,
    record: RunRecord,
    use: Mapping[str, str],
    store: Store,
    differs: Callable[[Path], str | None],
) -> list[str]:
    """Writes everything once before the first step, and removes it, so that a fault shows before hours of training.

    ``differs``: returns how the model in the folder, once loaded, differs from the saved one; None if it does not.

    Raises:
        InvalidInput: (cause "code") the model or its tokenizer cannot be saved, trained weights are not saved, or the
            saved model differs once it is loaded.
        StorageFailed: the source cannot be read.
        OSError: the disk is full.
    """
    try:
        folder.mkdir(parents=True)
        model = trainer.accelerator.unwrap_model(trainer.model)
        weights.check_finite([model], "Before the first step, ", whole=True)
        adapters.check_all_published(model)
        adapters.take_start(model, folder.with_name("adapters_at_first"))
        with reloading.trial_adapters(model):
            notes = [*write_publication(folder, trainer, tokenizer, record, use), *take_source(store, record, folder)]
            try:
                fault = differs(folder)
            except reloading.NotLoaded as unknown:
                return [*notes, f"whether the published model is the trained one is not known: {unknown}"]
        if fault:
            raise InvalidInput(f"refused before the first step: {fault}", cause="code")
        return notes
    except (TrainFuncError, OSError):
        raise
    except Exception as error:
        raise InvalidInput(
            f"{type(trainer.model).__name__} cannot be published after training, because saving it fails already now: "
            f"{type(error).__name__}: {error}. session.publish needs a model with save_pretrained, such as those of "
            "transformers, whose configuration is valid. Train any other torch.nn.Module in a loop over session.steps, "
            "and give session.publish the module",
            cause="code",
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def report_unmeasured(trainer: Trainer) -> dict[str, Any]:
    """Returns the report before the model is evaluated."""
    audited = {**audit.published(trainer.coverage), "held_out": None}
    if step := evaluation.loaded_step(trainer):
        audited["best_step"] = step
    state = trainer.state
    return {"step": state.global_step, "num_steps": state.max_steps, "metrics": {}, "audit": audited}


def report_measured(report: dict[str, Any], trainer: Trainer, held_out: Dataset | None) -> dict[str, Any]:
    """Returns ``report`` with the metrics of the model's current weights, and the predictions of rank 0. Collective.

    This may run the first evaluation of all, and the user's code. If that raises, the model is published without
    metrics, and the report has a ``note`` that names the error. Errors of callbacks are only printed.
    """
    measured, fault = dict(report), None
    try:
        sets = evaluation.rows_measured(trainer.eval_dataset, held_out)
        measured |= _measured(trainer, sets, report["audit"])
    except Exception as error:
        traceback.print_exception(error)
        fault = f"{type(error).__name__}: {error}"
    if fault := next(filter(None, world.gather(fault)), None):
        return {**report, "note": f"no metrics are published: measuring the trained model failed with {fault}"}
    return measured


def _measured(trainer: Trainer, sets: dict[str, Any], audited: dict[str, Any]) -> dict[str, Any]:
    # A rank that fails on one of the sets fails all ranks before the next.
    results = {prefix: world.on_all_ranks(partial(trainer.measured_on, rows)) for prefix, rows in sets.items()}
    metrics = {f"{prefix}{name}": value for prefix, result in results.items() for name, value in result.metrics.items()}
    counts = [result.coverage.counts("in_metric_once") for result in results.values()]
    held_out = {name: sum(count[name] for count in counts) for name in counts[0]} if counts else None
    plain, left_out = plain_result(metrics)
    notes = [left_out_note(left_out)]
    train = rows_of(trainer.train_dataset)
    for name, result in results.items():
        known = _metrics_of(trainer.metric, result.predictions) if trainer.compute_metrics else result.metrics
        notes.append(below_baseline(trainer.metric, train, sets[name], known))
    notes.append(evaluation.better_before(trainer, metrics))
    note = "; ".join(filter(None, notes))
    predictions = results[""].predictions if "" in results else None
    measured = {"metrics": plain, "audit": {**audited, "held_out": held_out}, "predictions": predictions}
    return {**measured, "note": note} if note else measured


def plain_columns(predictions: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
    """Returns the predictions of rows for publishing; several labels become the numbers of those that a row has."""

    def plain(column: np.ndarray) -> list[Any]:
        if column.ndim > 1:
            return [np.flatnonzero(line).tolist() for line in column]
        values = column.tolist()
        return [float(f"{value:.6g}") for value in values] if column.dtype.kind == "f" else values

    return {name: plain(column) for name, column in predictions.items()}
