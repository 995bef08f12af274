"""Local as a backend: its options, what it refuses, jobs side by side and one after the other, cancel and delete."""

import os
import shlex
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.local_jobs import full_disk, until
from tests.messages import refuses, unnamed
from train_func import Local
from train_func.client.local.machine import Machine
from train_func.errors import InvalidInput, JobFailed, JobNotFound
from train_func.process import lock
from train_func.run import Run
from train_func.wire.records import RunRecord

FOREVER = "import time; print('ready', flush=True); time.sleep(600)"
ANSWERS = """
import signal, time
signal.signal(signal.SIGQUIT, lambda *_: print("asked", flush=True))
print("ready", flush=True)
while True: time.sleep(0.1)
"""
LINGERS = "import os, sys, time; int(os.environ['TRAIN_FUNC_WORKER']) and sys.exit(1); time.sleep(600)"


def record(**fields):
    run = Run(**{"workers": 2, **fields})
    return RunRecord(run=run, name="job-a", generation=1, store="file:///s", function="f", source_sha256="0")


def phases(jobs):
    return [pod.phase for pod in jobs.backend.job("job-a").pods()]


def test_all_faulty_options_are_reported_at_once():
    with pytest.raises(InvalidInput) as caught:
        Local(cpu=0, memory="lots", gpu=-1)
    assert [fault.split(":")[0] for fault in caught.value.faults] == ["cpu=0", "memory='lots'", "gpu=-1"]


def test_only_linux_has_what_it_needs(monkeypatch):
    monkeypatch.setattr("sys.platform", "darwin")
    with pytest.raises(InvalidInput, match=r"Local\(\).*Linux.*darwin"):
        Local()


def test_the_store_is_the_option_or_the_environment_or_a_folder_here(monkeypatch, tmp_path):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    monkeypatch.delenv("TRAIN_FUNC_STORE", raising=False)
    assert Local().store_address() == f"file://{tmp_path}/store"
    monkeypatch.setenv("TRAIN_FUNC_STORE", "s3://bucket/mine")
    assert Local().store_address() == "s3://bucket/mine"
    assert Local(store="file:///else").store_address() == "file:///else"
    assert Local(store=Path("/some where/else")) == Local(store="file:///some%20where/else")


def spec_of(backend, **fields):
    return backend.request(record(**fields)).manifest


