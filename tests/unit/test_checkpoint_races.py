"""Two attempts that save at once: the later leads, the earlier is fenced, and the newest checkpoint is always whole."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.turns import at_call, race
from tests.unit.test_checkpoint_damage import MEMORY, begin, checkpoints_of, record_in, steps_in
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire.records import Lease
from train_func.worker.attempt_records import Fenced, check_lease
from train_func.worker.checkpoint.checkpoint_store import TRAINING, of_rank
from train_func.worker.checkpoint.state import State

SEEDS = 100
SAVES = 3


class Noting:
    """A store that notes what it was asked to change, as (method, key), when it has."""

    def __init__(self, store, changes):
        self._store, self._changes, self.address = store, changes, store.address

    def __getattr__(self, name):
        call = getattr(self._store, name)

        def noted(key, *args, **options):
            found = call(key, *args, **options)
            if name in ("put", "upload", "delete", "copy"):
                self._changes.append((name, key))
            return found

        return noted


def state_of(attempt, step):
    return State.of({"attempt": attempt, "step": step, "w": torch.full((3,), float(step))}, TRAINING)


def add(checkpoints, attempt, step, folder):
    paths = {}
    for name in (TRAINING, of_rank(0)):
        paths[name] = folder / name
        state_of(attempt, step).write(paths[name])
    return checkpoints.add(step, 1, paths)


def saves(store, record, attempt, folder):
    """What a rank 0 does: its attempt begins, goes on from the newest, and saves some steps."""
    folder.mkdir()
    made = begin(store, record, attempt)
    made.check_lease()
    found = made.newest(folder)
    step = found.manifest.step if found else 0
    assert found is None or found.refused == ()
    for number in range(1, SAVES + 1):
        add(made, attempt, step + number, folder)
    return "done"


@pytest.mark.parametrize("seeds", [range(SEEDS), pytest.param(range(SEEDS, 1000), marks=pytest.mark.slow)])
def test_of_two_attempts_that_save_at_once_the_later_leads(seeds):
    for seed in seeds:
        with TemporaryDirectory(dir=MEMORY) as folder:
            check_one(seed, Path(folder))


def check_one(seed, folder):
    record = record_in(folder)
    store = open_store(record.store)
    acts = {of: partial(saves, record=record, attempt=of, folder=folder / f"of-{of}") for of in (1, 2)}
    ended = race(seed, store, acts)
    assert ended[2] == "done", (seed, ended)
    assert ended[1] in ("done", "conflict"), (seed, ended)
    found = checkpoints_of(record, attempt=3).newest(folder / "of-1")
    assert (found.refused, found.manifest.attempt) == ((), 2), seed
    assert found.states[TRAINING].whole()["step"] == found.manifest.step
    add(begin(store, record, 3), 3, found.manifest.step + 1, folder)  # deletes what a stale attempt has left
    assert steps_in(store, record) == [found.manifest.step + 1], seed


def test_an_attempt_that_stood_still_at_any_call_while_another_saved_is_fenced_and_harms_nothing():
    number, is_over = 0, False
    while not is_over:
        with TemporaryDirectory(dir=MEMORY) as folder:
            is_over = not check_stood_still(number, Path(folder))
        number += 1
    assert number > 20  # calls of three saves


def check_stood_still(number, folder):
    """Whether the first attempt came to this call; the second makes all of its saves before it."""
    record, changes, came = record_in(folder), [], []

    def others():
        came.append(len(changes))
        saves(open_store(record.store), record, 2, folder / "of-2")

    try:
        ended = saves(at_call(Noting(open_store(record.store), changes), number, others), record, 1, folder / "of-1")
    except StorageFailed as failure:
        ended = failure.reason
    if not came:
        return False
    is_over = [key.endswith("/manifest.json") and name == "put" for name, key in changes[: came[0]]].count(
        True
    ) == SAVES
    assert ended in (("done", "conflict") if is_over else ("conflict",)), number
    manifests = [of for of in changes[came[0] :] if of[0] == "put" and of[1].endswith("/manifest.json")]
    assert len(manifests) <= 1, number  # the one that the attempt was about to put
    found = checkpoints_of(record, attempt=3).newest(folder / "of-1")
    assert (found.refused, found.manifest.attempt) == ((), 2), number
    before = found.manifest.step - 1  # of the two that the second attempt has retained, of which none was deleted
    open_store(record.store).delete(f"{record.keys.checkpoints_of(0)}/2-{found.manifest.step}/manifest.json")
    found = checkpoints_of(record, attempt=4).newest(folder / "of-1")
    assert (found.refused, found.manifest.attempt, found.manifest.step) == ((), 2, before), number
    return True


def test_an_attempt_saves_no_more_when_a_later_one_has_a_group_and_goes_on_where_that_one_has_none(tmp_path):
    record = record_in(tmp_path)
    made, store = checkpoints_of(record), open_store(record.store)
    add(made, 1, 7, tmp_path)
    later = record.keys.attempt(2).lease
    store.put(later, Lease(attempt=2, formed=False).to_json())  # of a worker that ended before its group formed
    add(made, 1, 8, tmp_path)
    store.put(record.keys.attempt(2).log(0), b"a line")
    store.put(later, Lease(attempt=2).to_json())
    with pytest.raises(Fenced) as fenced:
        add(made, 1, 9, tmp_path)
    assert later in str(fenced.value)
    assert checkpoints_of(record, attempt=2).newest(tmp_path).manifest.step == 8
    store.put(later, b"worn")  # whoever has written it, it is of a later attempt
    with pytest.raises(Fenced):
        made.check_lease()


@pytest.mark.parametrize(
    ("submission", "submitted", "reason"),
    [(1, "at noon", "replaced"), (1, "at one", "conflict"), (0, "at noon", "conflict")],
    ids=["of the same job", "of another job", "of another launcher"],
)
def test_a_later_attempt_of_the_same_job_is_one_that_this_worker_may_join(tmp_path, submission, submitted, reason):
    record = replace(record_in(tmp_path), submission=submission, submitted="at noon")
    store = open_store(record.store)
    store.put(record.keys.attempt(2).lease, Lease(attempt=2, submitted=submitted).to_json())
    with pytest.raises(Fenced) as fenced:
        check_lease(store, record, 1)
    assert fenced.value.reason == reason


def test_the_lease_of_another_generation_fences_no_attempt_of_this_one(tmp_path):
    record = record_in(tmp_path)
    made = checkpoints_of(record)
    store = open_store(record.store)
    store.put(f"{record.keys.generations}/2/attempts/2/lease.json", Lease(attempt=2, generation=2).to_json())
    add(made, 1, 7, tmp_path)


def test_the_checkpoint_that_was_gone_on_from_is_kept_before_one_that_was_damaged(tmp_path):
    record = record_in(tmp_path)
    made, store = checkpoints_of(record), open_store(record.store)
    for step in (7, 40):
        add(made, 1, step, tmp_path)
    store.put(f"{record.keys.checkpoints_of(0)}/1-40/{TRAINING}.safetensors", b"worn")
    later = checkpoints_of(record, attempt=2)
    assert later.newest(tmp_path).manifest.step == 7
    assert steps_in(store, record) == [7, 40]  # nothing goes before there is a newer one
    add(later, 2, 41, tmp_path)
    assert steps_in(store, record) == [7, 41]
    add(later, 2, 101, tmp_path)
    assert steps_in(store, record) == [41, 101]
