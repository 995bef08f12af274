"""The saver copies a state before it changes, ends no training, and tries again soon after a failure."""

import queue
import re
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from tests.messages import unnamed
from tests.unit.test_checkpoint_damage import begin, checkpoints_of, record_in, steps_in
from train_func.storage import open_store
from train_func.wire.events import CheckpointSaved, Note
from train_func.worker.attempt_records import Fenced
from train_func.worker.checkpoint import saver as saver_module
from train_func.worker.checkpoint.checkpointing import Checkpointing, Parts
from train_func.worker.checkpoint.saver import SHORTEST, Saver, Snapshot
from train_func.worker.checkpoint.state import State
from train_func.worker.checkpoint.store import BEST, FROZEN, TRAINING, of_rank
from train_func.worker.rank import stop_flag


@pytest.fixture
def said():
    return []


@pytest.fixture
def saver(tmp_path, said):
    (tmp_path / "store").mkdir()
    record = record_in(tmp_path / "store")
    made = Saver(checkpoints_of(record), tmp_path / "files", 0, said.append)
    made.newest = lambda: checkpoints_of(record, 9).newest(tmp_path)
    return made


def taken(step, tensor, *, lasts=True):
    lasting = frozenset([tensor.data_ptr()]) if lasts else frozenset()
    own = State.of({"used": []}, of_rank(0))
    return Snapshot(step, State.of({"w": tensor}, TRAINING), [own], lasting=lasting)


@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_is_saved_is_the_state_of_the_moment(saver, said, dtype, lasts):
    tensor = torch.arange(101).to(dtype)
    before = tensor.clone()
    saver.begin(taken(7, tensor, lasts=lasts))
    saver.wait_copied()
    tensor.add_(1)
    saver.wait()
    assert [type(event) for event in said] == [CheckpointSaved]
    assert torch.equal(saver.newest().states[TRAINING].whole()["w"], before)


