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
    store.put(record.keys.newest_checkpoint(1), b"worn")
    assert newest_checkpoint(store, record) == "behind step 7"
