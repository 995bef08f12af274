"""Older checkpoints go when a newer one is complete; when the next one is due, and when one is told."""

from types import SimpleNamespace

import pytest
import torch

from tests.unit.test_checkpoint_damage import begin, record_in, steps_in
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire.events import CheckpointSaved, Note
from train_func.worker.checkpoint import saver as saver_module
from train_func.worker.checkpoint.saver import SHARE, SHORTEST, Saver, Snapshot
from train_func.worker.checkpoint.state import State
from train_func.worker.checkpoint.store import TRAINING, Checkpoints, of_rank


class Watched:
    """A store that tells ``after`` of everything that it has taken, and does not delete while it is told to fail."""

    def __init__(self, store):
        self._store, self.after, self.failure = store, lambda key: None, None

    def __getattr__(self, name):
        return getattr(self._store, name)

    def upload(self, key, path, *, sent, **options):
        found = self._store.upload(key, path, sent=sent, **options)
        self.after(key)
        return found

    def put(self, key, data, **conditions):
        found = self._store.put(key, data, **conditions)
        self.after(key)
        return found

    def delete(self, key):
        if self.failure:
            raise self.failure
        self._store.delete(key)


class Saving:
    """A saver, what it says, and the store that it saves to."""

    def __init__(self, store, folder, every):
        (folder / "unused").mkdir()
        self.record = record_in(folder / "unused")
        self.store, self._folder, self.said = Watched(store), folder, []
        self.under = self.record.keys.checkpoints_of(0)
        self.checkpoints = begin(self.store, self.record, 1)
        self.saver = Saver(self.checkpoints, folder / "files", every, self.said.append)

    def save(self, step):
        state = State.of({"w": torch.full((7,), float(step))}, TRAINING)
        self.saver.begin(Snapshot(step, state, [State.of({"used": []}, of_rank(0))], state))  # the best too
        self.saver.wait()

    def steps(self):
        """Of the checkpoints of which anything is in the store."""
        return steps_in(self.store, self.record)

    def newest(self):
        """The step that another attempt would go on from."""
        found = Checkpoints(self.store, self.record, 2, "a training").newest(self._folder / "unused")
        return found and found.manifest.step


@pytest.fixture
def saving(tmp_path):
    (tmp_path / "store").mkdir()
    return Saving(open_store((tmp_path / "store").as_uri()), tmp_path, 0)


def test_a_store_that_deletes_none_is_told_of_once_and_the_checkpoints_are_saved_all_the_same(saving):
    saving.store.failure = StorageFailed("no such permission", reason="denied")
    for step in (1, 2, 3, 4):
        saving.save(step)
    assert [type(of) for of in saving.said] == [CheckpointSaved] * 3 + [Note, CheckpointSaved]
    assert "no such permission" in saving.said[3].text
    assert saving.steps() == [1, 2, 3, 4]
    saving.store.failure = None
    saving.save(5)
    assert saving.steps() == [4, 5]


@pytest.mark.parametrize("took", [SHORTEST / SHARE / 10, 3.0])
def test_after_a_success_the_next_is_due_when_this_one_was_a_small_share_of_the_time(saving, monkeypatch, took):
    now = [1000.0]
    monkeypatch.setattr(saver_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def lasts(key):
        if key.endswith("training.safetensors"):
            now[0] += took

    saving.store.after = lasts
    saving.saver = Saver(saving.checkpoints, saving._folder / "files", None, saving.said.append)
    saving.save(7)
    assert [type(of) for of in saving.said] == [CheckpointSaved]
    for later, is_due in ((-0.001, False), (0.001, True)):
        now[0] = 1000.0 + took + max(SHORTEST, SHARE * took) + later
        assert saving.saver.is_due == is_due


def test_a_checkpoint_is_told_of_when_an_attempt_would_go_on_from_it(saving):
    told = []
    saving.saver._say = lambda event: told.append((event.step, saving.newest()))
    for step in (7, 40):
        saving.save(step)
    assert told == [(7, 7), (40, 40)]


def test_what_is_left_of_a_deletion_that_ended_anywhere_is_no_damaged_checkpoint(saving):
    for step in (7, 40):
        saving.save(step)
    num_left = 0

    def delete(key):
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise StorageFailed("the process was killed", reason="unreachable")
        saving.store._store.delete(key)

    saving.store.delete = delete
    for step in (41, 42, 43, 44):
        num_left = step - 41
        saving.save(step)
        entries = [entry.key for entry in saving.store.list(f"{saving.under}/")]
        for folder in {key.rpartition("/")[0] for key in entries}:
            names = [key.rpartition("/")[2] for key in entries if key.startswith(f"{folder}/")]
            assert "manifest.json" not in names or len(names) == 4, names
    num_left = 101
    saving.save(101)
    assert saving.steps() == [44, 101]