@pytest.fixture
def now(saver, monkeypatch):
    """The clock of a saver that saves as often as is worth it."""
    now = [1000.0]
    monkeypatch.setattr(saver_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    saver._every = None
    return now


def is_due_soon(saver, now):
    """Whether the next save is due in SHORTEST seconds from now, and not before."""
    now[0] += SHORTEST - 1
    was_due = saver.is_due
    now[0] += 2
    return not was_due and saver.is_due


def test_a_fault_of_any_kind_is_told_and_the_next_save_comes_soon(saver, said, now, monkeypatch):
    def without_room(*args):
        now[0] += 600
        raise MemoryError("no room")

    monkeypatch.setattr(saver._checkpoints, "add", without_room)
    saver.begin(taken(7, torch.arange(3)))
    saver.wait()
    (note,) = said
    assert isinstance(note, Note)
    assert "MemoryError" in note.text
    assert saver.fenced is None
    assert is_due_soon(saver, now)


@pytest.mark.parametrize("lasts", [True, False])
def test_a_copy_that_fails_for_want_of_memory_ends_nothing_and_the_next_save_comes_soon(
    saver, said, now, monkeypatch, lasts
):
    def without_room(*args):
        now[0] += 600
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    tensor = torch.arange(3)
    with monkeypatch.context() as patched:
        patched.setattr(saver_module, "_copy", without_room)
        saver.begin(taken(7, tensor, lasts=lasts))
        saver.wait_copied()
        saver.wait()
    (note,) = said
    assert unnamed(note.text, "step 7", "can't allocate memory") == []
    assert is_due_soon(saver, now)
    saver.begin(taken(8, tensor, lasts=lasts))
    saver.wait()
    assert said[-1].step == 8


def test_an_attempt_that_was_followed_by_another_is_told_to_stop(saver, said):
    saver.newest()  # of attempt 9, which has begun
    saver.begin(taken(7, torch.arange(3)))
    saver.wait()
    assert isinstance(saver.fenced, Fenced)
    assert not saver.is_due


class Endless:
    """A store whose first upload goes on until it is given up."""

    def __init__(self, store):
        self._store, self.begun = store, threading.Event()

    def __getattr__(self, name):
        return getattr(self._store, name)

    def upload(self, key, path, *, sent, **options):
        until = time.monotonic() + 30
        while not self.begun.is_set() or time.monotonic() < until:
            self._store.put(key, b"a part of it")
            self.begun.set()
            sent(12)
        return self._store.upload(key, path, sent=sent, **options)


def test_a_save_that_is_under_way_is_given_up_for_a_newer_one(tmp_path, said):
    (tmp_path / "store").mkdir()
    record = record_in(tmp_path / "store")
    store = Endless(open_store(record.store))
    checkpoints = begin(store, record, 1)
    saver = Saver(checkpoints, tmp_path / "files", 0, said.append)
    saver.begin(taken(7, torch.arange(3)))
    store.begun.wait()
    store.upload = store._store.upload
    begun = time.monotonic()
    saver.begin(taken(8, torch.arange(3)))
    saver.wait()
    assert time.monotonic() - begun < 25
    assert [of.step for of in said] == [8]
    assert checkpoints_of(record, 9).newest(tmp_path).manifest.step == 8
    assert steps_in(store, record) == [8]


class TakesNothing:
    """A store that has begun each of ``begun`` and completes none until ``is_away`` is over."""

    def __init__(self, store):
        self._store, self.begun, self.is_away = store, queue.Queue(), True

    def __getattr__(self, name):
        return getattr(self._store, name)

    def upload(self, key, path, *, sent, **options):
        self.begun.put(path)
        while self.is_away:
            sent(12)
        return self._store.upload(key, path, sent=sent, **options)


def test_what_waits_for_a_store_that_takes_nothing_is_one_copy_however_often_a_save_is_due(tmp_path, said):
    (tmp_path / "store").mkdir()
    record = record_in(tmp_path / "store")
    store = TakesNothing(open_store(record.store))
    checkpoints = begin(store, record, 1)
    saver = Saver(checkpoints, tmp_path / "files", 0, said.append)
    tensor = torch.zeros(1 << 20)
    for step in range(1, 6):
        saver.begin(taken(step, tensor))
        store.begun.get(timeout=30)
        copied = sum(of.numel() * of.element_size() for of in saver._buffers.values())
        written = sum(path.stat().st_size for path in (tmp_path / "files").rglob("*") if path.is_file())
        assert copied == tensor.numel() * tensor.element_size()
        assert copied < written < 1.1 * copied
    assert said == []
    store.is_away = False
    saver.wait()
    assert [of.step for of in said] == [5]


def test_saves_that_fail_leave_no_more_than_one_of_them(tmp_path):
    (tmp_path / "store").mkdir()
    record = record_in(tmp_path / "store")
    checkpoints = checkpoints_of(record)
    own = State.of({"used": []}, of_rank(0))
    own.write(tmp_path / TRAINING)
    whole = {TRAINING: tmp_path / TRAINING, of_rank(0): tmp_path / TRAINING}
    checkpoints.add(1, 1, whole)
    for step in range(2, 7):
        with pytest.raises(FileNotFoundError):
            checkpoints.add(step, 1, {TRAINING: tmp_path / TRAINING, of_rank(0): tmp_path / "is not there"})
        assert steps_in(open_store(record.store), record) == [1, step]
    checkpoints.add(8, 1, whole)
    assert steps_in(open_store(record.store), record) == [1, 8]


def with_frozen(step, trained, frozen):
    own = State.of({"used": []}, of_rank(0))
    training = State.of({"trained": trained, "frozen": frozen}, TRAINING)
    best = State.of({"step": 1, "weights": {"w": torch.ones(3)}}, BEST)
    return Snapshot(step, training, [own], best, frozen=frozenset([frozen.data_ptr()]))


class Uploads:
    """A store that notes the names of the files that it was sent."""

    def __init__(self, store):
        self._store, self.uploaded = store, []

    def __getattr__(self, name):
        return getattr(self._store, name)

    def upload(self, key, path, **options):
        self.uploaded.append(key.split("/")[-1].removesuffix(".safetensors"))
        return self._store.upload(key, path, **options)


def test_what_has_not_changed_is_uploaded_once_and_lies_in_every_checkpoint(tmp_path, said):
    (tmp_path / "store").mkdir()
    record = record_in(tmp_path / "store")
    store, sent = Uploads(open_store(record.store)), []
    saver = Saver(begin(store, record, 1), tmp_path / "files", 0, said.append)
    frozen = torch.arange(101.0)
    for step in range(1, 7):
        if step == 4:
            frozen.add_(1)
        if step == 6:  # by another program
            for before in (4, 5):
                store.delete(f"{record.keys.checkpoints_of(0)}/1-{before}/{FROZEN}.safetensors")
        saver.begin(with_frozen(step, torch.full((3,), float(step)), frozen))
        saver.wait()
        sent.append({*store.uploaded} & {FROZEN, BEST})
        store.uploaded.clear()
        there = [entry.key.split("/")[-1] for entry in store.list(f"{record.keys.checkpoints_of(0)}/1-{step}/")]
        assert len(there) == 5  # and the manifest
    assert [type(event) for event in said] == [CheckpointSaved] * 6
    assert sent == [{FROZEN, BEST}, set(), set(), {FROZEN}, set(), {FROZEN}]
    states = checkpoints_of(record, 9).newest(tmp_path).states
    assert torch.equal(states[FROZEN].tensors[f"{TRAINING}.frozen"], frozen)
    assert list(states[TRAINING].tensors) == [f"{TRAINING}.trained"]


@pytest.mark.parametrize(("age", "saved"), [(5.0, [8]), (27.0, [7, 8])])
def test_what_is_left_of_the_grace_period_at_the_vote_decides_which_save_is_finished(
    tmp_path, monkeypatch, capsys, age, saved
):
    record = record_in(tmp_path)
    store = TakesNothing(open_store(record.store))
    begin(store, record, 1)
    monkeypatch.setenv("TRAIN_FUNC_GRACE_SECONDS", "40")
    monkeypatch.setattr(stop_flag, "_times", [time.monotonic() - age])
    made = Checkpointing(store, record, 1, number=0, made_of={}, folder=tmp_path / "files")
    made._saver._took = 10.0

    def take():
        return Parts({"w": torch.arange(101)}, {"used": []})

    made.decide([1, 0, 0, 0], 7, take)
    store.begun.get(timeout=30)
    store.upload = store._store.upload
    if len(saved) > 1:
        threading.Timer(0.3, setattr, (store, "is_away", False)).start()
    with pytest.raises(stop_flag.StopSignal):
        made.decide([0, 1, 0, 0], 8, take)
    assert [int(step) for step in re.findall(r"saved the checkpoint of step (\d+)", capsys.readouterr().out)] == saved


def test_the_state_that_was_restored_is_not_saved_again(tmp_path):
    """What ends the ranks before they have done a step, again and again, would be taken for progress."""
    record = record_in(tmp_path)
    store, steps = open_store(record.store), []
    for attempt in (1, 2, 3):
        made = Checkpointing(store, record, attempt, number=0, made_of={}, folder=tmp_path / "files")
        restored = made.restore(torch.device("cpu"))
        step = restored.step if restored else 7
        made.decide([1, 0, 0, 1], step, lambda: Parts({"w": torch.arange(101)}, {"used": []}), is_over=True)
        made.close()
        steps.append(step)
    assert steps == [7] * 3
    keys = [entry.key for entry in store.list(f"{record.keys.checkpoints}/")]
    assert {of.attempt for key in keys if (of := record.keys.checkpoint_id(key))} == {1}
