"""A run that is submitted again with other workers or another budget is the same run: attached to, or gone on."""

import json
import re
from dataclasses import replace

import pytest

from tests.jobs import functions
from tests.local_jobs import until
from tests.messages import unnamed
from tests.stored_runs import put_checkpoint
from train_func import InvalidInput, JobFailed, Local, submit
from train_func.storage import open_store

LIMIT = 240.0


def setup_of(job, attempt):
    store = open_store(job.record.store)
    return json.loads(store.get(job.record.keys.attempt(attempt).setup).data)


def test_while_it_runs_and_after_success_it_is_attached_to_and_what_differs_is_told(home, a_run, tmp_path, capsys):
    file = tmp_path / "go"
    asked = {"parameters": {"file": str(file)}}
    first = submit(functions.waits_for_a_file, a_run(workers=1, **asked), on=Local())
    until(lambda: any("waiting" in line for line in first.logs()))
    capsys.readouterr()
    again = submit(functions.waits_for_a_file, a_run(workers=2, deadline=60, max_attempts=1, **asked), on=Local())
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "workers=" in line)
    was, now = {"workers": 1, "max_attempts": 3, "deadline": 86400}, {"workers": 2, "max_attempts": 1, "deadline": 60}
    assert re.findall(r"(\w+)=(\d+)", told) == [(name, str(value)) for name, value in [*was.items(), *now.items()]]
    assert (again.name, again.record.run.workers) == (first.name, 1)
    file.touch()
    assert again.wait(LIMIT) == "Succeeded"
    capsys.readouterr()
    submit(functions.waits_for_a_file, a_run(workers=2, **asked), on=Local())
    out = capsys.readouterr().out
    assert "already done" in out
    assert re.findall(r"workers=\d", out) == ["workers=1", "workers=2"]


def test_after_a_failure_it_goes_on_as_a_new_job_with_what_is_asked_for_now(home, a_run, capsys):
    asked = {"parameters": {"code": 70}}
    first = submit(functions.ends_with, a_run(workers=2, **asked), on=Local())
    assert first.wait(LIMIT) == "Failed"
    put_checkpoint(open_store(first.record.store), first.record, step=7)
    capsys.readouterr()
    again = submit(functions.ends_with, a_run(workers=1, deadline=600, **asked), on=Local())
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "submitted, 1 worker" in line)
    assert "after step 7" in told
    assert (again.name, again.record.generation) == (first.name, 1)
    assert again.wait(LIMIT) == "Failed"
    assert (again.manifest["deadline"], again.manifest["workers"]) == (600, 1)
    assert [setup_of(again, attempt)["workers"] for attempt in (1, 2)] == [2, 1]
    assert [setup_of(again, attempt)["world_size"] for attempt in (1, 2)] == [2, 1]


def ended(job):
    """The name of a job whose error says what to submit."""
    with pytest.raises(JobFailed) as caught:
        job.result(LIMIT)
    assert f"resume={job.name!r}" in str(caught.value)
    return job.name


@pytest.mark.slow
def test_a_mended_function_goes_on_from_the_checkpoint_of_the_one_that_failed(home, a_run, capsys):
    asked = {"workers": 1, "epochs": 2, "batch_size": 8, "checkpoint_every": 0}
    broken = submit(functions.fails_at, a_run(parameters={"fails": 8, "diverges": True}, **asked), on=Local())
    assert broken.wait(LIMIT) == "Failed"
    with pytest.raises(JobFailed, match=r"weight \(nan\)") as diverged:
        broken.result()
    assert diverged.value.cause == "divergence"
    assert len(Local().job(broken.record.job_name).pods()) == 1  # tried once: it would end the same
    # The second mistake comes before a checkpoint of its own: what it goes on from is gone on from still.
    no_better = submit(functions.fails_at, a_run(parameters={"fails": 0}, **asked), on=Local(), resume=ended(broken))
    capsys.readouterr()
    given = {"run": a_run(parameters={"fails": -1}, **asked), "on": Local(), "resume": ended(no_better)}
    mended = submit(functions.fails_at, **given)
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "submitted, 1 worker" in line)
    saved = int(re.search(rf"after step (\d+) of {broken.name}", told)[1])
    assert 0 < saved < 8
    assert mended.wait(LIMIT) == "Succeeded"
    logs = "\n".join(mended.logs())
    assert [int(step) for step in re.findall(r"step (\d+) of -1", logs)] == list(range(saved + 1, 11))
    assert unnamed(logs, f"after step {saved}, ", f"of {broken.name}") == []
    assert submit(functions.fails_at, **given).state == "Succeeded"
    assert len(re.findall(r"audit epoch=\d rows=40 used_once=40 missing=0", logs)) == (2 if saved < 5 else 1)


@pytest.mark.slow
def test_a_resume_that_its_workers_refused_is_not_repeated_by_the_next_submission(home, a_run):
    asked = {"workers": 1, "epochs": 2, "batch_size": 8, "checkpoint_every": 0}
    broken = submit(functions.fails_at, a_run(parameters={"fails": 8}, **asked), on=Local())
    longer = a_run(parameters={"fails": -1, "rows": 44}, **asked)
    refused = submit(functions.fails_at, longer, on=Local(), resume=ended(broken))
    with pytest.raises(JobFailed) as caught:
        refused.result(LIMIT)
    (remedy,) = (line for line in str(caught.value).splitlines() if "next:" in line)
    assert unnamed(remedy, "without resume=", broken.name) == []
    assert f"resume={refused.name!r}" not in str(caught.value)
    assert submit(functions.fails_at, longer, on=Local()).wait(LIMIT) == "Succeeded"
    with pytest.raises(InvalidInput) as other_plan:
        submit(functions.fails_at, replace(longer, epochs=5), on=Local(), resume=broken.name)
    assert unnamed(other_plan.value, broken.name, "epochs=2", "epochs=5") == []
