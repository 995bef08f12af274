"""Evaluation: every held-out row once in the metric, dealt over the ranks, the same result on all of them.

Batches do not depend on the number of ranks, so neither does the metric. The best of all evaluations is known by its
step: transformers' ``best_global_step`` is that step, whether its weights were saved or not; the weights that it loads
at the end are of ``best_model_checkpoint``, the newest best one that was saved.
"""

import math
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt
import transformers
from datasets import Dataset
from transformers import EvalPrediction
from transformers.trainer_pt_utils import nested_numpify
from transformers.trainer_utils import PredictionOutput

from train_func.errors import InvalidInput
from train_func.events import RowsAudited
from train_func.worker.rank import marks, reporting, world
from train_func.worker.rank.marks import Phase
from train_func.worker.rank.values import to_python
from train_func.worker.tasks.protocol import Metric
from train_func.worker.training import audit
from train_func.worker.training import weights as weights_module
from train_func.worker.training.audit import Coverage, RowIds, count
from train_func.worker.training.loader import Collator, seed_for, take_row_ids
from train_func.worker.training.plan import ROW_ID, features_of, lengths_of, row_ids_of
from train_func.worker.training.weights import Mark

Ints = npt.NDArray[np.int64]
PADDING = -100  # as transformers pads predictions of different lengths


@dataclass(frozen=True)
class Measured:
    """One evaluation. ``metrics`` have plain names (accuracy, loss, ...)."""

    step: int
    weights: Mark
    """Of those that were measured."""
    rows: str
    """Fingerprint of the data set that they were measured on."""
    metrics: dict[str, Any]
    named: dict[str, Any]
    """The same with the prefix that was asked for."""
    coverage: Coverage

    @property
    def reported(self) -> dict[str, float | int | str]:
        """Those that are numbers or texts."""
        return {name: value for name, value in self.metrics.items() if isinstance(value, (float, int, str))}


@dataclass(frozen=True)
class _Predictions:
    """What the model says of all rows, in the order of the rows, on every rank."""

    logits: Any
    """None unless they were to be kept."""
    labels: Any
    inputs: Any
    losses: Any
    measured: Mapping[str, float]
    """By the metric of the task."""
    loss: float | None
    coverage: Coverage


@dataclass(frozen=True)
class _Part:
    """What one batch gave. ``logits``, ``labels``, ``inputs``, ``losses``: first dimension rows."""

    positions: Ints
    row_ids: tuple[Any, ...]
    loss: float | None
    """Mean over its items, of which there are ``weight``."""
    weight: int
    sums: Mapping[str, float] | None
    """What it adds to the sums of the metric; None where it has none."""
    logits: Any
    labels: Any
    inputs: Any
    losses: Any


@marks.within(Phase.OUTSIDE)
def measure(trainer: transformers.Trainer, rows: Dataset, ignore_keys: list[str] | None, prefix: str) -> Measured:
    """Collective: the metrics of ``rows``, which every rank has whole.

    Raises:
        InvalidInput: (cause "code", on every rank) when ranks have different rows, or a row is not in the metric
            exactly once.
    """
    ids = audit.check_rows_alike(rows, None, "held-out")
    used = _meet(trainer)
    made = _predict_all(trainer, rows, ids, ignore_keys, "held_out", keep=trainer.compute_metrics is not None)
    metrics = _agreed_metrics(trainer, made)
    plain_names = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    named = _with_prefix(metrics, prefix)
    return Measured(trainer.state.global_step, used, rows._fingerprint, plain_names, named, made.coverage)


@contextmanager
def printed() -> Iterator[None]:
    """What those raise who are told of metrics is printed, and no more."""
    try:
        yield
    except Exception as error:
        traceback.print_exception(error)
        reporting.note(f"a callback or tracker was not told what was measured: {type(error).__name__}: {error}")


def names(trainer: transformers.Trainer, rows: Dataset, prefix: str) -> set[str]:
    """Collective: the names of the metrics of ``rows``, which are measured and forgotten.

    Raises:
        InvalidInput: as ``measure``.
    """
    ids = audit.check_rows_alike(rows, None, "held-out")
    keep = trainer.compute_metrics is not None
    made = _predict_all(trainer, rows, ids, trainer._ignore_keys, "tried_before_training", keep=keep)
    return set(_with_prefix(_agreed_metrics(trainer, made), prefix))


