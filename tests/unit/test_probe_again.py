"""A store that is silent once, because the machine is busy, is no store that is away; one that stays silent is."""

import threading

import pytest

from tests.mounts import needs_silent_mount, run_on_silent_mount
from train_func.storage import open_store, retry


def test_a_store_that_is_silent_once_is_probed_again(tmp_path):
    store, once, busy = open_store((tmp_path / "store").as_uri()), threading.Lock(), threading.Event()

    class Busy:
        address = store.address
        get, delete = store.get, store.delete

        def put(self, key, data, **conditions):
            if once.acquire(blocking=False):
                busy.wait(120)
            return store.put(key, data, **conditions)

    try:
        retry.probe(Busy(), "probes", "a folder", seconds=60.0, again=0.5)
    finally:
        busy.set()
    assert once.locked()


def test_an_answer_to_the_first_try_counts_though_a_second_one_is_under_way(tmp_path):
    store, first, second, end = (
        open_store((tmp_path / "store").as_uri()),
        threading.Lock(),
        threading.Event(),
        threading.Event(),
    )

    class Late:
        address = store.address
        get, delete = store.get, store.delete

        def put(self, key, data, **conditions):
            if conditions:
                return store.put(key, data, **conditions)
            if first.acquire(blocking=False):
                assert second.wait(60)
            else:
                second.set()
                end.wait(120)
            return store.put(key, data, **conditions)

    try:
        retry.probe(Late(), "probes", "a folder", seconds=60.0, again=0.1)
    finally:
        end.set()
    assert second.is_set()


@pytest.mark.parametrize("when", ["opened", "probed"])
@needs_silent_mount
def test_a_mount_that_does_not_answer_is_refused_within_one_limit_for_all_tries(tmp_path, when):
    reason, ratio = run_on_silent_mount(SILENT, tmp_path, when)
    assert reason == "unreachable"
    assert 1 <= float(ratio) < 2, "times the limit"


SILENT = """
import sys, time
from train_func.errors import StorageFailed
from train_func.storage import open_store, retry

retry.PROBE_SECONDS = 3.0
address = f"file://{sys.argv[1]}/store"
store = None if sys.argv[2] == "opened" else open_store(address)
fall_silent()
begun = time.monotonic()
try:
    store.probe("probes") if store else open_store(address)
except StorageFailed as failed:
    print(failed.reason)
    print((time.monotonic() - begun) / retry.PROBE_SECONDS)
"""


def test_a_try_that_is_late_does_not_disturb_the_next(tmp_path):
    store, first, go_on, written = open_store((tmp_path / "store").as_uri()), threading.Lock(), threading.Event(), []

    class Late:
        address = store.address
        delete = store.delete

        def put(self, key, data, **conditions):
            if conditions:
                return store.put(key, data, **conditions)
            late = first.acquire(blocking=False)
            if late:
                go_on.wait(30)
            version = store.put(key, data)
            written.append(key)
            if late:
                done.set()
            return version

        def get(self, key):
            if len(written) == 1:  # the second try has written; now the first one does
                go_on.set()
                assert done.wait(30)
            return store.get(key)

    done = threading.Event()
    retry.probe(Late(), "probes", "a folder", seconds=60.0, again=0.5)
    assert len(set(written)) == 2
