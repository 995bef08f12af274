"""Which of two models is the better one in a metric, and whether the two can be compared at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train_func.errors import InvalidInput
from train_func.fields import brief
from train_func.records import RunRecord
from train_func.result import Result
from train_func.text import listed


@dataclass(frozen=True)
class Measurement:
    """What a run was measured to be."""

    run: str
    metrics: Mapping[str, Any]
    held_out_sha256: str
    """Of the rows that the metrics are of; empty where that is not known."""

    @classmethod
    def of(cls, record: RunRecord, result: Result) -> "Measurement":
        """Its metrics and, over them, the numbers that the function returned."""
        found = {**result.metrics, **result.returned}
        numbers = {name: of for name, of in found.items() if isinstance(of, (int, float)) and not isinstance(of, bool)}
        return cls(record.name, numbers, record.held_out_sha256)


@dataclass(frozen=True)
class Comparison:
    """By one metric."""

    metric: str
    greater_is_better: bool

    @classmethod
    def by(cls, better: str) -> "Comparison":
        """``better``: the name of the metric, behind a minus where a lower value is better. Raises InvalidInput."""
        metric = better.removeprefix("-")
        if not metric or (better.endswith("loss") and metric == better):
            greater = "it would promote the model with the greater loss; " if metric else ""
            raise InvalidInput(
                f"better={brief(better)}: {greater}the name of a metric is expected, with a minus where a lower value "
                'is better, as in "accuracy" and "-loss"'
            )
        return cls(metric, metric == better)

    def check(self, new: Measurement, old: Measurement | None = None, name: str = "") -> None:
        """Raises InvalidInput unless both have the metric, measured on the same known rows; ``name``: of ``old``."""
        both = [new, *([old] if old else [])]
        if missing := [of for of in both if self.metric not in of.metrics]:
            there = "; ".join(f"{of.run} has {listed(sorted(of.metrics)) or 'none'}" for of in missing)
            expected = "both runs" if old else "the run"
            raise InvalidInput(f"better={self.metric!r}: a metric of {expected} is expected; {there}")
        unknown = [of.run for of in both if not of.held_out_sha256]
        if not unknown and (old is None or new.held_out_sha256 == old.held_out_sha256):
            return
        are_compared = f"{new.run} and {old.run}, which is in place as {name!r}," if old else f"{new.run}"
        why = (
            f"cannot be compared: nothing tells which rows {' and '.join(unknown)} held out"
            if unknown
            else "were measured on different held-out rows"
        )
        raise InvalidInput(
            f"better={self.metric!r}: {are_compared} {why}. Hold the same rows out in each run, with held_out=... "
            "of a file in their task, or promote without better",
            cause="data",
        )

    def is_better(self, new: Measurement, old: Measurement) -> bool:
        """Of two that ``check`` has let through."""
        now, was = new.metrics[self.metric], old.metrics[self.metric]
        return bool(now > was if self.greater_is_better else now < was)
