"""Evaluation: every held-out row is in the metric exactly once, at any number of ranks, with one result on all of them.

transformers gathers the predictions of a padded data set on every rank and cuts off what was repeated. Here nothing is
repeated, and nothing large is gathered:

- The rows are cut into batches of similar length, the longest first, by their lengths alone. The batches are dealt over
  the ranks in turn. Since they do not depend on the number of ranks, neither does what is drawn at random in them.
- Each rank counts what the metric needs of a batch, a few sums, and forgets its logits: those of a language model would
  fill the memory of every rank. They are kept and gathered only where compute_metrics, or ``predict``, asks for them.
- The sums of all batches are gathered and added up in the order of the data set, so that their rounding is the same at
  any number of ranks. The loss is the mean over the items of all batches, as a step has it.
- The ids of the evaluated rows are gathered too and counted: a row that is missing or repeated fails the evaluation.
  With them come a few numbers of each row, what was predicted: those of the published weights are published.
- compute_metrics runs on every rank, and all take what it gave on rank 0: it may draw at random, and ranks that
  disagree about the best evaluation would save and stop apart.

What is published was measured of the weights that are published: an evaluation keeps a mark of its weights, and is made
again where the model has others in the end.

The best of all evaluations is known by its step: transformers' ``best_global_step`` is that step, whether its weights
were saved or not; the weights that it loads at the end are of ``best_model_checkpoint``, the newest best one that was
saved.
"""

import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from datasets import Dataset
from transformers import EvalPrediction
from transformers.trainer_pt_utils import nested_numpify
from transformers.trainer_utils import PredictionOutput

from train_func.errors import InvalidInput
from train_func.fields import is_number
from train_func.wire.events import RowsAudited
from train_func.wire.predictions import MOST_ROWS
from train_func.worker.rank import marks, reporting, world
from train_func.worker.rank.json_values import to_python
from train_func.worker.rank.marks import Phase
from train_func.worker.tasks.protocol import PredictsRows
from train_func.worker.training import audit, weights
from train_func.worker.training.arguments import DefaultSize
from train_func.worker.training.audit import Coverage, RowIds, count
from train_func.worker.training.loader import seed_for, take_row_ids
from train_func.worker.training.plan import ROW_ID, TOKENS_ON_CPU, features_of, lengths_of, row_ids_of

Ints = npt.NDArray[np.int64]
ROWS_ON_GPU = 32  # of a batch, where the function chooses no size; on a CPU it has the tokens of a micro-batch
PADDING = -100  # as transformers pads predictions of different lengths
# Words in the names of metrics, by the direction in which models become better.
_GROW = {"accuracy", "acc", "auc", "bleu", "exact", "f1", "map", "mcc", "precision", "r2", "recall", "rouge"}
_FALL = {"cer", "error", "loss", "mae", "mape", "mse", "perplexity", "rmse", "wer"}


@dataclass(frozen=True)
class Measurement:
    """One evaluation. ``metrics`` have plain names (accuracy, loss, ...)."""

    weights: list[float]
    """The mark of those that were measured."""
    rows: str
    """Fingerprint of the data set that they were measured on."""
    metrics: dict[str, Any]
    named: dict[str, Any]
    """The metrics with the prefix that was asked for."""
    coverage: Coverage
    predictions: Mapping[str, npt.NDArray[Any]] | None
    """What was predicted, on rank 0: by column, in the order of the ids; None where the metric tells of no row."""

    @property
    def reported(self) -> dict[str, float | int | str]:
        """The metrics that are numbers or texts."""
        return {name: value for name, value in self.metrics.items() if isinstance(value, (float, int, str))}


@dataclass(frozen=True)
class _Batch:
    """What the model says of some rows. ``outputs``: logits, labels and inputs, row by row, where they are kept."""

    positions: Ints
    row_ids: tuple[Any, ...]
    loss: float | None
    """The mean over its items, of which there are ``weight``."""
    weight: int
    sums: Mapping[str, float] | None
    """What it adds to the sums of the metric; None where it has none."""
    predictions: Mapping[str, npt.NDArray[Any]]
    """What is predicted of each row, by column, where the metric tells it."""
    outputs: tuple[Any, Any, Any]


