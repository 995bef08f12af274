"""The twin executes a job as the operator does: completion, restarts, limits, conditions."""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.twin_jobs import container_of, first_end, until, worker_manifest

WORKER = "import os; worker = int(os.environ['TRAIN_FUNC_WORKER']); "
# The first incarnation of worker 1 ends with the code, the next one with 0; worker 0 waits for that.
SECOND_CHANCE = WORKER + (
    "import pathlib, sys, time; shared = pathlib.Path(os.environ['TRAIN_FUNC_CACHE_DIR'])\n"
    "if worker == 1:\n"
    "    started = shared / 'started'\n"
    "    if not started.exists():\n"
    "        started.touch()\n"
    "        print('first', flush=True)\n"
    "        END\n"
    "    print('second', flush=True)\n"
    "    (shared / 'done').touch()\n"
    "while not (shared / 'done').exists(): time.sleep(0.01)\n"
)


def ends(jobs, name="job-a"):
    """Worker, exit code, reason and whether it was deleted, of every pod."""
    return [(pod.worker, pod.exit_code, pod.reason, pod.deleted) for pod in jobs.backend.job(name).pods()]


def reasons(jobs, name="job-a"):
    return [event.reason for event in jobs.backend.job(name).events()]


def test_workers_that_end_with_0_make_a_job_succeed(jobs):
    jobs.start(WORKER + "import time; print('worker', worker); time.sleep(0.3)", workers=3)
    status = jobs.ended()
    assert [found.type for found in status.conditions if found.status == "True"] == ["Created", "Succeeded"]
    assert status.condition("Succeeded").reason == "PyTorchJobSucceeded"
    assert ends(jobs) == [(worker, 0, "Completed", False) for worker in range(3)]
    assert [pod.name for pod in jobs.backend.job("job-a").pods()] == [f"job-a-worker-{worker}" for worker in range(3)]
    assert all(pod.phase == "Succeeded" and pod.started <= pod.ended for pod in jobs.backend.job("job-a").pods())
    assert sorted(jobs.text()) == ["worker 0", "worker 1", "worker 2"]
    assert jobs.moment("startTime") <= jobs.moment("completionTime")
    assert not status.interrupted
    assert jobs.conditions() == ["Created", "Created Running", "Created Succeeded"]


def test_the_container_starts_within_half_a_second(jobs):
    def seconds(attempt: int) -> float:
        begun = datetime.now(UTC)
        jobs.start("pass", name=f"job-{attempt}", workers=1)
        jobs.ended(f"job-{attempt}")
        (pod,) = jobs.backend.job(f"job-{attempt}").pods()
        return (pod.started - begun).total_seconds()

    def of_an_interpreter() -> float:
        begun = time.monotonic()
        subprocess.run([sys.executable, "-c", "import train_func"], check=True)
        return time.monotonic() - begun

    # The best of some, or few times what an interpreter takes at that moment: others may be using this machine.
    assert any(seconds(attempt) < max(0.5, 3 * of_an_interpreter()) for attempt in range(5))


@pytest.mark.parametrize("exit_code", [1, 65])
def test_a_permanent_exit_code_fails_the_job_at_once_and_once(jobs, exit_code):
    code = (
        "import pathlib, sys, time; go = pathlib.Path(os.environ['TRAIN_FUNC_HOME'], 'go')\n"
        f"if worker: sys.exit({exit_code})\n"
        "while not go.exists(): time.sleep(0.01)"
    )
    jobs.start(WORKER + code)
    until(lambda: jobs.backend.job("job-a").status().finished, "failure")
    (jobs.home / "go").touch()
    status = jobs.ended()
    assert [found.type for found in status.conditions if found.status == "True"] == ["Created", "Failed"]
    assert status.condition("Failed").reason == "PyTorchJobFailed"
    assert ends(jobs) == [(0, 0, "Completed", False), (1, exit_code, "Error", False)]
    assert "PyTorchJobRestarting" not in [found.reason for found in status.conditions]
    assert jobs.moment("completionTime") is None


