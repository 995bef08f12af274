"""The history of a run, joined over its attempts: of a step that was repeated the later attempt counts."""

from collections.abc import Mapping, Sequence
from typing import Any

from train_func.client.state import attempt_numbers
from train_func.errors import StorageFailed
from train_func.metrics import Row, from_csv
from train_func.records import RunRecord
from train_func.storage import Store


def history(store: Store, record: RunRecord) -> list[dict[str, Any]]:
    """What ``Job.history`` returns. Raises StorageFailed (reason "damaged") when a file is not as it was written."""
    rows = {number: _rows(store, record, number) for number in attempt_numbers(store, record)}
    return [
        {"step": row.step, "timestamp": row.timestamp, "attempt": number, **row.values} for number, row in joined(rows)
    ]


def joined(rows: Mapping[int, Sequence[Row]]) -> list[tuple[int, Row]]:
    """Rows by attempt, without those of steps that a later attempt went over again; by step and time."""
    kept: list[tuple[int, Row]] = []
    for number in sorted(rows):
        steps = [row.step for row in rows[number]]
        if steps:
            kept = [(earlier, row) for earlier, row in kept if not min(steps) <= row.step <= max(steps)]
        kept += [(number, row) for row in rows[number]]
    return sorted(kept, key=lambda found: (found[1].step, found[1].timestamp))


def _rows(store: Store, record: RunRecord, number: int) -> list[Row]:
    keys = record.keys.attempt(number)
    there = set(store.names(keys.metrics))
    found: list[Row] = []
    part = 1
    while (key := keys.metrics_csv(part)).removeprefix(f"{keys.metrics}/") in there:
        try:
            found += from_csv(store.get(key).data)
        except (ValueError, TypeError) as error:
            raise StorageFailed(f"{store.address}/{key} is damaged: {error}", reason="damaged") from None
        part += 1
    return found