@marks.within(Phase.OUTSIDE)
def measure(trainer: transformers.Trainer, rows: Dataset, ignore_keys: list[str] | None, prefix: str) -> Measurement:
    """Measures the metrics of ``rows``, which every rank has whole; collective.

    Raises:
        InvalidInput: (cause "code", on every rank) when ranks have different rows, or a row is not in the metric
            exactly once.
    """
    ids = audit.check_rows_alike(rows, None, "held-out")
    model = trainer.accelerator.unwrap_model(trainer.model)
    weights.spread_buffers(model)
    mark = weights.mark_of(model)
    keep = trainer.compute_metrics is not None
    _, metrics, coverage, predictions = _evaluate(trainer, rows, ids, ignore_keys, "held_out", keep=keep)
    plain_names = {name.removeprefix("eval_"): value for name, value in metrics.items()}
    return Measurement(mark, rows._fingerprint, plain_names, _with_prefix(metrics, prefix), coverage, predictions)


def newest_of(measurements: Sequence[Measurement], rows: Dataset, mark: list[float]) -> Measurement | None:
    """Returns the newest of the measurements that were made on these rows with the weights of this mark."""
    same = (of for of in reversed(measurements) if (of.rows, of.weights) == (rows._fingerprint, mark))
    return next(same, None)


@contextmanager
def printed() -> Iterator[None]:
    """Prints what callbacks and trackers raise in its body, which goes no further."""
    try:
        yield
    except Exception as error:
        traceback.print_exception(error)
        reporting.note(f"a callback or tracker was not told what was measured: {type(error).__name__}: {error}")


def names(trainer: transformers.Trainer, rows: Dataset, prefix: str) -> set[str]:
    """Returns the names of the metrics of ``rows``, which are measured and forgotten; collective.

    Raises:
        InvalidInput: as ``measure``.
    """
    ids = audit.check_rows_alike(rows, None, "held-out")
    keep = trainer.compute_metrics is not None
    _, metrics, *_ = _evaluate(trainer, rows, ids, trainer._ignore_keys, "tried_before_training", keep=keep)
    return set(_with_prefix(metrics, prefix))


def longest_batch(trainer: transformers.Trainer, rows: Dataset) -> Dataset:
    """Returns the rows that are evaluated first, in their order."""
    audit.check_rows_alike(rows, None, "held-out")
    batches = _batches_of(rows, trainer.args)
    return rows.select(np.sort(batches[0])) if batches else rows


@marks.within(Phase.OUTSIDE)
def predict(
    trainer: transformers.Trainer, rows: Dataset, ignore_keys: list[str] | None, prefix: str
) -> PredictionOutput:
    """Returns predictions for ``rows``, which every rank has whole, in their order; collective.

    The rows may lack labels and ids.

    Raises:
        InvalidInput: (cause "code", on every rank) when ranks have different rows.
    """
    ids = audit.check_rows_alike(rows, None, "given")
    weights.spread_buffers(trainer.accelerator.unwrap_model(trainer.model))
    (logits, labels, _), metrics, *_ = _evaluate(trainer, rows, ids, ignore_keys, "predicted", keep=True)
    is_labelled = labels is not None or "loss" in metrics
    return PredictionOutput(logits, labels, _with_prefix(metrics if is_labelled else {"rows": len(rows)}, prefix))


def covering(sets: Any, rows: Dataset) -> Dataset:
    """Returns the data set among ``sets`` (an eval_dataset, one or a dict of them) that has the ids of ``rows``.

    A function may have given its rows other columns. Returns ``rows`` where there is no such set.
    """
    ids = np.sort(row_ids_of(rows))
    for part in sets.values() if isinstance(sets, dict) else [sets]:
        has_ids = isinstance(part, Dataset) and ROW_ID in part.column_names
        if has_ids and np.array_equal(np.sort(row_ids_of(part)), ids):
            return part
    return rows


