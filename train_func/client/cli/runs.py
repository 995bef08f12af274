"""The commands on the runs of a store: list them, and remove some with their files."""

import argparse
import os
import sys
from collections.abc import Sequence

from train_func.client.cli import FAILED, Command
from train_func.client.cli.job import add_backend, backend_of
from train_func.client.remove import Removal
from train_func.client.runs import StoredRun, stored_runs
from train_func.text import listed, shown, sized

HEADINGS = ("NAME", "TASK", "SUBMITTED", "STATE", "CAUSE", "IN PLACE", "SIZE", "METRICS", "NOTE")
SELDOM = ("CAUSE", "IN PLACE", "NOTE")  # columns that are there only where one of the runs has something in them


def _runs(given: argparse.Namespace) -> int:
    found, notes = stored_runs(given.name, backend_of(given))
    cells = [_cells(run) for run in found]
    there = [
        column for column, heading in enumerate(HEADINGS) if heading not in SELDOM or any(row[column] for row in cells)
    ]
    rows = [[row[column] for column in there] for row in (HEADINGS, *cells)]
    for line in _lines(rows):
        print(shown(line))
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    return os.EX_OK


def _cells(run: StoredRun) -> Sequence[str]:
    metrics = [
        f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}" for name, value in run.metrics.items()
    ]
    return (
        run.name,
        run.task,
        run.submitted[:16].replace("T", " "),
        run.state,
        run.cause,
        listed(run.in_place),
        sized(run.num_bytes),
        listed(metrics, 4),
        run.remark,
    )


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _remove(given: argparse.Namespace) -> int:
    backend = backend_of(given)
    removals = {(found := Removal.of(name, backend)).name: found for name in given.names}
    print(*removals.values(), sep="\n", flush=True)
    what = "it" if len(removals) == 1 else "them"
    if not given.yes and not _agreed(f"remove {what} for good? [y/N] "):
        print("nothing was removed")
        return FAILED
    for name in removals:
        # Looked at anew: what it shared with the one before is its own now, and another client may have submitted it.
        Removal.of(name, backend).carry_out()
        print(f"{name}: removed")
    return os.EX_OK


def _agreed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def _of_runs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="only runs whose name begins so")
    add_backend(parser)


def _of_remove(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", metavar="NAME", nargs="+", help="the name of a run; the first digits of its last part do"
    )
    add_backend(parser)
    parser.add_argument("--yes", action="store_true", help="remove it without asking")


RUNS = Command("list the runs of a store with their states, sizes and metrics", _runs, _of_runs)
REMOVE = Command(
    "remove runs for good: their files in the store, jobs and fetched copies; says what goes and asks",
    _remove,
    _of_remove,
)
