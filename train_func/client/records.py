"""How the workers of a run ended, as they wrote it down: of its newest submission only, whose fault others are not."""

import json
from collections.abc import Iterable
from typing import Any

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


def all_ends(store: Store, record: RunRecord) -> list[dict[str, Any]]:
    """Every end record of the newest submission, oldest attempt first."""
    keys = [entry.key for entry in store.list(f"{record.keys.attempts}/")]
    return ends(store, record, (key for key in keys if (file := record.keys.attempt_file(key)) and file.is_end))


def ends(store: Store, record: RunRecord, keys: Iterable[str]) -> list[dict[str, Any]]:
    """The end records under these keys that belong to the newest submission, oldest attempt first."""
    newest = submitted(store, record)
    found: list[dict[str, Any]] = [json.loads(store.get(key).data) for key in keys]
    own = [end for end in found if not newest or end.get("submitted", "") in ("", newest)]
    return sorted(own, key=lambda end: (end.get("attempt", 0), end.get("ended", "")))
