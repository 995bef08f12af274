"""Where a run goes on."""

import pytest

from tests.messages import unnamed
from tests.stored_runs import put_checkpoint, put_run
from train_func import Run
from train_func.client.stored_run import newest_checkpoint
from train_func.storage import open_store

RUN = Run(workers=2, parameters={"lr": 0.1})


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    return open_store((tmp_path / "store").as_uri())


def test_a_run_goes_on_behind_the_newest_step_of_its_last_training(store):
    record = put_run(store, RUN, code=1)
    put_checkpoint(store, record, step=7)
    assert newest_checkpoint(store, record) == "behind step 7"
    put_checkpoint(store, record, step=3, training=1)
    assert unnamed(newest_checkpoint(store, record), "step 3", "training 2") == []
    for entry in store.list(f"{record.keys.checkpoints_of(1)}/"):
        store.delete(entry.key)
    assert newest_checkpoint(store, record) == "behind step 7"


def test_a_checkpoint_of_a_later_attempt_is_newer_and_one_without_a_manifest_is_none(store):
    record = put_run(store, RUN, code=1)
    put_checkpoint(store, record, step=100)
    store.put(f"{record.keys.checkpoints_of(0)}/10-9/manifest.json", b"{}")
    store.put(f"{record.keys.checkpoints_of(0)}/10-12/training.safetensors", b"on its way")
    assert newest_checkpoint(store, record) == "behind step 9"
