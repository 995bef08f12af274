"""What Local() tells of a job beside what the table of scenarios holds: events, last words, pauses, changes."""

import errno
import io
import os
import resource
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.local_jobs import full_disk, until
from tests.messages import unnamed
from train_func.client.local.job_folder import JobFolder
from train_func.client.status import JobEvent
from train_func.errors import InvalidInput, JobNotFound

# The first incarnation of worker 1 ends with 144, the next one with 0; worker 0 waits for that.
SECOND_CHANCE = (
    "import os, pathlib, sys, time; shared = pathlib.Path(os.environ['TRAIN_FUNC_CACHE_DIR'])\n"
    "if os.environ['TRAIN_FUNC_WORKER'] == '1':\n"
    "    started = shared / 'started'\n"
    "    if not started.exists():\n"
    "        started.touch()\n"
    "        print('first', flush=True)\n"
    "        sys.exit(144)\n"
    "    print('second', flush=True)\n"
    "    (shared / 'done').touch()\n"
    "while not (shared / 'done').exists(): time.sleep(0.01)\n"
)


def test_a_worker_that_is_started_again_is_told_of_with_its_last_words(jobs):
    jobs.start(SECOND_CHANCE, workers=3)
    assert jobs.ended().condition("Succeeded") is not None
    assert jobs.text(worker=1) == ["first", "second"]
    events = jobs.backend.job("job-a").look().events
    assert "Restarting" in [event.reason for event in events]
    (error,) = [event for event in events if event.reason == "Error"]
    assert (error.type, error.worker, error.pod, error.end.code) == ("Warning", 1, "job-a-worker-1", 144)
    assert error.end.message == "first\n"


def test_a_job_past_its_deadline_says_so(jobs):
    jobs.start("import time; time.sleep(600)", grace=1, deadline=1)
    assert jobs.ended().is_over_deadline


def test_a_worker_that_keeps_failing_is_replaced_after_growing_pauses(jobs):
    jobs.start("import sys; sys.exit(144)", workers=1)

    def started():
        return [pod for pod in jobs.backend.job("job-a").pods() if pod.started]

    until(lambda: len(started()) >= 4, "three replacements")
    first, second, third, fourth, *_ = started()
    at_once, short, long = (
        (after.started - before.ended).total_seconds()
        for before, after in ((first, second), (second, third), (third, fourth))
    )
    assert short >= 0.5
    assert long >= 1.0
    assert at_once < long


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("open(os.environ['TRAIN_FUNC_TERMINATION_FILE'], 'w').write('written'); sys.exit(1)", "written"),
        ("print('line 1'); print('last line'); sys.exit(1)", "line 1\nlast line\n"),
        ("print('x' * 9999); sys.exit(1)", "x" * 2047 + "\n"),
        ("print('all is well')", ""),
    ],
    ids=["file", "log", "long log", "success"],
)
def test_the_termination_message_is_the_file_or_the_end_of_a_failed_container_s_log(jobs, code, message):
    jobs.start("import os, sys; " + code, workers=1)
    jobs.ended()
    (pod,) = jobs.backend.job("job-a").pods()
    assert pod.message == message


# Leaves as a worker does that is asked to; ends well as soon as the cache holds ``done``.
LEAVES = (
    "import os, pathlib, signal, sys, time; done = pathlib.Path(os.environ['TRAIN_FUNC_CACHE_DIR'], 'done')\n"
    "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); print('ready', flush=True)\n"
    "while not done.exists(): time.sleep(0.01)\n"
)
STAYS = LEAVES.replace("sys.exit(143)", "None")


@pytest.fixture
def elastic(jobs):
    """Starts a job of three workers that needs one of them; it is looked at once all run."""

    def start(code=LEAVES, **shape):
        jobs.start(code, workers=3, **{"min_workers": 1, **shape})
        until(lambda: running(jobs) == [0, 1, 2], "three workers")
        until(lambda: jobs.text().count("ready") == 3, "three workers are ready")
        return jobs.backend.job("job-a")

    return start


def running(jobs):
    return sorted(pod.worker for pod in jobs.backend.job("job-a").pods() if pod.phase == "Running")


def finish(jobs):
    (jobs.home / "cache/done").touch()
    return jobs.ended()


def test_a_job_that_is_scaled_ends_its_highest_workers_and_starts_those_that_lack(jobs, elastic):
    job = elastic()
    job.change(workers=1)
    until(lambda: running(jobs) == [0], "one worker")
    assert [(pod.worker, pod.exit_code) for pod in job.pods() if pod.deleted] == [(2, 143), (1, 143)][::-1]
    assert (job.status().condition("Running").reason, job.status().workers) == ("Running", 1)
    assert [event.reason for event in job.look().events if event.type == "Warning"] == []
    job.change(workers=3)
    assert (job.status().workers, [pod.worker for pod in job.pods() if not pod.deleted].count(2)) == (3, 1)
    until(lambda: running(jobs) == [0, 1, 2], "three workers again")
    assert finish(jobs).condition("Succeeded")
    assert jobs.text().count("ready") == 5


@pytest.mark.parametrize("code", [70, 137])
def test_however_a_worker_ends_that_is_scaled_away_the_job_goes_on_without_it(jobs, elastic, code):
    job = elastic(LEAVES.replace("143", str(code)))
    job.change(workers=2)
    until(lambda: running(jobs) == [0, 1], "two workers")
    assert finish(jobs).condition("Succeeded")
    assert [pod.exit_code for pod in job.pods()] == [0, 0, code]


