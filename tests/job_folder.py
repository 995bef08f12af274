"""The files that a worker finds in its job folder, for functions that are written out in tests."""

import hashlib
import json
import textwrap

from tests.runs import a_run
from train_func.inputs import claim_of, key_of
from train_func.run import Run
from train_func.storage import open_store
from train_func.wire.records import RunRecord, SubmissionRecord
from train_func.wire.source_file import fold


def write_job_folder(folder, source, *, store=None, submitted=False, **fields):
    """Writes run.json, source.py and cells.json for a module ``source`` with ``train_func``; returns the record.

    With ``task=None`` the run has none. Inputs are claims. ``submitted``: the store has the submission too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    packed = fold(textwrap.dedent(source), [])
    run = Run(**fields) if "task" in fields else a_run(**fields)
    record = RunRecord(
        run=run,
        name="a-run",
        generation=1,
        store=store or (folder / "store").as_uri(),
        function="train_func",
        source_sha256=hashlib.sha256(packed.encode()).hexdigest(),
        submission=1,
        fingerprints={key_of(name): str(claim_of(address)) for name, address in run.inputs.items()},
    )
    (folder / "run.json").write_text(json.dumps(record.to_dict()))
    (folder / "source.py").write_text(packed)
    cells = {"function": "train_func", "sha256": record.source_sha256, "pieces": []}
    (folder / "cells.json").write_text(json.dumps(cells))
    if not submitted:
        return record
    files = open_store(record.store)
    files.put(record.keys.source, packed.encode())
    fields = {"backend": "Local", "place": "here", "identity": {}, "found_by": {}, "options": {}, "manifest": {}}
    files.put(record.keys.submission(1), SubmissionRecord(run=record, cells=cells, **fields).to_json())
    return record
