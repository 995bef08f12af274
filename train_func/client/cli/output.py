"""What a command prints: text for people, and with ``--json`` JSON for programs, with fields that stay.

With ``--json`` stdout has one document, or one line for each thing that comes, and nothing else; notes and errors go to
stderr. A number that is not finite is the text NaN, Infinity or -Infinity, because JSON has none.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, TextIO

from train_func.client.cli.exit_codes import code_of
from train_func.client.logs import AttemptLine
from train_func.client.runs import METRIC
from train_func.client.status import Diagnosis, JobEvent
from train_func.client.watch import News
from train_func.errors import JobFailed
from train_func.text import cut, listed, sized
from train_func.wire.events import Event, now

HEADINGS = ("NAME", "TASK", "SUBMITTED", "STATE", "CAUSE", "IN PLACE", "SIZE", "DIFFERENCES", "METRICS", "NOTE")
MOST_DIFFERENCES, MOST_METRICS = 8, 4
MOST_LETTERS = 48  # of one of them
INDENT = "    "  # of the further lines of a run
RARE = ("CAUSE", "IN PLACE", "DIFFERENCES", "NOTE")  # columns that are shown only where a run has something in them
OF_EVERY_RUN = ("name", "task", "submitted", "state", "workers", "cause", "in_place", "num_bytes", "note")
Fields = Mapping[str, Any]


class Output:
    """Prints each thing in one of two ways."""

    def __init__(self, *, is_json: bool, stream: TextIO | None = None) -> None:
        self.is_json = is_json
        self._stream = stream or sys.stdout  # while JSON is printed, what a library prints goes elsewhere

    def document(self, document: object, text: str | None = None) -> None:
        """Prints the whole answer of a command; ``text`` is None if people have read it already."""
        if self.is_json:
            print(json.dumps(finite(document), indent=2), file=self._stream, flush=True)
        elif text is not None:
            print(text, flush=True)

    def line(self, document: Fields, text: str = "", *, flush: bool = True) -> None:
        """Prints one thing of many as it comes."""
        print(json.dumps(finite(document)) if self.is_json else text, file=self._stream, flush=flush)


def finite(value: object) -> object:
    """Returns the value with texts in place of the numbers that JSON lacks."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def error_fields(error: Exception, exit_code: int) -> Fields:
    """Returns what a program is told of an error, which may be none of this package's."""
    return {
        "error": type(error).__name__,
        "cause": getattr(error, "cause", None),
        "message": _message_alone(error),
        "faults": list(getattr(error, "faults", [])),
        "next": getattr(error, "remedy", ""),
        "exit_code": exit_code,
    }


def _message_alone(error: Exception) -> str:
    """Returns the message without the line of what to do next, which a program reads as a field of its own."""
    remedy = getattr(error, "remedy", "")
    return str(error).replace(f"\n  next: {remedy}", "", 1) if remedy else str(error)


class EventLines:
    """A screen for programs: one line for each event of a worker, change of the state, diagnosis, and the end."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._shown: Fields = {}
        self._is_over = False
        self.state = ""
        """The state that was shown last."""
        self.notes = ()
        """A program reads them with the result."""

    def take(self, news: News) -> None:
        """Prints what a look has brought."""
        self.state, self._is_over = news.state, news.is_last
        status = news.snapshot.status
        state = {
            "state": news.state,
            "workers": status.workers if status else None,
            "running": len(news.snapshot.running),
        }
        if state != self._shown:
            self._shown = state
            self._say("State", state)
        for line in news.lines:
            if line.event:
                self._output.line(event_fields(line, line.event))
        for diagnosis in news.diagnoses:
            self._say("Diagnosis", diagnosis_fields(diagnosis))

    def finish(self, failure: JobFailed | None = None) -> None:
        """Prints the end, unless the job goes on without being looked at."""
        if self._is_over:
            end = (
                {"cause": failure.cause, "message": _message_alone(failure), "next": failure.remedy} if failure else {}
            )
            code = {"exit_code": code_of(failure) if failure else 0}
            self._say("End", {"state": self.state, "cause": None, "message": "", "next": "", **end, **code})

    def close(self) -> None:
        """Does nothing: its lines stand."""

    def _say(self, event: str, values: Fields) -> None:
        self._output.line({"event": event, "time": now(), **values})


def event_fields(line: AttemptLine, event: Event) -> Fields:
    """Returns what a worker has told: the kind of the event, whose it is, and its own fields."""
    of_line = {"time": event.time, "attempt": line.attempt.number, "worker": line.worker}
    values = {each.name: getattr(event, each.name) for each in fields(event)}
    return {"event": type(event).__name__, **of_line, **values}


def diagnosis_fields(diagnosis: Diagnosis) -> Fields:
    """Returns what hinders a job, or has happened to a worker."""
    return {
        "cause": diagnosis.cause,
        "message": diagnosis.message,
        "next": diagnosis.remedy,
        "is_permanent": diagnosis.permanent,
    }


def log_fields(line: AttemptLine) -> Fields:
    """A line of a log."""
    return {
        "attempt": line.attempt.number,
        "worker": line.worker,
        "text": line.text,
        "event": type(line.event).__name__ if line.event else None,
    }


def incident_fields(event: JobEvent) -> Fields:
    """Something that happened to a job or a pod, as its backend tells it."""
    return {
        "time": event.time.isoformat(),
        "type": event.type,
        "reason": event.reason,
        "message": event.message,
        "object": event.object,
        "count": event.count,
        "worker": event.worker if event.pod else None,
    }


def run_lines(runs: Sequence[Mapping[str, Any]], width: int) -> Iterator[str]:
    """Returns the table of runs; columns for which the terminal has no room stand in further lines of each run."""
    rows = [HEADINGS, *map(_cells, runs)]
    parts: list[list[list[str]]] = [[]]
    room = width
    for column in zip(*rows, strict=True):
        if column[0] in RARE and not any(column[1:]):
            continue
        if parts[-1] and max(map(len, column)) > room:
            parts.append([])
            room = width - len(INDENT)
        cells = [cut(cell, room - len(" ...")) if len(cell) > room else cell for cell in column]
        longest = max(map(len, cells))
        parts[-1].append([cell.ljust(longest) for cell in cells])
        room -= longest + 2
    for texts in zip(*(("  ".join(row).rstrip() for row in zip(*part, strict=True)) for part in parts), strict=True):
        yield from (f"{INDENT if number else ''}{text}" for number, text in enumerate(texts) if text)


def run_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a run as a program reads it: its metrics, and the fields in which it differs from other runs, by name."""
    rest = {name: value for name, value in row.items() if name not in OF_EVERY_RUN}
    return {
        **{name: row.get(name) for name in OF_EVERY_RUN},
        "metrics": {name.removeprefix(METRIC): value for name, value in rest.items() if name.startswith(METRIC)},
        "differences": {name: value for name, value in rest.items() if not name.startswith(METRIC)},
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The cells of a run, in the order of the headings."""
    fields = run_fields(row)
    return (
        row["name"],
        row["task"],
        (row["submitted"] or "")[:16].replace("T", " "),
        row["state"],
        row["cause"] or "",
        row["in_place"] or "",
        sized(row["num_bytes"]),
        _pairs(fields["differences"], MOST_DIFFERENCES),
        _pairs(fields["metrics"], MOST_METRICS),
        row["note"],
    )


def _pairs(values: Mapping[str, Any], at_most: int) -> str:
    words = [
        f"{name}={f'{value:.4g}' if isinstance(value, float) else value}"
        for name, value in values.items()
        if value is not None
    ]
    return listed([cut(each, MOST_LETTERS) for each in words], at_most)
