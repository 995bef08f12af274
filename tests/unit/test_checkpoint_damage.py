"""What has been changed in the store is never trained on: each kind of damage is found, named, and stepped over."""

import json
import pickle
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.runs import a_run
from train_func.errors import StorageFailed
from train_func.exits import DATA, exit_of
from train_func.records import RunRecord
from train_func.storage import open_store
from train_func.worker.checkpoint.checkpoints import BEST, FROZEN, TRAINING, Checkpoints, of_rank
from train_func.worker.checkpoint.manifest import FORMAT, FileEntry, Kept, Manifest, Pointer, sha256_of
from train_func.worker.checkpoint.state import State

FILES = (TRAINING, BEST, FROZEN, of_rank(0), of_rank(1))
OLDER, NEWER = 7, 40
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


def checkpoints_of(record, attempt=1):
    made = Checkpoints(open_store(record.store), record, attempt, "a training")
    made.take_over()
    return made


def add(checkpoints, step, folder, seed=0):
    paths = {}
    for name, state in states_of(step, seed).items():
        paths[name] = folder / f"{step}-{name}"
        state.write(paths[name])
    return checkpoints.add(step, 2, paths)


@dataclass(frozen=True)
class Saved:
    """Two checkpoints in a store, and those of another run."""

    folder: Path
    older: Manifest
    newer: Manifest
    foreign: Manifest


@pytest.fixture(scope="module")
def saved():
    with TemporaryDirectory(dir=MEMORY) as folder:
        (store := Path(folder, "store")).mkdir()
        made = checkpoints_of(record_in(store))
        older, newer = (add(made, step, Path(folder)) for step in (OLDER, NEWER))
        foreign = add(checkpoints_of(record_in(store, "another-run")), NEWER, Path(folder), seed=1)
        yield Saved(store, older, newer, foreign)


class Kept2:
    """What was saved, in a store of a test's own."""

    def __init__(self, folder, saved):
        shutil.copytree(saved.folder, folder / "store")
        (folder / "read").mkdir()
        self.folder, self.record = folder, record_in(folder / "store")
        self.older, self.newer, self.foreign = saved.older, saved.newer, saved.foreign
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
def kept(saved):
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Kept2(Path(folder), saved)


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
    assert found.training.whole()[TRAINING]["step"] == OLDER
    (why,) = found.refused
    assert key in why
    assert not (tmp_path / "executed").exists()


# What the newer manifest says afterwards, while the pointer fits it, and which file of the checkpoint is named then.
MANIFEST = "manifest"
LIES = {
    "another run": (MANIFEST, lambda of, kept: replace(of, run="another-run")),
    "another generation": (MANIFEST, lambda of, kept: replace(of, generation=2)),
    "another attempt": (MANIFEST, lambda of, kept: replace(of, attempt=2)),
    "another step": (MANIFEST, lambda of, kept: replace(of, step=NEWER + 1)),
    "another training": (MANIFEST, lambda of, kept: replace(of, fingerprint="another")),
    "more ranks than files": (MANIFEST, lambda of, kept: replace(of, world_size=3)),
    "fewer ranks than files": (MANIFEST, lambda of, kept: replace(of, world_size=1)),
    "no training": (MANIFEST, lambda of, kept: without(of, TRAINING)),
    "no weights that are not trained": (MANIFEST, lambda of, kept: without(of, FROZEN)),
    "a file too many": (MANIFEST, lambda of, kept: replace(of, files={**of.files, "more": of.files[TRAINING]})),
    "another size": (TRAINING, lambda of, kept: with_file(of, size=1)),
    "another SHA-256": (TRAINING, lambda of, kept: with_file(of, sha256="0" * 64)),
    "another key": (OLDER, lambda of, kept: with_file(of, key=kept.older.files[TRAINING].key)),
    "a key that is not there": ("a-run/nowhere", lambda of, kept: with_file(of, key="a-run/nowhere")),
    "a later format": (MANIFEST, lambda of, kept: replace(of, format=FORMAT + 1)),
    "no fields": (MANIFEST, lambda of, kept: b'{"format": %d}' % FORMAT),
    "a list": (MANIFEST, lambda of, kept: b"[]"),
    "files that are none": (MANIFEST, lambda of, kept: json.dumps({**asdict(of), "files": {TRAINING: 3}}).encode()),
    "no files": (MANIFEST, lambda of, kept: json.dumps({**asdict(of), "files": None}).encode()),
}


