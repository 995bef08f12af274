"""Report: what is published about a training beside its model: how far it came, its metrics, its audit."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import transformers
from datasets import Dataset

from train_func.worker.pod import reporting
from train_func.worker.training import best, evaluation, world
from train_func.worker.training.audit import Coverage
from train_func.worker.training.metric_values import to_json
from train_func.worker.training.trainer import Trainer

INTERRUPTED = (
    "no metrics are published: the training had ended, and the process that measured its model was ended too; submit "
    "with fresh=True to train and measure again"
)
NOT_EVALUATED = (
    "no metrics are published: transformers.Trainer was not given the held-out rows to evaluate. Give it "
    "eval_dataset=held_out, or call trainer.evaluate(held_out), before session.publish(trainer), with all of the "
    "held_out that session.data returns and its column row_id"
)


def unmeasured(trainer: transformers.Trainer, stock_coverage: Coverage | None) -> dict[str, Any]:
    """The report before the model is measured."""
    audited: dict[str, Any] = {"world_size": world.size()}
    if step := best.loaded_step(trainer):
        audited["best_step"] = step
    if isinstance(trainer, Trainer):
        audited["training"] = [coverage.counts("used_once") for coverage in trainer.coverage]
        audited["held_out"] = None
    else:
        audited["trainer"] = "transformers"
        audited["training"] = [stock_coverage.counts("used_once")] if stock_coverage else []
    state = trainer.state
    return {"step": state.global_step, "num_steps": state.max_steps, "metrics": {}, "audit": audited}


def rows_measured(trainer: Trainer, held_out: Dataset | None) -> dict[str, Any]:
    """The data sets whose metrics are published, by what stands before the metrics' names.

    ``held_out``: those of session.data. A function with rows of its own gives them as eval_dataset.
    """
    sets = trainer.eval_dataset
    if held_out is not None:
        return {"": evaluation.covering(sets, held_out)}
    if isinstance(sets, dict):
        return {f"{name}_": rows for name, rows in sets.items()}
    return {} if sets is None else {"": sets}


def measured(
    report: dict[str, Any],
    trainer: transformers.Trainer,
    held_out: Dataset | None,
    metrics_of_stock: Callable[[transformers.Trainer], dict[str, Any] | None],
) -> dict[str, Any]:
    """Collective: ``report`` with the metrics of the weights that the model has now.

    Measuring may run the first evaluation of all, and the user's code. When that raises, the model is published
    without metrics, and the report has a ``note`` that names the error. Errors of callbacks are printed only.
    """
    found, fault = dict(report), None
    try:
        with _unfailing(trainer, "log"), _unfailing(trainer.callback_handler, "call_event"):
            if isinstance(trainer, Trainer):
                found |= _measured(trainer, rows_measured(trainer, held_out), report["audit"])
            else:
                metrics = metrics_of_stock(trainer)
                found |= {"note": NOT_EVALUATED} if metrics is None else {"metrics": to_json(metrics)}
    except Exception as error:
        traceback.print_exception(error)
        fault = f"{type(error).__name__}: {error}"
    if fault := next((of_rank for of_rank in world.gather(fault) if of_rank), None):
        return {**report, "note": f"no metrics are published: measuring the trained model failed with {fault}"}
    return found


@contextmanager
def _unfailing(owner: Any, name: str) -> Iterator[None]:
    """Until the end of the block, what the method of ``owner`` raises is printed, and its caller goes on."""
    method = getattr(owner, name)

    def unfailing(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            traceback.print_exception(error)
            reporting.note(f"a callback or tracker was not told what was measured: {type(error).__name__}: {error}")
            return next((of for of in args if isinstance(of, transformers.TrainerControl)), None)

    setattr(owner, name, unfailing)
    try:
        yield
    finally:
        setattr(owner, name, method)


def _measured(trainer: Trainer, sets: dict[str, Any], audited: dict[str, Any]) -> dict[str, Any]:
    # A rank that fails on one of the sets fails all ranks before the next.
    made = {prefix: world.on_all_ranks(partial(trainer.measured_on, rows)) for prefix, rows in sets.items()}
    metrics = {f"{prefix}{name}": value for prefix, of in made.items() for name, value in of.metrics.items()}
    counts = [of.coverage.counts("in_metric_once") for of in made.values()]
    held_out = {name: sum(of[name] for of in counts) for name in counts[0]} if counts else None
    return {"metrics": to_json(metrics), "audit": {**audited, "held_out": held_out}}
