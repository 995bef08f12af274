"""Two attempts that save at once to a real S3 server, by a network that loses, delays, repeats and cuts."""

import hashlib
import os
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.runs import a_run
from tests.s3_servers import only_these, s3_server
from tests.unit.test_checkpoint_damage import begin, steps_in
from tests.unit.test_checkpoint_races import SAVES, add
from tests.unreliable_proxy import FAULTS, unreliable_proxy
from train_func.errors import StorageFailed
from train_func.exits import FENCED, exit_of
from train_func.records import RunRecord
from train_func.result import FileEntry
from train_func.storage import open_store
from train_func.worker.checkpoint.store import TRAINING, Manifest

SEEDS = 20
AT_ONCE = 10
PAIR = (1, 2)


class Place:
    """A server, and a proxy before it; the two attempts have connections of their own, and the test one without it."""

    def __init__(self, server, proxy):
        self.proxy, address = proxy, f"s3://{server.bucket}"
        self.stores = {attempt: open_store(address) for attempt in PAIR}
        os.environ["AWS_ENDPOINT_URL_S3"] = server.endpoint
        self.store = open_store(address)
        for store in (self.store, *self.stores.values()):
            store.list("nothing/")  # connects


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    with (
        s3_server("minio", tmp_path_factory.mktemp("minio")) as server,
        unreliable_proxy(server.port, lambda path: "".join(re.findall(r"run-\d+", path)[:1])) as proxy,
        pytest.MonkeyPatch.context() as patched,
    ):
        only_these(patched, {**server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint})
        yield Place(server, proxy)


def record_of(place, seed):
    address = place.store.address
    return RunRecord(run=a_run(), name=f"run-{seed}", generation=1, store=address, function="f", source_sha256="0" * 64)


def attempts(place, record, number, folder, done):
    """What rank 0 of an attempt does, telling ``done`` how often it has saved; returns its exit code and why."""
    folder.mkdir()
    try:
        checkpoints = begin(place.stores[number], record, number)
        done(0)
        checkpoints.check_lease()
        found = checkpoints.newest(folder)
        step = found.manifest.step if found else 0
        assert found is None or found.refused == ()
        for more in range(1, SAVES + 1):
            add(checkpoints, number, step + more, folder)
            read_as_it_is(place.store, record)
            done(more)
    except StorageFailed as failure:
        return exit_of(failure).code, str(failure)
    return 0, ""


def newest_in(store, record):
    entries = store.list(f"{record.keys.checkpoints}/")
    return max(filter(None, (record.keys.checkpoint_id(entry.key) for entry in entries)))


def read_as_it_is(store, record):
    """Fails when the newest checkpoint that is there now is not whole."""
    while True:
        newest = newest_in(store, record)
        under = record.keys.checkpoint(newest)
        try:
            files = Manifest.from_json(store.get(f"{under}/manifest.json").data, "").files
            data = {name: store.get(f"{under}/{name}.safetensors").data for name in files}
        except StorageFailed as failure:
            assert failure.reason == "absent"
            assert newest_in(store, record) > newest, f"{newest} has a manifest, and is not whole: {failure}"
            continue
        assert files == {name: FileEntry(len(of), hashlib.sha256(of).hexdigest()) for name, of in data.items()}
        return


def check_one(place, seed, folder):
    """The second attempt begins when the first has saved as often as was drawn."""
    record, begins, saves = record_of(place, seed), threading.Event(), random.Random(seed).randint(0, SAVES)

    def told(done):
        if done >= saves:
            begins.set()

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(attempts, place, record, 1, folder / f"{seed}-1", told)
        assert begins.wait(60)
        codes = [attempts(place, record, 2, folder / f"{seed}-2", told), first.result(60)][::-1]
    assert [code for code, why in codes] in ([0, 0], [FENCED, 0]), (seed, codes)
    return codes[0][0]


def check_what_is_left(place, seed, folder):
    record = record_of(place, seed)
    last = begin(place.store, record, 3)
    found = last.newest(folder)
    assert (found.refused, found.manifest.attempt) == ((), 2), seed
    step = found.states[TRAINING].whole()["step"]
    assert step == found.manifest.step == newest_in(place.store, record).step
    add(last, 3, step + 1, folder)
    assert steps_in(place.store, record) == [step, step + 1], seed


@pytest.mark.parametrize("seeds", [range(SEEDS), pytest.param(range(SEEDS, 500), marks=pytest.mark.slow)])
def test_of_two_attempts_on_a_bad_network_the_later_leads(place, tmp_path_factory, seeds):
    folder = Path(tmp_path_factory.mktemp("attempts"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        first = list(pool.map(lambda seed: check_one(place, seed, folder), seeds))
        place.proxy.wait_until_idle()
        list(pool.map(lambda seed: check_what_is_left(place, seed, folder / f"{seed}-1"), seeds))
    assert set(first) == {0, FENCED}
    assert all(place.proxy.num_faults[fault] for fault in FAULTS)
