"""Checkpoints go when the result of their run is complete, and never before; a store that keeps them costs nothing."""

import threading
from types import SimpleNamespace

import pytest

from tests.job_folder import write_job_folder
from tests.messages import unnamed
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.worker.publish.publication import Publication, delete_checkpoints
from train_func.worker.stop import Stop

OWN = [
    "a-run/checkpoints/0/1-7/manifest.json",
    "a-run/checkpoints/0/1-7/training.safetensors",
    "a-run/checkpoints/1/1-40/manifest.json",
]
OTHERS = ["a-run/generations/2/checkpoints/0/1-7/manifest.json", "another-run/checkpoints/0/1-7/manifest.json"]


@pytest.fixture
def trained(tmp_path):
    """A store with checkpoints, the record of the run, and what waits in the pod to be published."""
    record = write_job_folder(tmp_path / "job", "def train_func(): ...", store=(tmp_path / "store").as_uri())
    store = open_store(record.store)
    for key in (*OWN, *OTHERS):
        store.put(key, b"state")
    pending = Publication(tmp_path, store, record, 1)
    pending.add(lambda folder: (folder / "weights").write_bytes(b"trained"), is_model=True)
    pending.report({})
    return store, record, pending


def left(store):
    return [entry.key for entry in store.list("") if "/checkpoints/" in entry.key]


def test_those_of_the_generation_go_after_result_and_manifest_are_in_place(trained, monkeypatch):
    store, record, pending = trained
    published = {record.keys.result, f"{record.keys.model}/manifest.json", f"{record.keys.model}/SHA256SUMS"}
    delete, deleted = store.delete, []

    def noted(*keys):
        if any("/checkpoints/" in key for key in keys):
            assert published <= {entry.key for entry in store.list("a-run/")}
            deleted.extend(keys)
        delete(*keys)

    monkeypatch.setattr(store, "delete", noted)
    pending.publish(Stop())
    assert sorted(deleted) == sorted(OWN)
    assert left(store) == sorted(OTHERS)


def test_a_store_that_deletes_none_costs_no_result_and_is_told_of(trained, monkeypatch, capsys):
    store, record, pending = trained
    delete = store.delete

    def away(*keys):
        if any("/checkpoints/" in key for key in keys):
            raise StorageFailed("nobody answers", reason="unreachable")
        delete(*keys)

    monkeypatch.setattr(store, "delete", away)
    pending.publish(Stop())
    assert store.list(record.keys.result)
    assert left(store) == sorted([*OWN, *OTHERS])
    assert f"{record.keys.checkpoints}/" in capsys.readouterr().out


def test_a_store_that_never_answers_is_told_as_such(trained, capsys):
    (store, record, _), ended = trained, threading.Event()
    delete_checkpoints(SimpleNamespace(address=store.address, list=lambda prefix: ended.wait()), record, 0.01)
    ended.set()
    assert unnamed(capsys.readouterr().out, f"{record.keys.checkpoints}/", "no answer") == []


def test_what_cannot_be_published_keeps_them(trained):
    store, record, pending = trained
    store.put(record.keys.result, b"{}")
    with pytest.raises(StorageFailed):
        pending.publish(Stop())
    assert left(store) == sorted([*OWN, *OTHERS])
