"""Numbers, lists and rows as a person says them: 1 worker, 2 workers; a, b and 3 more; 66.5 MB; in rows 3, 8."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

MAX_SHOWN = 5
COUNTED = "(data rows are counted from 1, without the header)"  # lines of a file differ by header and line breaks


def counted(number: int, noun: str) -> str:
    """``noun`` is one whose plural ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(values: Sequence[Any], at_most: int = 5, *, separator: str = ", ", show: Callable[[Any], str] = str) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(values) - at_most} more" if len(values) > at_most else ""
    return separator.join(map(show, values[:at_most])) + more


def sized(num_bytes: int) -> str:
    """In the largest decimal unit that gives at least one."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.1f} {name}"
    return counted(num_bytes, "byte")


def in_rows(rows: "Sequence[int] | np.ndarray") -> str:
    """Where these are, given from 0, of which the first few are named."""
    numbers = ", ".join(str(int(row) + 1) for row in rows[:MAX_SHOWN])
    place = "in row" if len(rows) == 1 else "in rows" if len(rows) <= MAX_SHOWN else "first in rows"
    return f"{place} {numbers} {COUNTED}"


def are(number: int) -> str:
    """The verb that goes with so many."""
    return "is" if number == 1 else "are"
