"""Two attempts that save at once: one leads, the pointer never goes back, and what it names is always whole."""

import random
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.unit.test_checkpoint_damage import MEMORY, checkpoints_of, record_in
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.worker.checkpoint.checkpoints import TRAINING, Checkpoints, of_rank
from train_func.worker.checkpoint.manifest import Pointer
from train_func.worker.checkpoint.state import State

SEEDS = 100
SAVES = 3


class Scheduled:
    """A store whose calls wait until it is their writer's turn; notes what the pointer was made."""

    def __init__(self, store, turns, writer, moves):
        self._store, self._turns, self._writer, self._moves = store, turns, writer, moves
        self.address = store.address

    def __getattr__(self, name):
        call = getattr(self._store, name)

        def waits(*args, **kwargs):
            with self._turns.turn(self._writer):
                found = call(*args, **kwargs)
                if name == "put" and args[0].endswith("newest.json"):
                    self._moves.append(Pointer.from_json(args[1], ""))
                return found

        return waits


class Turns:
    """Lets one writer make one call at a time; which one is drawn."""

    def __init__(self, seed, writers):
        self._draw, self._at_work, self._waiting = random.Random(seed), set(writers), set()
        self._changed, self._next = threading.Condition(), None

    def turn(self, writer):
        return _Turn(self, writer)

    def begin(self, writer):
        with self._changed:
            self._waiting.add(writer)
            self._draw_next()
            self._changed.wait_for(lambda: self._next == writer)

    def end(self, writer):
        with self._changed:
            self._waiting.discard(writer)
            self._next = None

    def leave(self, writer):
        with self._changed:
            self._at_work.discard(writer)
            self._draw_next()

    def _draw_next(self):
        if self._next is None and self._waiting == self._at_work and self._waiting:
            self._next = self._draw.choice(sorted(self._waiting))
            self._changed.notify_all()


class _Turn:
    def __init__(self, turns, writer):
        self._turns, self._writer = turns, writer

    def __enter__(self):
        self._turns.begin(self._writer)

    def __exit__(self, *error):
        self._turns.end(self._writer)


def state_of(attempt, step):
    return State.of({"attempt": attempt, "step": step, "w": torch.full((3,), float(step))}, TRAINING)


def saves(store, record, attempt, folder, ended):
    """What a rank 0 does: it takes over, goes on from the newest, and saves some steps."""
    made = Checkpoints(store, record, attempt, "a training")
    try:
        made.take_over()
        assert made.swaps()
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
        saves(Scheduled(open_store(record.store), turns, attempt, moves), record, attempt, own, ended)
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
    assert made.swaps()
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
