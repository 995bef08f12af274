"""The saver copies a state before it changes, ends no training, tries again soon after a failure, and tidies up."""

import math
import queue
import re
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from tests.messages import unnamed
from tests.unit.test_checkpoint_damage import begin, checkpoints_of, record_in, steps_in
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire.events import CheckpointSaved, Note
from train_func.worker.checkpoint import saver as saver_module
from train_func.worker.checkpoint.checkpoint_store import BEST, FROZEN, TRAINING, Checkpoints, of_rank
from train_func.worker.checkpoint.checkpointing import LAST_SECONDS, Checkpointing, Parts
from train_func.worker.checkpoint.saver import SHARE, SHORTEST_SECONDS, Saver, StepState
from train_func.worker.checkpoint.state import State
from train_func.worker.rank import stop_flag


def taken(step, tensor=None, *, lasts=True):
    tensor = torch.full((7,), float(step)) if tensor is None else tensor
    lasting = frozenset([tensor.data_ptr()]) if lasts else frozenset()
    return StepState(step, State.of({"w": tensor}, TRAINING), [State.of({"used": []}, of_rank(0))], lasting=lasting)


class Saving:
    """A saver of attempt 1 that saves whenever it is asked to, what it says, and the store that it saves to."""

    def __init__(self, folder):
        self.record, self.said, self.folder = record_in(folder / "store"), [], folder
        self.store = open_store(self.record.store)
        self.saver = self.saver_of(0, self.said.append)

    def saver_of(self, every, say):
        return Saver(begin(self.store, self.record, 1), self.folder / "files", every, say)

    def save(self, snapshot):
        self.saver.begin(snapshot)
        self.saver.wait()

    def steps(self):
        return steps_in(self.store, self.record)

    def newest(self):
        """What another attempt would go on from."""
        return Checkpoints(self.store, self.record, 2, "a training").newest(self.folder / "read")


@pytest.fixture
def saving(tmp_path):
    (tmp_path / "read").mkdir()
    return Saving(tmp_path)


