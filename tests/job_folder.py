"""The files that a worker finds in its job folder, for functions that are written out in tests."""

import hashlib
import json
import textwrap

from tests.runs import a_run
from train_func.packed import fold
from train_func.records import RunRecord


def write_job_folder(folder, source, *, store="", **fields):
    """Writes run.json, source.py and cells.json for a module ``source`` with ``train_func``; returns the record."""
    folder.mkdir(parents=True, exist_ok=True)
    packed = fold(textwrap.dedent(source), [])
    record = RunRecord(
        run=a_run(**fields),
        name="a-run",
        generation=1,
        store=store,
        function="train_func",
        source_sha256=hashlib.sha256(packed.encode()).hexdigest(),
    )
    (folder / "run.json").write_text(json.dumps(record.to_dict()))
    (folder / "source.py").write_text(packed)
    cells = {"function": "train_func", "sha256": record.source_sha256, "pieces": []}
    (folder / "cells.json").write_text(json.dumps(cells))
    return record
