"""A handle on a job: what it says of its place, what a cancelled or deleted job leaves, what it refuses."""

import json
import os
import re
import signal
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace

import pytest

from tests.local_jobs import until
from tests.messages import unnamed
from tests.stored_runs import put_checkpoint, put_end, put_run, put_submission
from train_func import Cluster, Local
from train_func.client.backend import BACKENDS, provisional
from train_func.client.control.cancel import OVER
from train_func.client.job import Job
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.local.local_job import LocalJob
from train_func.client.status import Condition, JobStatus, LogLine, Snapshot
from train_func.client.stored_run import how_to, is_cancelled
from train_func.errors import InvalidInput, JobNotFound, StorageFailed
from train_func.run import Run
from train_func.storage import open_store
from train_func.wire import events
from train_func.wire.records import AttemptSetup, EndRecord, Numerics

FOREVER = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def job(jobs, tmp_path):
    """A handle on this machine, on a job that is not there."""
    store = open_store((tmp_path / "store").as_uri())
    return Job(provisional(Run(workers=2), store.address), jobs.backend, store)


@pytest.mark.parametrize(
    ("backend", "on"),
    [
        (lambda: Local(), ""),
        (lambda: Local(store="file:///s"), ", on=Local(store='file:///s')"),
        (lambda: Cluster(), ", on=Cluster(namespace='bob')"),  # of the environment
        (lambda: Cluster(namespace="alice"), ", on=Cluster(namespace='alice')"),
        (
            lambda: Cluster(context="c", namespace="a", store="s3://bucket/p"),
            ", on=Cluster(context='c', namespace='a', store='s3://bucket/p')",
        ),
    ],
)
def test_what_finds_a_job_again_names_its_backend(job, monkeypatch, backend, on):
    monkeypatch.setenv("TRAIN_FUNC_NAMESPACE", "bob")
    assert Job(job.record, backend(), job._store).attach_expression == f"attach({job.name!r}{on})"


class Own(Local):
    """A backend that no command knows."""


@pytest.mark.parametrize("verb", ["cancel", "remove"])
def test_what_is_to_be_done_with_a_run_is_a_command_where_a_command_knows_its_backend(job, monkeypatch, verb):
    monkeypatch.setitem(BACKENDS, "Own", __name__)
    store = job._store.address
    place = f"--on Cluster --store {store} --option namespace=alice"
    assert (
        how_to(verb, job.name, Cluster(namespace="alice"), store) == f"python -m train_func {verb} {job.name} {place}"
    )
    assert unnamed(how_to(verb, job.name, Own(), store), f"({job.name!r}, on=Own())") == []


@pytest.mark.parametrize(("verb", "call"), [("cancel", "attach({}).cancel()"), ("remove", "remove({})")])
def test_what_is_to_be_done_with_a_run_is_a_call_in_a_notebook(job, shell, verb, call):
    told = how_to(verb, job.name, Cluster(namespace="alice"), job._store.address)
    assert told == call.format(f"{job.name!r}, on=Cluster(namespace='alice')")


def test_a_job_of_another_place_is_said_to_be_there_and_what_it_is_found_by_stays(job, capsys):
    place = {"backend": "Cluster", "place": "namespace alice", "identity": {"of": "another"}}
    put_submission(job._store, job.record, **place, found_by={"namespace": "alice"})
    for ask in (job.wait, job.result, job.fetch):
        with pytest.raises((JobNotFound, OSError)) as refused:
            ask()
        assert unnamed(refused.value, job.name, "--on Cluster", "--option namespace=alice") == []
    job.delete()
    assert unnamed(capsys.readouterr().out, job.name, "--on Cluster", "--option namespace=alice") == []
    assert job._store.get(job.record.keys.submission(1)).data


def test_a_job_of_this_place_that_is_gone_is_to_be_submitted_again(job):
    put_submission(job._store, job.record)
    with pytest.raises(JobNotFound, match=job.record.job_name) as gone:
        job.wait()
    assert "--on" not in str(gone.value)


def test_a_run_that_was_removed_is_told_as_that(job):
    with pytest.raises(JobNotFound, match="was removed; submit the run again"):
        job.result()


