"""What makes another run, and what is the same run asked for differently: the table of docs/runs.md."""

import dataclasses
import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.messages import unnamed
from tests.runs import a_run
from tests.tiny_model import write_tiny_model
from train_func import Local
from train_func import run as run_module
from train_func.client.identity import check_ranks, differing, placed, record_of
from train_func.client.packages.wheels import Resolved, Wheel
from train_func.client.preflight import Facts
from train_func.client.source import Source, pack
from train_func.errors import InvalidInput
from train_func.records import Numerics
from train_func.run import NAME, Run, name_of
from train_func.storage import open_store
from train_func.worker.check import report_of
from train_func.worker.training.numerics import record_first

ROWS = "text,label\n" + "".join(f"the food was number {number},{number % 2}\n" for number in range(40))
SAME_RUN = {
    "deadline": {"deadline": 60},
    "max_attempts": {"max_attempts": 9},
    "hang_after": {"hang_after": 600},
    "micro_batch_size": {"micro_batch_size": 2},
}
OTHER_RUN = {
    "batch_size": {"batch_size": 8},
    "epochs": {"epochs": 1},
    "learning_rate": {"learning_rate": 1e-3},
    "seed": {"seed": 7},
    "parameters": {"parameters": {"x": 1}},
    "name": {"name": "other"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_tiny_model(folder / "tiny")
    write_tiny_model(folder / "other" / "tiny", seed=1)
    (folder / "rows.csv").write_text(ROWS)
    (folder / "moved").mkdir()
    (folder / "moved" / "rows.csv").write_text(ROWS)
    (folder / "changed").mkdir()
    (folder / "changed" / "rows.csv").write_text(ROWS.replace("food", "soup"))
    return folder


@pytest.fixture
def record(folder, tmp_path):
    """The record of a submission; with a task its inputs are read and fingerprinted."""

    def of_task(text="def f(): ...", **fields):
        run = a_run(**{"model": str(folder / "tiny"), "dataset": str(folder / "rows.csv"), **fields})
        report = report_of(run.to_dict(), None, tmp_path / "cache")
        assert report["faults"] == []
        return made(run, text, Facts(fingerprints=report["facts"]["fingerprints"]))

    def own(text="def f(): ...", **fields):
        return made(Run(**fields), text, Facts())

    def made(run, text, facts):
        source = Source(text=text, sha256=text, function="f", cells={}, imports={})
        return record_of(run, source, facts, open_store((tmp_path / "store").as_uri()), fresh=False)

    return {"with a task": of_task, "without a task": own}


@pytest.mark.parametrize("change", SAME_RUN.values(), ids=SAME_RUN)
@pytest.mark.parametrize("kind", ["with a task", "without a task"])
def test_another_budget_is_the_same_run(record, kind, change):
    before, asked = record[kind](), record[kind](**change)
    assert before.name == asked.name
    ((name, value),) = change.items()
    assert differing(before, asked) == {name: (getattr(Run(), name), value)}


@pytest.mark.parametrize("change", OTHER_RUN.values(), ids=OTHER_RUN)
@pytest.mark.parametrize("kind", ["with a task", "without a task"])
def test_what_decides_the_result_makes_another_run(record, kind, change):
    assert record[kind]().name != record[kind](**change).name
    assert record[kind]().name != record[kind]("def f(): return 1").name


def test_other_workers_are_the_same_run_only_where_they_do_not_decide_the_result(record):
    before, asked = record["with a task"](), record["with a task"](workers=3)
    assert before.name == asked.name
    assert differing(before, asked) == {"workers": (2, 3)}
    assert record["without a task"](workers=1).name != record["without a task"](workers=2).name


def test_packages_that_are_given_make_another_run_and_what_they_require_does_not(tmp_path):
    def name(given, *wheels):
        source = Source(text="", sha256="0", function="f", cells={}, imports={})
        store = open_store((tmp_path / "store").as_uri())
        brought = Resolved(given, [Wheel(tmp_path / f"{wheel}-py3-none-any.whl", "0") for wheel in wheels])
        return record_of(Run(), source, Facts(), store, fresh=False, packages=brought).name

    assert name({}) != name({"pies": "1.0"}) != name({"pies": "1.1"})
    assert name({"pies": "1.0"}, "pies-1.0", "crusts-1.0") == name({"pies": "1.0"}, "pies-1.0", "crusts-2.0")
    assert name({"pies": "1.0"}) == name({"pies": "1.0"}, "pies-1.0"), "the image may have it, or not"


@pytest.mark.parametrize("kind", ["with a task", "without a task"])
def test_a_newer_version_of_the_package_is_the_same_run_until_its_numbers_change(record, kind, monkeypatch):
    asked = record[kind]()
    before = dataclasses.replace(asked, package_version="0.0.9")
    assert differing(before, asked) == {"train_func": ("0.0.9", asked.package_version)}
    monkeypatch.setattr(run_module, "RESULT_VERSION", run_module.RESULT_VERSION + 1)
    assert record[kind]().name != asked.name


def test_inputs_are_known_by_their_content_wherever_they_lie(record, folder):
    of_task = record["with a task"]
    name = of_task().name
    assert of_task(dataset=str(folder / "moved" / "rows.csv")).name == name
    assert of_task(dataset=Path(folder / "rows.csv")).name == name
    assert of_task(dataset=str(folder / "changed" / "rows.csv")).name != name
    assert of_task(model=str(folder / "other" / "tiny")).name != name


def test_a_folder_gives_one_name_however_its_path_is_written(record, folder, monkeypatch):
    (folder / "tiny.v1").mkdir()
    write_tiny_model(folder / "tiny.v1")
    (folder / "newest").symlink_to(folder / "tiny.v1")
    (folder / "tiny.v1" / "below").mkdir()
    of_task = record["with a task"]
    name = of_task(model=str(folder / "tiny.v1")).name
    assert name.startswith("tiny-rows-")
    for inside, written in (
        (".", "tiny.v1"),
        (".", "./tiny.v1/"),
        (".", "moved/../tiny.v1"),
        (".", "newest"),
        ("tiny.v1", "."),
        ("tiny.v1/below", ".."),
    ):
        monkeypatch.chdir(folder / inside)
        assert of_task(model=written).name == name, written


def test_a_file_reached_by_a_link_keeps_the_ending_that_decides_how_it_is_read(folder):
    (folder / "blob").write_text(ROWS)
    (folder / "linked.csv").symlink_to(folder / "blob")
    (folder / "again.csv").symlink_to(folder / "rows.csv")
    addresses = {name: placed(a_run(dataset=str(folder / name))).task.dataset for name in ("linked.csv", "again.csv")}
    assert addresses == {"linked.csv": str(folder / "linked.csv"), "again.csv": str(folder / "rows.csv")}


def test_the_ending_that_decides_how_a_file_is_read_makes_another_run(record, folder):
    tabs = "\t".join(["text", "label"]) + "".join(f"\nrow {number}\t{number % 2}" for number in range(40))
    for ending in ("csv", "tsv"):
        (folder / f"tabs.{ending}").write_text(tabs)
    names = {record["with a task"](dataset=str(folder / f"tabs.{ending}")).name for ending in ("csv", "tsv")}
    assert len(names) == 2


def test_two_functions_of_one_text_are_two_runs(record):
    names = [name_of(Run(), function=name, source_sha256="same", fingerprints={}) for name in ("first", "second")]
    assert len({name.rpartition("-")[2] for name in names}) == 2


def test_every_field_of_the_task_that_is_no_input_makes_another_run(record, folder):
    of_task = record["with a task"]
    changes = [{"held_out": 0.25}, {"samples": 30}, {"max_length": 16}, {"labels": ("bad", "good")}]
    held_out = {"held_out": str(folder / "changed" / "rows.csv")}
    names = [of_task(**change).name for change in [{}, *changes, held_out]]
    assert len(set(names)) == 6
    assert all(NAME.fullmatch(name) for name in names)


def test_a_moved_branch_of_the_hub_is_another_run_and_its_name_no_part(record, folder):
    """A fingerprint of a Hub id is its commit, which stands for the revision."""
    run = a_run(model="me/tiny", dataset="me/rows")
    pinned = run.with_task({"model_revision": "v1"})
    commits = {"model": "c0ffee", "dataset": "beef"}
    source = Source(text="", sha256="", function="f", cells={}, imports={})

    def name(asked, fingerprints):
        store = open_store((folder / "store").as_uri())
        return record_of(asked, source, Facts(fingerprints=fingerprints), store, fresh=False).name

    assert name(run, commits) == name(pinned, commits)
    assert name(run, commits) != name(run, {**commits, "model": "0ff"})


@pytest.fixture
def cut_in_two(record, tmp_path):
    """A store whose run with a task has cut its batches of 16 rows into 2 micro-batches."""
    store = open_store((tmp_path / "store").as_uri())
    cut = Numerics(precision="fp32", num_micro_batches=2, micro_batch_size=8, device="x")
    record_first(store, record["with a task"]().keys.numerics, cut)
    return store


@pytest.mark.parametrize(
    ("workers", "gpus", "told"), [(3, 1, "3 ranks"), (1, 3, "workers=1 with 3 GPUs each: 3 ranks")]
)
def test_more_ranks_than_the_batches_of_a_run_have_parts_are_refused(record, cut_in_two, workers, gpus, told):
    asked = record["with a task"](workers=workers)
    with pytest.raises(InvalidInput, match=f"^{told}: ") as refused:
        check_ranks(cut_in_two, asked, gpus)
    assert unnamed(refused.value, "2 micro-batches", "fresh=True") == []
    check_ranks(cut_in_two, dataclasses.replace(asked, generation=2), gpus)  # which has cut nothing yet


def test_more_ranks_than_a_batch_has_rows_are_refused_where_fresh_does_not_help(record, cut_in_two):
    for asked in (record["with a task"](), record["with a task"](epochs=7)):
        with pytest.raises(InvalidInput) as refused:
            check_ranks(cut_in_two, asked, 9)
        assert unnamed(refused.value, "workers=2", "9 GPUs", "18 ranks", "batch_size=16") == []
        assert "fresh" not in str(refused.value)


def test_of_a_run_that_goes_on_the_cut_stays(record, cut_in_two, capsys):
    check_ranks(cut_in_two, record["with a task"](workers=2), 1)
    assert capsys.readouterr().out == ""
    check_ranks(cut_in_two, record["with a task"](workers=1, micro_batch_size=16), 2)
    assert "micro_batch_size=8" in capsys.readouterr().out


def test_a_submission_says_how_many_ranks_run_in_each_worker(record):
    asked = record["with a task"]()
    assert [Local(gpu=gpus).submission(asked, ()).ranks_per_worker for gpus in (0, 1, 3)] == [1, 1, 3]


def test_fresh_is_named_only_to_those_who_have_called_submit():
    cut = Numerics(precision="fp32", num_micro_batches=2, micro_batch_size=8, device="x")
    assert "fresh=True" in cut.idle_ranks_fault(3)
    assert cut.idle_ranks_fault(2) is None


@pytest.fixture
def name_with_package(tmp_path, monkeypatch):
    """The name of a run whose task lies in a folder, beside what says of which version of a package it is."""

    def name(folder, version):
        own_task = Path(__file__).parents[1] / "own_task"
        shutil.copytree(own_task, tmp_path / folder, dirs_exist_ok=True)
        about = tmp_path / folder / "parity_task-1.0.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: parity-task\nVersion: {version}\n")
        (about / "top_level.txt").write_text("parity\nparity_worker\n")
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(tmp_path / folder))
            run = Run(task=importlib.import_module("parity").Parity())
            source = dataclasses.replace(pack(an_own_function, run.task.modules), sha256="same")
            made = record_of(run, source, Facts(), open_store((tmp_path / "store").as_uri()), fresh=False)
        for module in ("parity", "parity_worker"):
            sys.modules.pop(module, None)
        return made.name

    return name


