"""Asked: in what the runs of a table differ, of all that was asked for; a column and cells for each difference."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from train_func.fields import field_names
from train_func.records import RunRecord
from train_func.run import Run
from train_func.task import KIND

_LETTERS = 7  # of the hash of a source
_GIVEN = ("parameters.", "inputs.", "packages")  # a run that lacks one of these differs from one that has it


def differences(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """For each run the cells of the columns in which runs differ.

    Sources are compared among runs of one function. Fields of Run are compared among runs with a task, and among those
    without one, whose function may never read them; those of a task among the runs that have them.
    """
    asked = [_asked(record) for record in records]
    cells: list[dict[str, Any]] = [{} for _ in records]
    for column in dict.fromkeys(name for own in asked for name in own):
        alike = defaultdict(list)
        for number, record in enumerate(records):
            if column in asked[number] or column.startswith(_GIVEN):
                alike[_compared_with(column, record)].append(number)
        for numbers in alike.values():
            if len({repr(asked[number].get(column)) for number in numbers}) > 1:
                for number in numbers:
                    cells[number][column] = asked[number].get(column)
    return cells


def _compared_with(column: str, record: RunRecord) -> object:
    """The same for runs whose values in the column are compared."""
    if column == "source":
        return record.function
    return record.run.task is not None if column in field_names(Run) else None


def _asked(record: RunRecord) -> dict[str, Any]:
    """What was asked for, by the column that shows it."""
    run = record.run
    task = run.task.to_dict() if run.task else {}
    flat = {f"task.{name}": value for name, value in task.items() if name != KIND}
    for name in field_names(Run):
        value = getattr(run, name)
        if isinstance(value, Mapping):
            flat |= {f"{name}.{key}": own for key, own in value.items()}
        elif name not in ("task", "workers", "name"):
            flat[name] = value
    if record.wheels:
        flat["packages"] = ", ".join("==".join(wheel.split("-")[:2]) for wheel in sorted(record.wheels))
    plain = (int, float, str, type(None))
    return {
        "generation": record.generation,
        "source": record.source_sha256[:_LETTERS],
        **{name: value if isinstance(value, plain) else json.dumps(value) for name, value in flat.items()},
    }