def rows_measured(sets: Any, held_out: Dataset | None) -> dict[str, Any]:
    """Returns the data sets whose metrics are published, by prefix of the metrics' names.

    Args:
        sets: the eval_dataset of the Trainer. A function with rows of its own passes them so.
        held_out: the rows of session.data; None if the function has not loaded them.
    """
    if held_out is not None:
        return {"": covering(sets, held_out)}
    if isinstance(sets, dict):
        return {f"{name}_": rows for name, rows in sets.items()}
    return {} if sets is None else {"": sets}


def _with_prefix(metrics: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Puts the prefix before names; one that has it already gets no second one, as in transformers."""
    return {f"{prefix}_{name.removeprefix(f'{prefix}_')}": value for name, value in metrics.items()}


def _batches_of(rows: Dataset, args: transformers.TrainingArguments) -> list[Ints]:
    lengths = lengths_of(rows)
    order, size = np.argsort(-lengths, kind="stable"), args.per_device_eval_batch_size
    is_default, has_gpu = isinstance(size, DefaultSize), torch.cuda.is_available()
    batches: list[Ints] = []
    start = 0
    while start < len(order):
        if is_default:
            size = ROWS_ON_GPU if has_gpu else max(1, TOKENS_ON_CPU // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


def _evaluate(
    trainer: transformers.Trainer, rows: Dataset, ids: RowIds, ignore_keys: list[str] | None, what: str, *, keep: bool
) -> tuple[tuple[Any, Any, Any], dict[str, Any], Coverage, Mapping[str, npt.NDArray[Any]] | None]:
    """Returns logits, labels and inputs of all rows where they are kept, the metrics, how the rows were used, and on
    rank 0 what was predicted of each."""
    if not len(rows):
        raise InvalidInput(f"There are no {what.replace('_', '-')} rows: give at least one", cause="code")
    batches = _batches_of(rows, trainer.args)
    mine = list(enumerate(batches))[world.rank() :: world.size()]
    collator = trainer.collator("evaluation")
    trainer.model.eval()

    def predict_mine() -> list[_Batch]:
        smoother, trainer.label_smoother = trainer.label_smoother, None  # so that losses of different runs compare
        try:
            with marks.within(Phase.EVALUATION):
                return [_predict(trainer, rows, number, at, collator, ignore_keys, keep=keep) for number, at in mine]
        finally:
            trainer.label_smoother = smoother

    parts = [part for parts in world.gather(world.on_all_ranks(predict_mine)) for part in parts]
    parts.sort(key=lambda part: int(part.positions[0]))  # one order of adding, however many ranks
    coverage = count(ids, [np.asarray(part.row_ids) for part in parts])
    counts = coverage.counts("in_metric_once")
    world.log_rank0(RowsAudited(what=what, counts=counts, world_size=world.size()))
    if not coverage.exact:
        raise InvalidInput(f"The {what.replace('_', '-')} rows are not used once each: {coverage}", cause="code")
    positions = [part.positions for part in parts]
    logits, labels, inputs = (_in_order([part.outputs[kind] for part in parts], positions) for kind in range(3))

    def compute() -> dict[str, Any]:
        seed_for("evaluate", trainer.args.seed, trainer.weights_step, -1)
        if trainer.compute_metrics is None or trainer.args.prediction_loss_only:
            sums = [part.sums for part in parts if part.sums is not None]
            if trainer.metric is None or len(sums) < len(parts):
                return {}
            total = {name: sum(of_part[name] for of_part in sums) for name in sums[0]}
            return dict(trainer.metric.values(total, sum(len(part.positions) for part in parts)))
        losses = None
        if "loss" in trainer.args.include_for_metrics and all(part.loss is not None for part in parts):
            losses = _in_order([np.full(len(part.positions), part.loss) for part in parts], positions)
        computed = to_python(trainer.compute_metrics(EvalPrediction(logits, labels, inputs, losses)))
        if not isinstance(computed, dict):
            raise InvalidInput(
                f"compute_metrics returned {str(computed)[:60]}: a dict of names and values is expected", cause="code"
            )
        return computed

    metrics = world.gather(world.on_all_ranks(compute))[0]
    weighed = [part for part in parts if part.weight]  # a mean over no item is no number
    if weighed and all(part.loss is not None for part in weighed):
        weights_of_parts = [part.weight for part in weighed]
        metrics["loss"] = float(np.average([part.loss for part in weighed], weights=weights_of_parts))
    predictions = _predictions_of(parts) if world.rank() == 0 else None
    return (logits, labels, inputs), {**metrics, "rows": coverage.num_rows}, coverage, predictions


def _predictions_of(parts: Sequence[_Batch]) -> Mapping[str, npt.NDArray[Any]] | None:
    """Joins the predictions of all batches; of more than MOST_ROWS rows, those at even distances."""
    if any(not part.predictions for part in parts):
        return None
    rows = np.concatenate([np.asarray(part.row_ids) for part in parts])
    order = np.argsort(rows, kind="stable")
    if len(order) > MOST_ROWS:
        order = order[np.arange(MOST_ROWS) * len(order) // MOST_ROWS]
    columns = {name: np.concatenate([part.predictions[name] for part in parts]) for name in parts[0].predictions}
    return {"row": rows[order], **{name: column[order] for name, column in columns.items()}}


def _predict(
    trainer: transformers.Trainer,
    rows: Dataset,
    number: int,
    positions: Ints,
    collator: Any,
    ignore_keys: list[str] | None,
    *,
    keep: bool,
) -> _Batch:
    seed_for("evaluate", trainer.args.seed, trainer.weights_step, number)
    features = features_of(rows, positions.tolist())
    row_ids = take_row_ids(features) if ROW_ID in features[0] else tuple(positions.tolist())
    inputs = collator(features)
    trainer.rows_evaluated = len(positions)
    weight = trainer.items.count(inputs, len(positions))
    main_input = None
    if keep and "inputs" in trainer.args.include_for_metrics:
        name = getattr(trainer.model, "main_input_name", "input_ids")
        if name not in inputs:
            raise InvalidInput(
                f"TrainingArguments(include_for_metrics=['inputs']): the main input of {type(trainer.model).__name__} "
                f"is {name!r}, and the collator makes {', '.join(inputs)}",
                cause="code",
            )
        main_input = nested_numpify(inputs[name])  # before a loss may take it out
    with trainer.accelerator.autocast():
        loss, logits, labels = trainer.prediction_step(
            trainer.model, inputs, trainer.args.prediction_loss_only, ignore_keys
        )
    if trainer.preprocess_logits_for_metrics is not None and logits is not None:
        logits = trainer.preprocess_logits_for_metrics(logits, labels)
    mean = None if loss is None else loss.item()
    sums = trainer.metric.count(logits, labels) if trainer.metric else None
    predictions: dict[str, npt.NDArray[Any]] = {}
    if sums is not None and isinstance(trainer.metric, PredictsRows):
        of_rows = trainer.metric.predictions(logits, labels)
        predictions = {name: value.cpu().numpy() for name, value in of_rows.items()}
    marks.batch_evaluated()
    logits, labels = (nested_numpify(value) if keep and value is not None else None for value in (logits, labels))
    return _Batch(positions, row_ids, mean, weight, sums, predictions, (logits, labels, main_input))


def _in_order(values: Sequence[Any], positions: Sequence[Ints]) -> Any:
    """Returns what the batches gave as one array, or several, with each row at its position and short ones padded."""
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


def checkpoint_of(trainer: transformers.Trainer) -> str:
    """Returns the name by which transformers' state knows that the best saved weights are of this step."""
    return str(Path(str(trainer.args.output_dir)) / f"checkpoint-{trainer.state.global_step}")


def loaded_step(trainer: transformers.Trainer) -> int | None:
    """Returns the step of the checkpoint that was loaded at the end; None when none was."""
    checkpoint = trainer.state.best_model_checkpoint
    if not trainer.args.load_best_model_at_end or not checkpoint:
        return None
    return int(Path(checkpoint).name.rpartition("-")[2])


def better_before(trainer: transformers.Trainer, metrics: Mapping[str, Any]) -> str:
    """Returns a note where an earlier evaluation was better than the published ``metrics``; mostly empty.

    The evaluations of the training over as many rows are compared: by ``metric_for_best_model``, or else by the metric
    of the task or of compute_metrics and by the loss. Where those two disagree nothing is noted, nor where no metric of
    compute_metrics has a name that tells its direction.
    """
    args, state = trainer.args, trainer.state
    signs = _signs(trainer, metrics)  # -1 where a larger value is better
    earlier = [
        row
        for row in state.log_history
        if 0 < row.get("step", 0) < state.global_step
        and row.get("eval_rows") == metrics.get("rows")
        and all(is_number(row.get(f"eval_{name}")) for name in signs)
    ]
    if args.load_best_model_at_end or not earlier or not all(is_number(metrics.get(name)) for name in signs):
        return ""

    def gains(row: Mapping[str, Any]) -> dict[str, float]:
        return {name: sign * (metrics[name] - row[f"eval_{name}"]) for name, sign in signs.items()}

    for name, sign in signs.items():
        then = min(earlier, key=lambda row: sign * row[f"eval_{name}"])
        value, now, gained = then[f"eval_{name}"], metrics[name], gains(then)
        if gained[name] <= 0 or min(gained.values()) < 0 or f"{value:.4g}" == f"{now:.4g}":
            continue
        strategy = "epoch" if args.eval_strategy == "no" else args.eval_strategy.value
        when = f"step {then['step']} (epoch {then.get('epoch', 0):.4g})"
        is_known = sign < 0 or name.endswith("loss")  # to transformers, which takes others to grow
        return (
            f"the evaluation of {when} was better than that of the published weights, of step {state.global_step}: "
            f"{name} {value:.4g}, and {now:.4g} in the end; to publish the best, give session.arguments("
            f"eval_strategy={strategy!r}, save_strategy={strategy!r}, load_best_model_at_end=True, "
            f"metric_for_best_model={name!r}{'' if is_known else ', greater_is_better=False'})"
        )
    return ""


def _signs(trainer: transformers.Trainer, metrics: Mapping[str, Any]) -> dict[str, int]:
    """Returns the metrics by which the model is judged, with -1 for those that grow as it becomes better.

    They are the one that the run chooses; or else an F1 score, or the first whose direction is known, and the loss.
    """
    if chosen := trainer.args.metric_for_best_model:
        return {str(chosen).removeprefix("eval_"): -1 if trainer.args.greater_is_better else 1}
    if "rows" not in metrics:  # of several data sets
        return {}
    known = [name for name in metrics if name != "loss" and _grows(name) is not None]
    judge = next((name for name in known if "f1" in name.lower()), known[0] if known else "")
    if judge:
        return {judge: -1 if _grows(judge) else 1, **({"loss": 1} if "loss" in metrics else {})}
    return {} if trainer.compute_metrics else {"loss": 1}


def _grows(name: str) -> bool | None:
    """Returns whether a larger value of the metric is the better one; None where its name does not tell."""
    words = set(re.split(r"[\W_]+", name.lower()))
    return False if words & _FALL else True if words & _GROW else None


def tell_best(trainer: transformers.Trainer) -> None:
    """Says which weights a training with load_best_model_at_end has ended with."""
    loaded, best = loaded_step(trainer), trainer.state.best_global_step
    if loaded is None:
        world.note(
            "load_best_model_at_end=True had no checkpoint of a best evaluation to load: the weights are those "
            f"of step {trainer.state.global_step}, the last one"
        )
        return
    which = "of all evaluations" if loaded == best else f"evaluation with a checkpoint; that of step {best} was better"
    world.note(f"the weights are those of step {loaded} again, the best {which}")
