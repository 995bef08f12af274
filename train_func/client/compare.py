"""Runs side by side: what was asked for differently, their curves in one picture, their results, and the held-out rows
that they predict differently."""

import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from string import ascii_uppercase
from typing import Any

from train_func.client.backend import Backend
from train_func.client.display.chart import Curve, Line, chart
from train_func.client.display.history import newest_curves, read_rows
from train_func.client.display.html import STYLE, table
from train_func.client.job import Job, attach
from train_func.client.model.held_out import stored_predictions, texts_of
from train_func.client.runs import differences
from train_func.client.stored_run import published_result
from train_func.errors import InvalidInput
from train_func.storage import open_store
from train_func.text import counted, cut, shown
from train_func.wire.metrics import EVAL_PREFIX
from train_func.wire.predictions import Predictions
from train_func.wire.records import RunRecord

MOST_RUNS = len(ascii_uppercase)  # each has a letter
MOST_CHARTS = 6
LEAST, WIDTH, HEIGHT = 380, 470, 190  # pixels
MOST_CHANGES = 10  # rows that are shown
LONGEST = 80  # characters of the text of a row
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Change:
    """A held-out row that not all runs predict the same; each field but the first two has a value for each run."""

    row: int
    expected: Any
    """None where the prediction is one of tags, of which ``right`` counts."""
    predicted: Sequence[Any]
    confidence: Sequence[float | None]
    right: Sequence[str]
    """``right`` and ``wrong``, or how many tags of the row are right."""
    text: str = ""
    """Its beginning, where this machine has the data of the first run."""


@dataclass(frozen=True)
class HeldOut:
    """How the models of runs predict the same held-out rows."""

    counts: Mapping[tuple[bool, ...], int]
    """Number of rows by which of the runs are right."""
    changes: Sequence[Change]
    """The rows that are predicted differently, the surest first, at most MOST_CHANGES."""

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it as plain values."""
        counts = [{"are_right": list(are_right), "rows": number} for are_right, number in self.counts.items()]
        return {"counts": counts, "changes": [asdict(change) for change in self.changes]}


@dataclass(frozen=True)
class SideBySide:
    """The last expression of a cell, it shows the runs as a table and their curves as pictures."""

    names: Sequence[str]
    differences: Sequence[Row]
    """What was asked for differently, by column, for each run."""
    results: Sequence[Row]
    """What each has published and returned."""
    curves: Mapping[str, Sequence[Curve]]
    """By metric, the curve of the newest training of each run; empty for one that has not reported it."""
    held_out: HeldOut | None = None
    """None where the runs have not predicted the same held-out rows."""

    def __str__(self) -> str:
        """Returns a table with a column for each run; what is too wide for the terminal stands below its name."""
        letters = ascii_uppercase[: len(self.names)]
        lines = [("", [*letters, ""]), *self._table()]
        first = max(len(name) for name, _ in lines)
        columns = shutil.get_terminal_size((sys.maxsize, 24)).columns  # a file is as wide as needed
        most = max((columns - first) // len(letters) - 2, 1)  # characters of a cell
        is_narrow = [max(map(len, cells[:-1])) <= most for _, cells in lines]
        narrow = [cells for (_, cells), fits in zip(lines, is_narrow, strict=True) if fits]
        widths = [max((len(cells[place]) for cells in narrow), default=0) for place in range(len(letters))]
        room = columns - first - sum(width + 2 for width in widths) - len("   ...")
        rows = [f"{letter}: {name}" for letter, name in self._letters()]
        for (name, (*cells, text)), fits in zip(lines, is_narrow, strict=True):
            if fits:
                padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=True)]
                rows.append("  ".join([name.ljust(first), *padded, cut(text, max(room, 0))]).rstrip())
            else:
                rows += [f"{name}  {text}", *map("  {}  {}".format, letters, cells)]
        return shown("\n".join(row.rstrip() for row in rows))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = ["", *(f"{letter}: {name}" for letter, name in self._letters()), ""]
        rows = table(head, [(column, *cells) for column, cells in self._table()], "tf-beside")
        return f'{STYLE}<div class="tf"><div class="tf-charts">{"".join(self._charts())}</div>{rows}</div>'

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it as plain values."""
        fields = zip(self.names, self.differences, self.results, strict=True)
        runs = [{"name": name, "asked": dict(asked), "results": dict(results)} for name, asked, results in fields]
        return {
            "runs": runs,
            "curves": {metric: [list(curve) for curve in curves] for metric, curves in self.curves.items()},
            "held_out": self.held_out.to_dict() if self.held_out else None,
        }

    def _letters(self) -> list[tuple[str, str]]:
        return list(zip(ascii_uppercase, self.names, strict=False))

    def _table(self) -> list[tuple[str, list[str]]]:
        """The rows of the table: what was asked for differently, then the results, and the held-out rows.

        A cell for each run, and one for the text of a held-out row.
        """
        rows = []
        for cells in (self.differences, self.results):
            for column in dict.fromkeys(name for of_run in cells for name in of_run):
                rows.append((column, [*(_cell(of_run.get(column)) for of_run in cells), ""]))
        if self.held_out:
            for are_right, number in self.held_out.counts.items():
                words = ["right" if is_right else "wrong" for is_right in are_right]
                rows.append((counted(number, "held-out row"), [*words, ""]))
            rows += [(_title(change), [*_answers(change), change.text]) for change in self.held_out.changes]
        return rows

    def _charts(self) -> list[str]:
        charts = []
        for metric, curves in list(self.curves.items())[:MOST_CHARTS]:
            drawn = [(place, curve) for place, curve in enumerate(curves) if curve]
            names = [ascii_uppercase[place] for place, _ in drawn]
            names[0] = f"{names[0]} {metric}"
            lines = [
                Line(name, curve, has_dots=metric.startswith(EVAL_PREFIX), place=place)
                for name, (place, curve) in zip(names, drawn, strict=True)
            ]
            picture = chart(lines, (), width=WIDTH, height=HEIGHT)
            charts.append(f'<div style="flex:1 1 {LEAST}px;max-width:{WIDTH}px">{picture}</div>')
        return charts


