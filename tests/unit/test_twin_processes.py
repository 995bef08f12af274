"""Nothing of a job outlives it, however it ends; memory and signals are those of a pod."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.twin_jobs import first_end, until
from train_func.client.diagnose.incidents import since

MEBIBYTE = 2**20
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


def shim_of(jobs, worker):
    records = json.loads((jobs.home / "jobs/job-a/pods.json").read_text())
    return next(record["shim"] for record in records if record["worker"] == worker and not record["deleted"])


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
        ("", 137, 2, 2, 60),
    ],
    ids=["ends on SIGTERM", "goes on after SIGTERM", "has no handler, which the first process of a pod needs"],
)
def test_cancel_gives_the_grace_period_and_leaves_nothing(jobs, preparation, exit_code, grace, least, most):
    jobs.start(preparation + FOREVER, grace=grace)
    started(jobs)
    begun = time.monotonic()
    jobs.backend.job("job-a").cancel()
    assert least <= time.monotonic() - begun < most
    assert jobs.processes("job-a") == []
    assert [(pod.exit_code, pod.deleted) for pod in jobs.backend.job("job-a").pods()] == [(exit_code, True)] * 2
    status = jobs.backend.job("job-a").status()
    failed = status.condition("Failed")
    assert (failed.reason, status.interrupted) == ("Cancelled", False)
    assert "job-a" in failed.message
    assert jobs.moment("completionTime") is not None


def test_a_program_that_was_just_starting_when_it_was_cancelled_ends_as_soon_as_it_listens(jobs, tmp_path):
    listen = tmp_path / "listen"
    code = (
        "import pathlib, signal, sys, time\n"
        "print('ready', flush=True)\n"
        f"while not pathlib.Path({str(listen)!r}).exists(): time.sleep(0.01)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))\n"
        "while True: time.sleep(1)\n"
    )
    jobs.start(code, grace=60)
    started(jobs)
    begun = time.monotonic()
    cancelling = threading.Thread(target=jobs.backend.job("job-a").cancel)
    cancelling.start()
    until(lambda: [event.reason for event in jobs.backend.job("job-a").events()].count("Killing") == 2, "SIGTERM")
    listen.touch()
    cancelling.join()
    assert time.monotonic() - begun < 30
    assert [pod.exit_code for pod in jobs.backend.job("job-a").pods()] == [143, 143]


def test_cancelling_a_finished_job_changes_nothing(jobs):
    jobs.start("pass")
    before = jobs.ended()
    jobs.backend.job("job-a").cancel()
    assert jobs.backend.job("job-a").status() == before


def test_only_the_main_process_gets_sigterm(jobs):
    code = (
        "import os, signal, sys, time\n"
        "def stop(*_): print(sys.argv[0] and 'child' or 'main', flush=True); sys.exit(143)\n"
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
    assert len(jobs.processes("job-a")) == 1 + 3 * 3  # the controller; a shim, a program and its daemon each
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
    assert jobs.processes("job-a") == []
    assert [pod.exit_code for pod in jobs.backend.job("job-a").pods()] == [143, 143]


def test_an_interrupted_job_can_be_cancelled(jobs):
    jobs.start(FOREVER)
    os.kill(jobs.controller(), signal.SIGKILL)
    until(lambda: not jobs.processes("job-a"), "death of all")
    jobs.backend.job("job-a").cancel()
    status = jobs.backend.job("job-a").status()
    assert (status.interrupted, status.condition("Failed").reason) == (False, "Cancelled")


def test_an_interrupted_job_starts_anew_under_its_name_and_keeps_the_earlier_pods_and_logs(jobs):
    jobs.start(FOREVER)
    started(jobs)
    os.kill(jobs.controller(), signal.SIGKILL)
    until(lambda: jobs.backend.job("job-a").status().interrupted, "interruption")
    jobs.start("print('second job')")
    assert jobs.ended().condition("Succeeded") is not None
    pods = jobs.backend.job("job-a").pods()
    assert [(pod.worker, pod.phase, pod.reason, pod.deleted) for pod in pods[:2]] == [
        (worker, "Failed", "Interrupted", True) for worker in range(2)
    ]
    assert [(pod.worker, pod.phase, pod.deleted) for pod in pods[2:]] == [
        (0, "Succeeded", False),
        (1, "Succeeded", False),
    ]
    assert jobs.text() == ["ready", "ready", "second job", "second job"]
    events = since(jobs.backend.job("job-a").status().created, jobs.backend.job("job-a").events())
    assert [event.message for event in events if event.reason == "SuccessfulCreatePod"] == [
        f"Created pod: job-a-worker-{worker}" for worker in range(2)
    ]


def test_a_killed_shim_takes_its_container_along_and_the_pod_is_replaced(jobs):
    jobs.start(FOREVER)
    started(jobs)
    os.kill(shim_of(jobs, 1), signal.SIGKILL)
    until(lambda: len(running_pods(jobs)) == 2 and len(jobs.backend.job("job-a").pods()) == 3, "a new pod")
    lost = jobs.backend.job("job-a").pods()[1]
    assert (lost.worker, lost.exit_code, lost.reason, lost.deleted) == (1, 137, "ContainerStatusUnknown", True)
    started(jobs, workers=3)
    assert len(jobs.processes("job-a")) == 1 + 2 * 3


def test_what_is_left_when_controller_and_shims_are_killed_together_is_swept_before_the_next_job(jobs):
    jobs.start(FOREVER)
    started(jobs)
    shims = [shim_of(jobs, worker) for worker in range(2)]
    os.kill(jobs.controller(), signal.SIGSTOP)
    for pid in (*shims, jobs.controller()):
        os.kill(pid, signal.SIGKILL)
    until(lambda: jobs.backend.job("job-a").status().interrupted, "interruption")
    left = until(lambda: jobs.processes("job-a"), "daemons without a shim")
    jobs.start("pass")
    assert not set(left) & set(jobs.processes("job-a"))


def test_a_job_survives_the_kernel_that_started_it_and_another_process_sees_all_of_it(jobs, tmp_path):
    kernel_code = (
        "import sys, time; from pathlib import Path; from tests.twin_jobs import Jobs\n"
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


def hog(num_mebibytes: int) -> str:
    return f"data = bytearray({num_mebibytes} * 2**20); data[::4096] = b'x' * len(data[::4096]); "


def test_a_worker_over_its_memory_limit_is_killed(jobs):
    jobs.start(hog(200) + "import time; time.sleep(30)", workers=1, memory="100Mi")
    pod = first_end(jobs)
    assert (pod.exit_code, pod.reason) == (137, "OOMKilled")


def test_memory_is_that_of_all_processes_of_the_worker(jobs):
    code = (
        "import os, time\nfor _ in range(3):\n    if os.fork() == 0:\n        "
        + hog(50)
        + "time.sleep(30)\ntime.sleep(30)"
    )
    jobs.start(code, workers=1, memory="100Mi")
    pod = first_end(jobs)
    assert (pod.exit_code, pod.reason) == (137, "OOMKilled")


def test_shared_pages_count_once_and_file_pages_not_at_all(jobs, tmp_path):
    (tmp_path / "big").write_bytes(bytes(120 * MEBIBYTE))
    code = (
        "import mmap, os, time\n"
        f"file = mmap.mmap(os.open({str(tmp_path / 'big')!r}, os.O_RDONLY), 0, prot=mmap.PROT_READ)\n"
        "sum(file[::4096])\n" + hog(50) + "\n"
        "for _ in range(3):\n    if os.fork() == 0: sum(data[::4096]); time.sleep(1); os._exit(0)\n"
        "time.sleep(0.6)"
    )
    jobs.start(code, workers=1, memory="100Mi")
    assert jobs.ended().condition("Succeeded") is not None
