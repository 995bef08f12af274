"""The history of a run, read from the store as a table of pandas, and its picture: a panel for each metric."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd
from pandas.plotting import PlotAccessor

from train_func.client.stored_attempts import attempt_numbers, attempt_rows
from train_func.errors import InvalidInput
from train_func.fields import whole_fault
from train_func.storage import Readable
from train_func.wire.layout import RunKeys
from train_func.wire.metrics import EVAL_PREFIX, NO_METRICS, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = ("step", "timestamp", "attempt")
_ON_LIGHT_AND_DARK = {  # a page of any colour shows through, and grey is read on it
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "legend.facecolor"), "none"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color"), "#808080"),
    "ytick.color": "#7f7f7f",  # Jupyter lays a sheet behind a picture whose ticks are all light, or all dark
}
_MOST_MARKED = 40  # points of a curve that are marked one by one


class History(pd.DataFrame):
    """One row for each step that was told: ``step``, ``timestamp`` (UTC), ``attempt``, and a column for every metric.

    A metric that a row does not have is NaN there. What is selected from it is a plain DataFrame.
    """

    @property
    def plot(self) -> "_Plot":
        """Called without arguments: the picture of all metrics; otherwise ``DataFrame.plot`` over ``step``."""
        return _Plot(self)


class _Plot(PlotAccessor):
    def __call__(self, *args: Any, **options: Any) -> Any:
        """Draws a panel for each metric, and a dotted line where a later attempt begins; returns the Axes.

        With arguments it draws as ``DataFrame.plot`` does, with lines over ``step`` unless ``x`` is given.

        Raises:
            InvalidInput: matplotlib is not installed, or the run has reported no number.
        """
        if not (args or options):
            return _picture(self._parent)
        rows = self._parent
        if not args and options.get("kind", "line") == "line":
            options["x"] = options.get("x") or "step"
            if isinstance(y := options.get("y"), str):
                rows = rows.dropna(subset=[y])  # pandas draws no line across the rows that have no value
        return PlotAccessor(rows)(*args, **options)


class _AxesWithoutRepr(list["Axes"]):
    """Axes of which a notebook shows the picture alone."""

    def _ipython_display_(self) -> None:
        pass


def read_rows(store: Readable, keys: RunKeys, since: int | None = None) -> list[dict[str, Any]]:
    """The rows of ``Job.history``, after the step ``since``, if that is given.

    Raises InvalidInput when that is no step, and StorageFailed (reason "damaged") when a file cannot be read.
    """
    if since is not None and (fault := whole_fault("since", since, 0)):
        raise InvalidInput(fault)
    rows = {number: attempt_rows(store, keys, number) for number in attempt_numbers(store, keys)}
    return [
        {**row.values, "step": row.step, "timestamp": row.timestamp, "attempt": number}
        for number, row in joined_history(rows)
        if since is None or row.step > since
    ]


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
        is_same = all(last.get(name) == row[name] for name in ("step", "attempt"))
        if is_same and all(
            last[name] == row[name] for name in {*last, *row} - {"timestamp"} if name in last and name in row
        ):
            joined[-1] = {**row, **last}
        else:
            joined.append(row)
    table = pd.DataFrame(joined)
    table = table.reindex(columns=[*COLUMNS, *(column for column in table.columns if column not in COLUMNS)])
    table["timestamp"] = pd.to_datetime(table["timestamp"], utc=True, format="ISO8601")
    history = History(table.astype({"step": int, "attempt": int}))
    history.attrs["run"] = name
    return history


def panels(history: pd.DataFrame) -> dict[str, list[str]]:
    """The columns that are drawn, by the metric of their panel: ``loss`` and ``eval_loss`` share one."""
    of_panel: dict[str, list[str]] = {}
    for column in history.columns:
        values = history[column]
        is_number = pd.api.types.is_numeric_dtype(values) and not pd.api.types.is_bool_dtype(values)
        if column not in NO_METRICS and is_number and values.notna().any():
            of_panel.setdefault(column.removeprefix(EVAL_PREFIX), []).append(column)
    return of_panel


def _picture(history: History) -> "list[Axes]":
    columns_by_metric = panels(history)
    if not columns_by_metric:
        raise InvalidInput(
            f"{history.attrs.get('run', 'the run')} has reported no number: the Trainer of train_func reports its "
            "steps and evaluations, a loop of your own with session.report(step, loss=...)"
        )
    try:
        import matplotlib.pyplot as plt
    except ImportError:
        raise InvalidInput(
            "history().plot() needs matplotlib, which is not installed here: pip install matplotlib"
        ) from None
    with plt.rc_context(_ON_LIGHT_AND_DARK):
        return _draw_panels(plt, history, columns_by_metric)


def _draw_panels(plt: Any, history: History, columns_by_metric: Mapping[str, Sequence[str]]) -> "list[Axes]":
    num_panels = len(columns_by_metric)
    size = (7, 1 + 2 * num_panels)
    figure, grid = plt.subplots(num_panels, sharex=True, squeeze=False, figsize=size, layout="constrained")
    axes: list[Axes] = _AxesWithoutRepr(grid[:, 0])
    starts = history.groupby("attempt")["step"].min().iloc[1:]
    for panel, (metric, columns) in zip(axes, columns_by_metric.items(), strict=True):
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
