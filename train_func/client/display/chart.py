"""Charts as SVG that a notebook shows in its own colours: curves over steps, with marks for what happened on the way.

The text has the colour of the page it stands in. A curve of many points is drawn twice, thin as it is and thick as the
means of its neighbours, which the legend tells; lines differ by dashes too, so that they can be told apart without
colours. A picture of several charts stands by itself.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from train_func.fields import is_number
from train_func.wire.metrics import EVAL_PREFIX, NO_METRICS

LEFT, RIGHT, TOP, BOTTOM = 46, 12, 24, 20  # room around a chart
INSET = 6  # between its edges and the curves
MOST_POINTS = 160  # of the thin line
MOST_MEANS = 40  # points of the thick line
PER_TICK = 27  # pixels between two values beside a high chart
LETTER = 6.0  # width of one, about
NOTE = 200  # width beside the names of the curves for what a thick line is, which small charts have not
COLOURS = ("#2f7fd0", "#cf7516", "#2e9e5b", "#a259c4", "#c0392b")  # to be seen on white and on black
DASHES = ("", "5 3", "1.5 3", "8 3 2 3", "12 4")
FAULT = "#d64545"
PICTURE, TITLE, GAP = 780, 30, 8  # width of a picture of several charts, room above them, and between two
PICTURE_STYLE = """<style>.tf-picture{color-scheme:light dark}.tf-picture>rect{fill:Canvas}svg.tf-picture text{
font-size:10.5px;font-family:sans-serif;fill:CanvasText;fill-opacity:.8;stroke:Canvas;stroke-width:3px;paint-order:stroke}
svg.tf-picture>text{font-size:13px}.tf-picture .tf-grid{stroke:CanvasText;stroke-opacity:.15}
.tf-picture .tf-axis{stroke:CanvasText;stroke-opacity:.5}.tf-picture .tf-ink{fill:CanvasText}</style>"""

Points = Sequence[tuple[float, float]]
Curve = list[tuple[float, float]]
"""Steps and values."""


@dataclass(frozen=True)
class Line:
    """A curve."""

    name: str
    """In the legend; empty for a further part of a curve."""
    points: Points
    has_dots: bool = False
    """Whether its points are marked, as those of evaluations."""
    place: int | None = None
    """Among COLOURS and DASHES; None: its place among the lines of its chart."""


@dataclass(frozen=True)
class Flag:
    """Something that happened at a step."""

    step: float
    words: str = ""
    """Words on a dashed line from top to bottom; without words it is a small sign at the bottom, as of a checkpoint."""


class Picture(str):
    """The text of an SVG, which a notebook draws and a file keeps."""

    def __repr__(self) -> str:
        return f"<a picture, {len(self)} characters of SVG>"

    def _repr_svg_(self) -> str:
        return str(self)


def curves_of(rows: Iterable[tuple[int, Mapping[str, object]]]) -> dict[str, Curve]:
    """Returns the curve of each metric, of its finite numbers, out of steps and what was told of them."""
    curves: dict[str, Curve] = {}
    for step, values in rows:
        for name, value in values.items():
            if name not in NO_METRICS and is_number(value):
                curves.setdefault(name, []).append((step, value))
    return curves


def by_metric(curves: Mapping[str, Curve]) -> list[list[Line]]:
    """Returns the lines of each chart, the losses first: training and evaluation of a metric share one."""
    charts: dict[str, list[Line]] = {}
    for name, curve in curves.items():
        line = Line(name, curve, has_dots=name.startswith(EVAL_PREFIX))
        charts.setdefault(name.removeprefix(EVAL_PREFIX), []).append(line)
    return [lines for _, lines in sorted(charts.items(), key=lambda item: item[0] != "loss")]


def stack(title: str, charts: Sequence[tuple[int, Sequence[Line], Sequence[Flag]]], *, unit: str = "step") -> Picture:
    """Draws charts over the same steps one below the other, each of its height in pixels, its lines and its marks.

    The picture needs nothing around it, and is light or dark as the program that shows it.
    """
    steps = [step for _, lines, _ in charts for line in lines for step, _ in line.points]
    steps = [*steps, *(mark.step for _, _, marks in charts for mark in marks)] or [0.0]
    parts, top = [PICTURE_STYLE, '<rect width="100%" height="100%" rx="6" fill="#fff"/>'], TITLE
    parts.append(f'<text x="{LEFT}" y="20" font-weight="600">{escape(title)}</text>')
    for height, lines, marks in charts:
        drawn = chart(lines, marks, width=PICTURE, height=height, first=min(steps), last=max(steps), unit=unit)
        parts.append(f'<svg y="{top}" width="{PICTURE}" height="{height}">{drawn}</svg>')
        top += height + GAP
    size = f'width="{PICTURE}" height="{top}" viewBox="0 0 {PICTURE} {top}"'
    return Picture(f'<svg xmlns="http://www.w3.org/2000/svg" class="tf-picture" {size}>{"".join(parts)}</svg>')


def chart(
    lines: Sequence[Line],
    marks: Sequence[Flag],
    *,
    width: int,
    height: int,
    first: float = math.inf,
    last: float = 0,
    unit: str = "step",
) -> str:
    """Draws curves of finite points, and what happened on the way, in so many pixels.

    It reaches from step ``first`` to step ``last`` if the curves begin later or end before.
    """
    steps = [step for line in lines for step, _ in line.points] or [0.0]
    values = [value for line in lines for _, value in line.points] or [0.0]
    low, high = min(values), max(values)
    first, last = min([*steps, first]), max([*steps, last])
    x_scale, y_scale = (width - LEFT - RIGHT) / ((last - first) or 1), (height - TOP - BOTTOM - 2 * INSET)
    bottom = height - BOTTOM

    def x(step: float) -> float:
        return LEFT + (step - first) * x_scale

    def y(value: float) -> float:
        return bottom - INSET - (value - low) / ((high - low) or 1) * y_scale

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" class="tf-chart" viewBox="0 0 {width} {height}">']
    least = all(value == round(value) for value in values)  # nothing is between whole numbers, as of workers
    for tick in ticks(low, high, max(4, (bottom - TOP) // PER_TICK), least):
        parts.append(f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" class="tf-grid"/>')
        parts.append(_text(LEFT - 5, y(tick) + 3.5, f"{tick:.6g}", "end"))
    parts.append(f'<line x1="{LEFT}" x2="{width - RIGHT}" y1="{bottom}" y2="{bottom}" class="tf-axis"/>')
    for tick in ticks(first, last, 5, least=1):
        words = f"{tick:,.0f}"
        if x(tick) < LEFT + LETTER / 2 * len(words):  # where the word stands
            continue
        parts.append(_text(min(x(tick), width - LETTER / 2 * len(words)), bottom + 14, words, "middle"))
    parts.append(_text(LEFT - 5, bottom + 14, unit, "end"))
    for number, line in enumerate(lines):
        parts += _curve(line, *_look(line, number), [(x(step), y(value)) for step, value in line.points])
    parts += _marks(marks, x, width, bottom)
    parts += _legend(lines, width)
    return "".join([*parts, "</svg>"])


def ticks(low: float, high: float, most: int, least: float = 0.0) -> list[float]:
    """Returns round numbers between two values: at most ``most`` + 1 of them, and at least ``least`` apart."""
    rough = ((high - low) or 1.0) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(least, next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def thin(points: Points, most: int) -> list[tuple[float, float]]:
    """Returns at most ``most`` points: the extremes of every group of neighbours."""
    width = math.ceil(len(points) / max(1, most // 2))
    if len(points) <= most:
        return list(points)
    groups = [points[begin : begin + width] for begin in range(0, len(points), width)]
    extremes = ({min(group, key=_value), max(group, key=_value)} for group in groups)
    return [point for pair in extremes for point in sorted(pair)]


def means(points: Points, most: int) -> list[tuple[float, float]]:
    """Returns at most ``most`` points, each the mean of a group of neighbours."""
    width = _group(points, most)
    groups = [points[begin : begin + width] for begin in range(0, len(points), width)]
    return [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]


def _group(points: Points, most: int) -> int:
    """Returns of how many neighbours each of at most so many means is."""
    return math.ceil(len(points) / most)


def _is_noisy(line: Line) -> bool:
    return not line.has_dots and len(line.points) > 2 * MOST_MEANS


def _value(point: tuple[float, float]) -> float:
    return point[1]


def _look(line: Line, number: int) -> tuple[str, str]:
    """Returns the colour and the dashes of the line that has this number in its chart."""
    place = number if line.place is None else line.place
    return COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)]


def _curve(line: Line, colour: str, dash: str, points: Points) -> Iterator[str]:
    style = f'fill="none" stroke="{colour}" stroke-linejoin="round"' + (f' stroke-dasharray="{dash}"' if dash else "")
    if _is_noisy(line):
        yield f'<polyline {style} stroke-opacity=".5" points="{_points_text(thin(points, MOST_POINTS))}"/>'
        points = means(points, MOST_MEANS)
    yield f'<polyline {style} stroke-width="2" points="{_points_text(points)}"/>'
    if line.has_dots or len(points) == 1:
        for x, y in thin(points, MOST_MEANS):
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{colour}"/>'


def _marks(marks: Sequence[Flag], x: Callable[[float], float], width: int, bottom: float) -> Iterator[str]:
    end = -math.inf
    for mark in sorted(marks, key=lambda mark: mark.step):
        at = max(LEFT, x(mark.step))  # an attempt may begin before the first step that is known
        if not mark.words:
            yield f'<path d="M{at:.1f} {bottom - 7.5}l4.5 7.5h-9z" class="tf-ink"/>'
            continue
        yield (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}" stroke="{FAULT}" stroke-width="1.5" '
            'stroke-dasharray="4 3">'
            f"<title>{escape(mark.words)}</title></line>"
        )
        words = f"↻ {mark.words}"
        room = LETTER * len(words) + 8
        is_left = at + room > width
        begin = at - room if is_left else at
        if begin >= end:  # others are told by their line alone
            yield _text(at + (-4 if is_left else 4), TOP + 9, words, "end" if is_left else "start")
            end = begin + room


def _legend(lines: Sequence[Line], width: int) -> Iterator[str]:
    """The names of the curves with their newest values, above the chart, and what thick lines are means of."""
    at = float(LEFT)
    for number, line in enumerate(lines):
        if not line.name:
            continue
        words = f"{line.name} {line.points[-1][1]:.4g}" if line.points else line.name
        colour, dash = _look(line, number)
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        yield f'<line x1="{at:.0f}" x2="{at + 18:.0f}" y1="11" y2="11" stroke="{colour}" stroke-width="2"{dashes}/>'
        if line.has_dots:
            yield f'<circle cx="{at + 9:.0f}" cy="11" r="2.6" fill="{colour}"/>'
        yield _text(at + 23, 15, words, "start", weight=True)
        at += 23 + LETTER * 1.1 * len(words) + 16
    words = next((f"thick: means of {_group(line.points, MOST_MEANS)} points" for line in lines if _is_noisy(line)), "")
    if words and at + NOTE <= width:
        yield _text(at, 15, words, "start")


def _points_text(points: Points) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _text(x: float, y: float, words: str, anchor: str, *, weight: bool = False) -> str:
    bold = ' font-weight="600"' if weight else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{bold}>{escape(words)}</text>'