def an_own_function(parameters):
    return {"length": len(parameters)}


def test_another_version_of_the_installed_package_of_a_task_makes_another_run(name_with_package):
    one, same, other = (name_with_package("site-packages", version) for version in ("1.0", "1.0", "1.1"))
    assert one == same != other


def test_the_package_of_a_task_that_travels_as_source_is_no_part_of_the_name(name_with_package):
    assert name_with_package("local", "1.0") == name_with_package("local", "1.1")


def test_the_manual_has_the_table():
    manual = (Path(__file__).parents[2] / "docs/runs.md").read_text().partition("## Fields")[0]
    rows = {
        name: line for line in manual.splitlines() if line.startswith("| ") for name in re.findall(r"`(\w+)`", line)
    }
    for name in SAME_RUN:
        assert rows[name].count("same run") == 2
    for name in OTHER_RUN:
        assert rows[name].count("another run") == 2
    assert rows["workers"].split("|")[2:4] == [" same run ", " another run "]


def test_what_may_be_a_split_keeps_its_name_until_it_is_found_to_be_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test").mkdir()
    (tmp_path / "rows.csv").touch()
    run = a_run(dataset="rows.csv", held_out="test")
    assert placed(run).task.dataset == str(tmp_path / "rows.csv")
    assert placed(run).task.held_out == placed(run, {"dataset"}).task.held_out == "test"
    assert placed(run, {"dataset", "held_out"}).task.held_out == str(tmp_path / "test")
    assert placed(a_run(dataset="rows.csv", held_out="./test")).task.held_out == str(tmp_path / "test")
