"""The table of the runs in a store: what each asked for, how it ended, what it gave, and how large it is."""

import json
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest

from tests import stored_runs
from tests.messages import refuses, unnamed
from tests.runs import a_run
from tests.stored_runs import put_run, put_submission, store_address
from train_func import Local, Run, runs
from train_func.client.cli import main
from train_func.client.status import Condition, JobStatus
from train_func.errors import InvalidInput
from train_func.storage import open_store
from train_func.wire.layout import RunKeys
from train_func.wire.metrics import Row, to_csv
from train_func.wire.records import EndRecord
from train_func.wire.result import Result

FIRST, SECOND = "2026-01-02T03:04:05.000+00:00", "2026-03-04T05:06:07.000+00:00"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


def table(store, name="", backend=Local):
    return runs(name, on=backend(store=store.address))


@pytest.mark.parametrize("kind", ["folder", "minio"])
def test_a_row_tells_task_time_state_results_and_size(kind, tmp_path):
    with store_address(kind, tmp_path) as address:
        store = open_store(address)
        asked = a_run(model="tiny", dataset="stars.csv", workers=2, name="stars")
        done = put_run(store, asked, submitted=FIRST, metrics={"accuracy": 0.5, "f1": 0.25}, returned={"f1": 0.75})
        failed = put_run(store, Run(name="own"), function="mine", submitted=SECOND, code=65)
        found = table(store)
    assert isinstance(found, pd.DataFrame)
    assert [*found.index] == [failed.name, done.name]
    assert [*found["task"]] == ["mine()", "TextClassification"]
    assert [*found["submitted"]] == [pd.Timestamp(SECOND), pd.Timestamp(FIRST)]
    assert [*found["state"]] == ["Failed", "Succeeded"]
    assert [*found["workers"]] == [1, 2]
    assert found.loc[done.name, ["metrics.accuracy", "metrics.f1"]].tolist() == [0.5, 0.75]
    assert found.loc[failed.name, ["metrics.accuracy"]].isna().all()


def test_only_runs_in_the_given_states_are_listed_and_a_state_that_there_is_not_is_refused(store, capsys):
    done = put_run(store, Run(name="own"), submitted=FIRST)
    failed = put_run(store, Run(name="own", epochs=7), code=65, submitted=SECOND)
    gone = put_run(store, Run(name="own", epochs=8), code=None, submitted=FIRST)
    backend = Local(store=store.address)
    assert [*runs(state="Failed", on=backend).index] == [failed.name]
    assert {*runs(state=["succeeded", "Absent"], on=backend).index} == {done.name, gone.name}
    with refuses("'Fialed'", "Failed", "Succeeded", "Unknown"):
        runs(state=["Failed", "Fialed"], on=backend)
    assert main(["runs", "--state", "Failed", "--state", "Absent", "--store", store.address, "--json"]) == 0
    assert {run["name"] for run in json.loads(capsys.readouterr().out)["runs"]} == {failed.name, gone.name}


def test_the_size_is_that_of_all_files_of_all_generations(store):
    run = Run(name="own")
    record = put_run(store, run)
    put_run(store, run, generation=2)
    store.put(f"{record.keys.attempt(1).model}/more", b"x" * 10_000_000)
    num_bytes = sum(entry.size for entry in store.list(f"{record.name}/"))
    assert num_bytes > 10_000_000
    assert table(store)["size_mb"].tolist() == [round(num_bytes / 1e6, 3)]


