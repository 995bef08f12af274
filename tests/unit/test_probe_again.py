"""A store that is silent once, because the machine is busy, is no store that is away."""

import threading

from train_func.storage import open_store, probe


def test_a_store_that_is_silent_once_is_probed_again(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "PROBE_SECONDS", 0.5)
    store, once, busy = open_store((tmp_path / "store").as_uri()), threading.Lock(), threading.Event()

    class Busy:
        address = store.address
        get, delete = store.get, store.delete

        def put(self, key, data):
            if once.acquire(blocking=False):
                busy.wait(30)
            return store.put(key, data)

    try:
        probe.probe(Busy(), "probes", "a folder")
    finally:
        busy.set()
    assert once.locked()


def test_a_try_that_was_given_up_does_not_disturb_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr(probe, "PROBE_SECONDS", 0.5)
    store, first, go_on, written = open_store((tmp_path / "store").as_uri()), threading.Lock(), threading.Event(), []

    class Late:
        address = store.address
        delete = store.delete

        def put(self, key, data):
            late = first.acquire(blocking=False)
            if late:
                monkeypatch.setattr(probe, "PROBE_SECONDS", 30)  # of the next try
                go_on.wait(30)
            store.put(key, data)
            written.append(key)
            if late:
                done.set()

        def get(self, key):
            if len(written) == 1:  # the second try has written; now the first one does
                go_on.set()
                assert done.wait(30)
            return store.get(key)

    done = threading.Event()
    probe.probe(Late(), "probes", "a folder")
    assert len(set(written)) == 2
