"""The picture of a drill as SVG: the loss over time, the workers that trained below it, and a mark for each fault.

The curve has a gap where no step was done. Steps that were done again stand beside it as they were done first, and each
fault has its cost in words. The background is white, so that it can be read in a dark notebook too.
"""

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from train_func.client.display.chart import ticks
from train_func.client.display.trace import Group, Point, unrepeated

WIDTH, LEFT, RIGHT, INSET = 780, 56, 20, 8
TITLE, ROW, CAPTION, LOSS, GAP, WORKERS, AXIS = 30, 16, 26, 210, 34, 80, 34  # heights, from above
LETTER = 6.2  # width of a letter at most, on average
CURVE, REPEAT, FAULT, TEXT, GRID = "#1f6fb4", "#e08a1e", "#c62828", "#444", "#e4e4e4"
SECONDS = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)  # between two ticks
NUM_MEANS = 40  # means over neighbours that the whole curve has room for, side by side
MOST_POINTS = 2000  # of a curve, about

Points = list[tuple[float, float]]


class Picture(str):
    """The text of an SVG, which a notebook draws."""

    def __repr__(self) -> str:
        return f"<the picture of a drill, {len(self)} characters of SVG>"

    def _repr_svg_(self) -> str:
        return str(self)


class Plot:
    """Places times and values between the edges of one panel."""

    def __init__(self, top: float, height: float, times: tuple[float, float], values: tuple[float, float]) -> None:
        self.top, self.bottom = top, top + height
        self._begin, self._seconds = times[0], (times[1] - times[0]) or 1.0
        self._low, self._span = values[0], (values[1] - values[0]) or 1.0

    def x(self, time: float) -> float:
        return LEFT + (time - self._begin) / self._seconds * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return self.bottom - INSET - (value - self._low) / self._span * (self.bottom - self.top - 2 * INSET)

    def points(self, values: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{self.x(time):.1f},{self.y(value):.1f}" for time, value in values)

    def line(self, values: Iterable[tuple[float, float]], style: str) -> str:
        """A line through these times and values."""
        return f'<polyline fill="none" stroke-linejoin="round" {style} points="{self.points(values)}"/>'

    def frame(self, name: str, ticks: Iterable[float]) -> Iterator[str]:
        """The edges of the panel, its name, and a line across it at each tick."""
        for tick in ticks:
            yield _line(LEFT, WIDTH - RIGHT, self.y(tick), self.y(tick), f'stroke="{GRID}"')
            yield _text(LEFT - 8, self.y(tick) + 4, f"{tick:g}", anchor="end")
        size = f'width="{WIDTH - LEFT - RIGHT}" height="{self.bottom - self.top:.0f}"'
        yield f'<rect x="{LEFT}" y="{self.top:.0f}" {size} fill="none" stroke="#bbb"/>'
        yield _text(LEFT, self.top - 7, name)


def draw(name: str, steps: Sequence[Point], groups: Sequence[Group], marks: Sequence[tuple[float, str]]) -> Picture:
    """Draws the picture.

    Args:
        name: of the run.
        steps: with their losses, also those that were done again.
        groups: each from its start to the next fault, behind which no group trains until another one starts.
        marks: the faults, when and in words.
    """
    times = [*(step.time for step in steps), *(group.time for group in groups), *(time for time, _ in marks)] or [0.0]
    span = (min(times), max(times))
    losses = [step.loss for step in steps if step.loss is not None and math.isfinite(step.loss)] or [0.0]
    most = max((group.workers for group in groups), default=1)
    rows = _rows([Plot(0, 0, span, (0, 1)).x(time) for time, _ in marks], [_width(words) for _, words in marks])
    top = TITLE + ROW * (max(rows, default=-1) + 1) + CAPTION
    above = Plot(top, LOSS, span, (min(losses), max(losses)))
    below = Plot(above.bottom + GAP, WORKERS, span, (0, most))
    every = math.ceil(len(losses) / MOST_POINTS)
    curves, repeats = _curves(steps)
    parts = [*above.frame("loss", ticks(min(losses), max(losses), 5))]
    parts += below.frame("workers", ticks(0, most, 4, least=1.0))
    parts += [above.line(points[::every], f'stroke="{CURVE}" stroke-opacity="0.3"') for points in curves]
    parts += [above.line(points[::every], f'stroke="{CURVE}" stroke-width="2"') for points in _means(curves)]
    parts += [above.line(points[::every], f'stroke="{REPEAT}" stroke-width="1.5"') for points in repeats]
    if repeats:
        parts.append(_text(LEFT + _width("loss"), above.top - 7, "steps that were done again", color=REPEAT))
    sizes = _sizes(groups, [time for time, _ in marks], span[1])
    if sizes:
        area = below.points([(sizes[0][0], 0.0), *sizes, (span[1], 0.0)])
        parts.append(f'<polygon fill="{CURVE}" fill-opacity="0.15" points="{area}"/>')
    parts.append(below.line(sizes, f'stroke="{CURVE}" stroke-width="2"'))
    labels = list[str]()
    for (time, words), row in zip(marks, rows, strict=True):
        x, y = above.x(time), TITLE + ROW * (row + 1)
        parts.append(_line(x, x, y - 10, below.bottom, f'stroke="{FAULT}" stroke-dasharray="4 3"'))
        place, anchor = (x + 5, "start") if _fits(x, _width(words)) else (x - 5, "end")
        labels.append(_text(place, y, words, anchor=anchor, color=FAULT))
    parts += labels  # over the lines of others
    for seconds, words in _moments(span[1] - span[0]):
        x = below.x(span[0] + seconds)
        parts += [_line(x, x, below.bottom, below.bottom + 4, 'stroke="#bbb"')]
        parts += [_text(x, below.bottom + 18, words, anchor="middle")]
    parts.append(f'<text x="{LEFT}" y="22" font-size="13" font-weight="bold" fill="#222">{escape(name)}</text>')
    size = f'width="{WIDTH}" height="{below.bottom + AXIS:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {below.bottom + AXIS:.0f}"'
    background = '<rect width="100%" height="100%" rx="6" fill="#fff"/>'
    return Picture("\n".join([f'{head} font-family="sans-serif" font-size="11">', background, *parts, "</svg>"]))


def _curves(steps: Sequence[Point]) -> tuple[list[Points], list[Points]]:
    """Times and losses of each attempt: of its steps, and of those that a later attempt did again."""
    once = {id(step) for step in unrepeated(steps, {})}
    lines: dict[tuple[int, bool], Points] = {}
    for step in sorted(steps, key=lambda step: (step.attempt, step.time)):
        if step.loss is not None and math.isfinite(step.loss):
            lines.setdefault((step.attempt, id(step) in once), []).append((step.time, step.loss))
    curves = [line for (_, is_once), line in lines.items() if is_once]
    repeats = [line for (_, is_once), line in lines.items() if not is_once]
    return curves, repeats


def _means(lines: Sequence[Points]) -> Iterator[Points]:
    """Returns the same lines, each point the mean of those around it, in the neighbouring lines too."""
    sums = [0.0, *itertools.accumulate(loss for line in lines for _, loss in line)]
    most = len(sums) - 1
    half, at = most // NUM_MEANS // 2, 0
    for line in lines:
        edges = [(max(0, number - half), min(most, number + half + 1)) for number in range(at, at + len(line))]
        means = [(sums[last] - sums[first]) / (last - first) for first, last in edges]
        yield [(time, mean) for (time, _), mean in zip(line, means, strict=True)]
        at += len(line)


def _sizes(groups: Sequence[Group], faults: Sequence[float], end: float) -> Points:
    """The corners of the line: up at the start of a group, and down where a fault has ended it."""
    corners: Points = []
    ordered = sorted(groups, key=lambda group: group.attempt)
    for group, following in itertools.zip_longest(ordered, ordered[1:]):
        until = following.time if following else end
        lost = next((time for time in sorted(faults) if group.time <= time < until), None) if following else None
        corners.append((group.time, group.workers))
        corners += [(until, group.workers)] if lost is None else [(lost, group.workers), (lost, 0.0), (until, 0.0)]
    return corners


def _rows(places: Sequence[float], widths: Sequence[float]) -> list[int]:
    """The row of each label, from above: labels that would overlap have rows of their own."""
    ends, rows = list[float](), list[int]()
    for x, width in zip(places, widths, strict=True):
        begin = x if _fits(x, width) else x - width
        row = next((row for row, end in enumerate(ends) if end <= begin), len(ends))
        ends[row : row + 1] = [begin + width]
        rows.append(row)
    return rows


def _fits(x: float, width: float) -> bool:
    """Returns whether a label has room to the right of its line; otherwise it stands to the left."""
    return x + width <= WIDTH


def _moments(seconds: float) -> Iterator[tuple[float, str]]:
    """Seconds since the beginning, and in words."""
    step = SECONDS[min(bisect.bisect_left(SECONDS, seconds / 8), len(SECONDS) - 1)]
    unit, size = ("s", 1) if step < 60 else ("min", 60) if step < 3600 else ("h", 3600)
    for moment in range(0, math.floor(seconds) + 1, step):
        yield moment, f"{moment // size} {unit}"


def _width(words: str) -> float:
    return LETTER * len(words) + 10


def _line(x1: float, x2: float, y1: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" {style}/>'


def _text(x: float, y: float, words: str, *, anchor: str = "start", color: str = TEXT) -> str:
    """Words with a white edge, by which they can be read over a line."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text {place} fill="{color}" stroke="#fff" stroke-width="3" paint-order="stroke">{escape(words)}</text>'
