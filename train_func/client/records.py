"""How the workers of a run ended, as they wrote it down: of its newest submission only, whose fault others are not."""

import json
from collections.abc import Iterable

from train_func.attempt_records import EndRecord
from train_func.errors import StorageFailed
from train_func.records import RunRecord
from train_func.storage import Store


def submitted(store: Store, record: RunRecord) -> str:
    """When the run was submitted last; empty where nobody says it."""
    try:
        return str(json.loads(store.get(record.keys.run).data).get("submitted", ""))
    except StorageFailed as failure:
        if failure.reason != "absent":
            raise
        return ""


def all_ends(store: Store, record: RunRecord) -> list[EndRecord]:
    """Every end record of the newest submission, oldest attempt first."""
    return ends(store, record, (entry.key for entry in store.list(f"{record.keys.attempts}/")))


def ends(store: Store, record: RunRecord, keys: Iterable[str]) -> list[EndRecord]:
    """The end records among these keys that belong to the newest submission, oldest attempt first.

    Raises StorageFailed (reason "damaged") where another version of this package wrote one.
    """
    newest = submitted(store, record)
    named = [key for key in keys if (file := record.keys.attempt_file(key)) and file.is_end]
    found = [EndRecord.from_record(store.get(key).data, f"{store.address}/{key}") for key in named]
    own = [end for end in found if not newest or end.submitted in ("", newest)]
    return sorted(own, key=lambda end: (end.attempt, end.ended))
