"""Submitting what is being deleted, runs with other options, or failed before; and breaking a submission off."""

import json

import pytest

from tests.cluster.test_submit import LIMIT_SECONDS, SMALL, fails, jobs, objects_of, run, says_good_bye, uid_of, waits
from train_func import Cluster, attach, submit
from train_func.client.cluster import objects

__all__ = ["jobs", "objects_of", "run"]


def test_a_job_that_is_being_deleted_is_waited_for_and_submitted_anew(run, jobs, admin, notebook, namespace):
    def finalizers(*names):
        patch = json.dumps({"metadata": {"finalizers": names}})
        admin(
            "patch", "pytorchjob", job.record.job_name, f"--namespace={namespace}", "--type=merge", f"--patch={patch}"
        )

    class Released(Cluster):
        def submit(self, *arguments):
            finalizers()  # without this the deleted job would stay forever
            return super().submit(*arguments)

    job = submit(waits, run, on=Cluster(**SMALL, grace_seconds=1))
    jobs.append(job)
    first = uid_of(notebook, job)
    finalizers("tests.train-func/kept")
    notebook("delete", "pytorchjob", job.record.job_name, "--wait=false")
    try:
        submit(waits, run, on=Released(**SMALL, grace_seconds=1))
        assert uid_of(notebook, job) != first
    finally:
        finalizers()


def test_a_fresh_one_leaves_nothing_of_the_failed_one_before_it(run, jobs, objects_of, capsys):
    job = submit(fails, run, on=Cluster(**SMALL), fresh=True)
    jobs.append(job)
    assert job.wait(LIMIT_SECONDS) == "Failed"
    left = objects_of(job)
    capsys.readouterr()
    jobs.append(submit(fails, run, on=Cluster(**SMALL), fresh=True))
    assert not set(left) & set(objects_of(job))
    assert f"submitted, generation {job.record.generation + 1}" in capsys.readouterr().out


def test_an_interrupt_at_its_creation_names_the_job(run, jobs, monkeypatch, capsys):
    create = objects.create

    def interrupted(*arguments):
        create(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(objects, "create", interrupted)
        submit(says_good_bye, run, on=Cluster(**SMALL), fresh=True)
    said = capsys.readouterr().out
    assert ".cancel() stops it" in said
    job = attach(said.split(": interrupted while")[0].split()[-1], on=Cluster())
    jobs.append(job)
    assert job.state in ("Created", "Running", "Succeeded")