@pytest.mark.parametrize("end", ["sys.exit(143)", "sys.exit(144)", "os.kill(os.getpid(), 9)"])
def test_a_retryable_end_starts_that_worker_again_and_no_other(jobs, end):
    jobs.start(SECOND_CHANCE.replace("END", end), workers=3)
    status = jobs.ended()
    code = {"sys.exit(143)": 143, "sys.exit(144)": 144}.get(end, 137)
    assert status.condition("Succeeded") is not None
    assert [(pod.worker, pod.exit_code, pod.deleted) for pod in jobs.backend.job("job-a").pods()] == [
        (0, 0, False),
        (1, code, True),
        (2, 0, False),
        (1, 0, False),
    ]
    assert jobs.text(worker=1) == ["first", "second"]
    assert "Created Restarting" in jobs.conditions()
    assert jobs.conditions()[-1] == "Created Succeeded"
    expected = ["Error", "ExitedWithCode", *["PyTorchJobRestarting"] * 2, "SuccessfulDeletePod", "SuccessfulCreatePod"]
    events = jobs.backend.job("job-a").events()
    of_job = [event.reason for event in events if event.object.startswith("PyTorchJob/")]  # those of pods come between
    start = of_job.index("Error")
    assert of_job[start : start + 6] == expected
    (error,) = [event for event in events if event.reason == "Error"]
    told = f"Error pod job-a-worker-1 container pytorch exitCode: {code} terminated message: first\n"
    assert (error.type, error.object, error.message) == ("Warning", "PyTorchJob/job-a", told)


def test_a_command_that_does_not_exist_is_a_start_error(jobs):
    job = worker_manifest("", name="job-a", workers=1)
    container_of(job)["command"] = ["no-such-command", "x"]
    jobs.create(job, {"run.json": b""})
    pod = first_end(jobs)
    assert (pod.exit_code, pod.reason) == (128, "StartError")
    assert "no-such-command" in pod.message


def test_the_deadline_fails_the_job_and_ends_its_pods(jobs):
    job = worker_manifest("import time; time.sleep(60)", name="job-a", grace=1, policy={"activeDeadlineSeconds": 1})
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["activeDeadlineSeconds"] = 1
    jobs.create(job, {"run.json": b""})
    status = jobs.ended()
    assert status.is_over_deadline
    assert ends(jobs) == [(worker, 137, "DeadlineExceeded", False) for worker in range(2)]
    # The operator notices it by the end of a pod: the deadline, and the grace period of a program that hears nothing.
    assert timedelta(seconds=2) <= jobs.moment("completionTime") - jobs.moment("startTime") < timedelta(seconds=60)


def test_the_deadline_fails_a_job_whose_pods_cannot_start(jobs):
    job = worker_manifest("pass", name="job-a", workers=1, policy={"activeDeadlineSeconds": 1})
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["activeDeadlineSeconds"] = 1
    container_of(job)["env"].append({"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})
    jobs.create(job, {"run.json": b""})
    assert jobs.ended().is_over_deadline
    assert ends(jobs) == [(0, None, "DeadlineExceeded", False)]


def test_a_worker_gets_the_environment_of_the_operator(jobs):
    jobs.start("import os, json; print(json.dumps(dict(os.environ)))", workers=2)
    jobs.ended()
    for worker in range(2):
        (line,) = jobs.text(worker=worker)
        got = json.loads(line)
        assert got["PET_NNODES"] == "2:2"
        assert got["PET_NPROC_PER_NODE"] == "1"
        assert got["PET_RDZV_ID"] == "job-a"
        assert got["PET_MAX_RESTARTS"] == "0"
        assert got["PYTHONUNBUFFERED"] == "1"
        assert got["TRAIN_FUNC_WORKER"] == str(worker)
        assert got["TRAIN_FUNC_POD"] == f"job-a-worker-{worker}"
        assert got["TRAIN_FUNC_CPUS"] == "1"
        assert got["TRAIN_FUNC_GRACE_SECONDS"] == "2"
        assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(got)


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


def test_the_interpreter_of_the_workers_is_this_one(jobs):
    jobs.start("import sys, train_func; print(sys.executable)", workers=1)
    jobs.ended()
    assert jobs.text() == [sys.executable]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("open(os.environ['TRAIN_FUNC_TERMINATION_FILE'], 'w').write('written'); sys.exit(1)", "written"),
        ("print('line 1'); print('last line'); sys.exit(1)", "line 1\nlast line\n"),
        ("print('\\n'.join(map(str, range(101)))); sys.exit(1)", "\n".join(map(str, range(21, 101))) + "\n"),
        ("print('x' * 9999); sys.exit(1)", "x" * 2047 + "\n"),
        ("open(os.environ['TRAIN_FUNC_TERMINATION_FILE'], 'w').write('y' * 9999); sys.exit(1)", "y" * 4096),
        ("print('all is well')", ""),
    ],
    ids=["file", "log", "80 lines", "2048 bytes", "4096 bytes", "success"],
)
def test_the_termination_message_is_the_file_or_the_end_of_a_failed_container_s_log(jobs, code, message):
    jobs.start("import os, sys; " + code, workers=1)
    jobs.ended()
    (pod,) = jobs.backend.job("job-a").pods()
    assert pod.message == message
