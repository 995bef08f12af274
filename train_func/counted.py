"""Numbers and lists as a person says them: 1 worker, 2 workers; a, b and 3 more; 66.5 MB."""

from collections.abc import Callable, Sequence
from typing import Any


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