def test_a_run_that_succeeded_without_a_model_says_so_where_one_is_fetched(job, monkeypatch):
    monkeypatch.setattr(Job, "state", "Succeeded")
    with pytest.raises(InvalidInput, match="published nothing and left no files") as refused:
        job.fetch()
    assert refused.value.cause == "code"


def test_a_handle_that_a_notebook_shows_tells_name_state_and_progress(jobs, tmp_path):
    store = open_store((tmp_path / "store").as_uri())
    record = put_run(store, Run(name="own"), generation=2)
    event = events.StepProgress(step=10, num_steps=40, epoch=1, loss=0.5, rows_per_second=8)
    store.put(record.keys.attempt(1).log(0), f"{events.line(event)}\n".encode())
    html = Job(record, jobs.backend, store)._repr_html_()
    assert unnamed(html, "✓ Succeeded", record.name, "train()", "generation 2", "25%", "step 10 of 40") == []
    assert "<svg" not in html


def test_a_report_and_a_handle_of_a_job_that_goes_on_say_so(jobs, tmp_path, monkeypatch):
    running = Snapshot(JobStatus((Condition("Running", "True", "", ""),)))
    monkeypatch.setattr(LocalJob, "look", lambda job, *_, **__: running)
    store = open_store((tmp_path / "store").as_uri())
    record = put_run(store, Run(name="own"), code=None)
    event = events.StepProgress(step=10, num_steps=40, epoch=1, loss=0.5, rows_per_second=8, seconds_left=7)
    store.put(record.keys.attempt(1).log(0), f"{events.line(event)}\n".encode())
    job = Job(record, jobs.backend, store)
    for html in (job._repr_html_(), job.report(tmp_path).read_text()):
        assert unnamed(html, "● Running", "step 10 of 40", "as of", "7 s left") == []


def condition(kind, reason=""):
    return JobStatus((Condition(kind, "True", reason, ""),))


def test_a_store_that_is_away_when_a_job_is_cancelled_is_asked_again(job, monkeypatch):
    looks = iter([condition("Running"), *[condition("Failed", "Cancelled")] * 2])
    monkeypatch.setattr(LocalJob, "look", lambda job, *_, **__: Snapshot(next(looks)))
    store, away = type(job._store), ["once"]

    def listed(self, prefix, known=store.list):
        if away and away.pop():
            raise StorageFailed("no answer", reason="unreachable")
        return known(self, prefix)

    monkeypatch.setattr(store, "list", listed)
    assert job.wait() == "Cancelled"
    assert (away, [*looks]) == ([], [])


def test_the_log_of_an_attempt_ends_with_it_where_only_worker_0_is_read(job, monkeypatch):
    sizes = {"num_workers": 2, "num_ranks": 2, "num_threads": 1}
    claims = [events.AttemptStarts(attempt=number, position=number, at_most=3, **sizes) for number in (1, 2)]
    texts = [events.line(claims[0]), "trains", events.line(claims[1]), "later"]
    lines = tuple(LogLine(0, "uid", text) for text in texts)
    looks = iter([Snapshot(condition("Running"), lines=lines, note="only worker 0")])
    monkeypatch.setattr(LocalJob, "look", lambda job, *_, **__: next(looks))
    assert [line.text for line in job.logs(attempt=1, follow=True).entries()][1:] == ["trains"]


