"""The saver copies a state before it changes, ends no training, and tries again soon after a failure."""

import pytest
import torch

from tests.unit.test_checkpoint_damage import checkpoints_of, record_in
from train_func.events import CheckpointSaved, Note
from train_func.worker.checkpoint.checkpoints import TRAINING, Fenced, of_rank
from train_func.worker.checkpoint.saver import SHORTEST, Saver, Taken
from train_func.worker.checkpoint.state import State


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
    return Taken(step, State.of({"w": tensor}, TRAINING), [own], lasting=lasting)


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


def test_a_fault_of_any_kind_is_told_and_the_next_save_comes_soon(saver, said, monkeypatch):
    def without_room(*args):
        raise MemoryError("no room")

    monkeypatch.setattr(saver._checkpoints, "add", without_room)
    saver._every = None
    saver.begin(taken(7, torch.arange(3)))
    saver.wait()
    (note,) = said
    assert isinstance(note, Note)
    assert "MemoryError" in note.text
    assert saver.fenced is None
    assert saver._due - saver._done == pytest.approx(SHORTEST, abs=1)


def test_an_attempt_that_was_followed_by_another_is_told_to_stop(saver, said):
    saver.newest()  # attempt 9 takes over
    saver.begin(taken(7, torch.arange(3)))
    saver.wait()
    assert isinstance(saver.fenced, Fenced)
    assert not saver.is_due
