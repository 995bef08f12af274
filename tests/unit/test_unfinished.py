"""A new run that resembles an unfinished one with a checkpoint says so, once; and where a run goes on."""

from dataclasses import replace

import pytest

from tests.messages import unnamed
from tests.stored_runs import put_checkpoint, put_run
from train_func import Local, Run
from train_func.client.stored_run import newest_checkpoint
from train_func.client.unfinished import unfinished_note
from train_func.run import name_of
from train_func.storage import open_store

RUN = Run(workers=2, parameters={"lr": 0.1})


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    return open_store((tmp_path / "store").as_uri())


def asked(store, source="0", **changes):
    """The record of a run that is about to be submitted."""
    record = put_run(open_store(f"{store.address}-aside"), RUN)
    run, made_of = replace(RUN, **changes), {"function": "train", "source_sha256": source, "fingerprints": {}}
    return replace(record, run=run, name=name_of(run, **made_of), store=store.address, **made_of)


def put_unfinished(store, code=1, step=7):
    record = put_run(store, RUN, code=code)
    put_checkpoint(store, record, step)
    return record


@pytest.mark.parametrize(
    ("source", "changes", "named"),
    [
        ("1", {}, ["source"]),
        ("0", {"parameters": {"lr": 0.2}}, ["lr"]),
        ("1", {"parameters": {}}, ["source", "lr"]),
        ("0", {"workers": 3}, ["workers", "2 there", "3 here"]),
        ("1", {"workers": 1, "parameters": {}}, ["source", "lr", "workers", "2 there", "1 here"]),
    ],
)
def test_what_is_changed_is_told_with_the_run_whose_checkpoint_is_not_used(store, source, changes, named):
    other = put_unfinished(store)
    note = unfinished_note(asked(store, source, **changes), Local(), store)
    assert unnamed(note, other.name, "Failed", "behind step 7", *named) == []
    told_of = "source", "lr", "workers"
    assert [word in note for word in told_of] == [word in named for word in told_of]


def test_what_differs_otherwise_has_no_checkpoint_or_has_succeeded_is_not_told_of(store):
    assert unfinished_note(asked(store, "1"), Local(), store) == ""
    other = put_run(store, RUN, code=1)
    assert unfinished_note(asked(store, "1"), Local(), store) == ""
    put_checkpoint(store, other, step=7)
    for changes in ({"seed": 7}, {"epochs": 1}):
        assert unfinished_note(asked(store, "1", **changes), Local(), store) == ""
    put_run(store, RUN)
    assert unfinished_note(asked(store, "1"), Local(), store) == ""


def test_a_run_goes_on_behind_the_newest_step_of_its_last_training(store):
    record = put_unfinished(store, step=7)
    assert newest_checkpoint(store, record) == "behind step 7"
    put_checkpoint(store, record, step=3, training=1)
    assert unnamed(newest_checkpoint(store, record), "step 3", "training 2") == []
    store.put(record.keys.newest_checkpoint(1), b"worn")
    assert newest_checkpoint(store, record) == "behind step 7"