@pytest.mark.parametrize("precision", ["", "bf16"], ids=["a loop of one's own", "Trainer"])
def test_a_report_says_when_the_run_was_and_of_its_precision_only_what_is_known(jobs, tmp_path, precision):
    store = open_store((tmp_path / "store").as_uri())
    record = put_run(store, Run(name="own"), submitted="2026-01-02T03:04:05.000+00:00")
    begins = events.AttemptStarts(attempt=1, position=1, at_most=3, num_workers=1, num_ranks=1, num_threads=1)
    times = [f"2026-01-02T03:05:{second}+00:00" for second in ("06", "07")]
    told = [replace(begins, time=times[0]), events.Stage(text="training", precision=precision, time=times[1])]
    if precision:
        shape = {"num_steps": 9, "epoch": 1, "loss": 0.5, "rows_per_second": 1}
        told.append(events.StepProgress(step=1, time=times[1], **shape))
    store.put(record.keys.attempt(1).log(0), "".join(f"{events.line(event)}\n" for event in told).encode())
    cut = {"micro_batch_tokens": None, "micro_batch_size": 8, "num_ranks": 1}
    numerics = Numerics(precision="bf16", devices=("cpu",), **cut)
    setup = AttemptSetup(workers=1, world_size=1, versions={}, machine={}, numerics=numerics)
    store.put(record.keys.attempt(1).setup, setup.to_json())
    page = Job(record, jobs.backend, store).report(tmp_path).read_text()
    when = [datetime.fromisoformat(moment).astimezone() for moment in (record.submitted, *times)]
    assert unnamed(page, *(f"{moment:%d %b %Y %H:%M:%S %Z}" for moment in when)) == []
    assert ("bf16" in page, "at most 8 rows" in page) == (bool(precision), bool(precision))


def test_a_report_has_the_attempts_of_all_submissions_with_what_is_known_of_each(jobs, tmp_path):
    store = open_store((tmp_path / "store").as_uri())
    first = put_run(store, Run(name="own", workers=2), code=None)
    setup = AttemptSetup(workers=2, world_size=2, versions={}, machine={}, numerics=None)
    store.put(first.keys.attempt(1).setup, setup.to_json())
    later = put_submission(store, replace(first, submitted="2026-02-02T03:04:05.000+00:00"))
    for number, (record, message) in enumerate(((first, "the disk was full"), (later, "row 7 is bad")), start=1):
        end = {"exit_code": 70, "cause": "code", "message": message, "submitted": record.submitted}
        put_end(store, record, EndRecord(attempt=number, worker=0, **end))
    page = Job(later, jobs.backend, store).report(tmp_path).read_text()
    rows = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(<td>.*?)</tr>", page)]
    assert ["1", "2", "–", "code: the disk was full"] in rows
    assert ["2", "–", "–", "code: row 7 is bad"] in rows


def test_cancel_stops_the_workers_though_the_store_is_away(job, jobs, tmp_path, capsys):
    store = tmp_path / "store"
    store.write_text("")  # as a volume that is not mounted any more: what stands there is no folder
    assert repr(job) == f"Job({job.name!r}, state unknown)"
    assert job._repr_html_() is None
    jobs.start(FOREVER, name=job.record.job_name, workers=1)
    job.cancel()
    assert jobs.backend.job(job.record.job_name).status().finished
    assert unnamed(capsys.readouterr().out, job.name, "stopped", "Absent", str(store)) == []


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_cancel_says_where_the_run_goes_on(job, jobs, capsys, has_checkpoint):
    jobs.start(FOREVER, name=job.record.job_name, workers=1)
    if has_checkpoint:
        put_checkpoint(job._store, job.record, step=101)
    job.cancel()
    assert ("after step 101" in capsys.readouterr().out) is has_checkpoint


def test_what_is_published_while_a_job_is_cancelled_stays_and_cancel_says_so(job, jobs, tmp_path, capsys):
    result = job._store.address.removeprefix("file://") + f"/{job.record.keys.prefix}/result.json"
    publishes = f"""
import pathlib, signal, sys

def publish(*_):
    pathlib.Path({result!r}).write_text('{{"format": 1, "attempt": 1, "files": {{}}, "note": "not measured"}}')
    sys.exit(0)

signal.signal(signal.SIGTERM, publish)
print("ready", flush=True)
while True:
    signal.pause()
"""
    put_submission(job._store, job.record)
    jobs.start(publishes, name=job.record.job_name, workers=1)
    until(lambda: "ready" in jobs.text(job.record.job_name), "the program runs")
    job.cancel()
    assert "fresh=True" in capsys.readouterr().out
    assert (job.state, job.result()) == ("Succeeded", {})
    job.cancel()
    assert "fresh=True" not in capsys.readouterr().out  # it had ended before
    job.delete()
    assert (job.state, job.result()) == ("Succeeded", {})


