"""Carries a run's local files to the store, by content, so that the pods of a cluster find them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from train_func.client.observed import Input
from train_func.run import Run
from train_func.storage import Store

FOLDER = "inputs"


def carry(run: Run, inputs: Mapping[str, Input], store: Store) -> Run:
    """Uploads what the store lacks of ``inputs``, by field; returns the run with their addresses in the store."""
    addresses: dict[str, Any] = {field: _carried(found, store) for field, found in inputs.items()}
    return replace(run, **addresses)


def _carried(found: Input, store: Store) -> str:
    prefix = f"{FOLDER}/{found.sha256}"
    there = {entry.key: entry.size for entry in store.list(f"{prefix}/")}
    for name in found.files:
        path = found.path.parent / name
        if there.get(f"{prefix}/{name}") != path.stat().st_size:
            store.upload(f"{prefix}/{name}", path)
    return f"{store.address}/{prefix}/{found.path.name}"
