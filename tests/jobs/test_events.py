"""What real workers say is understood by the client, and what they print is never taken for it."""

from datetime import datetime

import pytest

from tests import runs
from tests.jobs.functions import fine_tunes
from tests.local_jobs import lines_of, until
from tests.messages import unnamed
from train_func import Local, submit
from train_func.wire import events

SAID_ONCE = [
    events.AttemptStarts,
    events.Published,
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory, tiny_model, rows):
    """A job that has trained, and the lines of its workers as a cluster would show them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRAIN_FUNC_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("TRAIN_FUNC_STORE", raising=False)
        run = runs.a_run(model=str(tiny_model), dataset=str(rows), epochs=2, workers=2)
        job = submit(fine_tunes, run, on=Local())
        job.result(300)
        until(lambda: all(pod.ended for pod in Local().job(job.record.job_name).pods()))
        yield job, list(lines_of(Local().job(job.record.job_name)))


def test_the_client_understands_every_event_of_a_real_job(recorded, capsys):
    job, lines = recorded
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


def test_the_history_of_a_real_job_is_in_its_store(recorded):
    job, lines = recorded
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
