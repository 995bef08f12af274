"""A run that is submitted again with other workers or another budget is the same run: attached to, or gone on."""

import json
import re

from tests.jobs import functions
from tests.jobs.conftest import until
from tests.messages import unnamed
from tests.stored_runs import put_checkpoint
from train_func import Local, submit
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
    other = submit(functions.ends_with, a_run(workers=2, parameters={"code": 71}), on=Local())
    assert unnamed(capsys.readouterr().out, other.name, first.name, "Failed", "code", "behind step 7") == []
    again = submit(functions.ends_with, a_run(workers=1, deadline=600, **asked), on=Local())
    (told,) = (line for line in capsys.readouterr().out.splitlines() if "submitted, 1 worker" in line)
    assert "behind step 7" in told
    assert (again.name, again.record.generation) == (first.name, 1)
    assert again.wait(LIMIT) == "Failed"
    spec = again.manifest["spec"]
    assert spec["runPolicy"]["activeDeadlineSeconds"] == 600
    assert spec["pytorchReplicaSpecs"]["Worker"]["replicas"] == 1
    assert [setup_of(again, attempt)["workers"] for attempt in (1, 2)] == [2, 1]
    assert [setup_of(again, attempt)["world_size"] for attempt in (1, 2)] == [2, 1]