def without(manifest, name):
    return replace(manifest, files={of: file for of, file in manifest.files.items() if of != name})


def with_file(manifest, **changes):
    return replace(manifest, files={**manifest.files, TRAINING: replace(manifest.files[TRAINING], **changes)})


@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_manifest_that_says_what_is_not_so_is_named_and_the_checkpoint_before_is_taken(kept, lie):
    named, change = LIES[lie]
    known = {
        MANIFEST: kept.kept[0].key,
        TRAINING: kept.newer.files[TRAINING].key,
        OLDER: kept.older.files[TRAINING].key,
    }
    kept.put_manifest(change(kept.newer, kept))
    found = kept.found()
    assert found.manifest.step == OLDER
    (why,) = found.refused
    assert why.startswith(f"step {NEWER}: ")
    assert known.get(named, named) in why


@pytest.mark.parametrize(("former", "step"), [("a training", NEWER), ("another", None), (None, None)])
def test_a_checkpoint_with_the_fingerprint_of_an_earlier_version_is_taken_and_no_other(kept, former, step):
    made = Checkpoints(kept.store, kept.record, 2, "as it is written now", former=former)
    made.take_over()
    if step:
        assert made.newest(kept.folder / "read").manifest.step == step
        return
    with pytest.raises(StorageFailed) as caught:
        made.newest(kept.folder / "read")
    assert caught.value.checkpoints_of == kept.record.name


@pytest.mark.parametrize("name", FILES)
def test_a_pickle_whose_hashes_are_all_right_is_refused_and_not_executed(kept, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Canary())
    pickle.loads(data)
    (tmp_path / "executed").unlink()
    key = kept.newer.files[name].key
    kept.store.put(key, data)
    file = FileEntry(key, len(data), sha256_of(data))
    kept.put_manifest(replace(kept.newer, files={**kept.newer.files, name: file}))
    found = kept.found()
    assert not (tmp_path / "executed").exists()
    assert found.manifest.step == OLDER
    (why,) = found.refused
    assert key in why


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


def test_a_pointer_of_another_run_is_made_anew_of_the_manifests(kept):
    foreign = kept.get(kept.pointer.replace("a-run", "another-run", 1))
    later = replace(Pointer.from_json(foreign, ""), attempt=9)  # of which this attempt would be none that leads
    kept.store.put(kept.pointer, later.to_json())
    found = kept.found()
    assert (found.manifest, found.refused) == (kept.newer, ())


@pytest.mark.parametrize("names", ["nothing yet", "one that is gone"])
def test_where_a_stale_pointer_names_nothing_of_use_the_newest_of_the_others_is_taken(kept, names):
    gone = Kept(3, f"{kept.record.keys.checkpoints_of(0)}/1/3/manifest.json", "0" * 64)
    pointer = Pointer.from_json(kept.get(kept.pointer), "")
    kept.store.put(kept.pointer, replace(pointer, kept=(gone,) if names == "one that is gone" else ()).to_json())
    found = kept.found()
    assert found.manifest == kept.newer
    assert [why.startswith("step 3: ") for why in found.refused] == [True] * (names == "one that is gone")
    again = checkpoints_of(kept.record, attempt=3)
    again.newest(kept.folder / "read")
    add(again, NEWER + 1, kept.folder)
    assert checkpoints_of(kept.record, attempt=4).newest(kept.folder / "read").manifest.step == NEWER + 1


def test_what_is_whole_is_taken(kept):
    found = kept.found()
    assert (found.manifest, found.refused) == (kept.newer, ())
    whole = found.training.whole()
    assert {name: of["step"] for name, of in whole.items()} == {TRAINING: NEWER, FROZEN: NEWER}
    assert torch.equal(whole[FROZEN]["weights"]["w"], state_of(NEWER, FROZEN).whole()["weights"]["w"])
    others = {name: state for name, state in found.states.items() if name not in (TRAINING, FROZEN)}
    assert {name: state.whole()["step"] for name, state in others.items()} == dict.fromkeys(others, NEWER)
    assert torch.equal(found.states[BEST].whole()["weights"]["w"], state_of(NEWER, BEST).whole()["weights"]["w"])


