"""What a published model predicts of the held-out rows, ``held_out_predictions.json`` beside it.

It holds numbers by column, and each row by its id: the texts of the rows stay where the data are. Columns are

row                  the id of the row
expected, predicted  the number of its class, or a list of those of its labels, or a number itself
confidence           the probability of what was predicted
tokens, right        how many tokens the row has, and of how many the prediction is right
loss                 of the row, a mean over its tokens

A model has those of its kind of task.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from train_func.wire.codec import Record

PREDICTIONS = "held_out_predictions.json"
MOST_ROWS = 20_000


@dataclass(frozen=True, kw_only=True)
class Predictions(Record):
    """The predictions of one model, ordered by the ids of the rows."""

    step: int
    """Of the weights that were measured."""
    num_rows: int
    """Held-out rows. Where they are more than MOST_ROWS, so many of them are here, at even distances."""
    held_out_sha256: str = ""
    """Hash of the held-out rows of the run's task; empty where the function has measured rows of its own."""
    labels: tuple[str, ...] = ()
    """Names of the classes, in the order of their numbers."""
    columns: Mapping[str, Sequence[Any]]

    def __post_init__(self) -> None:
        if "row" not in self.columns or len({len(column) for column in self.columns.values()}) > 1:
            raise ValueError("the columns are not of the same rows")

    def __len__(self) -> int:
        return len(self.columns["row"])

    @property
    def extent(self) -> str:
        """Returns of how many rows they are, in words."""
        part = f"{len(self):,} of " if len(self) < self.num_rows else ""
        return f"{part}{self.num_rows:,} held-out rows"

    def with_names(self, value: Any) -> Any:
        """Returns what was expected or predicted with the names of the classes in place of their numbers."""
        if isinstance(value, (list, tuple)):
            return [self.with_names(number) for number in value]
        return self.labels[value] if self.labels and isinstance(value, int) and value < len(self.labels) else value

    @property
    def are_right(self) -> Sequence[bool] | None:
        """Returns for each row whether all of its prediction is right; None where that cannot be said."""
        if "confidence" in self.columns:
            return [a == b for a, b in zip(self.columns["expected"], self.columns["predicted"], strict=True)]
        if "tokens" in self.columns and "loss" not in self.columns:
            return [a == b for a, b in zip(self.columns["right"], self.columns["tokens"], strict=True)]
        return None

    def worst(self, limit: int) -> list[int]:
        """Returns the positions of the rows that are predicted worst: of wrong classes the surest first."""
        faults = self._faults()
        places = sorted((place for place, fault in enumerate(faults) if fault > 0), key=lambda place: -faults[place])
        return places[:limit]

    def _faults(self) -> Sequence[float]:
        """Returns for each row how wrong it is predicted; 0 where it is right."""
        if "loss" in self.columns:
            return self.columns["loss"]
        if "tokens" in self.columns:
            return [tokens - right for tokens, right in zip(self.columns["tokens"], self.columns["right"], strict=True)]
        pairs = zip(self.columns["expected"], self.columns["predicted"], strict=True)
        if "confidence" not in self.columns:
            return [abs(expected - predicted) for expected, predicted in pairs]
        return [
            confidence if expected != predicted else 0.0
            for (expected, predicted), confidence in zip(pairs, self.columns["confidence"], strict=True)
        ]

    def confusion(self) -> "Confusion | None":
        """Counts which classes were predicted for rows of which; None where a row has not one class."""
        pairs = list(zip(self.columns.get("expected", ()), self.columns.get("predicted", ()), strict=True))
        if "confidence" not in self.columns or not all(type(value) is int for pair in pairs for value in pair):
            return None
        counts = Counter(pairs)
        numbers = range(len(self.labels)) if self.labels else sorted({number for pair in pairs for number in pair})
        return Confusion(
            [str(self.with_names(number)) for number in numbers],
            [[counts[expected, predicted] for predicted in numbers] for expected in numbers],
        )


@dataclass(frozen=True)
class Confusion:
    """How often each class was predicted for the rows of each."""

    names: Sequence[str]
    counts: Sequence[Sequence[int]]
    """A line for each expected class, with a number for each predicted one."""

    def pairs(self, limit: int) -> list[tuple[str, str, int, int]]:
        """Returns which classes are mistaken most often: the expected, the predicted one, rows, and of how many."""
        pairs = [
            (expected, predicted, number, sum(line))
            for expected, line in zip(self.names, self.counts, strict=True)
            for predicted, number in zip(self.names, line, strict=True)
            if number and expected != predicted
        ]
        return sorted(pairs, key=lambda pair: -pair[2])[:limit]
