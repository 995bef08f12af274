"""A saved table stays as long as a run or a process needs it, and no longer, however the process ends."""

import signal
import subprocess
import sys

import pandas as pd
import pytest

from tests.stored_runs import put_run
from tests.unit.test_submitted_at_once import Room, train_func
from train_func import Run, remove, submit
from train_func import tables as tables_module
from train_func.client.remove import Removal
from train_func.client.twin.local import Local
from train_func.errors import InvalidInput
from train_func.storage import open_store

HOLDS = """
import os, sys
from train_func import tables

for name in sys.argv[1:]:
    with tables.added(tables.tables_folder() / name):
        (tables.tables_folder() / name / "table.parquet").write_bytes(b"rows")
if not os.fork():
    sys.exit()  # a child that ends lets go of nothing
os.wait()
os.write(1, b"there\\n")
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def inputs(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    (tmp_path / "home/inputs").mkdir(parents=True)
    return tmp_path / "home/inputs"


@pytest.fixture
def process():
    """Starts processes that hold these tables, until they are told to end."""
    started = []

    def start(*names):
        command = [sys.executable, "-c", HOLDS, *names]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        assert started[-1].stdout.readline() == b"there\n"
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def tables(inputs):
    return sorted(path.parent.name for path in inputs.glob("*/table.parquet"))


def test_what_no_run_needs_goes_with_the_last_process_that_holds_it(inputs, process):
    first, second = process("own", "both"), process("both")
    assert tables(inputs) == ["both", "own"]
    first.communicate()
    assert tables(inputs) == ["both"]
    second.communicate()
    assert [path.name for path in inputs.iterdir()] == [".lock"]


def test_what_a_killed_process_has_left_goes_when_the_next_one_saves(inputs, process):
    left = process("left")
    left.send_signal(signal.SIGKILL)
    left.wait()
    assert tables(inputs) == ["left"]
    process("new")
    assert tables(inputs) == ["new"]


def test_what_runs_need_stays_until_the_last_of_them_is_removed(inputs, process, tmp_path):
    holder = process("table")
    store = open_store((tmp_path / "store").as_uri())
    names = [put_run(store, Run(name=name)).name for name in ("first", "last")]
    for name in names:
        assert tables_module.keep(store.address, name, [inputs / "table/table.parquet", "elsewhere.csv"])
    holder.communicate()
    backend = Local(store=store.address)
    assert not Removal.of(names[0], backend).tables
    remove(names[0], on=backend)
    assert tables(inputs) == ["table"]
    assert str(inputs) in str(Removal.of(names[1], backend))
    remove(names[1], on=backend)
    assert tables(inputs) == []


def test_a_process_that_holds_the_table_of_a_removed_run_can_submit_it_again(inputs, process):
    holder = process("table")
    tables_module.keep("file:///store", "run", [inputs / "table/table.parquet"])
    tables_module.release("file:///store", "run")
    assert tables(inputs) == ["table"]
    holder.communicate()
    assert tables(inputs) == []


def test_a_submission_notes_its_tables_and_a_refused_one_does_not(inputs, tmp_path):
    run = Run(inputs={"rows": pd.DataFrame({"x": range(7)})})

    def refuse(submission):
        raise InvalidInput("no room")

    store = open_store((tmp_path / "store").as_uri())
    with pytest.raises(InvalidInput, match="no room"):
        submit(train_func, run, on=Room(store, {}, "red", meanwhile=refuse))
    assert not list(inputs.glob("*/run-*"))
    job = submit(train_func, run, on=Room(store, {}, "red"))
    assert len(tables_module.of_run(store.address, job.name)) == 1


def test_a_table_below_a_folder_that_is_reached_by_a_link_is_one(inputs, tmp_path, monkeypatch):
    (tmp_path / "linked").symlink_to(inputs.parent, target_is_directory=True)
    address = inputs / ("0" * 64) / "table.parquet"
    for home in (inputs.parent, tmp_path / "linked"):
        monkeypatch.setenv("TRAIN_FUNC_HOME", str(home))
        assert tables_module.is_one(str(address))
        assert tables_module.is_one(str(home / address.relative_to(inputs.parent)))
    assert not tables_module.is_one(str(tmp_path / "own.parquet"))
