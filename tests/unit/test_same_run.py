"""What makes another run, and what is the same run asked for differently: the table of docs/operations.md."""

import dataclasses
import importlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.messages import refuses
from tests.runs import a_run
from tests.stored_runs import put_submission
from tests.tiny_model import write_tiny_model
from train_func import Local
from train_func import run as run_module
from train_func.client.packages.requirements import Resolution, Wheel
from train_func.client.preflight import Facts, with_absolute_paths
from train_func.client.source import Source, pack
from train_func.client.submit import attach_to, check_ranks, record_of
from train_func.run import NAME, Run, replace_inputs
from train_func.worker.check import report_of

ROWS = "text,label\n" + "".join(f"the food was number {number},{number % 2}\n" for number in range(40))
SAME_RUN = {"deadline": 60, "max_attempts": 9, "hang_after": 600, "micro_batch_size": 2}
OTHER_RUN = {
    "batch_size": 8,
    "epochs": 1,
    "learning_rate": 1e-3,
    "seed": 7,
    "parameters": {"x": 1},
    "name": "other",
}
KINDS = pytest.mark.parametrize("kind", ["with a task", "without a task"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_tiny_model(folder / "tiny")
    write_tiny_model(folder / "other" / "tiny", seed=1)
    for name, rows in {"": ROWS, "moved": ROWS, "changed": ROWS.replace("food", "soup")}.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "rows.csv").write_text(rows)
    return folder


def record_for(store, run, text="def f(): ...", function="f", packages=None, **fingerprints):
    source = Source(text=text, sha256=text, function=function, cells={}, imports={})
    return record_of(run, source, Facts(fingerprints=fingerprints), store, packages)


@pytest.fixture
def record(folder, tmp_path, store):
    """The record of a submission; with a task its inputs are read and fingerprinted."""

    def of_task(text="def f(): ...", function="f", **fields):
        run = a_run(**{"model": str(folder / "tiny"), "dataset": str(folder / "rows.csv"), **fields})
        report = report_of(run.to_dict(), None, tmp_path / "cache")
        assert report["faults"] == []
        return record_for(store, run, text, function, **report["facts"]["fingerprints"])

    def own(text="def f(): ...", function="f", **fields):
        return record_for(store, Run(**fields), text, function)

    return {"with a task": of_task, "without a task": own}


@pytest.fixture
def note(store, capsys):
    """What is said of a run that was asked for differently before."""

    def note(before, asked):
        put_submission(store, before)
        attach_to(asked, Local(), store, "Succeeded")
        return capsys.readouterr().out.partition("note: ")[2].strip()

    return note


@pytest.mark.parametrize("name", SAME_RUN)
@KINDS
def test_another_budget_is_the_same_run(record, note, kind, name):
    before, asked = record[kind](), record[kind](**{name: SAME_RUN[name]})
    assert before.name == asked.name
    expected = f"submitted with {name}={getattr(Run(), name)}; you asked for {name}={SAME_RUN[name]}"
    assert note(before, asked) == expected


@KINDS
def test_what_decides_the_result_makes_another_run(record, kind):
    others = [record[kind](**{name: value}).name for name, value in OTHER_RUN.items()]
    others += [record[kind]("def f(): return 1").name, record[kind](function="g").name]
    assert len({record[kind]().name, *others}) == 1 + len(others)


def test_other_workers_are_the_same_run_only_where_they_do_not_decide_the_result(record, note):
    before, asked = record["with a task"](), record["with a task"](workers=3)
    assert before.name == asked.name
    assert note(before, asked) == "submitted with workers=2; you asked for workers=3"
    assert record["without a task"](workers=1).name != record["without a task"](workers=2).name


def test_a_newer_version_of_the_package_is_the_same_run_until_its_numbers_change(record, note, monkeypatch):
    asked = record["with a task"]()
    before = dataclasses.replace(asked, package_version="0.0.9")
    assert note(before, asked) == f"submitted with train_func=0.0.9; you asked for train_func={asked.package_version}"
    monkeypatch.setattr(run_module, "RESULT_VERSION", run_module.RESULT_VERSION + 1)
    assert record["with a task"]().name != asked.name


def test_packages_that_are_given_make_another_run_and_what_they_require_does_not(store, tmp_path):
    def name(versions, *wheels):
        packages = Resolution(versions, [Wheel(tmp_path / f"{wheel}-py3-none-any.whl", "0") for wheel in wheels])
        return record_for(store, Run(), packages=packages).name

    assert name({}) != name({"pies": "1.0"}) != name({"pies": "1.1"})
    assert name({"pies": "1.0"}, "pies-1.0", "crusts-1.0") == name({"pies": "1.0"}, "pies-1.0", "crusts-2.0")
    assert name({"pies": "1.0"}) == name({"pies": "1.0"}, "pies-1.0"), "the image may have it, or not"


def test_inputs_are_known_by_their_content_wherever_they_lie(record, folder):
    of_task = record["with a task"]
    name = of_task().name
    assert of_task(dataset=str(folder / "moved" / "rows.csv")).name == name
    assert of_task(dataset=Path(folder / "rows.csv")).name == name
    assert of_task(dataset=str(folder / "changed" / "rows.csv")).name != name
    assert of_task(model=str(folder / "other" / "tiny")).name != name
    others = [shutil.copytree(folder / "tiny", folder / f"tiny-{version}") for version in ("v1.0", "v1.1")]
    assert len({of_task(model=str(model), name="same").name for model in (folder / "tiny", *others)}) == 1


def test_a_folder_gives_one_name_however_its_path_is_written(folder, monkeypatch):
    (folder / "tiny.v1" / "below").mkdir(parents=True)
    (folder / "newest").symlink_to(folder / "tiny.v1")
    written = [(".", "tiny.v1"), (".", "./tiny.v1/"), (".", "moved/../tiny.v1"), (".", "newest")]
    for inside, model in [*written, ("tiny.v1", "."), ("tiny.v1/below", "..")]:
        monkeypatch.chdir(folder / inside)
        assert with_absolute_paths(a_run(model=model)).task.model == str(folder / "tiny.v1"), model


def test_a_file_keeps_the_ending_that_decides_how_it_is_read_and_another_makes_another_run(record, folder):
    (folder / "blob").write_text(ROWS)
    (folder / "linked.csv").symlink_to(folder / "blob")
    (folder / "again.csv").symlink_to(folder / "rows.csv")
    runs = [with_absolute_paths(a_run(dataset=str(folder / name))) for name in ("linked.csv", "again.csv")]
    assert [run.task.dataset for run in runs] == [str(folder / "linked.csv"), str(folder / "rows.csv")]
    tabs = "\t".join(["text", "label"]) + "".join(f"\nrow {number}\t{number % 2}" for number in range(40))
    for ending in ("csv", "tsv"):
        (folder / f"tabs.{ending}").write_text(tabs)
    assert len({record["with a task"](dataset=str(folder / f"tabs.{ending}")).name for ending in ("csv", "tsv")}) == 2


def test_what_may_be_a_split_keeps_its_name_until_it_is_found_to_be_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "test").mkdir()
    (tmp_path / "rows.csv").touch()
    run = a_run(dataset="rows.csv", held_out="test")
    tasks = [with_absolute_paths(run, files).task for files in ((), {"dataset"}, {"dataset", "held_out"})]
    assert {task.dataset for task in tasks} == {str(tmp_path / "rows.csv")}
    assert [task.held_out for task in tasks] == ["test", "test", str(tmp_path / "test")]
    written = with_absolute_paths(a_run(dataset="rows.csv", held_out="./test"))
    assert written.task.held_out == str(tmp_path / "test")


