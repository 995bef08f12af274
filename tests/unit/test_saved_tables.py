"""A saved table stays as long as a run needs it, and for a week where none does."""

import os

import pandas as pd
import pytest

from tests.messages import refuses
from tests.stored_runs import put_run
from tests.unit.test_submission import Room, train_func
from train_func import Run, remove, submit
from train_func import tables as tables_module
from train_func.client.control.remove import Removal
from train_func.client.local.local import Local
from train_func.errors import InvalidInput
from train_func.storage import open_store


@pytest.fixture(autouse=True)
def inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    (tmp_path / "home/inputs").mkdir(parents=True)
    return tmp_path / "home/inputs"


def with_table(number):
    return Run(inputs={"rows": pd.DataFrame({"x": range(number)})}).inputs["rows"]


def tables(inputs):
    return {str(path) for path in inputs.glob("*/table.parquet")}


def test_what_no_run_needs_goes_a_week_later_when_another_table_is_saved(inputs):
    needed, unused, recent = map(with_table, (5, 6, 7))
    tables_module.keep("file:///store", "run", [needed])
    week_ago = os.stat(unused).st_mtime - tables_module.UNUSED_SECONDS - 1  # noqa: PTH116
    for path in (needed, unused):
        os.utime(path, (week_ago, week_ago))
    new = with_table(8)
    assert tables(inputs) == {needed, recent, new}


def test_what_runs_need_stays_until_the_last_of_them_is_removed(inputs, tmp_path):
    table = with_table(5)
    store = open_store((tmp_path / "store").as_uri())
    names = [put_run(store, Run(name=name)).name for name in ("first", "last")]
    for name in names:
        assert tables_module.keep(store.address, name, [table, "elsewhere.csv"])
    backend = Local(store=store.address)
    assert not Removal.of(names[0], backend).tables
    remove(names[0], on=backend)
    assert tables(inputs) == {table}
    assert str(inputs) in str(Removal.of(names[1], backend))
    remove(names[1], on=backend)
    assert tables(inputs) == set()


@pytest.fixture(autouse=True)
def address(tmp_path, monkeypatch):
    monkeypatch.setattr(Room, "jobs_of", {})
    monkeypatch.setattr(Room, "address", (tmp_path / "store").as_uri())


def test_a_run_whose_table_was_removed_with_another_one_is_refused_with_what_to_do(inputs, tmp_path):
    store = open_store((tmp_path / "store").as_uri())
    first, second = (Run(name=name, inputs={"rows": pd.DataFrame({"x": range(5)})}) for name in ("first", "second"))
    name = put_run(store, first).name
    tables_module.keep(store.address, name, [first.inputs["rows"]])
    remove(name, on=Local(store=store.address))
    with refuses("rows", second.inputs["rows"], "make the Run again"):
        submit(train_func, second, on=Room())


def test_a_submission_notes_its_tables_and_a_refused_one_does_not(inputs, tmp_path):
    run = Run(inputs={"rows": pd.DataFrame({"x": range(7)})})

    def refuse():
        raise InvalidInput("no room")

    store = open_store((tmp_path / "store").as_uri())
    with pytest.raises(InvalidInput, match="no room"):
        submit(train_func, run, on=Room(meanwhile=refuse))
    assert not list(inputs.glob("*/run-*"))
    job = submit(train_func, run, on=Room())
    assert len(tables_module.of_run(store.address, job.name)) == 1


def test_one_that_is_interrupted_while_its_job_is_created_keeps_its_tables_because_the_job_may_have_come(inputs):
    run = Run(inputs={"rows": pd.DataFrame({"x": range(7)})})

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        submit(train_func, run, on=Room(meanwhile=interrupt))
    assert len(list(inputs.glob("*/run-*"))) == 1


def test_a_table_below_a_folder_that_is_reached_by_a_link_is_one(inputs, tmp_path, monkeypatch):
    (tmp_path / "linked").symlink_to(inputs.parent, target_is_directory=True)
    address = inputs / ("0" * 64) / "table.parquet"
    for home in (inputs.parent, tmp_path / "linked"):
        monkeypatch.setenv("TRAIN_FUNC_HOME", str(home))
        assert tables_module.is_one(str(address))
        assert tables_module.is_one(str(home / address.relative_to(inputs.parent)))
    assert not tables_module.is_one(str(tmp_path / "own.parquet"))