def longest_batch(trainer: transformers.Trainer, rows: Dataset) -> Dataset:
    """Those of ``rows`` that are evaluated first, in their order."""
    audit.check_rows_alike(rows, None, "held-out")
    batches = batches_of(lengths_of(rows), trainer.args.per_device_eval_batch_size)
    return rows.select(np.sort(batches[0])) if batches else rows


@marks.within(Phase.OUTSIDE)
def predict(
    trainer: transformers.Trainer, rows: Dataset, ignore_keys: list[str] | None, prefix: str
) -> PredictionOutput:
    """Collective: predictions for ``rows``, which every rank has whole, in their order; they may lack labels and ids.

    Raises:
        InvalidInput: (cause "code", on every rank) when ranks have different rows.
    """
    ids = audit.check_rows_alike(rows, None, "given")
    _meet(trainer)
    made = _predict_all(trainer, rows, ids, ignore_keys, "predicted", keep=True)
    is_labelled = made.labels is not None or made.loss is not None
    metrics = _agreed_metrics(trainer, made) if is_labelled else {"rows": len(rows)}
    return PredictionOutput(made.logits, made.labels, _with_prefix(metrics, prefix))


def _meet(trainer: transformers.Trainer) -> Mark:
    model = trainer.accelerator.unwrap_model(trainer.model)
    weights_module.meet_for_evaluation(model, trainer.weights_step)
    return weights_module.mark_of(model, trainer.weights_step)


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


