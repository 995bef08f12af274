"""The record of what is in place under a name, and the records that follow it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from train_func.client.comparison import Measurement
from train_func.codec import Record
from train_func.layout import ModelKeys
from train_func.records import RunRecord
from train_func.result import Result

MOST_EARLIER = 100  # that are remembered


@dataclass(frozen=True, kw_only=True)
class InPlace(Record):
    """Which model is in place under ``name``."""

    REMEDY = "Use the version that promoted it; job.promote(...) without better replaces a damaged one"

    name: str
    number: int
    """Of the promotion, from 1: no two records of a name are the same bytes."""
    run: str
    """Empty where the name was withdrawn, and until another model is put in place."""
    generation: int
    attempt: int
    metrics: Mapping[str, Any]
    held_out_sha256: str
    """Of the rows that the metrics are of; empty where that is not known."""
    promoted: str
    """When, ISO, UTC; or when it was withdrawn."""
    earlier: Sequence[Mapping[str, Any]] = ()
    """run, generation and promoted of those before, the newest first."""

    @property
    def keys(self) -> ModelKeys:
        return ModelKeys(self.name)

    @property
    def measured(self) -> Measurement:
        return Measurement(self.run, self.metrics, self.held_out_sha256)


def following(before: InPlace | None, record: RunRecord, result: Result, name: str) -> InPlace:
    """The record that follows ``before``, by which the model of a run is in place."""
    new = Measurement.of(record, result)
    return InPlace(
        name=name,
        number=before.number + 1 if before else 1,
        run=record.name,
        generation=record.generation,
        attempt=result.attempt,
        metrics=new.metrics,
        held_out_sha256=new.held_out_sha256,
        promoted=_now(),
        earlier=_earlier(before) if before else (),
    )


def withdrawn(before: InPlace) -> InPlace:
    """The record that follows ``before``, by which nothing is in place."""
    return InPlace(
        name=before.name,
        number=before.number + 1,
        run="",
        generation=0,
        attempt=0,
        metrics={},
        held_out_sha256="",
        promoted=_now(),
        earlier=_earlier(before),
    )


def _earlier(before: InPlace) -> list[Mapping[str, Any]]:
    last = [{"run": before.run, "generation": before.generation, "promoted": before.promoted}] if before.run else []
    return [*last, *before.earlier][:MOST_EARLIER]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
