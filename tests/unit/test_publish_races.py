"""Publishers at once: one result wins, the model folder is whole in the end, and of the newest generation."""

import json
import threading
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.stored_runs import whole_model
from tests.turns import Scheduled, Turns, at_call
from tests.unit.test_checkpoint_damage import MEMORY, record_in
from train_func.client.model.fetch import fetch
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire.result import complete
from train_func.worker.publish.publication import publish_files

SEEDS = 100
REPORT = {"step": 9, "num_steps": 9, "metrics": {"accuracy": 0.5}, "audit": {"world_size": 2}}
# Of the second publisher: its attempt and generation; None: it only completes what is there.
SECOND = {"another attempt": (2, 1), "another generation": (1, 2), "one that completes": None}


def made_by(folder, attempt, generation):
    """Files of an attempt; of another generation one more, and one less."""
    own = folder / f"of-{attempt}-{generation}"
    own.mkdir()
    for name in ("config.json", "model.safetensors", f"only-{generation}.json"):
        (own / name).write_text(f"{name} of attempt {attempt}, generation {generation}")
    return own


def publishes(store, record, folder, attempt, generation, ended):
    """As the worker that has trained; says how it ended."""
    own = replace(record, generation=generation)
    try:
        publish_files(store, own, attempt, folder / f"of-{attempt}-{generation}", REPORT)
        ended[attempt, generation] = "published"
    except StorageFailed as failure:
        ended[attempt, generation] = failure.reason
    except BaseException as error:
        ended[attempt, generation] = error


def check(record, folder, second, ended):
    """What two publishers have left: ``fetch`` and ``sha256sum`` verify every byte of it."""
    store = open_store(record.store)
    generation = 2 if second == (1, 2) else 1
    won = json.loads(store.get(replace(record, generation=generation).keys.result).data)
    got = fetch(store, replace(record, generation=generation).keys, folder / "fetched")
    copy = whole_model(store, record.keys.model, folder / "copy")
    assert [path.read_bytes() for path in sorted(got.iterdir())] == [
        path.read_bytes() for path in sorted(copy.iterdir())
    ]
    assert json.loads((got / "manifest.json").read_text()) == won
    names = {path.name for path in got.iterdir()} - {"manifest.json", "SHA256SUMS"}
    assert names == {"config.json", "model.safetensors", f"only-{generation}.json"}
    assert {entry.key.rpartition("/")[2] for entry in store.list(f"{record.keys.model}/")} == names | {
        "manifest.json",
        "SHA256SUMS",
    }
    expected = {(1, 1): "published"}
    if second == (2, 1):
        lost = (2, 1) if won["attempt"] == 1 else (1, 1)
        expected = {(1, 1): "published", (2, 1): "published", lost: "conflict"}
    elif second:
        expected[second] = "published"
    assert ended == expected


@pytest.mark.parametrize("seeds", [range(SEEDS), pytest.param(range(SEEDS, 1000), marks=pytest.mark.slow)])
@pytest.mark.parametrize("second", sorted(SECOND))
def test_two_publishers_whose_calls_mix_leave_one_whole_model(second, seeds):
    for seed in seeds:
        with TemporaryDirectory(dir=MEMORY) as folder:
            mix(seed, SECOND[second], Path(folder))


def mix(seed, second, folder):
    record, ended = record_in(folder), {}
    turns = Turns(seed, (1, 2))
    for of in [(1, 1), *([second] if second else [])]:
        made_by(folder, *of)

    def write(writer):
        store = Scheduled(open_store(record.store), turns, writer)
        try:
            if writer == 1 or second:
                publishes(store, record, folder, *((1, 1) if writer == 1 else second), ended)
            else:
                while not complete(store, record):
                    pass
        finally:
            turns.leave(writer)

    writers = [threading.Thread(target=write, args=(writer,)) for writer in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    check(record, folder, second, ended)


@pytest.mark.parametrize("second", sorted(SECOND))
def test_a_publisher_that_stood_still_at_any_call_changes_no_other_result(second):
    number, is_over = 0, False
    while not is_over:
        with TemporaryDirectory(dir=MEMORY) as folder:
            is_over = not stand_still(number, SECOND[second], Path(folder))
        number += 1
    assert number > 10


def stand_still(number, second, folder):
    """Whether the first publisher came to this call; the second does all of its work before it."""
    record, ended, came = record_in(folder), {}, []
    for of in [(1, 1), *([second] if second else [])]:
        made_by(folder, *of)

    def others():
        came.append(number)
        store = open_store(record.store)
        if second:
            publishes(store, record, folder, *second, ended)
        else:
            complete(store, record)

    publishes(at_call(open_store(record.store), number, others), record, folder, 1, 1, ended)
    if came:
        check(record, folder, second, ended)
    return bool(came)
