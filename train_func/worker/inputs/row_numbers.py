"""Numbers of rows as messages give them: of the data, from 1. Lines of a file differ by header and line breaks."""

from collections.abc import Sequence

import numpy as np

MAX_SHOWN = 5
COUNTED = "(data rows are counted from 1, without the header)"


def in_rows(rows: "Sequence[int] | np.ndarray") -> str:
    """Where these are, given from 0, of which the first few are named."""
    numbers = ", ".join(str(int(row) + 1) for row in rows[:MAX_SHOWN])
    place = "in row" if len(rows) == 1 else "in rows" if len(rows) <= MAX_SHOWN else "first in rows"
    return f"{place} {numbers} {COUNTED}"


def are(number: int) -> str:
    """The verb that goes with so many."""
    return "is" if number == 1 else "are"
