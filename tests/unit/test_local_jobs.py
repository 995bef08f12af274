"""What Local() tells of a job beside what the table of scenarios holds: events, last words, pauses."""

import pytest

from tests.local_jobs import until

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
    events = jobs.backend.job("job-a").events()
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