def test_of_what_was_asked_the_differences_are_shown_and_nothing_else_on_the_command_too(store, capsys):
    put_run(store, Run(name="a", parameters={"lr": 0.1, "depth": 3, "layers": [7, 7]}))
    put_run(store, Run(name="b", parameters={"lr": 0.2, "depth": 3, "layers": [7]}, epochs=7))
    found = table(store).sort_index()
    columns = [column for column in found.columns if "." in column or column in ("epochs", "seed", "generation")]
    assert columns == ["epochs", "parameters.lr", "parameters.layers"]
    assert found["parameters.lr"].tolist() == [0.1, 0.2]
    assert found["parameters.layers"].tolist() == ["[7, 7]", "[7]"]
    assert main(["runs", "--store", store.address]) == 0
    lines = {line.split("-")[0]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert unnamed(lines["b"], "epochs=7", "parameters.lr=0.2", "parameters.layers=[7]") == []
    assert ("depth" in lines["a"], "lr=0.1" in lines["a"]) == (False, True)


def test_fields_of_a_task_are_compared_among_runs_with_a_task(store):
    for dataset in ("stars.csv", "likes.csv"):
        put_run(store, a_run(model="tiny", dataset=dataset))
    put_run(store, Run(parameters={"lr": 0.1}))
    shown = {column for column in table(store).columns if column.startswith(("task.", "parameters."))}
    assert shown == {"task.dataset", "parameters.lr"}


def test_a_run_without_a_task_has_no_value_in_a_field_that_no_such_run_has_set(store):
    for epochs in (2, 5):
        put_run(store, a_run(model="tiny", dataset="stars.csv", epochs=epochs, batch_size=8))
    own = put_run(store, Run(name="own"))
    columns = table(store)
    assert (sorted(columns["epochs"].dropna()), "batch_size" in columns) == ([2, 5], False)
    assert columns["epochs"].isna()[own.name]
    put_run(store, Run(name="own", epochs=7))
    assert table(store)["epochs"][own.name] == 3


def test_a_command_in_a_terminal_folds_the_rows_that_are_wider(store, capsys, monkeypatch):
    record = put_run(store, Run(name="own", parameters={"words": "x" * 30}), metrics={"loss": 0.5, "accuracy": 0.25})
    put_run(store, Run(name="own", parameters={"words": "y"}), code=65)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["runs", "--store", store.address]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert unnamed(text, record.name, "x" * 30, "loss=0.5", "accuracy=0.25") == []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert main(["runs", "--store", store.address]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_runs_of_one_function_that_differ_in_their_source_or_packages_differ_in_the_table(store):
    put_run(store, Run(name="a"), source="0123456789" * 6)
    put_run(store, Run(name="b"), source="1" * 64, wheels={"humanize-4.9.0-py3-none-any.whl": "2" * 64})
    put_run(store, Run(name="c"), source="1" * 64, wheels={"humanize-4.17.0-py3-none-any.whl": "3" * 64})
    found = table(store).sort_index()
    assert found["source"].tolist() == ["0123456", "1111111", "1111111"]
    assert found["packages"].tolist()[1:] == ["humanize==4.9.0", "humanize==4.17.0"]


def test_what_is_empty_for_all_runs_has_no_column(store):
    results = {"loss": 0.5, "unknown": float("nan"), "note": ""}
    put_run(store, Run(name="a", parameters={"lr": None, "depth": 0}), metrics=results)
    put_run(store, Run(name="b", parameters={"depth": None}), metrics={"failed": False})
    columns = [column for column in table(store).columns if "." in column]
    assert columns == ["metrics.failed", "metrics.loss", "parameters.depth"]


def test_of_a_metric_that_was_no_finite_number_the_note_of_the_result_is_shown(store):
    put_run(store, Run(name="odd"), metrics={"loss": None, "rows": 7}, note="loss (nan)")
    put_run(store, Run(name="even"), metrics={"loss": 0.5})
    assert set(table(store)["note"]) == {"loss (nan)", ""}


def test_a_table_is_shown_by_its_rows_and_not_by_a_path(store, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    for rows in ([1.0, 2.0], [3.0]):
        put_run(store, Run(name=f"of-{len(rows)}", inputs={"df": pd.DataFrame({"x": rows})}))
    assert [cell.partition(", ")[2] for cell in table(store).sort_index()["inputs.df"]] == [
        "1 row",
        "2 rows",
    ]


def test_only_runs_whose_names_begin_as_asked_are_listed(store):
    for name in ("stars", "stars-2", "likes"):
        put_run(store, Run(name=name))
    assert {name.rpartition("-")[0] for name in table(store, "stars").index} == {"stars", "stars-2"}


def test_of_several_generations_the_newest_counts(store):
    put_run(store, Run(name="a"), metrics={"loss": 0.5})
    put_run(store, Run(name="a"), generation=2, submitted=SECOND, code=65)
    put_run(store, Run(name="b"))
    found = table(store).sort_index()
    assert found["generation"].tolist() == [2, 1]
    assert found["state"].tolist() == ["Failed", "Succeeded"]


def put_end(store, record, worker, code, cause, follows=None, attempt=1):
    end = EndRecord(
        attempt=attempt,
        worker=worker,
        exit_code=code,
        cause=cause,
        message="",
        follows=follows,
        submitted=record.submitted,
        root_cause=follows is None,
    )
    stored_runs.put_end(store, record, end)


def test_the_cause_of_a_failure_is_that_of_the_worker_that_it_began_with(store):
    failed = put_run(store, Run(name="a", workers=3), code=None)
    put_end(store, failed, 0, 70, "peer", follows=2)
    put_end(store, failed, 1, 143, "preemption")
    put_end(store, failed, 2, 70, "data")
    put_run(store, Run(name="b"), code=0)
    found = table(store).sort_index()
    assert found["cause"].fillna("").tolist() == ["data", ""]


class Late(Local):
    """Its jobs have failed because they were not done in time."""

    def jobs(self):
        status = JobStatus((Condition("Failed", "True", "DeadlineExceeded", ""),), is_over_deadline=True)
        names = open_store(self.store).names("")
        return [SimpleNamespace(name=name.removesuffix("/"), status=lambda: status) for name in names]


def test_a_job_that_was_not_done_in_time_has_that_cause_whatever_its_workers_were_told(store):
    record = put_run(store, Run(), code=None)
    put_end(store, record, 0, 143, "preemption")
    assert table(store, backend=Late)["cause"].tolist() == ["deadline"]


NOTE = "not measured: the function was ended before the evaluation of the held-out rows had come to its end"


def test_a_note_of_the_result_is_shown_in_a_few_words_on_the_command_too(store, capsys):
    record = put_run(store, Run(name="a"), metrics={"loss": 0.5})
    put_run(store, Run(name="b"), code=65)
    store.put(record.keys.result, Result.write(1, 1, {"metrics": {}, "returned": {}, "note": NOTE}, {}))
    found = table(store).sort_index()
    shown, other = found["note"]
    assert (shown.startswith("not measured"), len(shown) < 60, other) == (True, True, "")
    assert main(["runs", "--store", store.address]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert [word for word in ("CAUSE", "NOTE", "IN PLACE") if word in heading] == ["CAUSE", "NOTE"]
    assert sum("not measured" in line for line in lines) == 1
    assert sum(" data " in f"{line} " for line in lines) == 0
    assert sum(" code " in f"{line} " for line in lines) == 1


@pytest.mark.parametrize("kind", ["folder", "minio"])
def test_a_store_without_runs_gives_an_empty_table(kind, tmp_path):
    with store_address(kind, tmp_path) as address:
        assert len(table(open_store(address))) == 0


class Busy(Local):
    """Its jobs run."""

    def jobs(self):
        class Running:
            def __init__(self, name):
                self.name = name

            def status(self):
                return JobStatus(conditions=(Condition("Running", "True", "", ""),))

        return [Running(RunKeys(name.removesuffix("/")).job_name) for name in open_store(self.store).names("")]


def test_of_a_job_that_is_there_the_state_is_its_own(store):
    put_run(store, Run(), code=None)
    assert table(store, backend=Busy)["state"].tolist() == ["Running"]
    assert table(store)["state"].tolist() == ["Absent"]


def test_of_a_job_of_another_backend_only_an_end_is_known(store, capsys):
    elsewhere = {"backend": "Cluster", "place": "a lab", "identity": {"ca": "1"}, "found_by": {"namespace": "lab"}}
    for record in (put_run(store, Run(name="ended")), put_run(store, Run(name="open"), code=None)):
        put_submission(store, record, **elsewhere)
    assert table(store).sort_index()["state"].tolist() == ["Succeeded", "Unknown"]
    assert unnamed(capsys.readouterr().out, record.name, "--on Cluster", "namespace=lab") == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"no JSON", b'{"format": 99}', b'{"run": 1}'])
def test_a_record_that_cannot_be_read_is_named_and_hides_no_other(store, capsys, content):
    damaged, whole = put_run(store, Run(name="damaged")), put_run(store, Run(name="whole"))
    store.put(damaged.keys.submission(2), content)
    found = table(store)
    assert found["state"].to_dict() == {whole.name: "Succeeded", damaged.name: "Unknown"}
    assert (found["size_mb"] > 0).all()
    assert unnamed(capsys.readouterr().out, damaged.name) == []


def test_a_number_of_any_size_hides_no_run(store):
    for seed, number in ((1, 2**70), (2, 7)):
        put_run(store, Run(name="large", seed=seed), returned={"hash": number})
    assert {*table(store)["metrics.hash"]} == {2**70, 7}


@pytest.mark.parametrize("number", [5, 2**60 + 1, 2**70])
def test_a_whole_number_stays_one_though_another_run_lacks_it(store, number):
    has, lacks = put_run(store, Run(name="a"), returned={"hash": number}), put_run(store, Run(name="b"))
    cells = table(store)["metrics.hash"]
    assert (str(cells[has.name]), cells.isna()[lacks.name]) == (str(number), True)


def test_a_result_that_cannot_be_read_leaves_the_rest_of_the_row(store, capsys):
    record = put_run(store, Run(name="own"), metrics={"loss": 0.5})
    store.put(record.keys.result, b"{")
    found = table(store)
    assert found[["task", "state"]].values.tolist() == [["train()", "Succeeded"]]
    assert "metrics.loss" not in found
    assert unnamed(capsys.readouterr().out, record.keys.result) == []


def test_a_model_in_place_whose_record_cannot_be_read_is_named_and_hides_no_run(store, capsys):
    record = put_run(store, Run(name="own"))
    store.put("models/reviews/promotions/1.json", b"{")
    assert [*table(store).index] == [record.name]
    assert unnamed(capsys.readouterr().out, "models/reviews/promotions/1.json") == []


def test_a_call_without_submit_and_foreign_folders_are_named(store, capsys):
    name = f"own-{'0' * 12}"
    store.put(f"{name}/attempts/1/lease.json", b"{}")
    for key in ("data/rows.csv", f"inputs/{'0' * 64}/rows.csv", "probes/probe-1"):
        store.put(key, b"x")
    assert [*table(store).index] == [name]
    out = capsys.readouterr().out
    assert unnamed(out, name, "submission", "data") == []
    assert "inputs" not in out
    assert "probes" not in out


def test_a_beginning_that_is_no_text_is_refused(store):
    with pytest.raises(InvalidInput, match="name=7"):
        runs(7, on=Local(store=store.address))


def test_a_run_that_is_removed_meanwhile_is_left_out(store, monkeypatch):
    record, other = put_run(store, Run(name="a")), put_run(store, Run(name="b"))
    names = type(store).names

    def then_removed(self, folder):
        found = names(self, folder)
        for entry in store.list(f"{record.name}/") if folder == "" else []:
            store.delete(entry.key)
        return found

    monkeypatch.setattr(type(store), "names", then_removed)
    assert [*table(store).index] == [other.name]


@pytest.mark.parametrize("num_before", [0, 1])
def test_a_submission_that_is_taken_back_meanwhile_counts_no_more(store, monkeypatch, num_before):
    record = put_run(store, Run(name="a"), code=None, submitted=FIRST)
    newest = put_submission(store, replace(record, submitted=SECOND)) if num_before else record
    get, gone, asked = type(store).get, newest.keys.submission(newest.submission), []

    def taken_back(self, key):
        if key == gone:
            asked.append(key)
            assert len(asked) < 10, "it is asked for again and again"
            store.delete(gone)
        return get(self, key)

    monkeypatch.setattr(type(store), "get", taken_back)
    found = table(store)
    assert [*found.index] == [record.name]
    assert [*found["submitted"].notna()] == [bool(num_before)]


def test_a_notebook_shows_how_long_ago_runs_were_submitted_their_states_and_their_losses_as_curves(store):
    done = put_run(store, Run(name="own"), submitted=FIRST, metrics={"accuracy": 0.123456})
    rows = [Row(step, FIRST, {"loss": loss}) for step, loss in enumerate([0.9, float("nan"), 0.5, 0.4], 1)]
    store.put(done.keys.attempt(1).metrics_csv(1), to_csv(rows))
    put_run(store, Run(name="other"), submitted=SECOND, code=65)
    html = runs(on=Local(store=store.address))._repr_html_()
    assert re.findall(r"[✓✗] \w+", html) == ["✗ Failed", "✓ Succeeded"]
    assert (html.count(" ago"), html.count("<polyline"), "0.1235" in html) == (2, 1, True)


def test_the_state_the_results_and_the_time_come_first_and_what_is_long_last(store):
    put_run(store, a_run(model="tiny", dataset="stars.csv"), metrics={"accuracy": 0.5}, note="a word " * 99)
    put_run(store, Run(name="own", epochs=7), metrics={"accuracy": 0.75})
    columns = [*table(store).columns]
    assert columns[:3] == ["state", "metrics.accuracy", "submitted"]
    assert columns[-2:] == ["task", "note"]


@pytest.mark.parametrize(("width", "left_out"), [(80, "task, note"), (400, "")])
def test_as_text_the_table_has_the_columns_for_which_the_terminal_has_room(store, monkeypatch, width, left_out):
    monkeypatch.setenv("COLUMNS", str(width))
    done = put_run(store, Run(name="own"), submitted=FIRST, metrics={"accuracy": 0.5}, note="a word " * 99)
    lines = repr(table(store)).splitlines()
    assert max(map(len, lines)) <= width
    assert unnamed("\n".join(lines), done.name, "Succeeded", "0.5", "2026-01-02 03:04", "metrics.accuracy") == []
    assert ("a word" in "\n".join(lines), lines[-1].endswith(left_out)) == (not left_out, True)
    assert table(store)["submitted"].tolist() == [pd.Timestamp(FIRST)]  # is no text in the table
    assert repr(table(store, "other"))  # of no runs


def test_of_many_runs_a_notebook_shows_the_newest_and_how_many_there_are(store):
    for number in range(33):
        put_run(store, Run(name=f"own-{number}"), submitted=f"2026-01-02T03:04:{number:02}.000+00:00")
    html = runs(on=Local(store=store.address))._repr_html_()
    assert ("own-32" in html, "own-2-" in html, "and 3 earlier" in html) == (True, False, True)
