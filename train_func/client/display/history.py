"""The history of a run, read from the store as a table of pandas, and its picture: a chart for each metric."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pandas.plotting import PlotAccessor

from train_func.client.display.chart import Curve, Flag, by_metric, curves_of, stack
from train_func.client.stored_attempts import attempt_numbers, attempt_rows
from train_func.errors import InvalidInput
from train_func.fields import whole_fault
from train_func.storage import Readable
from train_func.wire.layout import RunKeys
from train_func.wire.metrics import TRAINING, Row

COLUMNS = ("step", "timestamp", "attempt")
HEIGHT = 170  # of a chart, in pixels


class History(pd.DataFrame):
    """One row for each step that was told: ``step``, ``timestamp`` (UTC), ``attempt``, and a column for every metric.

    Where the function has more than one training that is saved, ``training number`` tells them apart, from 0. A metric
    that a row does not have is NaN there. What is selected from it is a plain DataFrame.
    """

    @property
    def plot(self) -> "_Plot":
        """Without arguments: the picture of the newest training, as SVG; otherwise ``DataFrame.plot`` over ``step``."""
        return _Plot(self)


class _Plot(PlotAccessor):
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Returns a picture of the newest training: a chart for each metric, with a mark where a later attempt begins.

        The last expression of a cell, or ``display``, shows it; its text is an SVG. With arguments it draws as
        ``DataFrame.plot`` does, with lines over ``step`` unless ``x`` is given.

        Raises:
            InvalidInput: the run has reported no number.
        """
        rows = self._parent
        if not (args or options):
            name = rows.attrs.get("run", "the run")
            newest = newest_training(rows.to_dict("records"))
            charts = by_metric(newest_curves(newest))
            if not charts:
                raise InvalidInput(
                    f"{name} has reported no number: the Trainer of train_func reports its steps and evaluations, a "
                    "loop of your own with session.report(step, loss=...)"
                )
            begins = pd.DataFrame(newest).groupby("attempt")["step"].min().iloc[1:]
            marks = [Flag(step, f"attempt {attempt}") for attempt, step in begins.items()]
            return stack(name, [(HEIGHT, lines, marks) for lines in charts])
        if not args and options.get("kind", "line") == "line":
            options["x"] = options.get("x") or "step"
            if isinstance(y := options.get("y"), str):
                rows = rows.dropna(subset=[y])  # pandas draws no line across the rows that have no value
        return PlotAccessor(rows)(*args, **options)


def read_rows(store: Readable, keys: RunKeys, since: int | None = None) -> list[dict[str, Any]]:
    """The rows of ``Job.history``; those of the newest training after the step ``since``, if that is given.

    Raises InvalidInput when that is no step, and StorageFailed (reason "damaged") when a file cannot be read.
    """
    if since is not None and (fault := whole_fault("since", since, 0)):
        raise InvalidInput(fault)
    rows = {number: attempt_rows(store, keys, number) for number in attempt_numbers(store, keys)}
    joined = joined_history(rows)
    is_one = not (joined and joined[-1][1].training)
    told = [
        {**row.values, "step": row.step, "timestamp": row.timestamp, "attempt": number}
        | ({} if is_one else {TRAINING: row.training})
        for number, row in joined
    ]
    return told if since is None else [row for row in newest_training(told) if row["step"] > since]


def newest_training(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the rows of the newest training, which alone is drawn."""
    return [row for row in rows if row.get(TRAINING) == rows[-1].get(TRAINING)]


def newest_curves(rows: Sequence[dict[str, Any]]) -> dict[str, Curve]:
    """The curve of each metric in the newest training of these rows."""
    return curves_of((row["step"], row) for row in newest_training(rows))


def joined_history(rows: Mapping[int, Sequence[Row]]) -> list[tuple[int, Row]]:
    """The rows with their attempts, without steps that a later attempt repeated; sorted by training, step and time.

    An attempt that was stopped in an evaluation is followed by one that begins with that evaluation, and has no other
    row of that step: the loss of the step stays.
    """
    joined: list[tuple[int, Row]] = []
    for number in sorted(rows):
        for training in {row.training for row in rows[number]}:
            of_training = [row for row in rows[number] if row.training == training]
            steps = [row.step for row in of_training]
            first, last = min(steps), max(steps)
            metrics = {name for row in of_training if row.step == first for name in row.values}
            joined = [
                (earlier, row)
                for earlier, row in joined
                if row.training != training
                or not first <= row.step <= last
                or (row.step == first and not row.values.keys() <= metrics)
            ]
            joined += [(number, row) for row in of_training]
    return sorted(joined, key=lambda numbered: (numbered[1].training, numbered[1].step, numbered[1].timestamp))


def history_of(rows: Sequence[dict[str, Any]], name: str) -> History:
    """The table of these rows, of the run of that name: what one attempt tells of one step is one row."""
    joined: list[dict[str, Any]] = []
    for row in rows:
        last = joined[-1] if joined else {}
        is_same = all(last.get(name) == row.get(name) for name in ("step", "attempt", TRAINING))
        if is_same and all(
            last[name] == row[name] for name in {*last, *row} - {"timestamp"} if name in last and name in row
        ):
            joined[-1] = {**row, **last}
        else:
            joined.append(row)
    table = pd.DataFrame(joined)
    first = [*COLUMNS, *(column for column in table.columns if column == TRAINING)]
    table = table.reindex(columns=[*first, *(column for column in table.columns if column not in first)])
    table["timestamp"] = pd.to_datetime(table["timestamp"], utc=True, format="ISO8601")
    history = History(table.astype({"step": int, "attempt": int}))
    history.attrs["run"] = name
    return history