@pytest.mark.parametrize(
    ("code", "force", "exit_code"), [(LEAVES, False, 143), (STAYS, False, 137), (STAYS, True, 137)]
)
def test_a_worker_that_is_evicted_ends_and_is_started_again_where_later_workers_start(
    jobs, elastic, code, force, exit_code
):
    job = elastic(code, grace=600 if force else 1)
    job.change(node_selector={"zone": "b"})
    job.evict(1, force=force)
    until(lambda: jobs.text(worker=1).count("ready") == 2, "another worker 1")
    here = socket.gethostname()
    ended, new = (pod for pod in job.pods() if pod.worker == 1)
    assert (ended.exit_code, ended.reason, ended.node) == (exit_code, "Deleted", here)
    assert (new.phase, new.node) == ("Running", f"{here} (zone=b)")
    assert job.status().condition("Running")
    assert finish(jobs).condition("Succeeded")


def test_a_suspended_job_has_no_workers_until_it_is_resumed(jobs, elastic):
    job = elastic()
    job.change(suspend=True)
    until(lambda: job.status().condition("Suspended"), "it is suspended")
    assert running(jobs) == []
    job.change(node_selector={"zone": "b"}, suspend=False)
    until(lambda: running(jobs) == [0, 1, 2], "three workers again")
    assert {pod.node for pod in job.pods() if pod.phase == "Running"} == {f"{socket.gethostname()} (zone=b)"}
    assert finish(jobs).condition("Succeeded")


def test_a_worker_that_cannot_be_started_is_told_of_and_tried_again_and_the_others_go_on(jobs, elastic):
    job, cache = elastic(), jobs.home / "cache"
    away = cache.rename(jobs.home / "away")
    cache.touch()  # where a folder has to be
    job.evict(1)
    until(lambda: "CreateContainerError" in [event.reason for event in job.look().events], "it is told of")
    assert running(jobs) == [0, 2]
    cache.unlink()
    away.rename(cache)
    until(lambda: running(jobs) == [0, 1, 2], "three workers again")
    assert finish(jobs).condition("Succeeded")


def test_what_a_full_disk_delays_of_the_journal_follows_whole_and_in_order(tmp_path):
    folder = JobFolder(tmp_path / "home/jobs/job-a")
    folder.root.mkdir(parents=True)
    events = [JobEvent(datetime.now(UTC), "Normal", "Started", f"event {n}", "Job/job-a") for n in range(3)]
    folder.add(events[0])
    with full_disk(folder.journal.stat().st_size + 9):
        folder.add(events[1])
        assert folder.read().events == events[:1]
    folder.add(events[2])
    assert folder.read().events == events


class RefusedAtClose(io.FileIO):
    """A file on NFS: that the disk is full is told as it is closed, when a part is there."""

    def close(self):
        if not self.closed:
            super().close()
            os.truncate(self.name, Path(self.name).stat().st_size - 9)
            raise OSError(errno.ENOSPC, "full")


def test_what_a_full_disk_refuses_as_the_journal_is_closed_follows_whole(tmp_path, monkeypatch):
    folder = JobFolder(tmp_path / "home/jobs/job-a")
    folder.root.mkdir(parents=True)
    events = [JobEvent(datetime.now(UTC), "Normal", "Started", f"event {n}", "Job/job-a") for n in range(2)]
    assert folder.add(events[0])
    with monkeypatch.context() as nfs:
        nfs.setattr(Path, "open", lambda path, mode, **_: RefusedAtClose(path, mode))
        assert not folder.add(events[1])
    assert folder.add()
    assert folder.read().events == events


def limit_journal(jobs, *limit):
    """Makes the disk full for the controller alone, or no longer."""
    before = resource.prlimit(jobs.controller(), resource.RLIMIT_FSIZE)
    resource.prlimit(jobs.controller(), resource.RLIMIT_FSIZE, (*limit, *before[len(limit) :]))


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_an_end_that_a_full_disk_delays_is_written_once_there_is_room_unless_the_job_is_cancelled(jobs, is_cancelled):
    jobs.start(LEAVES, workers=1)
    until(lambda: jobs.text().count("ready") == 1, "the worker is ready")
    job, unlimited = jobs.backend.job("job-a"), resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    until(lambda: job.status().condition("Running"), "it runs")
    (pod,) = job.pods()
    limit_journal(jobs, job.folder.journal.stat().st_size)
    (jobs.home / "cache/done").touch()
    until(lambda: not Path(f"/proc/{pod.pid}").exists(), "the worker is gone")
    if is_cancelled:
        job.cancel()
    else:
        limit_journal(jobs, unlimited)
        assert jobs.ended().condition("Succeeded")


def test_what_does_not_run_is_not_changed(jobs, elastic):
    job = elastic()
    with pytest.raises(InvalidInput) as raised:
        job.evict(3)
    assert unnamed(raised.value, "worker=3", "job-a") == []
    finish(jobs)
    for change, fact in (
        (lambda: job.change(workers=1), "ended"),
        (lambda: job.evict(0), "ended"),
        (lambda: jobs.backend.job("b").evict(0), "no job 'b'"),
    ):
        with pytest.raises(JobNotFound, match=fact):
            change()
