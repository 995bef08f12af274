"""What fails is named with its cause and line, retried only when that can help, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.faults import faulty
from tests.jobs import functions
from tests.jobs.conftest import processes_of
from tests.local_jobs import until
from tests.messages import unnamed
from train_func import JobFailed, JobNotFound, Local, Run, attach, submit
from train_func.client.stored_attempts import all_ends
from train_func.storage import open_store

LIMIT = 300


def failure(job) -> JobFailed:
    with pytest.raises(JobFailed) as caught:
        job.result(LIMIT)
    until(lambda: not processes_of(job.record.job_name))
    return caught.value


def num_pods(job) -> int:
    return len(Local().job(job.record.job_name).pods())


def line_of(text: str) -> int:
    lines = Path(functions.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_a_typo_fails_once_and_is_shown_with_its_line(home):
    job = submit(functions.misspells, Run(workers=2), on=Local())
    error = failure(job)
    assert error.cause == "code"
    assert unnamed(error, "AttributeError", "'apend'") == []
    assert f"functions.py, line {line_of('apend')}: `[].apend(rank)`" in str(error)
    assert "rank 1" in str(error)
    assert job.state == "Failed"
    # Worker 0 lost its peer, and may have been started once more.
    assert [pod.worker for pod in Local().job(job.record.job_name).pods()].count(1) == 1


def test_each_line_on_the_way_to_a_metric_that_fails_is_shown_once(home, a_run):
    error = failure(submit(functions.measures_wrongly, a_run(workers=1), on=Local()))
    assert error.cause == "code"
    assert unnamed(error, "AttributeError", "'no_such_field'", "next:") == []
    places = [line.partition("functions.py, ")[2] for line in str(error).splitlines() if "functions.py, line" in line]
    metric, training = places
    assert metric.startswith(f"line {line_of('prediction.no_such_field')}: ")
    assert training.endswith("`trainer.train()`")


def test_a_rank_killed_once_starts_again_in_its_pod_and_the_job_succeeds(home, tmp_path):
    folder = tmp_path / "kills"
    folder.mkdir()
    run = Run(workers=2, parameters={"folder": str(folder), "times": 1})
    job = submit(functions.kills_itself, run, on=Local())
    assert job.wait(LIMIT) == "Succeeded"
    assert num_pods(job) == 2
    logs = list(job.logs())
    assert [line[:13] for line in logs if line.startswith("---")] == ["--- attempt 1", "--- attempt 2"]
    assert len([line for line in job.logs(attempt=2) if "met the others" in line]) == 2


def test_infinite_gradients_of_a_finite_loss_end_the_loop_and_are_told_with_step_and_rank(home):
    run = Run(workers=2, epochs=2, batch_size=4, parameters={"rank": 1, "step": 3})
    error = failure(submit(functions.takes_the_root_of_zero, run, on=Local()))
    assert error.cause == "divergence"
    assert unnamed(error, "gradients of step 3", "on rank 1", "SGD.param_groups[0][0] (infinity)", "next:") == []


def test_a_worker_over_its_memory_limit_is_named_with_the_remedy(home):
    job = submit(functions.needs_much_memory, Run(max_attempts=1), on=Local(memory="700Mi"))
    error = failure(job)
    assert error.cause == "memory"
    assert "memory=..." in str(error)


def test_in_a_loop_of_its_own_no_rank_is_named_for_a_hang_and_the_lines_of_all_are_shown(home):
    """Rank 0 loops without end, and rank 1 waits for it in an exchange of the function."""
    asks = {"rank": 0, "step": 3, "fails": {"how": "loops"}}
    job = submit(faulty.trains, Run(workers=2, parameters=asks, hang_after=8, max_attempts=1), on=Local())
    error = failure(job)
    assert error.cause == "hang"
    assert "rank 0 hangs" not in str(error) and "rank 1 hangs" not in str(error)
    places = "rank 0 in", "all(True for _ in iter(int, 1))", "rank 1 in", "all_reduce("
    assert unnamed(error, "no rank makes progress", *places) == []
    assert unnamed(str(error).splitlines()[0], "rank 0 is in", "all(True for _ in iter(int, 1))") == []


@pytest.mark.slow
def test_a_rank_that_grows_to_the_memory_limit_is_killed_before_its_worker_and_not_tried_again_in_vain(home):
    asks = {"bytes": 1345 * 2**20}  # the guard acts at 1,330 MiB; with the supervisor it is less than the limit
    job = submit(functions.grows_and_waits, Run(parameters=asks), on=Local(memory="1400Mi"))
    error = failure(job)
    assert (error.cause, "memory=" in str(error)) == ("memory", True)
    ends = all_ends(open_store(job.record.store), job.record.keys)
    assert [(end.attempt, end.cause, end.retryable) for end in ends] == [(1, "memory", False)]
    assert num_pods(job) == 1


def test_cancel_stops_the_workers_and_a_new_submission_goes_on(home, tmp_path):
    file = tmp_path / "go"
    asked = Run(workers=2, parameters={"file": str(file)})
    job = submit(functions.waits_for_a_file, asked, on=Local())
    until(lambda: sum("waiting" in line for line in job.logs()) == 2)
    job.cancel()
    assert job.wait(LIMIT) == "Cancelled"
    assert failure(job).cause == "cancelled"
    file.touch()
    again = submit(functions.waits_for_a_file, asked, on=Local())
    assert again.wait(LIMIT) == "Succeeded"
    assert again.name == job.name
    for entry in again._store.list(f"{again.name}/"):
        again._store.delete(entry.key)
    anew = submit(functions.waits_for_a_file, asked, on=Local())  # the job is there still, its run is not
    assert anew.wait(LIMIT) == "Succeeded"
    assert any("/attempts/" in entry.key for entry in anew._store.list(f"{anew.name}/"))  # of its own: none was left
    anew.delete()
    assert anew.state == "Succeeded"


def test_an_interrupt_ends_the_watching_and_not_the_job(home, tmp_path, capsys):
    file = tmp_path / "go"
    job = submit(functions.waits_for_a_file, Run(parameters={"file": str(file)}), on=Local())
    until(lambda: any("waiting" in line for line in job.logs()))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            job.watch()
    finally:
        signal.signal(signal.SIGINT, before)
    assert unnamed(capsys.readouterr().out, f"train_func watch {job.name}`", f"train_func cancel {job.name}`") == []
    file.touch()
    assert job.wait(LIMIT) == "Succeeded"


def test_the_death_of_the_controller_leaves_no_orphan_and_reads_as_interrupted(home, tmp_path):
    file = tmp_path / "go"
    asked = Run(workers=2, parameters={"file": str(file)})
    job = submit(functions.waits_for_a_file, asked, on=Local())
    until(lambda: sum("waiting" in line for line in job.logs()) == 2)
    controller = int((home / "jobs" / job.record.job_name / "controller.pid").read_text())
    os.kill(controller, signal.SIGKILL)
    until(lambda: not processes_of(job.record.job_name))
    assert job.wait(LIMIT) == "Interrupted"
    assert failure(job).cause == "interrupted"
    file.touch()
    assert submit(functions.waits_for_a_file, asked, on=Local()).wait(LIMIT) == "Succeeded"


KERNEL = """
import sys
from tests.jobs.functions import waits_for_a_file
from train_func import Local, Run, submit
job = submit(waits_for_a_file, Run(workers=2, parameters={"file": sys.argv[1]}), on=Local())
print(job.name, flush=True)
job.wait()
"""


def test_the_death_of_the_kernel_does_not_touch_the_job(home, tmp_path):
    file = tmp_path / "go"
    command = [sys.executable, "-c", KERNEL, str(file)]
    kernel = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    name = until(lambda: next((line for line in kernel.stdout if ":" not in line), "").strip())
    job = attach(name)
    until(lambda: any("waiting" in line for line in job.logs()))
    kernel.kill()
    kernel.wait()
    assert job.state in ("Created", "Running")
    file.touch()
    assert attach(name).wait(LIMIT) == "Succeeded"
    logs = list(attach(name).logs())
    assert sum("waiting" in line for line in logs) == 2
    assert sum("the file is there" in line for line in logs) == 2


def test_a_name_that_was_never_submitted_is_refused_with_those_that_are_there(home):
    with pytest.raises(JobNotFound, match="'bert-reviews-0'"):
        attach("bert-reviews-0")