def _with_prefix(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """As transformers does it: a name that has the prefix already gets no second one."""
    return {f"{prefix}_{name.removeprefix(f'{prefix}_')}": value for name, value in metrics.items()}


def _predict_all(
    trainer: transformers.Trainer, rows: Dataset, ids: RowIds, ignore_keys: list[str] | None, what: str, *, keep: bool
) -> _Predictions:
    if not len(rows):
        raise InvalidInput(f"The {what.replace('_', '-')} rows are none: give at least one", cause="code")
    batches = batches_of(lengths_of(rows), trainer.args.per_device_eval_batch_size)
    collator = trainer.collator("evaluation")
    trainer.model.eval()
    mine = list(enumerate(batches))[world.rank() :: world.size()]

    def predicted() -> list[_Part]:
        with marks.within(Phase.EVALUATION), _unsmoothed(trainer):
            return [_predict(trainer, rows, *batch, collator, ignore_keys, keep) for batch in mine]

    own = world.on_all_ranks(predicted)
    parts = [part for of_rank in world.gather(own) for part in of_rank]
    coverage = count(ids, [np.asarray(part.row_ids) for part in parts])
    counts = coverage.counts("in_metric_once")
    world.log_rank0(RowsAudited(what=what, counts=counts, world_size=world.size()))
    if not coverage.exact:
        raise InvalidInput(f"The {what.replace('_', '-')} rows are not used once each: {coverage}", cause="code")
    positions = [part.positions for part in parts]
    return _Predictions(
        _in_order([part.logits for part in parts], positions),
        _in_order([part.labels for part in parts], positions),
        _in_order([part.inputs for part in parts], positions),
        _in_order([part.losses for part in parts], positions),
        _measured(trainer.metric, parts),
        _loss(parts),
        coverage,
    )


@contextmanager
def _unsmoothed(trainer: transformers.Trainer) -> Iterator[None]:
    """Within, the loss is that of the labels as they are: losses of runs that smooth them by other factors compare."""
    smoother, trainer.label_smoother = trainer.label_smoother, None
    try:
        yield
    finally:
        trainer.label_smoother = smoother


def batches_of(lengths: Ints, batch_size: int) -> list[Ints]:
    """Positions of rows of similar length, the longest first; neighbours go to different ranks at like cost."""
    order = np.argsort(-lengths, kind="stable")
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def _predict(
    trainer: transformers.Trainer,
    rows: Dataset,
    number: int,
    positions: Ints,
    collator: Collator,
    ignore_keys: list[str] | None,
    keep: bool,
) -> _Part:
    """Logits are dropped here unless ``keep``: those of a language model would fill the memory of every rank."""
    seed_for("evaluate", trainer.args.seed, trainer.weights_step, number)
    features = features_of(rows, positions.tolist())
    row_ids = take_row_ids(features) if ROW_ID in features[0] else tuple(positions.tolist())
    inputs = collator(features)
    trainer.rows_evaluated = len(positions)
    weight = trainer.items.count(inputs, len(positions))
    shown = _of_inputs(trainer, inputs) if keep else None
    with trainer.accelerator.autocast():
        loss, logits, labels = trainer.prediction_step(
            trainer.model, inputs, trainer.args.prediction_loss_only, ignore_keys
        )
    if trainer.preprocess_logits_for_metrics is not None and logits is not None:
        logits = trainer.preprocess_logits_for_metrics(logits, labels)
    mean = None if loss is None else loss.item()
    sums = trainer.metric.count(logits, labels) if trainer.metric else None
    marks.batch_evaluated()
    if not keep:
        logits = labels = None
    losses = np.full(len(positions), mean) if keep and mean is not None else None
    return _Part(positions, row_ids, mean, weight, sums, _numpy_or_none(logits), _numpy_or_none(labels), shown, losses)


def _of_inputs(trainer: transformers.Trainer, inputs: Mapping[str, Any]) -> Any:
    """What of a batch ``include_for_metrics`` asks for, before a loss may take it out."""
    if "inputs" not in trainer.args.include_for_metrics:
        return None
    name = getattr(trainer.model, "main_input_name", "input_ids")
    if name not in inputs:
        raise InvalidInput(
            f"TrainingArguments(include_for_metrics=['inputs']): the main input of {type(trainer.model).__name__} is "
            f"{name!r}, and the collator makes {', '.join(inputs)}",
            cause="code",
        )
    return _numpy_or_none(inputs[name])


def _numpy_or_none(values: Any) -> Any:
    return None if values is None else nested_numpify(values)


def _measured(metric: Metric | None, parts: list[_Part]) -> Mapping[str, float]:
    """What the metric makes of the sums of all batches, added in one order however many ranks there are."""
    ordered = sorted(parts, key=lambda part: int(part.positions[0]))
    counted = [part.sums for part in ordered if part.sums is not None]
    if metric is None or len(counted) < len(parts):
        return {}
    sums = {name: sum(of[name] for of in counted) for name in counted[0]}
    return metric.values(sums, sum(len(part.positions) for part in parts))


def _loss(parts: list[_Part]) -> float | None:
    counted = [part for part in parts if part.weight]  # a mean over no item is no number
    if not counted or any(part.loss is None for part in counted):
        return None
    counted.sort(key=lambda part: int(part.positions[0]))  # one order of adding, however many ranks
    return float(np.average([part.loss for part in counted], weights=[part.weight for part in counted]))


def _agreed_metrics(trainer: transformers.Trainer, made: _Predictions) -> dict[str, Any]:
    """Collective: those of rank 0 on every rank. Ranks may draw differently, and would then save and stop apart."""
    return world.gather(world.on_all_ranks(lambda: _metrics(trainer, made)))[0]


def _metrics(trainer: transformers.Trainer, made: _Predictions) -> dict[str, Any]:
    """Computed from all rows in the order of the data set."""
    seed_for("evaluate", trainer.args.seed, trainer.weights_step, -1)
    metrics: dict[str, Any] = {}
    if trainer.compute_metrics is not None and not trainer.args.prediction_loss_only:
        losses = made.losses if "loss" in trainer.args.include_for_metrics else None
        prediction = EvalPrediction(made.logits, made.labels, made.inputs, losses)
        computed = to_python(trainer.compute_metrics(prediction))
        if not isinstance(computed, dict):
            raise InvalidInput(
                f"compute_metrics returned {str(computed)[:60]}: a dict of names and values is expected", cause="code"
            )
        metrics |= computed
    else:
        metrics |= made.measured
    if made.loss is not None:
        metrics["loss"] = made.loss
    return {**metrics, "rows": made.coverage.num_rows}


def _in_order(values: Sequence[Any], positions: Sequence[Ints]) -> Any:
    """One array of what the batches gave, each row at its position, shorter ones padded; so for each of several."""
    first = values[0]
    if first is None:
        return None
    if isinstance(first, (list, tuple)):
        return type(first)(_in_order(part, positions) for part in zip(*values, strict=True))
    if isinstance(first, Mapping):
        return {name: _in_order([value[name] for value in values], positions) for name in first}
    width = [max(value.shape[1] for value in values)] if first.ndim > 1 else []
    is_padded = any([value.shape[1]] != width for value in values if width)
    dtype = np.promote_types(first.dtype, np.int8) if is_padded else first.dtype  # unsigned ones have no such number
    joined = np.empty((sum(map(len, positions)), *width, *first.shape[2:]), dtype)
    if is_padded:
        joined.fill(PADDING)
    for value, where in zip(values, positions, strict=True):
        joined[(where, slice(value.shape[1])) if width else where] = value
    return joined


def saving_faults(args: transformers.TrainingArguments) -> list[str]:
    """Why the best evaluation may be one whose weights were not saved."""
    if not args.load_best_model_at_end or args.save_strategy == "best" or args.eval_strategy != "steps":
        return []
    if args.save_steps == args.eval_steps:
        return []
    fault = (
        f"TrainingArguments(save_steps={args.save_steps!r}): expected {args.eval_steps!r}, as eval_steps, with "
        "load_best_model_at_end=True, because the best evaluation may fall between two checkpoints, and its weights "
        f"would be lost: set save_steps={args.eval_steps!r} or save_strategy='best'"
    )
    return [fault]


def checkpoint_of(trainer: transformers.Trainer) -> str:
    """The name under which transformers' state keeps that this step has the best weights that were saved."""
    return str(Path(str(trainer.args.output_dir)) / f"checkpoint-{trainer.state.global_step}")


def loaded_step(trainer: transformers.Trainer) -> int | None:
    """The step of the checkpoint that was loaded at the end; None when none was."""
    checkpoint = trainer.state.best_model_checkpoint
    if not trainer.args.load_best_model_at_end or not checkpoint:
        return None
    return int(Path(checkpoint).name.rpartition("-")[2])


def better_before(trainer: transformers.Trainer, metrics: Mapping[str, Any]) -> str:
    """What a person should know where an earlier evaluation was better than the published ``metrics``; mostly empty.

    Those of the training over as many rows are compared, by ``metric_for_best_model`` or else by their loss.
    """
    args, state = trainer.args, trainer.state
    name = str(args.metric_for_best_model or "loss").removeprefix("eval_")
    now = metrics.get(name)
    if args.load_best_model_at_end or not _is_number(now):
        return ""
    earlier = [
        of
        for of in state.log_history
        if 0 < of.get("step", 0) < state.global_step
        and of.get("eval_rows") == metrics.get("rows")
        and _is_number(of.get(f"eval_{name}"))
        and math.isfinite(of[f"eval_{name}"])
    ]
    if not earlier:
        return ""
    sign = -1 if args.metric_for_best_model and args.greater_is_better else 1
    then = min(earlier, key=lambda of: sign * of[f"eval_{name}"])
    value = then[f"eval_{name}"]
    if sign * value >= sign * now or f"{value:.4g}" == f"{now:.4g}":
        return ""
    strategy = "epoch" if args.eval_strategy == "no" else args.eval_strategy.value
    when = f"step {then['step']} (epoch {then.get('epoch', 0):.4g})"
    return (
        f"the evaluation of {when} was better than that of the published weights, of step {state.global_step}: {name} "
        f"{value:.4g}, and {now:.4g} in the end; to publish the best, give session.arguments("
        f"eval_strategy={strategy!r}, save_strategy={strategy!r}, load_best_model_at_end=True, "
        f"metric_for_best_model={name!r})"
    )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def tell_best(trainer: transformers.Trainer) -> None:
    """Says which weights a training with load_best_model_at_end has ended with."""
    loaded, state = loaded_step(trainer), trainer.state
    if loaded is None:
        world.note(
            "load_best_model_at_end=True had no checkpoint of a best evaluation to load: the weights are those "
            f"of step {state.global_step}, the last one"
        )
    elif loaded == state.best_global_step:
        world.note(f"the weights are those of step {loaded} again, the best of all evaluations")
    else:
        world.note(
            f"the weights are those of step {loaded} again, the best evaluation with a checkpoint; that of "
            f"step {state.best_global_step} was better"
        )