def test_when_all_are_damaged_the_run_stops_with_a_list_and_does_not_begin_anew(kept):
    for manifest in (kept.older, kept.newer):
        kept.store.put(manifest.files[TRAINING].key, b"worn")
    with pytest.raises(StorageFailed) as failed:
        kept.found()
    assert failed.value.reason == "damaged"
    assert failed.value.checkpoints_of == kept.record.name
    assert exit_of(failed.value).code == DATA
    assert [key in str(failed.value) for key in (kept.older.files[TRAINING].key, kept.newer.files[TRAINING].key)] == [
        True,
        True,
    ]


@pytest.mark.parametrize("manifests", ["gone", "there, files gone"])
@pytest.mark.parametrize("pointer", ["gone", "empty", "zeros", "a pickle", "there"])
def test_what_is_left_of_checkpoints_is_no_beginning(kept, pointer, manifests):
    if pointer != "there":
        data = None if pointer == "gone" else DAMAGE[pointer](kept.get(kept.pointer), kept, MANIFEST)
        kept.store.delete(kept.pointer)
        if data is not None:
            kept.store.put(kept.pointer, data)
    keys = {of.key for of in kept.kept}
    gone = keys if manifests == "gone" else {f.key for of in (kept.older, kept.newer) for f in of.files.values()}
    for key in gone:
        kept.store.delete(key)
    for _ in range(2):  # and the attempt that comes next stops too
        with pytest.raises(StorageFailed) as failed:
            kept.found()
        assert exit_of(failed.value).code == DATA
        assert "fresh=True" in str(failed.value)
        if pointer == "there" or manifests != "gone":
            assert all(f"step {step}: " in str(failed.value) for step in (OLDER, NEWER))
        else:
            assert kept.pointer in str(failed.value)
            assert all(key.removesuffix("manifest.json") in str(failed.value) for key in keys)


def test_a_damaged_pointer_alone_is_no_beginning(kept):
    for entry in kept.store.list(f"{kept.record.keys.checkpoints_of(0)}/"):
        kept.store.delete(entry.key)
    kept.store.put(kept.pointer, b"")
    with pytest.raises(StorageFailed) as failed:
        kept.found()
    assert exit_of(failed.value).code == DATA
    assert kept.pointer in str(failed.value)


def test_checkpoints_that_are_gone_without_a_trace_are_no_beginning(kept):
    for entry in kept.store.list(f"{kept.record.keys.checkpoints}/"):
        kept.store.delete(entry.key)
    with pytest.raises(StorageFailed) as failed:
        kept.found()
    assert exit_of(failed.value).code == DATA
    assert kept.record.keys.attempts_that_saved(0, {of.key for of in kept.store.list("a-run/")}) == [1]
    other = Checkpoints(kept.store, kept.record, 2, "a training", number=1)  # of which none was ever saved
    other.take_over()
    assert other.newest(kept.folder / "read") is None


def test_an_attempt_that_was_killed_before_its_first_manifest_is_followed_by_a_beginning(tmp_path):
    (tmp_path / "store").mkdir()
    record = record_in(tmp_path / "store")
    assert checkpoints_of(record).newest(tmp_path) is None
    store = open_store(record.store)
    store.put(f"{record.keys.checkpoints_of(0)}/1/{OLDER}/{TRAINING}.safetensors", b"all that was uploaded")
    assert checkpoints_of(record, attempt=2).newest(tmp_path) is None
    again = checkpoints_of(record, attempt=3)
    add(again, NEWER, tmp_path)
    assert checkpoints_of(record, attempt=4).newest(tmp_path).manifest.step == NEWER


def test_a_store_that_is_away_is_no_damage(kept, monkeypatch):
    def away(*args):
        raise StorageFailed("away", reason="unreachable")

    again = checkpoints_of(kept.record, attempt=2)
    monkeypatch.setattr(again._store, "download", away)
    with pytest.raises(StorageFailed) as failed:
        again.newest(kept.folder / "read")
    assert failed.value.reason == "unreachable"