def test_cores_are_shared_evenly_but_every_worker_has_one():
    cores = Machine.look({}).cores
    for workers in (1, 2, 3, 101):
        assert spec_of(Local(), workers=workers)["cpu"] == str(max(1, cores // workers))


@pytest.mark.parametrize(("workers", "gpu", "note"), [(1, 5, ""), (2, 2, ""), (6, 0, "workers=5 would use all")])
def test_gpus_are_shared_evenly_when_there_are_enough(jobs, monkeypatch, capsys, workers, gpu, note):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    spec = spec_of(Local(), workers=workers)
    assert (spec["gpu"], spec["ranks"]) == (gpu, max(1, gpu))
    Local(cpu=1, memory="512Mi").prepare(record(workers=workers), {}, 0, None)
    assert note in capsys.readouterr().out
    assert spec_of(Local(cpu=1, memory="512Mi", gpu=2), workers=workers)["gpu"] == 2


def test_more_than_the_machine_has_is_refused_with_what_was_asked_and_what_is_there(jobs, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    machine = Machine.look({})
    backend = Local(cpu=1000, memory=str(machine.memory // 2), gpu=1)
    with pytest.raises(InvalidInput) as caught:
        backend.prepare(record(workers=3), {}, 0, None)
    assert caught.value.cause == "scheduling"
    cpu, gpu, memory = caught.value.faults
    assert unnamed(cpu, 1000, machine.cores, "cpu") == []
    assert unnamed(memory, "3 workers", "free", "memory") == []
    assert unnamed(gpu, "3 workers", "1 GPU", "gpu") == []


def test_gpus_are_not_named_in_the_variables_of_workers_but_in_those_of_this_process(jobs):
    with pytest.raises(InvalidInput) as refused:
        Local(environment={"CUDA_VISIBLE_DEVICES": "1"}).check(Run())
    (fault,) = refused.value.faults
    assert unnamed(fault, "environment['CUDA_VISIBLE_DEVICES']='1'", "os.environ['CUDA_VISIBLE_DEVICES']") == []


@pytest.mark.parametrize("name", ["", "..", "a/b", "Job", "x" * 64])
def test_a_name_that_no_job_can_have_is_refused_everywhere(jobs, name):
    with pytest.raises(InvalidInput, match="name of a job") as refused:
        jobs.backend.job(name)
    assert repr(name) in str(refused.value)


def test_a_job_that_is_not_there_has_no_status_and_no_pods(jobs):
    assert jobs.backend.job("never-was").status() is None
    assert jobs.backend.job("never-was").pods() == []
    with pytest.raises(JobNotFound, match="'never-was'"):
        jobs.backend.job("never-was").cancel()
    jobs.backend.job("never-was").delete()


def test_two_jobs_run_side_by_side(jobs):
    code = "import os; print(os.environ['PET_RDZV_ENDPOINT'], os.getcwd(), os.environ['TRAIN_FUNC_JOB'])"
    for name in ("job-a", "job-b"):
        jobs.start(code + "; import time; time.sleep(0.5)", name=name)
    assert [jobs.backend.job(name).status().interrupted for name in ("job-a", "job-b")] == [False, False]
    assert [job.name for job in jobs.backend.jobs()] == ["job-a", "job-b"]
    seen = {}
    for name in ("job-a", "job-b"):
        assert jobs.ended(name).condition("Succeeded") is not None
        seen[name] = [line.split() for line in jobs.text(name)]
    endpoints = {name: {line[0] for line in lines} for name, lines in seen.items()}
    assert all(len(found) == 1 for found in endpoints.values())
    assert endpoints["job-a"] != endpoints["job-b"]
    assert len({line[1] for lines in seen.values() for line in lines}) == 4
    assert {line[2] for line in seen["job-b"]} == {"job-b"}


def test_a_job_that_runs_cannot_be_created_again(jobs):
    jobs.start(FOREVER)
    with pytest.raises(InvalidInput, match="job-a runs already"):
        jobs.start("pass")
    with refuses("job-a", "file:///srv/store", "file:///srv/other"):
        jobs.start("pass", store="file:///srv/other")
    assert not jobs.backend.job("job-a").status().finished


def test_of_many_that_create_the_same_job_at_once_one_wins(jobs):
    won, lost = [], []

    def create():
        try:
            won.append(jobs.start(FOREVER))
        except InvalidInput as refusal:
            lost.append(str(refusal))

    threads = [threading.Thread(target=create) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 4)
    assert all("runs already" in message for message in lost)
    assert [pod.worker for pod in jobs.backend.job("job-a").pods()] == [0, 1]


def test_a_failed_job_is_replaced_and_its_last_pods_are_ended_first(jobs):
    jobs.start(LINGERS, grace=1)
    until(lambda: jobs.backend.job("job-a").status().finished, "failure")
    until(lambda: phases(jobs) == ["Running", "Failed"], "one worker stays")
    jobs.start("print('again')")
    assert jobs.ended().condition("Succeeded") is not None
    assert phases(jobs) == ["Succeeded", "Succeeded"]
    assert jobs.text() == ["again", "again"]


def test_the_last_pods_of_a_failed_job_are_ended_before_there_is_found_to_be_room(jobs):
    jobs.start(LINGERS, grace=1)
    until(lambda: jobs.backend.job("job-a").status().finished, "failure")
    Local(cpu=1, memory="1Mi").prepare(record(), {}, 0, None)
    assert jobs.processes("job-a") == []
    assert jobs.backend.job("job-a").status().condition("Failed").reason != "Cancelled"


def test_who_asks_for_room_ends_nothing_of_the_job_that_another_client_has_just_started(jobs, monkeypatch):
    jobs.start(LINGERS, grace=1)
    until(lambda: jobs.backend.job("job-a").status().finished, "failure")
    hold = lock.hold

    def hold_after_another(path):
        monkeypatch.undo()
        monkeypatch.setenv("TRAIN_FUNC_HOME", str(jobs.home))
        jobs.start(FOREVER, grace=1)
        return hold(path)

    monkeypatch.setattr(lock, "hold", hold_after_another)
    Local(cpu=1, memory="1Mi").prepare(record(), {}, 0, None)
    until(lambda: "ready" in jobs.text(worker=0) and "ready" in jobs.text(worker=1), "the job of another client")
    status = jobs.backend.job("job-a").status()
    assert (status.finished, status.interrupted) == (False, False)


def test_the_folder_of_a_job_that_ended_a_day_ago_is_removed_when_the_next_one_starts(jobs):
    for name in ("job-b", "job-c"):
        jobs.start("pass", name=name)
        jobs.ended(name)
    os.utime(jobs.backend.job("job-b").folder.journal, (0, 0))
    jobs.start("pass")
    assert [job.name for job in jobs.backend.jobs()] == ["job-a", "job-c"]
    assert not (jobs.home / "jobs" / "job-b").exists()


def test_what_is_no_job_beside_the_folders_of_jobs_is_left_alone(jobs):
    jobs.start("pass", name="job-b")
    jobs.ended("job-b")
    (jobs.home / "jobs/notes").write_text("mine")
    (jobs.home / "jobs/empty").mkdir()
    copy = shutil.copytree(jobs.home / "jobs/job-b", jobs.home / "jobs/job-b.copy")
    os.utime(copy / "journal.jsonl", (0, 0))
    jobs.start("pass")
    assert [job.name for job in jobs.backend.jobs()] == ["job-a", "job-b"]
    assert (copy / "journal.jsonl").exists()


def test_a_folder_that_cannot_be_removed_is_in_the_way_of_no_job(jobs, monkeypatch):
    def rmtree(path, ignore_errors=False):
        if not ignore_errors:
            raise PermissionError(path)

    for name in ("job-a", "job-b"):
        jobs.start("pass", name=name)
        jobs.ended(name)
    os.utime(jobs.backend.job("job-b").folder.journal, (0, 0))
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)  # of files of another user
        jobs.start("print('again')")
        assert jobs.ended().condition("Succeeded") is not None
        assert jobs.text() == ["again", "again"]
        assert [job.name for job in jobs.backend.jobs()] == ["job-a"]
        jobs.backend.job("job-a").delete()
    assert jobs.backend.job("job-a").status() is None
    jobs.start("pass")
    assert [path.name for path in (jobs.home / "jobs").iterdir() if path.is_dir()] == ["job-a"]


def test_a_submission_on_a_full_disk_is_refused_with_the_folder(jobs):
    with full_disk(), pytest.raises(InvalidInput) as refused:
        jobs.start("pass")
    assert refused.value.cause == "storage"
    assert unnamed(refused.value, "TRAIN_FUNC_HOME", jobs.home / "jobs/job-a") == []


def test_delete_ends_a_running_job_and_removes_its_folder(jobs):
    jobs.start(FOREVER, grace=1)
    until(lambda: jobs.text() == ["ready"] * 2, "start")
    jobs.backend.job("job-a").delete()
    assert jobs.processes("job-a") == []
    assert jobs.backend.job("job-a").status() is None
    assert not (jobs.home / "jobs" / "job-a").exists()


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_no_process_here_is_signalled_for_a_controller_in_another_container_that_shares_the_home(jobs, end):
    jobs.start(FOREVER, grace=1)
    with subprocess.Popen(["sleep", "60"]) as other:
        jobs.backend.job("job-a").folder.pid.write_text(str(other.pid))  # what the controller's number means here
        getattr(jobs.backend.job("job-a"), end)()
        is_untouched = other.poll() is None
        other.kill()
    assert is_untouched
    assert jobs.processes("job-a") == []


@pytest.mark.parametrize("end", ["cancel", "delete"])
def test_a_job_that_is_just_being_started_is_ended_when_it_is_there(jobs, end):
    starts = threading.Thread(target=jobs.start, args=(FOREVER,))
    starts.start()
    folder = jobs.backend.job("job-a").folder
    until(folder.root.exists, "the folder of the job")
    getattr(jobs.backend.job("job-a"), end)()
    starts.join()
    assert jobs.processes("job-a") == []
    assert folder.root.exists() == (end == "cancel")


def test_of_clients_that_delete_a_job_and_start_it_again_none_fails(jobs):
    faults = []

    def attempt(call):
        try:
            call()
        except Exception as error:
            faults.append(repr(error))

    for _ in range(3):
        jobs.start("pass")
        jobs.ended()
        calls = [*[jobs.backend.job("job-a").delete] * 3, lambda: jobs.start("pass")]
        threads = [threading.Thread(target=attempt, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert faults == []
        jobs.backend.job("job-a").delete()  # it runs where the start came last


def test_a_controller_that_cannot_start_is_told_of(jobs, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(JobFailed, match="job-a .*controller.log"):
        jobs.start("pass")
    assert jobs.backend.job("job-a").status() is None


def test_a_controller_that_accepts_nothing_is_told_of_and_ended_with_what_it_has_started(jobs, monkeypatch, tmp_path):
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nsleep 600 &\nsleep 600\n")
    hangs.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(hangs))
    monkeypatch.setattr("train_func.client.local.local_job.START_SECONDS", 1)
    with pytest.raises(JobFailed) as refused:
        jobs.start("pass")
    assert unnamed(refused.value, "job-a", "controller.log") == []
    until(lambda: not jobs.processes("job-a"), "the end of what it has started")


def test_a_running_job_names_the_command_that_asks_each_of_its_workers_where_it_is(jobs):
    job = jobs.backend.job(jobs.start(ANSWERS))
    until(lambda: jobs.text().count("ready") == 2 and phases(jobs) == ["Running", "Running"], "both workers run")
    subprocess.run(shlex.split(job.stacks_command()), check=True, timeout=60)
    until(lambda: jobs.text().count("asked") == 2, "both were asked")
    job.cancel()
    assert job.stacks_command() == ""
