"""Tracking: what TensorBoard and other trackers write in a Session is kept with the attempt in the store."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import transformers

from train_func.records import RunRecord
from train_func.storage import Store
from train_func.storage.retry import call_with_timeout
from train_func.text import counted
from train_func.worker.publish import trackers

FOLDERS = ("runs", "trackers")  # beneath output_dir: where transformers lets TensorBoard write, and the others are led


@contextmanager
def writes_to(folder: Path) -> Iterator[None]:
    """While it lasts, trackers write there, unless the environment, or that of the rank, leads them elsewhere."""
    variables = trackers.begin(folder, os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


def keep(
    folder: Path,
    trainers: Iterable[transformers.Trainer],
    store: Store,
    record: RunRecord,
    attempt: int,
    seconds: float,
) -> str | None:
    """Uploads what ``trainers`` wrote beneath ``folder``, for ``seconds`` at most; returns a line about it.

    Never raises: how a training ended does not depend on its diary. None when nothing was written.
    """
    prefix = record.keys.attempt(attempt).prefix

    def upload() -> int:
        try:
            for trainer in trainers:
                _flush(trainer)
        finally:  # a broken writer keeps nothing else from being uploaded
            files = sorted(path for name in FOLDERS for path in (folder / name).rglob("*") if path.is_file())
            for path in files:
                store.upload(f"{prefix}/{path.relative_to(folder).as_posix()}", path)
        return len(files)

    try:
        num_files = call_with_timeout(seconds, upload)
        if not num_files:
            return None
        kept = " and ".join(name for name in FOLDERS if (folder / name).exists())
        return f"report_to wrote {counted(num_files, 'file')}, kept in {store.address}/{prefix}/ ({kept})"
    except Exception as error:
        return f"files of report_to are not all kept: {type(error).__name__}: {error}"


def _flush(trainer: transformers.Trainer) -> None:
    """Has TensorBoard's writer, which a training that fails does not close, write what it holds."""
    for callback in trainer.callback_handler.callbacks:
        if writer := getattr(callback, "tb_writer", None):
            writer.flush()
