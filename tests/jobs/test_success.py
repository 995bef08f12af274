"""From a function to a verified model, read by person and program while it trains, and found again by name."""

import contextlib
import csv
import hashlib
import io
import json
import subprocess
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from tests import runs
from tests.jobs.conftest import processes_of
from tests.jobs.functions import fine_tunes, only_meets
from tests.jobs.test_commands import command
from tests.local_jobs import lines_of, until
from tests.messages import refuses, unnamed
from train_func import Local, Run, attach, submit
from train_func.errors import StorageFailed
from train_func.wire import events

LIMIT = 300
SAID_ONCE = [
    events.AttemptStarts,
    events.Published,
]


@pytest.fixture(scope="module")
def of_two_epochs(tmp_path_factory, tiny_model, rows):
    """The run that most tests of this file look at, in a home of theirs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAIN_FUNC_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("TRAIN_FUNC_STORE", raising=False)
        yield runs.a_run(model=str(tiny_model), dataset=str(rows), epochs=2, workers=2, micro_batch_size=4)


@pytest.fixture(scope="module")
def trained(of_two_epochs):
    """Its job, what the watching has shown, and the lines of its workers as a cluster would show them."""
    job, shown = submit(fine_tunes, of_two_epochs, on=Local()), io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert job.watch() == "Succeeded"
    pods = Local().job(job.record.job_name)
    until(lambda: all(pod.ended for pod in pods.pods()))
    return job, shown.getvalue(), list(lines_of(pods))


def test_a_function_becomes_a_verified_model_that_is_found_again(trained, of_two_epochs, tmp_path, capsys):
    job, shown, _ = trained
    assert "progress step=" in shown
    metrics = job.result()

    page = job.report(tmp_path / "report.html").read_text()
    assert all(words in page for words in (job.name, "Succeeded", "32 rows was used exactly once", "def fine_tunes"))

    assert all(words in page for words in ("Confusion", "8 held-out rows"))
    table = job.predictions()
    assert (table.expected == table.predicted).mean() == metrics["accuracy"]
    assert set(table.columns) == {"row", "text", "expected", "predicted", "confidence"}
    with Path(job.record.run.task.dataset).open(newline="") as file:
        written = list(csv.DictReader(file))
    assert [written[row]["text"] for row in table.row] == list(table.text)

    with refuses("nowhere", cause="input"):
        job.report(tmp_path / "nowhere" / "report.html")

    logs = list(job.logs())
    assert any("audit epoch=1 rows=32 used_once=32" in line for line in logs)
    assert any("audit held_out rows=8 in_metric_once=8" in line for line in logs)
    heading, *lines = logs
    assert heading.startswith("--- attempt 1, submitted ")
    assert {line.split("]")[0] for line in lines} == {"[worker 0", "[worker 1"}
    assert not any("it/s" in line for line in lines)

    folder = job.fetch("model", to=tmp_path / "model")
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "metrics.json", "manifest.json"} <= names
    assert json.loads((folder / "metrics.json").read_text())["accuracy"] == metrics["accuracy"]
    card = ModelCard.load(folder / "README.md")
    assert (card.data.pipeline_tag, card.data.model_name) == ("text-classification", job.name)
    assert {of.metric_type: of.metric_value for of in card.data.eval_results}["accuracy"] == metrics["accuracy"]
    assert job.record.held_out_sha256 in card.text
    assert job.load()("good good food")[0]["label"] in set("12345")

    found = attach(job.name)
    assert (found.state, found.result(), list(found.logs())) == ("Succeeded", metrics, logs)
    again = submit(fine_tunes, of_two_epochs, on=Local())
    assert "already done" in capsys.readouterr().out
    assert again.name == job.name
    assert len(Local().job(job.record.job_name).pods()) == 2
    assert not processes_of(job.record.job_name)


def test_a_run_is_watched_read_and_fetched_from_a_terminal(trained, tmp_path):
    job, _, _ = trained
    watched = command("watch", job.name, "--json")
    assert watched.returncode == 0
    events = {event["event"]: event for event in map(json.loads, watched.stdout.splitlines())}
    assert {"State", "StepProgress", "Evaluated", "CheckpointSaved", "RowsAudited", "Published", "End"} <= {*events}
    of_worker = {"event", "time", "attempt", "worker", "rank"}
    progress = {"step", "num_steps", "epoch", "loss", "learning_rate", "grad_norm", "rows_per_second", "seconds_left"}
    assert {*events["StepProgress"]} >= of_worker | progress
    assert {*events["Evaluated"]} == of_worker | {"step", "epoch", "prefix", "metrics"}
    assert {*events["CheckpointSaved"]} == of_worker | {"step", "size", "seconds"}
    assert {*events["RowsAudited"]} == of_worker | {"what", "counts", "world_size"}
    assert {*events["End"]} == {"event", "time", "state", "cause", "message", "next", "exit_code"}
    assert (events["End"]["state"], events["End"]["exit_code"]) == ("Succeeded", 0)
    result = command("result", job.name)
    assert json.loads(result.stdout) == job.result()
    assert command("logs", job.name, "--worker", "0").stdout.splitlines() == list(job.logs(worker=0))
    fetched = command("fetch", job.name, "--to", str(tmp_path / "fetched"))
    assert fetched.stdout == f"{tmp_path / 'fetched'}\n"
    assert (tmp_path / "fetched" / "model.safetensors").is_file()
    too_late = command("cancel", job.name)
    assert too_late.returncode == 0
    assert unnamed(too_late.stdout, job.name, "had ended") == []
    assert job.state == "Succeeded"


def test_the_client_understands_every_event_of_a_real_job(trained, capsys):
    job, _, lines = trained
    marked = [line for line in lines if events.MARK.strip() in line.text]
    said = [events.parse(line.text) for line in marked]
    assert None not in said
    assert all(len(line.text.encode()) <= events.LONGEST for line in marked)
    assert [sum(isinstance(event, kind) for event in said) for kind in SAID_ONCE] == [1] * len(SAID_ONCE)
    assert {event.worker for event in said if isinstance(event, events.WorkerStarts)} == {0, 1}
    ends = [event for event in said if isinstance(event, events.WorkerEnds)]
    assert [(end.exit_code, end.cause) for end in ends] == [(0, None)] * 2
    audits = [(event.what, event.counts["rows"]) for event in said if isinstance(event, events.RowsAudited)]
    assert audits == [("tried_before_training", 8), ("epoch=1", 32), ("epoch=2", 32), ("held_out", 8)]
    steps = [event for event in said if isinstance(event, events.StepProgress)]
    assert steps[-1].step == steps[-1].num_steps
    assert {event.rank for event in steps} == {0}
    assert job.watch() == "Succeeded"
    shown = capsys.readouterr().out
    assert unnamed(shown, f"step {steps[-1].step} of {steps[-1].num_steps}", "eval_accuracy=") == []
    assert events.MARK.strip() not in shown
    assert not any(events.MARK.strip() in line for line in job.logs())


def test_the_history_of_a_real_job_is_in_its_store(trained):
    job, _, lines = trained
    said = [events.parse(line.text) for line in lines]
    lines_of = {event.step: event for event in said if isinstance(event, events.StepProgress)}
    (measured,) = (event for event in said if isinstance(event, events.Evaluated))
    history = job.history()
    trained = history.dropna(subset="loss")
    num_steps = next(iter(lines_of.values())).num_steps
    assert [*trained["step"]] == list(range(1, num_steps + 1))  # of a short training each
    assert {*history["attempt"]} == {1}
    for row in trained[trained["step"].isin(lines_of)].itertuples():
        told = lines_of[row.step]
        assert (row.loss, row.timestamp) == (told.loss, datetime.fromisoformat(told.time))
    (accuracy,) = history["eval_accuracy"].dropna()
    assert accuracy == measured.metrics["accuracy"] == job.result()["accuracy"]
    names = job._store.names(job.record.keys.attempt(1).metrics)
    assert [name for name in names if "tfevents" not in name] == ["metrics.csv"]
    job.delete()
    assert job.history().equals(history)


def test_a_fresh_training_is_the_next_generation_with_the_same_metrics(trained, of_two_epochs, tmp_path):
    job, _, _ = trained
    fresh = submit(fine_tunes, replace(of_two_epochs, workers=1), on=Local(), fresh=True)
    assert fresh.result(LIMIT) == pytest.approx(job.result())
    assert (fresh.name, fresh.record.generation) == (job.name, 2)
    assert attach(job.name).record.generation == 2
    assert json.loads((fresh.fetch() / "manifest.json").read_text())["generation"] == 2
    a_damaged_file_is_never_handed_over(fresh, tmp_path / "damaged")


def a_damaged_file_is_never_handed_over(job, folder):
    """Part of the test above, whose model it damages: training takes longer than all of this."""
    stored = Path(Local().store_address().removeprefix("file://")) / job.record.keys.model / "model.safetensors"
    content = bytearray(stored.read_bytes())
    content[-1] ^= 1
    stored.write_bytes(content)
    with pytest.raises(StorageFailed) as caught:
        job.fetch(to=folder)
    assert caught.value.reason == "damaged"
    assert hashlib.sha256(content).hexdigest() in str(caught.value)
    assert not folder.exists()


# Before it is decided whose job it is, and after.
@pytest.mark.parametrize("moment", [pytest.param("prepare", marks=pytest.mark.slow), "submit"])
def test_a_client_overtaken_by_the_same_submission_attaches_to_its_job(home, moment, capsys):
    class Overtaken(Local):
        pass

    def overtaken(backend, *arguments):
        other.append(submit(only_meets, Run(), on=Local()))
        return getattr(Local, moment)(backend, *arguments)

    other = []
    setattr(Overtaken, moment, overtaken)
    job = submit(only_meets, Run(), on=Overtaken())
    assert "another client" in capsys.readouterr().out
    assert job.record == attach(other[0].name).record
    assert job.wait(LIMIT) == "Succeeded"
    assert [pod.name for pod in Local().job(job.record.job_name).pods()] == [f"{job.record.job_name}-worker-0"]


@pytest.mark.slow
def test_jobs_side_by_side_do_not_meet_and_end_clean_with_every_ranks_own_exit_code_recorded(home):
    """Of twenty: gloo is known to abort at interpreter exit, 7 of 11 launches of a plain program did."""
    jobs = [submit(only_meets, Run(workers=2, parameters={"job": i}), on=Local(cpu=1)) for i in range(20)]
    for job in jobs:
        ends_clean(job)
        said = [line for line in job.logs() if "met the others" in line]
        assert sorted(line.split("rank ")[-1][0] for line in said) == ["0", "1"]


def ends_clean(job):
    assert job.wait(LIMIT) == "Succeeded", list(job.logs())
    # The job has succeeded as soon as the first of its workers has; the other is about to end.
    pods = until(lambda: all_ended(Local().job(job.record.job_name).pods()))
    assert [(pod.exit_code, pod.restarts) for pod in pods] == [(0, 0), (0, 0)]
    assert exit_codes(job) == {0: 0, 1: 0}


def all_ended(pods):
    return pods if all(pod.ended for pod in pods) else []


def exit_codes(job) -> dict[int, int]:
    store = Path(Local().store_address().removeprefix("file://"))
    records = [
        json.loads(path.read_text()) for path in (store / job.record.keys.prefix / "attempts/1").glob("worker-*.json")
    ]
    return {rank["rank"]: rank["exit_code"] for record in records for rank in record["ranks"]}