def test_every_field_of_the_task_that_is_no_input_makes_another_run(record, folder):
    changes = [{"held_out": 0.25}, {"samples": 30}, {"max_length": 16}, {"labels": ("bad", "good")}]
    held_out = {"held_out": str(folder / "changed" / "rows.csv")}
    names = [record["with a task"](**change).name for change in [{}, *changes, held_out]]
    assert len(set(names)) == 6
    assert all(NAME.fullmatch(name) for name in names)


def test_a_moved_branch_of_the_hub_is_another_run_and_its_name_no_part(store):
    """A fingerprint of a Hub id is its commit, which stands for the revision."""
    run = a_run(model="me/tiny", dataset="me/rows")
    pinned = replace_inputs(run, {"model_revision": "v1"})
    name = record_for(store, run, model="c0ffee", dataset="beef").name
    assert record_for(store, pinned, model="c0ffee", dataset="beef").name == name
    assert record_for(store, run, model="0ff", dataset="beef").name != name


def test_more_ranks_than_rows_of_a_global_batch_are_refused(record):
    asked = record["with a task"]()
    with refuses("workers=2", "9 GPUs", "18 ranks", "batch_size=16"):
        check_ranks(asked, Local(gpu=9).request(asked).ranks_per_worker)


def test_the_version_of_the_installed_package_of_a_task_is_part_of_the_name_and_of_one_that_travels_not(
    store, tmp_path, monkeypatch
):
    def name(folder, version):
        shutil.copytree(Path(__file__).parents[1] / "own_task", tmp_path / folder, dirs_exist_ok=True)
        about = tmp_path / folder / "parity_task-1.0.dist-info"
        about.mkdir(exist_ok=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: parity-task\nVersion: {version}\n")
        (about / "top_level.txt").write_text("parity\nparity_worker\n")
        with monkeypatch.context() as patched:
            patched.syspath_prepend(str(tmp_path / folder))
            run = Run(task=importlib.import_module("parity").Parity())
            source = dataclasses.replace(pack(an_own_function, run.task.modules), sha256="same")
            found = record_of(run, source, Facts(), store)
        for module in ("parity", "parity_worker"):
            sys.modules.pop(module, None)
        return found.name

    one, same, other = (name("site-packages", version) for version in ("1.0", "1.0", "1.1"))
    assert one == same != other
    assert name("local", "1.0") == name("local", "1.1")


def an_own_function(parameters):
    return {"length": len(parameters)}


def test_the_manual_has_the_table():
    manual = (Path(__file__).parents[2] / "docs/operations.md").read_text()
    manual = manual.partition("## The same run\n")[2].partition("\n## ")[0]
    rows = {
        name: line for line in manual.splitlines() if line.startswith("| ") for name in re.findall(r"`(\w+)`", line)
    }
    assert {rows[name].count("same run") for name in SAME_RUN} == {2}
    assert {rows[name].count("another run") for name in OTHER_RUN} == {2}
    assert rows["workers"].split("|")[2:4] == [" same run ", " another run "]
