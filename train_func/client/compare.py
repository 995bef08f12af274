"""Runs side by side: what was asked for differently, their curves in one picture, their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

from train_func.client.backend import Backend
from train_func.client.display.chart import Curve, Line, chart
from train_func.client.display.history import read_rows
from train_func.client.display.html import STYLE, as_html
from train_func.client.job import Job, attach
from train_func.client.runs import differences
from train_func.client.stored_run import published_result
from train_func.errors import InvalidInput
from train_func.storage import open_store
from train_func.text import counted, shown

NO_METRICS = ("step", "attempt", "epoch", "rows_per_second", "eval_rows", "timestamp")
MOST_CHARTS = 6
WIDTH, HEIGHT = 470, 190  # pixels
Row = Mapping[str, Any]


@dataclass(frozen=True)
class SideBySide:
    """The last expression of a cell, it shows the runs as a table and their curves as pictures."""

    names: Sequence[str]
    differences: Sequence[Row]
    """What was asked for differently, by column, for each run."""
    results: Sequence[Row]
    """What each has published and returned."""
    curves: Mapping[str, Sequence[Curve]]
    """By metric, the curve of each run; empty for one that has not reported it."""

    def __str__(self) -> str:
        lines = [["", *(f"{letter}: {name}" for letter, name in zip(ascii_uppercase, self.names, strict=False))]]
        lines += [[column, *cells] for column, cells in self._table()]
        widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
        rows = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return shown("\n".join(row.rstrip() for row in rows))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{letter}: {as_html(name)}</th>" for letter, name in self._named())
        rows = "".join(
            f"<tr><th>{as_html(column)}</th>{''.join(f'<td>{as_html(cell)}</td>' for cell in cells)}</tr>"
            for column, cells in self._table()
        )
        return (
            f'{STYLE}<div class="tf"><div class="tf-charts">{"".join(self._charts())}</div>'
            f"<table><tr><th></th>{head}</tr>{rows}</table></div>"
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it as plain values."""
        fields = zip(self.names, self.differences, self.results, strict=True)
        runs = [{"name": name, "asked": dict(asked), "results": dict(results)} for name, asked, results in fields]
        return {"runs": runs, "curves": {metric: [list(curve) for curve in of] for metric, of in self.curves.items()}}

    def _named(self) -> list[tuple[str, str]]:
        return list(zip(ascii_uppercase, self.names, strict=False))

    def _table(self) -> list[tuple[str, list[str]]]:
        """The rows of the table: what was asked for differently, and then the results."""
        rows = []
        for cells in (self.differences, self.results):
            for column in dict.fromkeys(name for of_run in cells for name in of_run):
                rows.append((column, [_cell(of_run.get(column)) for of_run in cells]))
        return rows

    def _charts(self) -> list[str]:
        charts = []
        for metric, curves in list(self.curves.items())[:MOST_CHARTS]:
            lines = [
                Line(f"{letter} {metric}" if place == 0 else letter, curve, has_dots=metric.startswith("eval"))
                for place, ((letter, _), curve) in enumerate(zip(self._named(), curves, strict=False))
                if curve
            ]
            charts.append(f'<div style="flex:0 1 {WIDTH}px">{chart(lines, (), width=WIDTH, height=HEIGHT)}</div>')
        return charts


def compare(*runs: Job | str, on: Backend | None = None) -> SideBySide:
    """Shows runs side by side: what was asked for differently, their curves in one picture, their results.

    Args:
        runs: two or more, as handles or by their names.
        on: the backend whose store has them; by default that of each.

    Raises:
        InvalidInput: there are fewer than two, or several runs have such a name.
        JobNotFound: the store has no run of such a name.
    """
    if len(runs) < 2:
        raise InvalidInput(
            f"compare was given {counted(len(runs), 'run')}: two or more are expected, as handles or names"
        )
    jobs = [attach(run, on=on) if isinstance(run, str) else run for run in runs]
    stored = [(open_store(job.record.store), job.record.keys) for job in jobs]
    results = [published_result(store, keys) for store, keys in stored]
    by_run = [_curves(read_rows(store, keys)) for store, keys in stored]
    metrics = dict.fromkeys(name for curves in by_run for name in curves)
    return SideBySide(
        names=[job.name for job in jobs],
        differences=differences([job.record for job in jobs]),
        results=[{**result.metrics, **result.returned} if result else {} for result in results],
        curves={
            metric: [curves.get(metric, []) for curves in by_run]
            for metric in sorted(metrics, key=lambda name: name != "loss")
        },
    )


def _curves(rows: Sequence[Row]) -> dict[str, Curve]:
    curves: dict[str, Curve] = {}
    for row in rows:
        for name, value in row.items():
            if name not in NO_METRICS and isinstance(value, (int, float)) and abs(value) < float("inf"):
                curves.setdefault(name, []).append((row["step"], value))
    return curves


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