def test_a_job_that_has_lost_its_controller_is_over_and_cancel_changes_nothing(job, jobs, capsys):
    put_submission(job._store, job.record)
    name = jobs.start(FOREVER, name=job.record.job_name, workers=1)
    os.kill(jobs.controller(name), signal.SIGKILL)
    until(lambda: job.state == "Interrupted", "the end of the controller")
    job.cancel()
    assert OVER in capsys.readouterr().out
    assert (job.state, is_cancelled(job._store, job.record.keys)) == ("Interrupted", False)


def test_a_deleted_job_leaves_its_run_and_says_where(job, jobs, tmp_path, capsys):
    name = jobs.start("pass", name=job.record.job_name, workers=1)
    jobs.ended(name)
    result = {"format": 1, "attempt": 1, "metrics": {"loss": 0.5}, "files": {}}
    job._store.put(job.record.keys.result, json.dumps(result).encode())
    put_submission(job._store, job.record)
    for is_there in (True, False):
        assert (jobs.backend.job(name).status() is not None) is is_there
        job.delete()
        (line,) = capsys.readouterr().out.splitlines()
        assert ("its pods" in line) is is_there
        assert f"remove {job.name}" in line
        assert f"{job._store.address}/{job.name}/" in line
        assert not (jobs.home / "jobs" / name).exists()
        assert (jobs.backend.job(name).status(), job.state, job.result()) == (None, "Succeeded", {"loss": 0.5})
    for entry in job._store.list(f"{job.name}/"):
        job._store.delete(entry.key)
    assert job.state == "Absent"


@pytest.mark.parametrize(
    "result",
    [b"", b"[]", *(b'{"format": 1, "attempt": 1, "files": {}, %b: 7}' % name for name in (b'"metrics"', b'"note"'))],
)
def test_a_result_that_is_none_is_damage_and_not_a_mistake_of_this_program(job, result):
    job._store.put(job.record.keys.result, result)
    with pytest.raises(StorageFailed) as refused:
        job.result()
    assert refused.value.reason == "damaged"


def test_a_result_says_why_it_has_no_metrics(job, capsys):
    job._store.put(job.record.keys.result, b'{"format": 1, "attempt": 1, "files": {}, "note": "not measured: why"}')
    assert job.result() == {}
    assert "not measured: why" in capsys.readouterr().out


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_result_repeats_no_note_that_the_watching_has_shown(job, capsys, is_shown):
    job._store.put(job.record.keys.result, b'{"format": 1, "attempt": 1, "files": {}, "note": "not measured: why"}')
    screen = SimpleNamespace(notes=["not measured: why"] if is_shown else [], take=str, finish=str, close=str)
    job._show(screen)
    job.result()
    assert ("not measured: why" in capsys.readouterr().out) is not is_shown


def test_a_history_that_is_read_before_anything_was_reported_is_empty_and_prints_nothing(job, capsys):
    history = job.history()
    assert (history.empty, capsys.readouterr().out) == (True, "")
    with pytest.raises(InvalidInput, match=r"session\.report"):
        history.plot()


@pytest.mark.parametrize("attempt", ["1", 0, 1.5, True])
def test_an_attempt_that_is_no_number_is_refused(job, attempt):
    with pytest.raises(InvalidInput, match=rf"^attempt={attempt!r}: .*\b1\b"):
        job.logs(attempt=attempt)


@pytest.mark.parametrize("worker", [4, -1, "0"])
def test_a_worker_that_no_attempt_had_is_refused_with_those_there_were(job, worker):
    job._store.put(job.record.keys.attempt(1).log(3), b"said by it\n")
    assert list(job.logs(worker=3))[1:] == ["[worker 3] said by it"]
    assert list(job.logs(worker=3, attempt=1)) == list(job.logs(worker=3))
    assert list(job.logs(worker=1)) == []
    with pytest.raises(InvalidInput, match=f"^worker={worker!r}: .* 0, 1, 3$"):
        job.logs(worker=worker)


@pytest.mark.parametrize("deleted", [True, False])
def test_a_job_that_was_deleted_says_so_until_it_is_gone(deleted):
    metadata = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    assert PYTORCHJOB.status({"metadata": metadata}).deleting is deleted
