"""The history of a run as a table of pandas, and its picture: a panel for each metric, over the steps."""

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from pandas.plotting import PlotAccessor

from train_func.errors import InvalidInput

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("step", "timestamp", "attempt")
_NO_METRICS = (*COLUMNS, "epoch", "rows_per_second", "eval_rows")
_PREFIX = "eval_"  # of what an evaluation measures: it stands in one panel with the same metric of the training
_MOST_MARKED = 40  # points of a curve that are marked one by one


class History(pd.DataFrame):
    """One row for each report: ``step``, ``timestamp`` (UTC), ``attempt``, and a column for every metric.

    A metric that a row does not have is NaN there. What is selected from it is a plain DataFrame.
    """

    def __repr__(self) -> str:
        return f"{no_numbers(self)}\n{super().__repr__()}" if self.empty else super().__repr__()

    def _repr_html_(self) -> str | None:
        table: str | None = super()._repr_html_()
        return f"<p>{html.escape(no_numbers(self))}</p>{table}" if self.empty else table

    @property
    def plot(self) -> "_Plot":
        """Called without arguments: the picture of all metrics; otherwise ``DataFrame.plot``."""
        return _Plot(self)


class _Plot(PlotAccessor):
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Draws a panel for each metric, and a dotted line where a later attempt begins; returns the Axes.

        Raises:
            InvalidInput: matplotlib is not installed, or the run has reported no number.
        """
        if args or options:
            return super().__call__(*args, **options)
        return _picture(self._parent)


def history_of(rows: Sequence[dict[str, Any]], name: str) -> History:
    """The rows of ``stored_run.history`` of the run of that name."""
    table = pd.DataFrame(list(rows))
    table = table.reindex(columns=[*COLUMNS, *(column for column in table.columns if column not in COLUMNS)])
    table["timestamp"] = pd.to_datetime(table["timestamp"], utc=True, format="ISO8601")
    found = History(table.astype({"step": int, "attempt": int}))
    found.attrs["run"] = name
    return found


def panels(history: pd.DataFrame) -> dict[str, list[str]]:
    """The columns that are drawn, by the metric of their panel: ``loss`` and ``eval_loss`` share one."""
    found: dict[str, list[str]] = {}
    for column in history.columns:
        values = history[column]
        is_number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        if column not in _NO_METRICS and is_number and values.notna().any():
            found.setdefault(column.removeprefix(_PREFIX), []).append(column)
    return found


def no_numbers(history: pd.DataFrame) -> str:
    """That there is nothing to see, and what reports numbers."""
    return (
        f"{history.attrs.get('run', 'the run')} has reported no number: the Trainer of train_func reports its steps "
        "and evaluations, a loop of your own with session.report(step, loss=...)"
    )


def _picture(history: History) -> "list[Axes]":
    drawn = panels(history)
    if not drawn:
        raise InvalidInput(no_numbers(history))
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise InvalidInput(
            "history().plot() needs matplotlib, which is not installed here: pip install matplotlib"
        ) from None
    figure, grid = plt.subplots(
        len(drawn), sharex=True, squeeze=False, figsize=(7, 1 + 2 * len(drawn)), layout="constrained"
    )
    axes: list[Axes] = list(grid[:, 0])
    starts = history.groupby("attempt")["step"].min().iloc[1:]
    for panel, (metric, columns) in zip(axes, drawn.items(), strict=True):
        for column in columns:
            points = history[["step", column]].dropna()
            marker = "o" if len(points) <= _MOST_MARKED else ""
            panel.plot(points["step"], points[column], marker=marker, markersize=4, label=column)
        for attempt, step in starts.items():
            panel.axvline(step, color="grey", linestyle=":", label=f"attempt {attempt} begins")
        panel.set_ylabel(metric)
        panel.grid(alpha=0.3)
        if len(columns) > 1 or len(starts):
            panel.legend()
    axes[-1].set_xlabel("step")
    figure.suptitle(history.attrs.get("run", ""))
    return axes
