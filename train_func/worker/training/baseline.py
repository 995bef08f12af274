"""Baseline: what is said of a model that is worse than the same answer for every row, the best that training rows give.

That is their most frequent class, or the mean of their numbers.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset

from train_func.worker.tasks.metrics import Accuracy, NumberErrors

_REMEDY = "it may need more epochs or another learning rate"


def below_baseline(metric: object, train: Dataset, rows: Dataset, metrics: Mapping[str, Any]) -> str:
    """What is to be known of a model that was measured on ``rows``; mostly empty."""
    learnt, true = _labels(train), _labels(rows)
    if learnt is None or true is None:
        return ""
    if isinstance(metric, Accuracy) and all(np.issubdtype(of.dtype, np.integer) for of in (learnt, true)):
        return _below_majority(learnt, true, metrics.get("accuracy"))
    return _below_mean(learnt, true, metrics.get("mse")) if isinstance(metric, NumberErrors) else ""


def _below_majority(learnt: np.ndarray, true: np.ndarray, accuracy: float | None) -> str:
    classes, counts = np.unique(learnt, return_counts=True)
    baseline = float(np.mean(true == classes[counts.argmax()]))
    if accuracy is None or accuracy >= baseline:
        return ""
    return (
        f"the model is right less often than its majority-class baseline: accuracy {accuracy:.3f}, baseline "
        f"{baseline:.3f}; {_REMEDY}"
    )


def _below_mean(learnt: np.ndarray, true: np.ndarray, mse: float | None) -> str:
    baseline = float(np.mean((true - learnt.mean(dtype=np.float64)) ** 2))
    if mse is None or mse <= baseline:
        return ""
    return (
        f"the model predicts worse than the mean of its training rows: mse {mse:.4g}, baseline {baseline:.4g}; "
        f"{_REMEDY}, or numbers that lie between -1 and 1 (docs/tasks.md)"
    )


def _labels(rows: Dataset) -> "np.ndarray | None":
    """The column of one class, or number, per row, where there is one."""
    name = next((name for name in ("label", "labels") if name in rows.column_names), None)
    column = rows.with_format("arrow").select_columns([name])[:][name] if name and len(rows) else None
    is_one = column is not None and (pa.types.is_integer(column.type) or pa.types.is_floating(column.type))
    return column.to_numpy() if column is not None and is_one else None
