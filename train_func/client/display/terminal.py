"""The panel in a terminal, drawn by rich: the same facts as in a notebook, each curve as one line of blocks."""

from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from train_func.client.display.chart import Line, means
from train_func.client.display.panel import COLUMNS, Panel
from train_func.text import shown

BLOCKS = "▁▂▃▄▅▆▇█"
WIDTH = 60
MOST_CURVES, MOST_PRINTED = 6, 4


class Terminal:
    """The lines below the last one of a terminal, which are drawn again where they are."""

    def __init__(self) -> None:
        self._live = Live(console=Console(highlight=False), auto_refresh=False, vertical_overflow="ellipsis")

    def paint(self, panel: Panel) -> None:
        """Replaces what was painted before."""
        self._live.start()
        self._live.update(Group(*_parts(panel)), refresh=True)

    def close(self) -> None:
        """Leaves the last panel where it is."""
        self._live.stop()


def _parts(panel: Panel) -> Iterator[RenderableType]:
    yield Text(shown("  ".join([panel.state, *panel.heading])), style="bold")
    progress = Text(" · ".join(panel.progress), style="dim")
    if panel.share is not None:
        row = Table.grid(padding=(0, 2))
        row.add_row(ProgressBar(total=1.0, completed=panel.share, width=WIDTH), progress)
        yield row
    elif panel.progress:
        yield progress
    for warning in panel.warnings:
        yield Text(shown(warning), style="yellow")
    if panel.error:
        yield Text(shown(panel.error), style="red")
    for line in [line for lines in panel.charts for line in lines][:MOST_CURVES]:
        yield Text(shown(_curve(line)))
    if panel.workers:
        table = Table(*COLUMNS, box=None, pad_edge=False, header_style="dim")
        for cells in panel.workers:
            table.add_row(*(Text(shown(cell)) for cell in cells))
        yield table
    if panel.num_more_workers:
        yield Text(f"and {panel.num_more_workers} more", style="dim")
    yield from (Text(shown(fact)) for fact in panel.facts)
    for words in panel.printed[-MOST_PRINTED:]:
        yield Text(shown(words), style="dim", no_wrap=True, overflow="ellipsis")


def _curve(line: Line) -> str:
    """The name of a curve, its newest value, and its means as blocks, where there are several."""
    words = f"{line.name} {line.points[-1][1]:.4g}"
    values = [value for _, value in means(line.points, WIDTH)]
    if len(values) < 2:
        return words
    low, span = min(values), (max(values) - min(values)) or 1.0
    blocks = "".join(BLOCKS[round((value - low) / span * (len(BLOCKS) - 1))] for value in values)
    return f"{blocks}  {words}"
