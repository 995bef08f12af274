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
