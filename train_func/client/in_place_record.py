"""The record of what is in place under a name, and the records that follow it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Self

from train_func.client.comparison import Measured
from train_func.errors import StorageFailed
from train_func.layout import ModelKeys
from train_func.records import RunRecord
from train_func.result import Result

FORMAT = 1
MOST_EARLIER = 100  # that are remembered


@dataclass(frozen=True, kw_only=True)
class InPlace:
    """Which model is in place under ``name``."""

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
    format: int = FORMAT

    @property
    def keys(self) -> ModelKeys:
        return ModelKeys(self.name)

    @property
    def measured(self) -> Measured:
        return Measured(self.run, self.metrics, self.held_out_sha256)

    def to_json(self) -> bytes:
        """The content of the file."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Self:
        """Raises StorageFailed (reason "damaged") when it is none, or of another format; ``where``: for messages."""
        try:
            plain = json.loads(data)
            if plain["format"] != FORMAT:
                raise StorageFailed(
                    f"{where} is of format {plain['format']}, and this version of train_func reads format {FORMAT}: "
                    "use the version that promoted it",
                    reason="damaged",
                )
            return cls(**plain)
        except (ValueError, KeyError, TypeError) as error:
            raise StorageFailed(
                f"{where} is damaged and does not say which model is in place: {error}; job.promote(...) without "
                "better_in puts one in place again, and replaces it",
                reason="damaged",
            ) from error


def following(before: InPlace | None, record: RunRecord, result: Result, name: str) -> InPlace:
    """The record that follows ``before``, by which the model of a run is in place."""
    new = Measured.of(record, result)
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
