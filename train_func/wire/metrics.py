"""The history of a training, as an attempt keeps it: rows of metrics by step, written and read as CSV."""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from train_func.wire.events import Evaluated, Event, Reported, StepProgress

EVAL_PREFIX = "eval_"  # of what an evaluation measures: it is drawn beside the same metric of the training
TRAINING = "training number"  # a column that no metric has, as no keyword can be called so
# The columns of a history that are not drawn.
NO_METRICS = (
    *("step", "timestamp", "attempt", TRAINING),
    *("epoch", "learning_rate", "grad_norm", "rows_per_second", "eval_rows"),
)
Value = float | int | str


@dataclass(frozen=True)
class Row:
    """What was reported at one moment: of the training, or of one evaluation."""

    step: int
    timestamp: str
    """ISO, UTC."""
    values: dict[str, Value]
    training: int = 0
    """The number of the training in the function, from 0."""


def row_of(event: Event) -> Row | None:
    """The row that an event makes; None when it is no metric. Those of evaluations have their prefix: eval_accuracy."""
    match event:
        case StepProgress(is_row=True, loss=float(loss)):
            of_step = {"learning_rate": event.learning_rate, "grad_norm": event.grad_norm}
            known = {name: value for name, value in of_step.items() if value is not None}
            values: dict[str, Value] = {"loss": loss, **known, "rows_per_second": event.rows_per_second}
        case Evaluated():
            values = {f"{event.prefix}_{name}": value for name, value in _of_cells(event.metrics).items()}
        case Reported():
            return Row(event.step, event.time, _of_cells(event.metrics))
        case _:
            return None
    return Row(event.step, event.time, {"epoch": event.epoch, **values})


def _of_cells(metrics: Mapping[str, Any]) -> dict[str, Value]:
    """Returns the metrics that a cell holds."""
    return {name: value for name, value in metrics.items() if isinstance(value, Value)}


def to_csv(rows: Iterable[Row]) -> bytes:
    """Writes the columns of every row, and one for each metric; a cell is empty where a row has no value."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row.values)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, dict.fromkeys(["step", "timestamp", TRAINING, *names]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({**row.values, "step": row.step, "timestamp": row.timestamp, TRAINING: row.training})
    return text.getvalue().encode()


def from_csv(data: bytes) -> list[Row]:
    """The rows of such a file. Raises ValueError when it is none."""
    reader = csv.DictReader(io.StringIO(data.decode(), newline=""))
    if not {"step", "timestamp"} <= set(reader.fieldnames or ()):
        raise ValueError("its columns are not those of metrics: step and timestamp are missing")
    rows = []
    for cells in reader:
        step, timestamp, training = int(cells.pop("step")), cells.pop("timestamp"), int(cells.pop(TRAINING, 0))
        rows.append(Row(step, timestamp, {name: _value(cell) for name, cell in cells.items() if cell}, training))
    return rows


def _value(cell: str) -> Value:
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell
