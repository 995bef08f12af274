"""Checkpoints go when the result of their run is complete, and never before; a store that keeps them costs nothing."""

import pytest

from tests.job_folder import write_job_folder
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.worker.publish.publication import Publication
from train_func.worker.stop import Stop

OWN = [
    "a-run/checkpoints/0/1-7/manifest.json",
    "a-run/checkpoints/0/1-7/training.safetensors",
    "a-run/checkpoints/1/1-40/manifest.json",
]
OTHERS = ["a-run/generations/2/checkpoints/0/1-7/manifest.json", "another-run/checkpoints/0/1-7/manifest.json"]


class Watched:
    """A store that keeps what was there when a checkpoint was deleted, and deletes none when told to be away."""

    def __init__(self, store):
        self.address, self._store, self.found, self.is_away = store.address, store, [], False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def delete(self, *keys):
        if any("/checkpoints/" in key for key in keys):
            if self.is_away:
                raise StorageFailed("nobody answers", reason="unreachable")
            self.found.append({entry.key for entry in self._store.list("a-run/")})
        self._store.delete(*keys)


@pytest.fixture
def trained(tmp_path):
    """A store with checkpoints, the record of the run, and what waits in the pod to be published."""
    record = write_job_folder(tmp_path / "job", "def train_func(): ...", store=(tmp_path / "store").as_uri())
    store = Watched(open_store(record.store))
    for key in (*OWN, *OTHERS):
        store.put(key, b"state")
    pending = Publication(tmp_path, store, record, 1)
    pending.add(lambda folder: (folder / "weights").write_bytes(b"trained"), is_model=True)
    pending.report({})
    return store, record, pending


def left(store):
    return [entry.key for entry in store.list("") if "/checkpoints/" in entry.key]


def test_those_of_the_generation_go_after_result_and_manifest_are_in_place(trained):
    store, record, pending = trained
    pending.publish(Stop())
    assert left(store) == sorted(OTHERS)
    assert len(store.found) == len(OWN)
    for there in store.found:
        assert {record.keys.result, f"{record.keys.model}/manifest.json", f"{record.keys.model}/SHA256SUMS"} <= there


def test_a_store_that_deletes_none_costs_no_result_and_is_told_of(trained, capsys):
    store, record, pending = trained
    store.is_away = True
    pending.publish(Stop())
    assert store.list(record.keys.result)
    assert left(store) == sorted([*OWN, *OTHERS])
    assert f"{record.keys.checkpoints}/" in capsys.readouterr().out


def test_what_cannot_be_published_keeps_them(trained):
    store, record, pending = trained
    store.put(record.keys.result, b"{}")
    with pytest.raises(StorageFailed):
        pending.publish(Stop())
    assert left(store) == sorted([*OWN, *OTHERS])
