"""Coverage: which rows were used once, which never, which more than once, counted from their row ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

RowIds = npt.NDArray[Any]


@dataclass(frozen=True)
class Coverage:
    """What use the rows that should be used once have had."""

    num_rows: int
    missing: RowIds
    repeated: RowIds
    strange: RowIds
    """Ids that belong to none of the rows."""

    @property
    def num_once(self) -> int:
        return self.num_rows - len(self.missing) - len(self.repeated)

    @property
    def exact(self) -> bool:
        """Whether every row was used once, and nothing else."""
        return not (len(self.missing) or len(self.repeated) or len(self.strange))

    def counts(self, once: str) -> dict[str, int]:
        """The numbers as they are printed and published; ``once`` names those used exactly once."""
        return {
            "rows": self.num_rows,
            once: self.num_once,
            "missing": len(self.missing),
            "repeated": len(self.repeated),
        }

    def __str__(self) -> str:
        text = f"of {self.num_rows} rows {self.num_once} once"
        for ids, what in ((self.missing, "never"), (self.repeated, "more than once"), (self.strange, "unknown here")):
            if len(ids):
                text += f", {len(ids)} {what} (row ids {shown(ids)})"
        return text


def count(expected: RowIds, used: Sequence[RowIds]) -> Coverage:
    """How the rows ``expected`` were used, given the ids each rank has used."""
    ids, times = np.unique(np.concatenate([expected[:0], *used]), return_counts=True)
    return Coverage(
        num_rows=len(expected),
        missing=np.setdiff1d(expected, ids),
        repeated=np.intersect1d(ids[times > 1], expected),
        strange=np.setdiff1d(ids, expected),
    )


def shown(ids: RowIds, at_most: int = 5) -> str:
    """The first of ``ids``."""
    return ", ".join(str(i) for i in ids[:at_most]) + (", ..." if len(ids) > at_most else "")
