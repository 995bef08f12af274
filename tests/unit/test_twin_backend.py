"""Local as a backend: its options, what it refuses, jobs side by side and one after the other, cancel and delete."""

import json
import shlex
import subprocess
import threading
from pathlib import Path

import pytest

from tests.messages import unnamed
from tests.twin_jobs import container_of, until, worker_manifest
from train_func import Local, lock
from train_func.client.backend import Backend
from train_func.client.twin.folder import JobFolder
from train_func.client.twin.machine import Machine
from train_func.errors import InvalidInput, JobFailed, JobNotFound
from train_func.records import RunRecord
from train_func.run import Run

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


def test_local_is_a_place():
    backend: Backend = Local()
    assert backend == Local()


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
    assert Local().models_folder() == tmp_path / "models"
    monkeypatch.setenv("TRAIN_FUNC_STORE", "s3://bucket/mine")
    assert Local().store_address() == "s3://bucket/mine"
    assert Local(store="file:///else").store_address() == "file:///else"
    assert Local(store=Path("/some where/else")) == Local(store="file:///some%20where/else")


def rendered_container(backend, **fields):
    job = backend.submission(record(**fields), ["run.json"]).manifest
    return job, container_of(job)


def test_cores_are_shared_evenly_but_every_worker_has_one(monkeypatch):
    cores = Machine.look({}).cores
    for workers in (1, 2, 3, 101):
        _, container = rendered_container(Local(), workers=workers)
        assert container["resources"]["limits"] == {"cpu": str(max(1, cores // workers))}


def test_options_become_limits():
    job, container = rendered_container(Local(cpu=1, memory="512Mi", gpu=2), workers=1)
    assert container["resources"]["limits"] == {"cpu": "1", "memory": "512Mi", "nvidia.com/gpu": "2"}
    assert job["spec"]["nprocPerNode"] == "2"


@pytest.mark.parametrize(("workers", "gpu"), [(1, "5"), (2, "2"), (6, None)])
def test_gpus_are_shared_evenly_when_there_are_enough(monkeypatch, workers, gpu):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4")
    _, container = rendered_container(Local(), workers=workers)
    assert container["resources"]["limits"].get("nvidia.com/gpu") == gpu


@pytest.mark.parametrize(("workers", "told"), [(1, False), (2, False), (3, True)])
def test_gpus_that_are_too_few_to_be_used_are_told_of(jobs, monkeypatch, capsys, workers, told):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    Local(cpu=1).check(Run(workers=workers))
    said = "note: 2 GPUs for 3 workers: none is used; workers=2 would use all\n"
    assert (said in capsys.readouterr().out) == told


@pytest.mark.parametrize(("more", "told"), [(0, False), (1, True)])
def test_more_workers_than_cores_are_told_of(jobs, monkeypatch, capsys, more, told):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    cores = Machine.look({}).cores
    Local(cpu=1, memory="1Mi").prepare(record(workers=cores + more), {}, 0, None)
    said = f"note: {cores + 1} workers share the {cores} cores of this machine"
    assert (said in capsys.readouterr().out) == told


def test_more_than_the_machine_has_is_refused_with_what_was_asked_and_what_is_there(jobs, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    machine = Machine.look({})
    job = worker_manifest("pass", name="job-a", workers=3)
    limits = container_of(job)["resources"]["limits"]
    limits |= {"cpu": "1000", "memory": str(machine.memory // 2), "nvidia.com/gpu": "1"}
    with pytest.raises(InvalidInput) as caught:
        jobs.create(job, {})
    assert caught.value.cause == "scheduling"
    cpu, memory, gpu = caught.value.faults
    assert unnamed(cpu, 1000, machine.cores, "cpu") == []
    assert unnamed(memory, "3 workers", "free", "memory") == []
    assert unnamed(gpu, "3 workers", "1 GPU", "gpu") == []
    assert jobs.backend.job("job-a").status() is None


@pytest.mark.parametrize("name", ["", "..", "a/b", "Job", "x" * 64])
def test_a_name_that_no_job_can_have_is_refused_everywhere(jobs, name):
    with pytest.raises(InvalidInput, match="name of a job") as refused:
        jobs.backend.job(name)
    assert repr(name) in str(refused.value)


def test_a_job_that_is_not_there_has_no_status_and_no_pods(jobs):
    assert jobs.backend.job("never-was").status() is None
    assert jobs.backend.job("never-was").pods() == jobs.backend.job("never-was").events() == []
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
    with pytest.raises(InvalidInput, match=f"job-a .* process {jobs.controller()}"):
        jobs.start("pass")
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
    assert [(pod.phase, pod.deleted) for pod in jobs.backend.job("job-a").pods()] == [
        ("Failed", True),
        ("Failed", True),
        ("Succeeded", False),
        ("Succeeded", False),
    ]
    assert jobs.text() == ["again", "again"]


def test_the_last_pods_of_a_failed_job_are_ended_before_there_is_found_to_be_room(jobs):
    jobs.start(LINGERS, grace=1)
    until(lambda: jobs.backend.job("job-a").status().finished, "failure")
    Local(cpu=1, memory="1Mi").prepare(record(), {}, 0, None)
    assert jobs.processes("job-a") == []
    assert jobs.backend.job("job-a").status().condition("Failed").reason != "Cancelled"


@pytest.fixture
def another_client(jobs, monkeypatch):
    """Has another kernel start the same job at a moment when this thread, which asks for room, leaves it open to it.

    These are counted: after each look at the job's status without the lock under which jobs are started, and before
    each time that this thread takes that lock.
    """
    moments, read, hold, me = [], JobFolder.read, lock.hold, threading.get_ident()

    def after(moment):
        def passing():
            if threading.get_ident() != me or lock.is_held(jobs.home / "jobs" / ".lock"):
                return
            moments.append(moment)
            if len(moments) == moment:
                other = threading.Thread(target=jobs.start, args=(FOREVER,), kwargs={"grace": 1})
                other.start()
                other.join()

        def reading(folder, name):
            found = read(folder, name)
            if name == "status.json":
                passing()
            return found

        def holding(path):
            passing()
            return hold(path)

        monkeypatch.setattr(JobFolder, "read", reading)
        monkeypatch.setattr(lock, "hold", holding)
        return moments

    return after


@pytest.mark.parametrize("moment", [1, 2, 3])
def test_who_asks_for_room_ends_nothing_of_the_job_that_another_client_has_just_started(jobs, another_client, moment):
    jobs.start(LINGERS, grace=1)
    until(lambda: jobs.backend.job("job-a").status().finished, "failure")
    moments = another_client(moment)
    Local(cpu=1, memory="1Mi").prepare(record(), {}, 0, None)
    assert len(moments) >= moment
    until(lambda: "ready" in jobs.text(worker=0) and "ready" in jobs.text(worker=1), "the job of another client")
    assert not jobs.backend.job("job-a").status().finished
    assert not jobs.backend.job("job-a").status().interrupted
    assert not JobFolder(jobs.home, "job-a").cancel.exists()


def test_delete_ends_a_running_job_and_removes_its_folder(jobs):
    jobs.start(FOREVER, grace=1)
    until(lambda: jobs.text() == ["ready"] * 2, "start")
    jobs.backend.job("job-a").delete()
    assert jobs.processes("job-a") == []
    assert jobs.backend.job("job-a").status() is None
    assert not (jobs.home / "jobs" / "job-a").exists()


def test_a_controller_that_cannot_start_is_told_of(jobs, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(JobFailed, match="job-a .*controller.log"):
        jobs.start("pass")
    assert jobs.backend.job("job-a").status() is None


def test_a_controller_that_fails_leaves_the_job_interrupted_and_says_why_in_its_log(jobs):
    job = worker_manifest("pass", name="job-a")
    job["spec"]["elasticPolicy"]["rdzvConf"] = [{"no": "key"}]
    jobs.create(job, {"run.json": b""})
    until(lambda: jobs.backend.job("job-a").status().interrupted, "end of the controller")
    assert "KeyError: 'key'" in jobs.controller_log()


def test_files_of_a_job_are_always_whole(jobs):
    jobs.start("import time; time.sleep(0.5)", workers=3)
    looks = 0
    while not jobs.backend.job("job-a").status().finished:
        jobs.backend.job("job-a").pods()
        jobs.backend.job("job-a").events()
        looks += 1
    assert looks > 5
    assert json.loads((jobs.home / "jobs/job-a/status.json").read_text())["replicaStatuses"]["Worker"]["failed"] == 0


def test_a_running_job_names_the_command_that_asks_each_of_its_workers_where_it_is(jobs):
    job = jobs.backend.job(jobs.start(ANSWERS))
    until(lambda: jobs.text().count("ready") == 2 and phases(jobs) == ["Running", "Running"], "both workers run")
    subprocess.run(shlex.split(job.stacks_command()), check=True, timeout=60)
    until(lambda: jobs.text().count("asked") == 2, "both were asked")
    job.cancel()
    assert job.stacks_command() == ""