def compare(*runs: Job | str, on: Backend | None = None, texts: bool = True) -> SideBySide:
    """Shows runs side by side: what was asked for differently, their curves in one picture, their results.

    Of runs that were measured on the same held-out rows it counts how many each is right about, and shows those that
    they predict differently.

    Args:
        runs: from 2 to 26, as handles or by their names.
        on: the backend whose store has them; by default that of each.
        texts: show held-out rows with the beginnings of their texts, where this machine can read the data.

    Raises:
        InvalidInput: there are fewer than 2 or more than 26, or several runs have such a name.
        JobNotFound: the store has no run of such a name.
    """
    if not 2 <= len(runs) <= MOST_RUNS:
        raise InvalidInput(
            f"compare was given {counted(len(runs), 'run')}: from 2 to {MOST_RUNS} are expected, as handles or names"
        )
    jobs = [attach(run, on=on) if isinstance(run, str) else run for run in runs]
    stored = [(open_store(job.record.store), job.record.keys) for job in jobs]
    results = [published_result(store, keys) for store, keys in stored]
    by_run = [newest_curves(read_rows(store, keys)) for store, keys in stored]
    metrics = dict.fromkeys(name for curves in by_run for name in curves)
    predictions = [stored_predictions(store, keys) for store, keys in stored]
    held_out = _held_out(predictions)
    if texts and held_out and predictions[0]:
        held_out = _with_texts(held_out, jobs[0].record, predictions[0])
    return SideBySide(
        names=[job.name for job in jobs],
        differences=differences([job.record for job in jobs]),
        results=[result.values if result else {} for result in results],
        curves={
            metric: [curves.get(metric, []) for curves in by_run]
            for metric in sorted(metrics, key=lambda name: name != "loss")
        },
        held_out=held_out,
    )


def _held_out(of_runs: Sequence[Predictions | None]) -> HeldOut | None:
    """Compares the predictions of runs, where all are of the same rows and say what is right."""
    known = [predictions for predictions in of_runs if predictions]
    right = [are_right for predictions in known if (are_right := predictions.are_right) is not None]
    first = known[0] if known else None
    if first is None or len(right) < len(of_runs) or not first.held_out_sha256:
        return None
    if any(each.held_out_sha256 != first.held_out_sha256 or len(each) != len(first) for each in known):
        return None
    if any(each.columns.keys() != first.columns.keys() for each in known):  # some have classes, others tags
        return None
    counts = Counter(zip(*right, strict=True))
    ordered = sorted(counts.items(), reverse=True)
    changes = sorted(_changes(known), key=lambda item: -item[0])
    return HeldOut(dict(ordered), [change for _, change in changes[:MOST_CHANGES]])


def _with_texts(held_out: HeldOut, record: RunRecord, predictions: Predictions) -> HeldOut:
    """Adds the beginnings of the texts of the rows, or prints why there are none."""
    ids = list(predictions.columns["row"])
    texts, why = texts_of(record, predictions, [ids.index(change.row) for change in held_out.changes])
    if why:
        print(shown(f"note: without the texts of the rows: {why}"), flush=True)
    short = {row: cut(" ".join(text.split()), LONGEST) for row, text in texts.items()}
    return replace(held_out, changes=[replace(each, text=short.get(each.row, "")) for each in held_out.changes])


def _changes(of_runs: Sequence[Predictions]) -> Iterator[tuple[float, Change]]:
    """Returns the rows that runs predict differently, each behind how sure, or how far apart, the runs are."""
    for place, row in enumerate(of_runs[0].columns["row"]):
        if "confidence" in of_runs[0].columns:
            expected, *predicted = (
                each.with_names(each.columns[name][place])
                for each, name in [(of_runs[0], "expected"), *((each, "predicted") for each in of_runs)]
            )
            if any(each != predicted[0] for each in predicted):
                confidence = [each.columns["confidence"][place] for each in of_runs]
                words = ["right" if each == expected else "wrong" for each in predicted]
                yield min(confidence), Change(row, expected, predicted, confidence, words)
        else:
            numbers = [each.columns["right"][place] for each in of_runs]
            if len({*numbers}) > 1:
                words = [f"{number} of {of_runs[0].columns['tokens'][place]}" for number in numbers]
                nothing = [None] * len(of_runs)
                yield max(numbers) - min(numbers), Change(row, None, nothing, nothing, words)


def _title(change: Change) -> str:
    return f"row {change.row}" if change.expected is None else f"row {change.row}, {_name(change.expected)}"


def _answers(change: Change) -> list[str]:
    return [
        right if confidence is None else f"{_name(predicted)} {confidence:.0%}"
        for predicted, confidence, right in zip(change.predicted, change.confidence, change.right, strict=True)
    ]


def _name(value: Any) -> str:
    return ", ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
