"""Brings the published model home: whole, verified, or not at all; and makes it ready for use."""

import hashlib
import json
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.errors import StorageFailed
from train_func.storage import Store

if TYPE_CHECKING:
    from transformers import Pipeline

MANIFEST = "manifest.json"
SUMS = "SHA256SUMS"
TRIES = 3  # a newer generation may be replacing the folder while it is read


def fetch(store: Store, prefix: str, to: Path) -> Path:
    """Downloads the model under ``prefix`` into the folder ``to`` and verifies every byte.

    A folder that already holds exactly this model is left as it is.

    Raises:
        StorageFailed: no model is there (reason "absent"), or a file is not what was published ("damaged").
        FileExistsError: ``to`` holds something that is not a fetched model.
    """
    for attempt in range(1, TRIES + 1):
        manifest = store.get(f"{prefix}/{MANIFEST}")
        try:
            return _fetch_once(store, prefix, to, manifest.data)
        except StorageFailed as failure:
            moved = store.get(f"{prefix}/{MANIFEST}").version != manifest.version
            if failure.reason not in ("damaged", "absent") or not moved or attempt == TRIES:
                raise
    raise AssertionError("the loop returns or raises")


def ready(folder: Path) -> "Pipeline":
    """The ``transformers`` pipeline of a fetched model; nothing is shown while it is loaded."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # without ipywidgets no bar is wanted either
        from transformers import pipeline
        from transformers.utils import logging
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        return pipeline("text-classification", model=str(folder), truncation=True)
    finally:
        if bars:
            logging.enable_progress_bar()


def _fetch_once(store: Store, prefix: str, to: Path, manifest: bytes) -> Path:
    files: dict[str, dict[str, Any]] = json.loads(manifest)["files"]
    if _holds(to, manifest, files):
        return to
    if to.exists() and any(to.iterdir()) and not (to / MANIFEST).is_file():
        raise FileExistsError(f"{to} is there and is no fetched model; name another folder with to=..., or remove it")
    to.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.parent))
    try:
        for name, wanted in files.items():
            _download(store, f"{prefix}/{name}", staging / name, wanted["sha256"])
        (staging / MANIFEST).write_bytes(manifest)
        (staging / SUMS).write_bytes(store.get(f"{prefix}/{SUMS}").data)
        staging.chmod(0o755)
        if to.exists():
            shutil.rmtree(to)
        staging.rename(to)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return to


def _download(store: Store, key: str, path: Path, wanted: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    found = store.download(key, path)
    if found != wanted:
        raise StorageFailed(
            f"{key} in {store.address} is not what was published: SHA-256 {found}, wanted {wanted}; "
            "nothing was handed over; submit the run with fresh=True to publish it again",
            reason="damaged",
        )


def _holds(folder: Path, manifest: bytes, files: dict[str, dict[str, Any]]) -> bool:
    if not (folder / MANIFEST).is_file() or (folder / MANIFEST).read_bytes() != manifest:
        return False
    return all((folder / name).is_file() and sha256_of(folder / name) == f["sha256"] for name, f in files.items())


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
