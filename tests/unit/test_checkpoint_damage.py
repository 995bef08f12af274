"""What has been changed in the store is never trained on: each kind of damage is found, named, and stepped over."""

import json
import pickle
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.messages import unnamed
from tests.runs import a_run
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire.exits import DATA, exit_of
from train_func.wire.records import Lease, RunRecord
from train_func.wire.result import FileEntry
from train_func.worker.checkpoint.checkpoint_store import BEST, FROZEN, TRAINING, Checkpoints, Manifest, of_rank
from train_func.worker.checkpoint.checkpointing import Checkpointing, Parts
from train_func.worker.checkpoint.state import State

FILES = (TRAINING, BEST, FROZEN, of_rank(0), of_rank(1))
MANIFEST = "manifest"
OLDER, NEWER = 7, 40
FOLDERS = {OLDER: f"a-run/checkpoints/0/1-{OLDER}", NEWER: f"a-run/checkpoints/0/1-{NEWER}"}
FOREIGN = f"another-run/checkpoints/0/1-{NEWER}"
MEMORY = Path("/dev/shm")  # nothing has to outlive the test, and a disk would be most of its time


def record_in(folder, name="a-run"):
    return RunRecord(run=a_run(), name=name, generation=1, store=folder.as_uri(), function="f", source_sha256="0" * 64)


def state_of(step, name, seed=0):
    torch.manual_seed(step + len(name) + seed)
    return State.of({"step": step, "weights": {"w": torch.randn(11, 3), "n": torch.arange(7)}}, name)


def states_of(step, seed=0):
    """What each file holds; the training is whole with the weights that are not trained."""
    states = {name: state_of(step, name, seed) for name in FILES}
    both = State.of({TRAINING: states[TRAINING].whole(), FROZEN: states[FROZEN].whole()}, TRAINING)
    frozen = {name: of for name, of in both.tensors.items() if name.startswith(f"{TRAINING}.{FROZEN}.")}
    changing = {name: of for name, of in both.tensors.items() if name not in frozen}
    return {**states, TRAINING: State(changing, both.plain), FROZEN: State(frozen, None)}


def begin(store, record, attempt):
    """What a rank has whose attempt has its lease."""
    store.put(record.keys.attempt(attempt).lease, Lease(attempt=attempt).to_json())
    return Checkpoints(store, record, attempt, "a training")


def checkpoints_of(record, attempt=1):
    return begin(open_store(record.store), record, attempt)


def steps_in(store, record):
    """The steps of the checkpoints of which anything is in the store, the oldest first."""
    keys = [entry.key for entry in store.list(f"{record.keys.checkpoints_of(0)}/")]
    return sorted({int(key.split("/")[-2].partition("-")[2]) for key in keys})


def add(checkpoints, step, folder, seed=0):
    paths = {}
    for name, state in states_of(step, seed).items():
        paths[name] = folder / f"{step}-{name}"
        state.write(paths[name])
    return checkpoints.add(step, 2, paths)


class Kept:
    """Two checkpoints in a store, and those of another run."""

    def __init__(self, folder):
        (folder / "read").mkdir()
        self.folder, self.record = folder, record_in(folder / "store")
        self.store = open_store(self.record.store)
        made = checkpoints_of(self.record)
        self.older, self.newer = (add(made, step, folder) for step in (OLDER, NEWER))
        add(checkpoints_of(record_in(folder / "store", "another-run")), NEWER, folder, seed=1)

    def get(self, key):
        return self.store.get(key).data

    def found(self):
        return checkpoints_of(self.record, attempt=2).newest(self.folder / "read")

    def put_manifest(self, manifest):
        """In place of the newer one, its own SHA-256 right: only what it says is wrong."""
        self.store.put(key_of(NEWER, MANIFEST), manifest.to_json() if isinstance(manifest, Manifest) else manifest)


@pytest.fixture
def kept():
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Kept(Path(folder))


def key_of(step, name):
    return in_folder(FOLDERS[step], name)


