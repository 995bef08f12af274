"""More workers than this machine holds are refused before anything starts, unless what each takes was stated."""

import dataclasses
import re

import pytest

from tests.local_jobs import processes
from tests.tiny_model import write_tiny_model
from train_func import InvalidInput, Local, Run, TextClassification, submit
from train_func.client.backend import provisional
from train_func.client.local.machine import MODEL_COPIES, WORKER_BYTES, Machine

SMALL = Machine(cores=2, memory=24 * 2**30, memory_free=23 * 2**30, gpus=())


@pytest.fixture
def machine_is(monkeypatch, tmp_path):
    """Makes this machine one of that size, with a home of its own."""
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAIN_FUNC_STORE", raising=False)
    return lambda machine: monkeypatch.setattr(Machine, "look", classmethod(lambda cls, environment: machine))


@pytest.fixture
def start(machine_is):
    """What Local asks before it starts a run."""

    def look(run, machine=SMALL, num_model_bytes=0, **options):
        machine_is(machine)
        backend = Local(store="file:///srv/store", **options)
        backend.check(run)
        backend.prepare(provisional(run, "file:///srv/store"), {}, num_model_bytes, None)

    return look


def refused(start, *arguments, **options):
    with pytest.raises(InvalidInput) as caught:
        start(*arguments, **options)
    assert caught.value.cause == "scheduling"
    return caught.value.faults


def fits(fault):
    return int(re.search(r"at most workers=(\d+)", fault)[1])


def asked(workers, model="m"):
    return Run(task=TextClassification(model=model, dataset="d"), workers=workers, batch_size=max(16, workers))


def test_64_workers_on_two_cores_are_refused_with_the_numbers_that_fit(start, capsys):
    cores, memory = refused(start, asked(64))
    assert "2 cores" in cores
    assert fits(cores) == 8
    assert "48.0Gi" in memory  # where 23 are free
    assert fits(memory) == 23 * 2**30 // WORKER_BYTES
    assert capsys.readouterr().out == "", "how fast they train is no matter where they do not start"
    start(asked(8))
    assert "workers=2" in capsys.readouterr().out


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_number_that_fits_is_not_refused_and_one_more_is(start, workers):
    machine = dataclasses.replace(SMALL, memory_free=workers * WORKER_BYTES)
    start(asked(workers), machine)
    (memory,) = refused(start, asked(workers + 1), machine)
    assert fits(memory) == workers


def test_stated_requests_of_a_worker_are_binding(start):
    start(asked(64), cpu=1, memory="256Mi")
    (memory,) = refused(start, asked(64), cpu=1)
    assert "Local(memory=" in memory
    (cores,) = refused(start, asked(64), memory="256Mi")
    assert "Local(cpu=1)" in cores
    (refusal,) = refused(start, asked(64), cpu=1, memory="1Gi")  # what was stated still has to fit
    assert "64 workers with 1.0Gi" in refusal


def test_the_weights_that_a_worker_loads_are_counted_with_their_training_state(start):
    (memory,) = refused(start, asked(5), num_model_bytes=2**30)
    assert fits(memory) == 23 * 2**30 // (WORKER_BYTES + MODEL_COPIES * 2**30)


@pytest.mark.parametrize(
    ("workers", "gpus", "options", "counted"),
    [
        (2, ("0", "1"), {}, False),
        (2, ("0", "1", "2"), {}, False),
        (1, ("0",), {"gpu": 1}, False),
        (2, ("0",), {}, True),
        (2, ("0", "1"), {"gpu": 0}, True),
        (2, (), {}, True),
    ],
    ids=["one for each", "one left over", "stated", "too few: none is used", "none was asked for", "none there"],
)
def test_weights_are_counted_where_the_workers_have_no_gpu_to_hold_them(start, workers, gpus, options, counted):
    machine = dataclasses.replace(SMALL, memory_free=12 * 2**30, gpus=gpus)
    if counted:
        refused(start, asked(workers), machine, num_model_bytes=3 * 2**30, **options)
    else:
        start(asked(workers), machine, num_model_bytes=3 * 2**30, **options)


def test_where_not_even_one_worker_fits_no_number_is_advised(start):
    (memory,) = refused(start, asked(1), dataclasses.replace(SMALL, memory_free=WORKER_BYTES - 1))
    assert "at most workers=" not in memory
    assert "free memory" in memory
    assert "Local(memory=" in memory


def waits(parameters):
    import time

    time.sleep(600)


def test_only_a_job_that_is_really_started_has_to_find_room(machine_is, tmp_path):
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\n" + "".join(f"food {number},{number % 2}\n" for number in range(40)))
    model = write_tiny_model(tmp_path / "model")
    with (model / "pytorch_model.bin").open("wb") as other:
        other.truncate(40 * 2**30)  # sparse: takes no disk; no worker loads it
    run, full = (
        Run(task=TextClassification(model=str(model), dataset=str(rows)), workers=1),
        dataclasses.replace(SMALL, memory_free=0),
    )
    home = tmp_path / "home"

    def kept():
        """What is known of runs and jobs, by file; a lock of the store says nothing of them."""
        files = (path for path in home.rglob("*.json") if ".train_func" not in path.parts)
        return {path: path.read_bytes() for path in files}

    machine_is(full)
    with pytest.raises(InvalidInput) as caught:
        submit(waits, run)
    assert caught.value.cause == "scheduling"
    assert kept() == {}
    assert not (home / "jobs").exists()

    machine_is(SMALL)
    job = submit(waits, run)
    try:
        machine_is(full)
        assert submit(waits, run).record.name == job.name
        assert len(Local().job(job.record.job_name).pods()) <= 1
        assert job.state in ("Created", "Running")
    finally:
        job.delete()
    job._store.put(job.record.keys.result, b"{}")
    assert submit(waits, run).state == "Succeeded"
    assert not processes(TRAIN_FUNC_HOME=str(home))
