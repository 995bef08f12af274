"""The table of runs as a notebook shows it: how long ago each was submitted, its state, its losses as a curve.

It is a DataFrame like any other: what is selected from it, or computed with it, is a plain one.
"""

import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pandas as pd

from train_func.client.display.chart import Curve, Picture, means
from train_func.client.display.history import newest_curves, read_rows
from train_func.client.display.html import STYLE, table
from train_func.client.display.panel import SIGNS, duration
from train_func.client.stored_run import newest_generation
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire.layout import RunKeys

MOST_ROWS = 30  # that are shown, the newest
AT_ONCE = 8  # histories that are read at the same moment
WIDTH, HEIGHT, MOST_POINTS = 90, 20, 45  # of a curve


class RunsTable(pd.DataFrame):
    """One row for each run; ``attrs["store"]`` is the address of the store that has them."""

    def __repr__(self) -> str:
        """Returns the first columns, as many as fit: pandas leaves out those in the middle, such as the state."""
        times = self.select_dtypes("datetimetz")
        frame = pd.DataFrame(self).assign(**{name: times[name].dt.strftime("%Y-%m-%d %H:%M") for name in times})
        if frame.empty:
            return repr(frame)
        width = shutil.get_terminal_size().columns
        for number in range(len(frame.columns), 0, -1):
            text = frame.iloc[:, :number].to_string(max_rows=pd.get_option("display.max_rows"))
            if max(map(len, text.splitlines())) <= width:
                break
        left_out = list(frame.columns[number:])
        return f"{text}\nand the columns {', '.join(left_out)}" if left_out else text

    def _repr_html_(self) -> str:
        rows = self.head(MOST_ROWS).reset_index()
        curves = _losses(self.attrs.get("store", ""), list(rows["name"]))
        columns = [*rows.columns]
        place = columns.index("state") + 1  # of the curve: before the other results
        titles = [*map(str, columns[:place]), "loss", *map(str, columns[place:])]
        lines = []
        for (_, row), curve in zip(rows.iterrows(), curves, strict=True):
            cells = [_cell(column, row[column]) for column in columns]
            lines.append([*cells[:place], _sparkline(curve), *cells[place:]])
        more = f'<div class="tf-soft">and {len(self) - len(rows)} earlier ones</div>' if len(self) > len(rows) else ""
        return f'{STYLE}<div class="tf tf-runs">{table(titles, lines)}{more}</div>'


def _losses(address: str, names: Sequence[str]) -> list[Curve]:
    """The losses of each run; none of one whose history cannot be read."""
    store = open_store(address)

    def losses(name: str) -> Curve:
        try:
            rows = read_rows(store, RunKeys(name, newest_generation(store, name) or 1))
        except StorageFailed:
            return []
        return newest_curves(rows).get("loss", [])

    with ThreadPoolExecutor(AT_ONCE) as readers:
        return list(readers.map(losses, names))


def _sparkline(curve: Curve) -> str:
    if len(curve) < 2:
        return ""
    points = means(curve, MOST_POINTS)
    low, high = min(value for _, value in points), max(value for _, value in points)
    first, last = points[0][0], points[-1][0]
    places = " ".join(
        f"{2 + (step - first) / ((last - first) or 1) * (WIDTH - 4):.1f},"
        f"{HEIGHT - 2 - (value - low) / ((high - low) or 1) * (HEIGHT - 4):.1f}"
        for step, value in points
    )
    line = f'<polyline fill="none" stroke="#2f7fd0" stroke-width="1.5" points="{places}"/>'
    return Picture(f'<svg width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="losses">{line}</svg>')


def _cell(column: str, value: Any) -> str:
    if value is None or value is pd.NaT or value is pd.NA or value != value:
        return ""
    if column == "submitted":
        return f"{duration((datetime.now(UTC) - value).total_seconds())} ago"
    if column == "state":
        return f"{SIGNS.get(value, '–')} {value}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
