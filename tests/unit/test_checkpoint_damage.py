"""What has been changed in the store is never trained on: each kind of damage is found, named, and stepped over."""

import json
import pickle
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from tests.runs import a_run
from train_func.errors import StorageFailed
from train_func.exits import DATA, exit_of
from train_func.records import RunRecord
from train_func.storage import open_store
from train_func.worker.checkpoint.checkpoints import BEST, TRAINING, Checkpoints, of_rank
from train_func.worker.checkpoint.manifest import Kept, Manifest, Pointer, sha256_of
from train_func.worker.checkpoint.state import State

FILES = (TRAINING, BEST, of_rank(0), of_rank(1))
OLDER, NEWER = 7, 40


def record_in(folder, name="a-run"):
    return RunRecord(run=a_run(), name=name, generation=1, store=folder.as_uri(), function="f", source_sha256="0" * 64)


def state_of(step, name, seed=0):
    torch.manual_seed(step + len(name) + seed)
    return State.of({"step": step, "weights": {"w": torch.randn(11, 3), "n": torch.arange(7)}}, name)


def checkpoints_of(record, attempt=1):
    made = Checkpoints(open_store(record.store), record, attempt, "a training")
    made.take_over()
    return made


def add(checkpoints, step, folder, seed=0):
    paths = {}
    for name in FILES:
        paths[name] = folder / f"{step}-{name}"
        state_of(step, name, seed).write(paths[name])
    return checkpoints.add(step, 2, paths)


class Kept2:
    """Two checkpoints in a store, and those of another run."""

    def __init__(self, folder):
        (folder / "store").mkdir()
        (folder / "read").mkdir()
        self.folder, self.record = folder, record_in(folder / "store")
        made = checkpoints_of(self.record)
        self.older, self.newer = (add(made, step, folder) for step in (OLDER, NEWER))
        self.foreign = add(checkpoints_of(record_in(folder / "store", "another-run")), NEWER, folder, seed=1)
        self.store = open_store(self.record.store)
        self.pointer = f"{self.record.keys.checkpoints_of(0)}/newest.json"
        self.kept = Pointer.from_json(self.store.get(self.pointer).data, "").kept

    def get(self, key):
        return self.store.get(key).data

    def found(self):
        return checkpoints_of(self.record, attempt=2).newest(self.folder / "read")

    def put_manifest(self, manifest):
        """In place of the newer one, and the pointer such that it fits: only what it says is wrong."""
        self.point_to(manifest.to_json() if isinstance(manifest, Manifest) else manifest)

    def point_to(self, data):
        self.store.put(self.kept[0].key, data)
        pointer = Pointer.from_json(self.get(self.pointer), "")
        kept = (Kept(NEWER, self.kept[0].key, sha256_of(data)), *pointer.kept[1:])
        self.store.put(self.pointer, replace(pointer, kept=kept).to_json())


@pytest.fixture
def kept(tmp_path):
    return Kept2(tmp_path)


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


class Canary:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


