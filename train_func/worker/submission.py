"""The submission that a worker works on: read from the store, verified, and laid where its ranks find it."""

import hashlib
import json
from pathlib import Path

from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.wire.layout import CELLS, RUN, SOURCE, newest_number
from train_func.wire.records import RunRecord, SubmissionRecord


def bring_submission(store: Store, key: str, folder: Path) -> RunRecord:
    """Writes the run, the source and its cells into ``folder``; returns the record of the run.

    Raises:
        InvalidInput: cause "source": the source is not the one that was submitted.
        StorageFailed: the store cannot be read, or has no such submission, or one of another format.
    """
    submission = SubmissionRecord.from_json(store.get(key).data, f"{store.address}/{key}")
    record = submission.run
    source = store.get(record.keys.source).data
    sha256 = hashlib.sha256(source).hexdigest()
    if sha256 != record.source_sha256:
        raise InvalidInput(
            f"{store.address}/{record.keys.source} has SHA-256 {sha256}, and {record.source_sha256} was submitted: the "
            "text was changed or cut short. Submit again with fresh=True, and see who writes to the store",
            cause="source",
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SOURCE).write_bytes(source)
    (folder / CELLS).write_text(json.dumps(submission.cells))
    (folder / RUN).write_bytes(record.to_json())
    return record


def newest_submission(store: Store, record: RunRecord) -> int:
    """Returns the number of the newest submission of the run."""
    return newest_number(store.names(record.keys.submissions)) or record.submission
