"""Two attempts that save at once: one leads, the pointer never goes back, and what it names is always whole."""

import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.turns import Scheduled, Turns, at_call
from tests.unit.test_checkpoint_damage import MEMORY, checkpoints_of, record_in
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.worker.checkpoint.checkpoints import TRAINING, Checkpoints, of_rank
from train_func.worker.checkpoint.manifest import Pointer
from train_func.worker.checkpoint.state import State

SEEDS = 100
SAVES = 3


class Noting:
    """A store that notes what the pointer was made."""

    def __init__(self, store, moves):
        self._store, self._moves, self.address = store, moves, store.address

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put(self, key, data, **options):
        found = self._store.put(key, data, **options)
        if key.endswith("newest.json"):
            self._moves.append(Pointer.from_json(data, ""))
        return found


def state_of(attempt, step):
    return State.of({"attempt": attempt, "step": step, "w": torch.full((3,), float(step))}, TRAINING)


def saves(store, record, attempt, folder, ended):
    """What a rank 0 does: it takes over, goes on from the newest, and saves some steps."""
    made = Checkpoints(store, record, attempt, "a training")
    try:
        made.take_over()
        found = made.newest(folder)
        step = found.manifest.step if found else 0
        assert found is None or found.refused == ()
        for number in range(1, SAVES + 1):
            paths = {}
            for name in (TRAINING, of_rank(0)):
                paths[name] = folder / name
                state_of(attempt, step + number).write(paths[name])
            made.add(step + number, 1, paths)
        ended[attempt] = "done"
    except StorageFailed as failure:
        ended[attempt] = failure.reason
    except BaseException as error:
        ended[attempt] = error


@pytest.mark.parametrize("seeds", [range(SEEDS), pytest.param(range(SEEDS, 1000), marks=pytest.mark.slow)])
def test_of_two_attempts_that_save_at_once_the_later_leads(seeds):
    for seed in seeds:
        with TemporaryDirectory(dir=MEMORY) as folder:
            check_one(seed, Path(folder))


def check_one(seed, folder):
    record = record_in(folder)
    turns, moves, ended = Turns(seed, (1, 2)), [], {}

    def write(attempt):
        own = folder / f"of-{attempt}"
        own.mkdir()
        store = Noting(open_store(record.store), moves)
        saves(Scheduled(store, turns, attempt), record, attempt, own, ended)
        turns.leave(attempt)

    writers = [threading.Thread(target=write, args=(attempt,)) for attempt in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    assert ended[2] == "done", (seed, ended)
    assert ended[1] in ("done", "conflict"), (seed, ended)
    order = [(of.moves, of.attempt, of.kept[0].step if of.kept else 0) for of in moves]
    assert [of[0] for of in order] == list(range(1, len(moves) + 1)), (seed, order)
    for column in (1, 2):  # neither attempt nor step ever goes back
        assert [of[column] for of in order] == sorted(of[column] for of in order), (seed, order)
    found = checkpoints_of(record, attempt=3).newest(folder / "of-1")
    assert (found.refused, found.manifest.attempt) == ((), 2), seed
    assert found.states[TRAINING].whole()["step"] == found.manifest.step
    there = {entry.key.split("/")[-2] for entry in open_store(record.store).list(f"{record.keys.checkpoints_of(0)}/2/")}
    assert len(there) == 2, seed  # two are kept, and no third


def test_an_attempt_that_stood_still_at_any_call_while_another_saved_is_fenced_and_changes_nothing():
    number, is_over = 0, False
    while not is_over:
        with TemporaryDirectory(dir=MEMORY) as folder:
            is_over = not check_stood_still(number, Path(folder))
        number += 1
    assert number > 20  # calls of three saves


def check_stood_still(number, folder):
    """Whether the first attempt came to this call; the second makes all of its saves before it."""
    record, moves, ended, came = record_in(folder), [], {}, []
    for attempt in (1, 2):
        (folder / f"of-{attempt}").mkdir()

    def others():
        came.append(len(moves))
        saves(Noting(open_store(record.store), moves), record, 2, folder / "of-2", ended)
        came.append(len(moves))

    store = at_call(Noting(open_store(record.store), moves), number, others)
    saves(store, record, 1, folder / "of-1", ended)
    if not came:
        return False
    assert ended[2] == "done", (number, ended)
    is_saved = [of.attempt for of in moves[: came[0]]].count(1) == 1 + SAVES  # taken over, and all of them
    assert ended[1] == ("done" if is_saved else "conflict"), (number, ended)
    assert moves[came[1] :] == [], number
    last = moves[-1].kept[0]
    found = checkpoints_of(record, attempt=3).newest(folder / "of-1")
    assert (found.refused, found.manifest.attempt, found.manifest.step) == ((), 2, last.step), number
    return True


class TellsAFailure:
    """A store that does what it is asked, and says once of the pointer that it did not."""

    def __init__(self, store, reason="unreachable"):
        self._store, self.has_told, self._reason = store, True, reason

    def __getattr__(self, name):
        return getattr(self._store, name)

    def put(self, key, data, **conditions):
        found = self._store.put(key, data, **conditions)
        if key.endswith("newest.json") and not self.has_told:
            self.has_told = True
            raise StorageFailed("told", reason=self._reason)
        return found


def add(checkpoints, folder, step):
    paths = {}
    for name in (TRAINING, of_rank(0)):
        paths[name] = folder / name
        state_of(1, step).write(paths[name])
    return checkpoints.add(step, 1, paths)


def test_a_pointer_that_was_moved_though_a_failure_was_told_is_this_attempts_own(tmp_path):
    record = record_in(tmp_path)
    store = TellsAFailure(open_store(record.store))
    made = Checkpoints(store, record, 1, "a training")
    made.take_over()
    add(made, tmp_path, 7)
    store.has_told = False
    with pytest.raises(StorageFailed) as failed:
        add(made, tmp_path, 40)
    assert failed.value.reason == "unreachable"
    add(made, tmp_path, 41)
    assert [of.step for of in made._lead.pointer.kept] == [41, 40]


def test_a_move_that_was_asked_for_twice_on_the_way_is_this_attempts_own(tmp_path):
    store = TellsAFailure(open_store(record_in(tmp_path).store), "conflict")
    made = Checkpoints(store, record_in(tmp_path), 1, "a training")
    store.has_told = False
    made.take_over()
    store.has_told = False
    add(made, tmp_path, 7)
    assert [of.step for of in made._lead.pointer.kept] == [7]


def test_the_checkpoint_that_was_gone_on_from_is_kept_before_one_that_was_damaged(tmp_path):
    record = record_in(tmp_path)
    made = checkpoints_of(record)
    add(made, tmp_path, 7)
    worn = add(made, tmp_path, 40)
    open_store(record.store).put(worn.files[TRAINING].key, b"worn")
    later = checkpoints_of(record, attempt=2)
    assert later.newest(tmp_path).manifest.step == 7
    add(later, tmp_path, 41)
    assert [of.step for of in later._lead.pointer.kept] == [41, 7]