# What the file holds afterwards; None for no file.
DAMAGE = {
    "missing": lambda data, kept, name: None,
    "empty": lambda data, kept, name: b"",
    "half of it": lambda data, kept, name: data[: len(data) // 2],
    "without its last byte": lambda data, kept, name: data[:-1],
    "without its first byte": lambda data, kept, name: data[1:],
    "with a byte more": lambda data, kept, name: data + b"\0",
    "twice": lambda data, kept, name: data + data,
    "a bit flipped in the header": lambda data, kept, name: flipped(data, 9),
    "a bit flipped in the middle": lambda data, kept, name: flipped(data, len(data) // 2),
    "a bit flipped at the end": lambda data, kept, name: flipped(data, len(data) - 1),
    "zeros": lambda data, kept, name: bytes(len(data)),
    "stale": lambda data, kept, name: kept.get(of(kept.older, kept.kept[1].key, name)),
    "of another run": lambda data, kept, name: kept.get(of(kept.foreign, kept.foreign_key, name)),
    "swapped": lambda data, kept, name: kept.get(of(kept.newer, kept.kept[0].key, other(name))),
    "a pickle": lambda data, kept, name: pickle.dumps(Canary()),
}


def of(manifest, key, name):
    return key if name == "manifest" else manifest.files[name].key


def other(name):
    names = [*FILES, "manifest"]
    return names[(names.index(name) + 1) % len(names)]


@pytest.mark.parametrize("name", [*FILES, "manifest"])
@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_taken(kept, tmp_path, monkeypatch, damage, name):
    monkeypatch.chdir(tmp_path)
    kept.foreign_key = kept.kept[0].key.replace("a-run", "another-run", 1)
    key = of(kept.newer, kept.kept[0].key, name)
    data = DAMAGE[damage](kept.get(key), kept, name)
    kept.store.delete(key)
    if data is not None:
        kept.store.put(key, data)
    found = kept.found()
    assert found.manifest.step == OLDER
    assert found.states[TRAINING].whole()["step"] == OLDER
    (why,) = found.refused
    assert key in why
    assert not (tmp_path / "executed").exists()


# What the newer manifest says afterwards, while the pointer fits it.
LIES = {
    "another run": lambda of, kept: replace(of, run="another-run"),
    "another generation": lambda of, kept: replace(of, generation=2),
    "another attempt": lambda of, kept: replace(of, attempt=2),
    "another step": lambda of, kept: replace(of, step=NEWER + 1),
    "another training": lambda of, kept: replace(of, fingerprint="another"),
    "more ranks than files": lambda of, kept: replace(of, world_size=3),
    "fewer ranks than files": lambda of, kept: replace(of, world_size=1),
    "no training": lambda of, kept: replace(of, files={n: file for n, file in of.files.items() if n != TRAINING}),
    "a file too many": lambda of, kept: replace(of, files={**of.files, "more": of.files[TRAINING]}),
    "another size": lambda of, kept: with_file(of, size=1),
    "another SHA-256": lambda of, kept: with_file(of, sha256="0" * 64),
    "another key": lambda of, kept: with_file(of, key=kept.older.files[TRAINING].key),
    "a key that is not there": lambda of, kept: with_file(of, key="a-run/nowhere"),
    "a later format": lambda of, kept: replace(of, format=2),
    "no fields": lambda of, kept: b'{"format": 1}',
    "a list": lambda of, kept: b"[]",
    "files that are none": lambda of, kept: json.dumps({**asdict(of), "files": {TRAINING: 3}}).encode(),
    "no files": lambda of, kept: json.dumps({**asdict(of), "files": None}).encode(),
}


def with_file(manifest, **changes):
    return replace(manifest, files={**manifest.files, TRAINING: replace(manifest.files[TRAINING], **changes)})


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_manifest_that_says_what_is_not_so_is_named_and_the_checkpoint_before_is_taken(kept, lie):
    kept.put_manifest(LIES[lie](kept.newer, kept))
    found = kept.found()
    assert found.manifest.step == OLDER
    assert len(found.refused) == 1


@pytest.mark.parametrize(
    "damage", ["missing", "empty", "half of it", "a bit flipped in the header", "zeros", "a pickle"]
)
def test_a_pointer_that_is_damaged_or_gone_is_made_anew_of_the_manifests(kept, damage):
    data = DAMAGE[damage](kept.get(kept.pointer), kept, "manifest")
    kept.store.delete(kept.pointer)
    if data is not None:
        kept.store.put(kept.pointer, data)
    found = kept.found()
    assert (found.manifest.step, found.refused) == (NEWER, ())


def test_what_is_whole_is_taken(kept):
    found = kept.found()
    assert (found.manifest, found.refused) == (kept.newer, ())
    assert {name: state.whole()["step"] for name, state in found.states.items()} == dict.fromkeys(FILES, NEWER)
    assert torch.equal(found.states[BEST].whole()["weights"]["w"], state_of(NEWER, BEST).whole()["weights"]["w"])


def test_when_all_are_damaged_the_run_stops_with_a_list_and_does_not_begin_anew(kept):
    for manifest in (kept.older, kept.newer):
        kept.store.put(manifest.files[TRAINING].key, b"worn")
    with pytest.raises(StorageFailed) as failed:
        kept.found()
    assert failed.value.reason == "damaged"
    assert exit_of(failed.value).code == DATA
    assert [key in str(failed.value) for key in (kept.older.files[TRAINING].key, kept.newer.files[TRAINING].key)] == [
        True,
        True,
    ]


def test_a_store_that_is_away_is_no_damage(kept, monkeypatch):
    def away(*args):
        raise StorageFailed("away", reason="unreachable")

    again = checkpoints_of(kept.record, attempt=2)
    monkeypatch.setattr(again._store, "download", away)
    with pytest.raises(StorageFailed) as failed:
        again.newest(kept.folder / "read")
    assert failed.value.reason == "unreachable"
