"""A scheme of a user's own, as a package brings it: a shelf is a folder in SHELF_ROOT, opened with SHELF_KEY."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from train_func.errors import StorageFailed
from train_func.storage import FromSecret, Scheme, Store
from train_func.storage.folder import FolderStore


class ShelfStore(Scheme):
    """``shelf://name/prefix``."""

    example = "shelf://name/prefix"
    own_variables = re.compile("SHELF_.*")
    secret_variables: ClassVar = {"SHELF_KEY": FromSecret("shelfKey")}

    @classmethod
    def open(cls, address: str) -> Store:
        shelf, _, prefix = address.removeprefix("shelf://").rstrip("/").partition("/")
        if os.environ.get("SHELF_KEY") != "open sesame":
            raise StorageFailed(f"{address}: SHELF_KEY is wrong", reason="credentials")
        (root := Path(os.environ["SHELF_ROOT"], shelf)).mkdir(exist_ok=True)
        store = FolderStore(root / prefix)
        store.address = address.rstrip("/")
        return store

    @classmethod
    def split(cls, address: str) -> tuple[str, str]:
        shelf, _, key = address.removeprefix("shelf://").partition("/")
        return f"shelf://{shelf}", key

    @classmethod
    def worker_settings(cls, environ: Mapping[str, str], endpoint: str | None = None) -> dict[str, str]:
        return {"SHELF_ROOT": environ["SHELF_ROOT"]}


def install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs this file in ``folder`` as the package that registers the scheme, for all processes of the test."""
    (folder / "shelf_store.py").write_text(Path(__file__).read_text())
    record = folder / "shelf_store-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf-store\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text("[train_func.stores]\nshelf = shelf_store:ShelfStore\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))))
    (folder / "shelves").mkdir()
    monkeypatch.setenv("SHELF_ROOT", str(folder / "shelves"))
    monkeypatch.setenv("SHELF_KEY", "open sesame")