def in_folder(folder, name):
    return f"{folder}/manifest.json" if name == MANIFEST else f"{folder}/{name}.safetensors"


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


# What the file holds afterwards; None for no file.
DAMAGE = {
    "missing": lambda data, kept, name: None,
    "empty": lambda data, kept, name: b"",
    "half of it": lambda data, kept, name: data[: len(data) // 2],
    "with a byte more": lambda data, kept, name: data + b"\0",
    "a bit flipped in the header": lambda data, kept, name: flipped(data, 9),
    "a bit flipped at the end": lambda data, kept, name: flipped(data, len(data) - 1),
    "stale": lambda data, kept, name: kept.get(key_of(OLDER, name)),
    "of another run": lambda data, kept, name: kept.get(in_folder(FOREIGN, name)),
    "swapped": lambda data, kept, name: kept.get(key_of(NEWER, other(name))),
}


def other(name):
    names = [*FILES, MANIFEST]
    return names[(names.index(name) + 1) % len(names)]


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
@pytest.mark.parametrize("damage", sorted(DAMAGE))
def test_a_damaged_file_is_named_and_the_checkpoint_before_is_taken(kept, damage, name):
    key = key_of(NEWER, name)
    data = DAMAGE[damage](kept.get(key), kept, name)
    kept.store.delete(key)
    if data is not None:
        kept.store.put(key, data)
    found = kept.found()
    assert found.manifest.step == OLDER
    assert found.training.whole()[TRAINING]["step"] == OLDER
    if (damage, name) == ("missing", MANIFEST):  # as where an attempt was killed before it had written it
        assert found.refused == ()
    else:
        (why,) = found.refused
        assert key in why


# What the newer manifest says afterwards, and which file of the checkpoint is named then.
LIES = {
    "another run": (MANIFEST, lambda of: replace(of, run="another-run")),
    "another generation": (MANIFEST, lambda of: replace(of, generation=2)),
    "another training of the function": (MANIFEST, lambda of: replace(of, training=1)),
    "another attempt": (MANIFEST, lambda of: replace(of, attempt=2)),
    "another step": (MANIFEST, lambda of: replace(of, step=NEWER + 1)),
    "another model": (MANIFEST, lambda of: replace(of, fingerprint="another")),
    "more ranks than files": (MANIFEST, lambda of: replace(of, world_size=3)),
    "fewer ranks than files": (MANIFEST, lambda of: replace(of, world_size=1)),
    "no training": (MANIFEST, lambda of: without(of, TRAINING)),
    "no weights that are not trained": (None, lambda of: without(of, FROZEN)),
    "a file too many": (MANIFEST, lambda of: replace(of, files={**of.files, "more": of.files[TRAINING]})),
    "another size": (TRAINING, lambda of: with_file(of, size=1)),
    "another SHA-256": (TRAINING, lambda of: with_file(of, sha256="0" * 64)),
    "a later format": (MANIFEST, lambda of: signed({**of.to_dict(), "format": 2})),
    "no fields": (MANIFEST, lambda of: signed({"format": 1})),
    "a list": (MANIFEST, lambda of: b"[]"),
    "another digest": (MANIFEST, lambda of: json.dumps({**of.to_dict(), "sha256": "0" * 64}).encode()),
    "no digest": (MANIFEST, lambda of: json.dumps(of.to_dict()).encode()),
    "files that are none": (MANIFEST, lambda of: signed({**of.to_dict(), "files": {TRAINING: 3}})),
    "no files": (MANIFEST, lambda of: signed({**of.to_dict(), "files": None})),
}


def signed(plain):
    return json.dumps({**plain, "sha256": sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()}).encode()


def without(manifest, name):
    return replace(manifest, files={of: file for of, file in manifest.files.items() if of != name})


def with_file(manifest, **changes):
    return replace(manifest, files={**manifest.files, TRAINING: replace(manifest.files[TRAINING], **changes)})


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_manifest_that_says_what_is_not_so_is_named_and_the_checkpoint_before_is_taken(kept, lie):
    named, change = LIES[lie]
    kept.put_manifest(change(kept.newer))
    found = kept.found()
    assert found.manifest.step == OLDER
    (why,) = found.refused
    assert why.startswith(f"step {NEWER}: ")
    assert (key_of(NEWER, named) if named else FOLDERS[NEWER]) in why


@pytest.mark.parametrize("digest", ["its own", "made in another way"])
def test_a_checkpoint_of_another_version_is_told_of_and_stays_for_that_version(tmp_path, capsys, digest):
    record = record_in(tmp_path)
    store, restored = open_store(record.store), []
    newer = f"{FOLDERS[NEWER]}/"
    for attempt, steps in ((1, (OLDER, NEWER)), (2, (8, 9, 11)), (3, (12, 13))):
        store.put(record.keys.attempt(attempt).lease, Lease(attempt=attempt).to_json())
        made = Checkpointing(store, record, attempt, number=0, made_of={}, folder=tmp_path / "files")
        restored.append((of := made.restore(torch.device("cpu"))) and of.step)
        for step in steps:
            made.decide([1, 0, 0, 0], step, lambda: Parts({"w": torch.arange(101)}, {"used": []}))
            made.close()
        if attempt == 1:
            later = {**Manifest.from_json(store.get(f"{newer}manifest.json").data).to_dict(), "format": 2}
            own, others = signed(later), json.dumps({**later, "sha256": digest}).encode()
            store.put(f"{newer}manifest.json", own if digest == "its own" else others)
            before = {entry.key: store.get(entry.key).data for entry in store.list(newer)}
    assert restored == [None, OLDER, 11]
    assert {entry.key: store.get(entry.key).data for entry in store.list(newer)} == before
    assert steps_in(store, record) == [12, 13, NEWER]
    (note,) = re.findall("^note: .*", capsys.readouterr().out, re.M)
    assert unnamed(note, f"step {NEWER}", f"{newer}manifest.json", "format 2", "stays") == []


@pytest.mark.parametrize("name", ["0/3-99", "0/1-99", "1/1-40", "0/1-40.1"])
@pytest.mark.parametrize("source", [FOLDERS[OLDER], FOREIGN])
def test_a_folder_that_was_copied_to_another_place_is_named_and_not_taken(kept, source, name):
    copied = f"a-run/checkpoints/{name}"
    for entry in kept.store.list(f"{source}/"):
        kept.store.put(entry.key.replace(source, copied), kept.get(entry.key))
    found = kept.found()
    assert found.manifest == kept.newer
    assert [f"{copied}/manifest.json" in why for why in found.refused] == [True] * name.startswith("0/")


@pytest.mark.parametrize("name", ["newest", "0", "1-x", "01-99", "1-99.0", "1-99.x", "-1-99", "1-99/more"])
def test_a_folder_of_another_name_is_no_checkpoint(kept, name):
    for entry in kept.store.list(f"{FOLDERS[NEWER]}/"):
        kept.store.put(entry.key.replace(f"1-{NEWER}", name), kept.get(entry.key))
    found = kept.found()
    assert (found.manifest, found.refused) == (kept.newer, ())


class Canary:
    def __reduce__(self):
        return Path.touch, (Path("executed"),)


@pytest.mark.parametrize("name", FILES)
def test_a_pickle_whose_hashes_are_all_right_is_refused_and_not_executed(kept, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Canary())
    pickle.loads(data)
    (tmp_path / "executed").unlink()
    key = key_of(NEWER, name)
    kept.store.put(key, data)
    file = FileEntry(len(data), sha256(data).hexdigest())
    kept.put_manifest(replace(kept.newer, files={**kept.newer.files, name: file}))
    found = kept.found()
    assert not (tmp_path / "executed").exists()
    assert found.manifest.step == OLDER
    (why,) = found.refused
    assert key in why


def test_what_is_whole_is_taken(kept):
    found = kept.found()
    assert (found.manifest, found.refused) == (kept.newer, ())
    whole = found.training.whole()
    assert {name: of["step"] for name, of in whole.items()} == {TRAINING: NEWER, FROZEN: NEWER}
    assert torch.equal(whole[FROZEN]["weights"]["w"], state_of(NEWER, FROZEN).whole()["weights"]["w"])
    others = {name: state for name, state in found.states.items() if name not in (TRAINING, FROZEN)}
    assert {name: state.whole()["step"] for name, state in others.items()} == dict.fromkeys(others, NEWER)
    assert torch.equal(found.states[BEST].whole()["weights"]["w"], state_of(NEWER, BEST).whole()["weights"]["w"])


def test_a_step_that_is_saved_once_more_is_newer_and_leaves_the_first_as_it_was(tmp_path):
    record = record_in(tmp_path)
    checkpoints, store = checkpoints_of(record), open_store(record.store)
    add(checkpoints, NEWER, tmp_path)
    before = {entry.key: store.get(entry.key).data for entry in store.list(f"{record.keys.checkpoints}/")}
    add(checkpoints, NEWER, tmp_path, seed=1)
    found = checkpoints_of(record, attempt=2).newest(tmp_path)
    assert torch.equal(found.states[BEST].whole()["weights"]["w"], state_of(NEWER, BEST, 1).whole()["weights"]["w"])
    assert {key: store.get(key).data for key in before} == before


def test_the_steps_of_a_later_attempt_are_newer_also_where_they_are_fewer(tmp_path):
    record = record_in(tmp_path)
    add(checkpoints_of(record), 100, tmp_path)
    add(checkpoints_of(record, attempt=10), 9, tmp_path)
    assert checkpoints_of(record, attempt=11).newest(tmp_path).manifest.step == 9


@pytest.mark.parametrize("name", [TRAINING, MANIFEST])
def test_when_all_are_damaged_the_run_stops_with_a_list_and_does_not_begin_anew(kept, name):
    for step in (OLDER, NEWER):
        kept.store.put(key_of(step, name), b"worn")
    for _ in range(2):  # and the attempt that comes next stops too
        with pytest.raises(StorageFailed) as failed:
            kept.found()
        assert failed.value.reason == "damaged"
        assert failed.value.checkpoints_of == kept.record.name
        assert exit_of(failed.value).code == DATA
        assert "fresh=True" in str(failed.value)
        assert all(key_of(step, name) in str(failed.value) for step in (OLDER, NEWER))


def test_checkpoints_that_another_attempt_has_replaced_meanwhile_are_listed_again(kept, monkeypatch):
    """As where the run that is resumed goes on training while its files are downloaded."""
    made = checkpoints_of(kept.record)
    get, left = kept.store.get, [41, 42, 43]
    reading = checkpoints_of(record_in(kept.folder / "store", "resuming"))

    def overtaken(key):
        if key.endswith("manifest.json"):
            while left:
                add(made, left.pop(0), kept.folder)
        return get(key)

    monkeypatch.setattr(reading._store, "get", overtaken)
    found = reading.newest(kept.folder / "read", kept.record)
    assert (found.manifest.step, found.refused) == (43, ())


def test_an_attempt_that_was_killed_before_its_first_manifest_is_followed_by_a_beginning(tmp_path):
    record = record_in(tmp_path / "store")
    assert checkpoints_of(record).newest(tmp_path) is None
    store = open_store(record.store)
    store.put(key_of(OLDER, TRAINING), b"all that was uploaded")
    assert checkpoints_of(record, attempt=2).newest(tmp_path) is None
    again = checkpoints_of(record, attempt=3)
    add(again, NEWER, tmp_path)
    assert steps_in(store, record) == [NEWER]
    assert checkpoints_of(record, attempt=4).newest(tmp_path).manifest.step == NEWER


def test_a_store_that_is_away_is_no_damage(kept, monkeypatch):
    def away(*args):
        raise StorageFailed("away", reason="unreachable")

    again = checkpoints_of(kept.record, attempt=2)
    monkeypatch.setattr(again._store, "download", away)
    with pytest.raises(StorageFailed) as failed:
        again.newest(kept.folder / "read")
    assert failed.value.reason == "unreachable"
