"""Nothing of a job outlives it, however it ends; memory and signals are those of a pod."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.local_jobs import until

ROOT = Path(__file__).parents[2]
# A process that leaves its session and its parent, as daemons do.
DAEMON = (
    "import os, sys, time\n"
    "if os.fork() == 0:\n"
    "    os.setsid()\n"
    "    if os.fork() == 0:\n"
    "        time.sleep(600)\n"
    "    os._exit(0)\n"
    "os.wait()\n"
)
FOREVER = DAEMON + "print('ready', flush=True)\ntime.sleep(600)\n"


def started(jobs, workers=2, name="job-a"):
    """Waits until every worker has said that it is ready."""
    until(lambda: jobs.text(name).count("ready") == workers, f"{workers} workers of {name}")


def running_pods(jobs, name="job-a"):
    return [pod for pod in jobs.backend.job(name).pods() if pod.phase == "Running"]


@pytest.mark.parametrize("exit_code", [0, 1])
def test_what_the_main_process_leaves_behind_ends_with_it(jobs, exit_code):
    jobs.start(DAEMON + f"sys.exit({exit_code})")
    jobs.ended()
    assert jobs.processes("job-a") == []


@pytest.mark.parametrize(
    ("preparation", "exit_code", "grace", "least", "most"),
    [
        ("import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n", 143, 60, 0, 60),
        ("import signal; signal.signal(signal.SIGTERM, lambda *_: None)\n", 137, 2, 2, 60),
    ],
    ids=["ends on SIGTERM", "goes on after SIGTERM"],
)
def test_cancel_gives_the_grace_period_and_leaves_nothing(jobs, preparation, exit_code, grace, least, most):
    jobs.start(preparation + FOREVER, grace=grace)
    started(jobs)
    begun = time.monotonic()
    jobs.backend.job("job-a").cancel()
    assert least <= time.monotonic() - begun < most
    assert jobs.processes("job-a") == []
    assert [(pod.exit_code, pod.deleted) for pod in jobs.backend.job("job-a").pods()] == [(exit_code, False)] * 2
    status = jobs.backend.job("job-a").status()
    failed = status.condition("Failed")
    assert (failed.reason, status.interrupted) == ("Cancelled", False)
    assert "cancelled" in failed.message


def test_only_the_main_process_gets_sigterm(jobs):
    code = (
        "import os, signal, sys, time\n"
        "main = os.getpid(); child = os.fork()\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('main' if os.getpid() == main else 'child', flush=True),"
        " time.sleep(0.3), os._exit(143)))\n"
        "if child: print('ready', flush=True)\n"
        "while True: time.sleep(1)\n"
    )
    jobs.start(code, workers=1)
    started(jobs, workers=1)
    jobs.backend.job("job-a").cancel()
    assert jobs.text() == ["ready", "main"]


def test_everything_dies_with_a_killed_controller_and_the_job_reads_as_interrupted(jobs):
    jobs.start(FOREVER, workers=3)
    started(jobs, workers=3)
    assert len(jobs.processes("job-a")) == 2 + 3 * 2  # guardian and controller; a supervisor and its daemon each
    os.kill(jobs.controller(), signal.SIGKILL)
    until(lambda: not jobs.processes("job-a"), "death of all")
    until(lambda: jobs.backend.job("job-a").status().interrupted, "release of the controller's lock")
    assert not jobs.backend.job("job-a").status().finished
    assert [(pod.phase, pod.exit_code) for pod in jobs.backend.job("job-a").pods()] == [("Unknown", None)] * 3


def test_a_controller_that_is_asked_to_end_ends_its_pods_first_and_leaves_the_job_interrupted(jobs):
    jobs.start("import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n" + FOREVER)
    started(jobs)
    os.kill(jobs.controller(), signal.SIGTERM)
    until(lambda: jobs.backend.job("job-a").status().interrupted, "end of the controller")
    until(lambda: not jobs.processes("job-a"), "end of the guardian")
    assert [pod.exit_code for pod in jobs.backend.job("job-a").pods()] == [143, 143]


def test_an_interrupted_job_starts_anew_under_its_name(jobs):
    jobs.start(FOREVER)
    started(jobs)
    os.kill(jobs.controller(), signal.SIGKILL)
    until(lambda: jobs.backend.job("job-a").status().interrupted, "interruption")
    jobs.start("print('second job')")
    assert jobs.ended().condition("Succeeded") is not None
    assert [pod.phase for pod in jobs.backend.job("job-a").pods()] == ["Succeeded"] * 2
    assert jobs.text() == ["second job", "second job"]


def test_a_lost_worker_takes_its_descendants_along_and_leaves_those_of_others_alone(jobs):
    jobs.start(FOREVER)
    started(jobs)
    other, killed = (pod.pid for pod in jobs.backend.job("job-a").pods())
    os.kill(killed, signal.SIGKILL)
    started(jobs, workers=3)
    until(lambda: len(running_pods(jobs)) == 2, "a new pod")
    assert len(jobs.processes("job-a")) == 2 + 2 * 2
    assert Path(f"/proc/{other}").exists()


def test_a_job_survives_the_kernel_that_started_it_and_another_process_sees_all_of_it(jobs, tmp_path):
    kernel_code = (
        "import sys, time; from pathlib import Path; from tests.local_jobs import Jobs\n"
        f"Jobs(Path({str(jobs.home)!r})).start({FOREVER!r})\n"
        "print('submitted', flush=True); time.sleep(600)\n"
    )
    kernel = subprocess.Popen(
        [sys.executable, "-c", kernel_code], stdout=subprocess.PIPE, text=True, start_new_session=True, cwd=ROOT
    )
    assert kernel.stdout.readline() == "submitted\n"
    kernel.kill()
    kernel.wait()
    kernel.stdout.close()
    started(jobs)
    until(lambda: jobs.backend.job("job-a").status().condition("Running"), "it runs")
    until(lambda: len(running_pods(jobs)) == 2, "both workers run")