@pytest.mark.parametrize("lasts", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_what_is_saved_is_the_state_of_the_moment(saving, dtype, lasts):
    tensor = torch.arange(101).to(dtype)
    before = tensor.clone()
    saving.saver.begin(taken(7, tensor, lasts=lasts))
    saving.saver.wait_copied()
    tensor.add_(1)
    saving.saver.wait()
    assert [type(event) for event in saving.said] == [CheckpointSaved]
    assert torch.equal(saving.newest().states[TRAINING].whole()["w"], before)


@pytest.fixture
def now(saving, monkeypatch):
    """The clock of a saver that saves as often as is worth it."""
    now = [1000.0]
    monkeypatch.setattr(saver_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    saving.saver = saving.saver_of(None, saving.said.append)
    return now


def is_due_in(saver, now, seconds):
    """Whether the next save is due in ``seconds`` from now, and not before."""
    now[0] += seconds - 0.001
    was_due = saver.is_due
    now[0] += 0.002
    return not was_due and saver.is_due


@pytest.mark.parametrize(
    ("faulty", "method", "error", "lasts"),
    [
        (Checkpoints, "add", MemoryError("no room"), True),
        (saver_module, "_copy", RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate memory"), True),
        (saver_module, "_copy", RuntimeError("[enforce fail at alloc_cpu.cpp] can't allocate memory"), False),
    ],
    ids=["upload", "copy behind the step", "copy at once"],
)
def test_a_fault_of_any_kind_ends_nothing_and_is_told_and_the_next_save_comes_soon(
    saving, now, monkeypatch, faulty, method, error, lasts
):
    def fails(*args):
        now[0] += 600
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(faulty, method, fails)
        saving.saver.begin(taken(7, lasts=lasts))
        saving.saver.wait_copied()
        saving.saver.wait()
    (note,) = saving.said
    assert unnamed(note, "step 7", error) == []
    assert is_due_in(saving.saver, now, SHORTEST_SECONDS)
    saving.save(taken(8, lasts=lasts))
    assert saving.said[-1].step == 8


@pytest.mark.parametrize("took", [SHORTEST_SECONDS / SHARE / 10, 3.0])
def test_after_a_success_the_next_is_due_when_this_one_was_a_small_share_of_the_time(saving, now, monkeypatch, took):
    upload = saving.store.upload

    def lasts(key, *args, **options):
        now[0] += took if TRAINING in key else 0
        return upload(key, *args, **options)

    monkeypatch.setattr(saving.store, "upload", lasts)
    saving.save(taken(7))
    assert [type(event) for event in saving.said] == [CheckpointSaved]
    assert is_due_in(saving.saver, now, max(SHORTEST_SECONDS, SHARE * took))


@pytest.fixture
def endless(saving, monkeypatch):
    """Uploads to the store that begin and go on until ``is_over``."""
    put, upload, until = saving.store.put, saving.store.upload, time.monotonic() + 30
    endless = SimpleNamespace(begun=queue.Queue(), is_over=threading.Event(), upload=upload)

    def goes_on(key, path, *, sent, **options):
        put(key, b"a part of it")
        endless.begun.put(path)
        while not endless.is_over.is_set() and time.monotonic() < until:
            sent(12)
        return upload(key, path, sent=sent, **options)

    monkeypatch.setattr(saving.store, "upload", goes_on)
    return endless


def test_what_waits_for_a_store_that_takes_nothing_is_one_copy_that_gives_way_to_a_newer_one(saving, endless, tmp_path):
    tensor = torch.zeros(1 << 20)
    for step in range(1, 6):
        saving.saver.begin(taken(step, tensor))
        endless.begun.get(timeout=30)
        copied = sum(buffer.numel() * buffer.element_size() for buffer in saving.saver._buffers.values())
        written = sum(path.stat().st_size for path in (tmp_path / "files").rglob("*") if path.is_file())
        assert copied == tensor.numel() * tensor.element_size()
        assert copied < written < 1.1 * copied
    assert saving.said == []
    endless.is_over.set()
    saving.saver.wait()
    assert [event.step for event in saving.said] == [5]
    assert saving.newest().manifest.step == 5
    assert saving.steps() == [5]


def test_saves_that_fail_leave_no_more_than_one_of_them(saving, tmp_path):
    checkpoints = checkpoints_of(saving.record)
    State.of({"used": []}, of_rank(0)).write(tmp_path / TRAINING)
    whole = {TRAINING: tmp_path / TRAINING, of_rank(0): tmp_path / TRAINING}
    checkpoints.add(1, 1, whole)
    for step in range(2, 7):
        with pytest.raises(FileNotFoundError):
            checkpoints.add(step, 1, {TRAINING: tmp_path / TRAINING, of_rank(0): tmp_path / "is not there"})
        assert saving.steps() == [1, step]
    checkpoints.add(8, 1, whole)
    assert saving.steps() == [1, 8]


def with_frozen(step, trained, frozen):
    own = State.of({"used": []}, of_rank(0))
    training = State.of({"trained": trained, "frozen": frozen}, TRAINING)
    best = State.of({"step": 1, "weights": {"w": torch.ones(3)}}, BEST)
    return StepState(step, training, [own], best, frozen=frozenset([frozen.data_ptr()]))


def test_what_has_not_changed_is_uploaded_once_and_lies_in_every_checkpoint(saving, monkeypatch):
    upload, sent, frozen = saving.store.upload, [], torch.arange(101.0)
    folder = saving.record.keys.checkpoints_of(0)

    def noted(key, *args, **options):
        sent[-1].add(key.split("/")[-1].removesuffix(".safetensors"))
        return upload(key, *args, **options)

    monkeypatch.setattr(saving.store, "upload", noted)
    for step in range(1, 7):
        if step == 4:
            frozen.add_(1)
        if step == 6:  # by another program
            for before in (4, 5):
                saving.store.delete(f"{folder}/1-{before}/{FROZEN}.safetensors")
        sent.append(set())
        saving.save(with_frozen(step, torch.full((3,), float(step)), frozen))
        assert len(saving.store.list(f"{folder}/1-{step}/")) == 5  # and the manifest
    assert [type(event) for event in saving.said] == [CheckpointSaved] * 6
    assert [names & {FROZEN, BEST} for names in sent] == [{FROZEN, BEST}, set(), set(), {FROZEN}, set(), {FROZEN}]
    states = saving.newest().states
    assert torch.equal(states[FROZEN].tensors[f"{TRAINING}.frozen"], frozen)
    assert list(states[TRAINING].tensors) == [f"{TRAINING}.trained"]


@pytest.mark.parametrize(("age", "saved"), [(5.0, [8]), (27.0, [7, 8])])
def test_what_is_left_of_the_grace_period_at_the_vote_decides_which_save_is_finished(
    saving, endless, tmp_path, monkeypatch, capsys, age, saved
):
    monkeypatch.setenv("TRAIN_FUNC_GRACE_SECONDS", "40")
    monkeypatch.setattr(stop_flag, "_times", [time.monotonic() - age])
    made = Checkpointing(saving.store, saving.record, 1, number=0, made_of={}, folder=tmp_path / "files")
    made._saver._took = 10.0

    def take():
        return Parts({"w": torch.arange(101)}, {"used": []})

    made.decide([1, 0, 0, 0], 7, take)
    endless.begun.get(timeout=30)
    if saved == [8]:
        saving.store.upload = endless.upload  # only what was begun goes on
    else:
        threading.Timer(0.3, endless.is_over.set).start()
    with pytest.raises(stop_flag.StopSignal):
        made.decide([0, 1, 0, 0], 8, take)
    assert [int(step) for step in re.findall(r"saved the checkpoint of step (\d+)", capsys.readouterr().out)] == saved


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize(("reason", "saved"), [("unreachable", [8]), ("denied", [])])
def test_the_last_checkpoint_is_tried_again_while_the_store_is_away_and_the_grace_period_lasts(
    saving, tmp_path, monkeypatch, capsys, is_over, reason, saved
):
    monkeypatch.setenv("TRAIN_FUNC_GRACE_SECONDS", "40")
    monkeypatch.setattr(saver_module, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(saver_module, "NOTICE_SECONDS", 0.0)
    upload, failures = saving.store.upload, [StorageFailed("refused", reason=reason)] * 3

    def fails(*args, **options):
        while failures:
            raise failures.pop()
        return upload(*args, **options)

    monkeypatch.setattr(saving.store, "upload", fails)
    made = Checkpointing(saving.store, saving.record, 1, number=0, made_of={}, folder=tmp_path / "files")
    weights = torch.arange(101)

    def take():
        return Parts({"w": weights}, {"used": []}, lasting=frozenset([weights.data_ptr()]))

    if is_over:
        made.decide([0, 0, 0, 0], 8, take, is_over=True)
        made.before_update()
        weights.zero_()  # the function goes on with its model
        made.close(LAST_SECONDS)
    else:
        monkeypatch.setattr(stop_flag, "_names", ["SIGTERM"])
        monkeypatch.setattr(stop_flag, "_times", [time.monotonic()])
        with pytest.raises(stop_flag.StopSignal):
            made.decide([0, 1, 0, 0], 8, take)
    again = Checkpointing(saving.store, saving.record, 2, number=0, made_of={}, folder=tmp_path / "read")
    restored = again.restore(torch.device("cpu"))
    assert ([restored.step] if restored else []) == saved
    assert not restored or torch.equal(restored.training["w"], torch.arange(101))
    assert capsys.readouterr().out.count("save the last checkpoint") == 3 * len(saved)  # again and again, for an alert


@pytest.mark.parametrize(
    ("seconds", "took", "grace", "saved"),
    [
        (math.inf, 0.0, 40, [8]),  # the first evaluation, of which nothing is known
        (60.0, 50.0, 40, [8]),
        (60.0, 70.0, 40, [7]),  # it would not be done: the one that was begun before goes on
        (9.0, 0.0, 40, [7]),
        (4.0, 0.0, 8, [8]),  # of these 8 s the ranks have 3
    ],
)
def test_before_an_evaluation_that_outlasts_a_save_the_one_on_its_way_gives_way(
    saving, endless, tmp_path, monkeypatch, capsys, seconds, took, grace, saved
):
    monkeypatch.setenv("TRAIN_FUNC_GRACE_SECONDS", str(grace))
    made = Checkpointing(saving.store, saving.record, 1, number=0, made_of={}, folder=tmp_path / "files")
    made._saver._took = took

    def take():
        return Parts({"w": torch.arange(101)}, {"used": []})

    made.decide([1, 0, 0, 0], 7, take)
    endless.begun.get(timeout=30)
    made.save_before(seconds, 8, take)
    endless.is_over.set()
    made.close()
    assert [int(step) for step in re.findall(r"saved the checkpoint of step (\d+)", capsys.readouterr().out)] == saved


def test_an_evaluation_does_not_wait_for_a_store_that_is_silent(saving, endless, tmp_path, monkeypatch, capsys):
    made = Checkpointing(saving.store, saving.record, 1, number=0, made_of={}, folder=tmp_path / "files")
    goes_on = threading.Event()

    def silent(key, path, **options):
        endless.begun.put(path)
        assert goes_on.wait(30)
        return endless.upload(key, path, **options)

    def take():
        return Parts({"w": torch.arange(101)}, {"used": []})

    monkeypatch.setattr(saving.store, "upload", silent)
    made.decide([1, 0, 0, 0], 7, take)
    endless.begun.get(timeout=30)
    threading.Timer(10, goes_on.set).start()
    made.save_before(math.inf, 8, take)
    assert not goes_on.is_set()
    goes_on.set()
    made.close()
    assert re.findall(r"saved the checkpoint of step (\d+)", capsys.readouterr().out) == ["7"]


def test_the_state_that_was_restored_is_not_saved_again(saving, tmp_path):
    """What ends the ranks before they have done a step, again and again, would be taken for progress."""
    keys, steps = saving.record.keys, []
    for attempt in (1, 2, 3):
        made = Checkpointing(saving.store, saving.record, attempt, number=0, made_of={}, folder=tmp_path / "files")
        restored = made.restore(torch.device("cpu"))
        step = restored.step if restored else 7
        made.decide([1, 0, 0, 1], step, lambda: Parts({"w": torch.arange(101)}, {"used": []}), is_over=True)
        made.close()
        steps.append(step)
    assert steps == [7] * 3
    entries = saving.store.list(f"{keys.checkpoints}/")
    assert {saved.attempt for entry in entries if (saved := keys.checkpoint_id(entry.key))} == {1}


def test_a_store_that_deletes_none_is_told_of_once_and_the_checkpoints_are_saved_all_the_same(saving, monkeypatch):
    def denied(key):
        raise StorageFailed("no such permission", reason="denied")

    with monkeypatch.context() as patched:
        patched.setattr(saving.store, "delete", denied)
        for step in (1, 2, 3, 4):
            saving.save(taken(step))
    assert [type(event) for event in saving.said] == [CheckpointSaved] * 3 + [Note, CheckpointSaved]
    assert "no such permission" in saving.said[3].text
    assert saving.steps() == [1, 2, 3, 4]
    saving.save(taken(5))
    assert saving.steps() == [4, 5]


def test_a_checkpoint_is_told_of_when_an_attempt_would_go_on_from_it(saving):
    told = []
    saving.saver = saving.saver_of(0, lambda event: told.append((event.step, saving.newest().manifest.step)))
    for step in (7, 40):
        saving.save(taken(step))
    assert told == [(7, 7), (40, 40)]


def test_what_is_left_of_a_deletion_that_ended_anywhere_is_no_damaged_checkpoint(saving, monkeypatch):
    for step in (7, 40):
        saving.save(taken(step))
    delete, num_left = saving.store.delete, 0

    def dies(key):
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise StorageFailed("the process was killed", reason="unreachable")
        delete(key)

    monkeypatch.setattr(saving.store, "delete", dies)
    for step in (41, 42, 43, 44):
        num_left = step - 41
        saving.save(taken(step))
        entries = [entry.key for entry in saving.store.list(f"{saving.record.keys.checkpoints}/")]
        for folder in {key.rpartition("/")[0] for key in entries}:
            names = [key.rpartition("/")[2] for key in entries if key.startswith(f"{folder}/")]
            assert "manifest.json" not in names or len(names) == 3, names
    num_left = 101
    saving.save(taken(101))
    assert saving.steps() == [44, 101]
