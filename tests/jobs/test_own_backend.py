"""A user's own backend is one file and one line: jobs are submitted to it and found again as on any other."""

import sys

import pytest

import train_func
from tests.jobs.functions import only_meets
from train_func import JobNotFound, Local, Run, attach, submit
from train_func.client import backend as backends

MODULE = """
from dataclasses import replace
from pathlib import Path

from train_func.client.backend import JobRequest
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.status import Condition, JobStatus, LogLine, Pod, Snapshot
from train_func.errors import JobNotFound

ROOMS = {}  # the jobs of each room, which end as soon as they are there


class Done:
    operator, pause = PYTORCHJOB.operator, 0.1

    def __init__(self, room, name):
        self.room, self.name = room, name

    def status(self):
        ended = Condition("Succeeded", "True", "Done", "")
        return JobStatus((ended,)) if self.name in ROOMS.get(self.room, ()) else None

    def look(self, since=None, *, worker=None, with_logs=True):
        pod = Pod("a", "uid", 0, "Succeeded", 0, "Completed", "", None, None, False)
        lines = () if since else (LogLine(0, "uid", "done before you could look"),)
        return Snapshot(self.status(), (pod,), lines=lines) if self.status() else Snapshot()

    def stacks_command(self):
        return ""

    def change(self, **changes):
        pass

    def evict(self, worker, *, force=False, dry_run=False):
        pass

    def cancel(self):
        if self.status() is None:
            raise JobNotFound(f"room {self.room} has no job {self.name}")
        self.delete()

    def delete(self):
        ROOMS.get(self.room, {}).pop(self.name, None)


class Instant:
    packages = ()

    def __init__(self, room="a", store=None, colour="red"):
        self.room, self.store, self.colour = room, store, colour

    @property
    def found_by(self):
        return {"room": self.room, "store": self.store}

    @property
    def place(self):
        return f"room {self.room}"

    @property
    def identity(self):
        return {"room": self.room}

    def store_address(self):
        return self.store

    def inventory(self):
        return None

    def check(self, run):
        pass

    def adapt(self, run):
        return replace(run, max_attempts=1)

    def prepare(self, record, inputs, num_model_bytes, store):
        return record.run

    def request(self, record):
        return JobRequest({"name": record.job_name}, {"colour": self.colour}, self.found_by)

    def submit(self, submission):
        ROOMS.setdefault(self.room, {})[submission.manifest["name"]] = submission
        return self.job(submission.manifest["name"])

    def job(self, name):
        return Done(self.room, name)

    def jobs(self):
        return [self.job(name) for name in ROOMS.get(self.room, ())]
"""


@pytest.fixture
def own(home, tmp_path, monkeypatch):
    """The user's module, registered, and a folder as its store."""
    (tmp_path / "instant.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(backends, "BACKENDS", dict(backends.BACKENDS))
    backends.register("Instant", "instant")
    (tmp_path / "store").mkdir()
    yield lambda **options: train_func.Instant(store=(tmp_path / "store").as_uri(), **options)
    sys.modules.pop("instant", None)


def test_a_job_on_it_is_submitted_ends_and_is_found_again(own, capsys):
    job = submit(only_meets, Run(), on=own())
    assert job.wait() == "Succeeded"
    assert [bound.name for bound in own().jobs()] == [job.record.job_name]
    assert "done before you could look" in "\n".join(job.logs())
    assert job.manifest == {"name": job.record.job_name}
    assert job.attach_expression == f"attach({job.name!r}, on=Instant(room='a', store={own().store!r}))"
    again = eval(job.attach_expression, {"attach": attach, "Instant": train_func.Instant})
    assert (again.name, again.state) == (job.name, "Succeeded")


def test_what_a_backend_changes_of_a_run_is_no_difference_when_it_is_submitted_again(own, capsys):
    job = submit(only_meets, Run(), on=own())
    assert job.record.run.max_attempts == 1
    assert "max_attempts=1, not 3" in capsys.readouterr().out
    assert submit(only_meets, Run(), on=own()).name == job.name
    told = capsys.readouterr().out
    assert "submitted with" not in told
    assert "max_attempts" not in told
    submit(only_meets, Run(deadline=77), on=own())
    assert "submitted with deadline=" in capsys.readouterr().out


def test_a_handle_on_another_backend_names_it_with_the_options_that_lead_there(own):
    job = submit(only_meets, Run(), on=own(room="b"))
    expected = f"attach('{job.name}', on=Instant(room='b', store='{own().store}'))"
    for other in (own(room="a"), Local(store=own().store)):
        with pytest.raises(JobNotFound) as refused:
            attach(job.name, on=other).cancel()
        assert expected in str(refused.value)


def test_what_is_no_backend_is_refused_with_those_there_are(own):
    with pytest.raises(train_func.InvalidInput, match=r"on=Local\(\) or Cluster\(\) or Instant\(\)"):
        submit(only_meets, Run(), on="Instant")
