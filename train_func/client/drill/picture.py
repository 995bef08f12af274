"""The picture of a drill: loss and number of workers over time, with a line where each fault came, as SVG."""

import itertools
from collections.abc import Iterable, Sequence
from html import escape

from train_func.client.drill.trace import Group, Step

WIDTH, HEIGHT, LEFT, RIGHT, TOP, INSET = 760, 380, 64, 16, 40, 6
LOSS, WORKERS = (TOP, 230), (270, 340)  # from the upper to the lower edge of each panel
COLORS = ("#1f77b4", "#2ca02c", "#9467bd", "#8c564b", "#17becf")  # of the attempts, in turn
FAULT, GREY = "#d62728", "#666"


class Picture(str):
    """The text of an SVG, which a notebook draws."""

    def _repr_svg_(self) -> str:
        return str(self)


class Panel:
    """Places values between the edges of one panel."""

    def __init__(self, edges: tuple[int, int], times: Sequence[float], values: Sequence[float]) -> None:
        self._top, self._bottom = edges
        self._begin, self._seconds = min(times), (max(times) - min(times)) or 1.0
        self.low, self.high = min(values), max(values)
        self._span = (self.high - self.low) or 1.0

    def x(self, time: float) -> float:
        return LEFT + (time - self._begin) / self._seconds * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self._bottom - INSET - (value - self.low) / self._span * (self._bottom - self._top - 2 * INSET)

    def line(self, points: Iterable[tuple[float, float]], color: str) -> str:
        """A line through these times and values."""
        places = " ".join(f"{self.x(time):.1f},{self.y(value):.1f}" for time, value in points)
        return f'<polyline fill="none" stroke="{color}" stroke-width="1.5" points="{places}"/>'

    def frame(self, name: str, digits: int) -> list[str]:
        """The edges of the panel, with its lowest and its highest value."""
        size = f'width="{WIDTH - LEFT - RIGHT}" height="{self._bottom - self._top}"'
        return [
            f'<rect x="{LEFT}" y="{self._top}" {size} fill="none" stroke="#ccc"/>',
            _text(LEFT - 6, self._top + 10, f"{self.high:.{digits}f}", anchor="end"),
            _text(LEFT - 6, self._bottom, f"{self.low:.{digits}f}", anchor="end"),
            _text(LEFT + 6, self._top + 14, name),
        ]


def draw(name: str, steps: Sequence[Step], groups: Sequence[Group], marks: Sequence[tuple[float, str]]) -> Picture:
    """Draws the picture.

    Args:
        name: of the run.
        steps: with their losses; each attempt is a line of its own.
        groups: each from its start to the next fault, behind which no group trains until another one starts.
        marks: the faults, when and in words.
    """
    times = [*(step.time for step in steps), *(group.time for group in groups), *(time for time, _ in marks)] or [0.0]
    losses = [(step, step.loss) for step in steps if step.loss is not None]
    above = Panel(LOSS, times, [loss for _, loss in losses] or [0.0])
    below = Panel(WORKERS, times, [0, *(group.workers for group in groups)])
    parts = [*above.frame("loss", 3), *below.frame("workers", 0)]
    for number in sorted({step.attempt for step in steps}):
        points = [(step.time, loss) for step, loss in losses if step.attempt == number]
        parts.append(above.line(points, COLORS[(number - 1) % len(COLORS)]))
    parts.append(below.line(_sizes(groups, [time for time, _ in marks], max(times)), COLORS[0]))
    for time, words in marks:
        x = above.x(time)
        ends = f'x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{WORKERS[1]}"'
        parts.append(f'<line {ends} stroke="{FAULT}" stroke-dasharray="4 3"/>')
        parts.append(_text(x + 3, TOP - 4, words, color=FAULT))
    parts.append(_text(LEFT, 16, name, color="#000"))
    parts.append(_text(LEFT, HEIGHT - 18, "0 s"))
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 18, f"{max(times) - min(times):.0f} s", anchor="end"))
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return Picture("\n".join([head, background, *parts, "</svg>"]))


def _sizes(groups: Sequence[Group], faults: Sequence[float], end: float) -> list[tuple[float, float]]:
    """The corners of the line: up at the start of a group, and down where a fault has ended it."""
    corners: list[tuple[float, float]] = []
    ordered = sorted(groups, key=lambda group: group.attempt)
    for group, following in itertools.zip_longest(ordered, ordered[1:]):
        until = following.time if following else end
        lost = next((time for time in sorted(faults) if group.time <= time < until), None) if following else None
        corners += [(group.time, 0.0), (group.time, group.workers)] if not corners else [(group.time, group.workers)]
        corners += [(until, group.workers)] if lost is None else [(lost, group.workers), (lost, 0.0), (until, 0.0)]
    return corners


def _text(x: float, y: float, words: str, *, anchor: str = "start", color: str = GREY) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(words)}</text>'
