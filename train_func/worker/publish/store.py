"""Publishing: of all attempts of a run one wins, and its model becomes the model of the run.

Files first under the attempt, then ``result.json``, which only one attempt can create, then the copy to the model
folder, whose manifest comes last. A worker that finds the copy unfinished finishes it. Loads no torch.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from train_func.errors import StorageFailed
from train_func.failpoint import reach
from train_func.layout import CELLS, MODEL_MANIFEST, SOURCE, RunKeys, later_generations
from train_func.records import RunRecord
from train_func.result import FileEntry, Result, copy_model
from train_func.storage import Store, find
from train_func.storage.retry import call_with_timeout
from train_func.worker import masks
from train_func.worker.lease import check_lease
from train_func.worker.rank import reporting
from train_func.worker.rank.output import files_of


def send(
    store: Store, record: RunRecord, attempt: int, folder: Path, sent: Mapping[str, FileEntry] | None = None
) -> dict[str, FileEntry]:
    """Puts the files of ``folder``, less those that were ``sent`` before, under the attempt; returns all of them."""
    prefix, files = record.keys.attempt(attempt).model, dict(sent or {})
    for name in files_of(folder):
        if name not in files:
            size = (folder / name).stat().st_size
            files[name] = FileEntry(size, store.upload(f"{prefix}/{name}", folder / name))
            reach("file sent")
    return files


def publish(
    store: Store,
    record: RunRecord,
    attempt: int,
    folder: Path,
    report: Mapping[str, Any],
    sent: Mapping[str, FileEntry] | None = None,
) -> None:
    """Publishes the files of ``folder`` as the result of the run.

    Args:
        store: of the run.
        record: of the run.
        attempt: has made them.
        folder: holds them.
        report: step, num_steps, metrics, audit, note, returned: those there are.
        sent: files that the store has under the attempt already.

    Raises:
        StorageFailed: reason "conflict" when a later attempt has begun, or another one has published already; or the
            store's own failure.
    """
    files = send(store, record, attempt, folder, sent)
    check_lease(store, record, attempt)
    _win(store, record, attempt, Result.write(attempt, record.generation, masks.mask(report), files))
    reach("result put")
    complete(store, record)


def check_unpublished(store: Store, record: RunRecord, attempt: int, done: str = "is about to train") -> None:
    """Raises StorageFailed, reason "conflict", when another attempt has published already."""
    key = record.keys.result
    result = find(store, key)
    if not result:
        return
    published = Result.read(result.data, f"{store.address}/{key}")
    raise StorageFailed(
        f"Attempt {attempt} of {record.name} {done}, but attempt {published.attempt} has published already, as "
        f"{store.address}/{key} says. Nothing of this attempt was published; fetch the model that is there",
        reason="conflict",
    )


def _win(store: Store, record: RunRecord, attempt: int, result: bytes) -> None:
    key = record.keys.result
    try:
        store.put(key, result, if_absent=True)
    except StorageFailed as failure:
        if failure.reason != "conflict":
            raise
        if store.get(key).data != result:  # the same bytes are this attempt's own
            check_unpublished(store, record, attempt, "has trained to the end")


def complete(store: Store, record: RunRecord) -> bool:
    """Finishes the copy of the published model to the model folder; False when nothing was published yet.

    A newer generation that has a result keeps the folder, or gets it back where its own copy came while this one was
    made.

    Raises:
        StorageFailed: reason "damaged" when what lies under the attempt is not what was published.
    """
    if not (result := find(store, record.keys.result)):
        return False
    manifest = find(store, f"{record.keys.model}/{MODEL_MANIFEST}")
    if not (manifest and manifest.data == result.data) and not _newer(store, record):
        _copy(store, record, result.data)
        while newer := _newer(store, record):  # its files may lie under those that were just copied
            record = newer
            _copy(store, record, store.get(record.keys.result).data)
    return True


def _newer(store: Store, record: RunRecord) -> RunRecord | None:
    """Returns the record of the newest generation that has a result, if it is a later one."""
    generations = later_generations(store.names(record.keys.generations))
    later = (number for number in generations if number > record.generation)
    newest = max((number for number in later if store.list(RunKeys(record.name, number).result)), default=None)
    return replace(record, generation=newest) if newest else None


def _copy(store: Store, record: RunRecord, result: bytes) -> None:
    attempt = Result.read(result, f"{store.address}/{record.keys.result}").attempt
    source = record.keys.attempt(attempt).model
    copy_model(store, source, record.keys.model, result, f"attempt {attempt} of {record.name}")


def delete_checkpoints(store: Store, record: RunRecord, seconds: float) -> None:
    """Deletes the checkpoints of a generation whose result is published: nothing resumes from them any more.

    A store that is away, or takes longer, keeps what is left; a note says so.
    """

    def delete() -> None:
        for entry in store.list(f"{record.keys.checkpoints}/"):
            store.delete(entry.key)
            reach("checkpoint file deleted")

    try:
        call_with_timeout(seconds, delete)
    except (StorageFailed, TimeoutError) as failure:
        where = f"{store.address}/{record.keys.checkpoints}/"
        reporting.note(f"checkpoints stay in {where}, which the run needs no more: {failure or 'no answer'}")


def take_source(store: Store, record: RunRecord, folder: Path) -> list[str]:
    """Adds the function's source to the files that are to be published; returns notes on what there is not.

    A file of the function's own stays, which is told: its name and content may be in the store already.
    """
    notes = []
    for key, name in {record.keys.source: SOURCE, record.keys.cells: CELLS}.items():
        path, text = folder / name, find(store, key)
        if not text:
            notes.append(f"{name} is not published: the run was started without submit, so {key} is not in the store")
        elif not path.exists():
            path.write_bytes(text.data)
        elif path.is_dir() or path.read_bytes() != text.data:
            reporting.note(f"{name} is what the function has published; its own source is {store.address}/{key}")
    return notes
