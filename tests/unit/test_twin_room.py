"""More workers than this machine holds are refused before anything starts, unless what each takes was stated."""

import dataclasses
import re

import pytest

from train_func import InvalidInput, Local, Run
from train_func.client.twin import local, room
from train_func.client.twin.machine import Machine

SMALL = Machine(cores=2, memory=24 * 2**30, memory_free=23 * 2**30, gpus=())


@pytest.fixture
def preflight(monkeypatch):
    """Local's look at a run, on a machine of that size."""

    def look(run, machine=SMALL, **options):
        monkeypatch.setattr(local.Machine, "look", classmethod(lambda cls, environment: machine))
        Local(store="file:///srv/store", **options).preflight(run)

    return look


def refused(preflight, *arguments, **options):
    with pytest.raises(InvalidInput) as caught:
        preflight(*arguments, **options)
    assert caught.value.cause == "scheduling"
    return caught.value.faults


def fits(fault):
    return int(re.search(r"at most workers=(\d+)", fault)[1])


def asked(workers, model="m"):
    return Run(model=model, dataset="d", workers=workers)


def test_64_workers_on_two_cores_are_refused_with_the_numbers_that_fit(preflight):
    cores, memory = refused(preflight, asked(64))
    assert fits(cores) == 8
    assert fits(memory) == 23 * 2**30 // room.WORKER_BYTES
    preflight(asked(8))


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_number_that_fits_is_not_refused_and_one_more_is(preflight, workers):
    machine = dataclasses.replace(SMALL, memory_free=workers * room.WORKER_BYTES)
    preflight(asked(workers), machine)
    (memory,) = refused(preflight, asked(workers + 1), machine)
    assert fits(memory) == workers


def test_whoever_states_what_a_worker_takes_insists(preflight):
    preflight(asked(64), cpu=1, memory="256Mi")
    (memory,) = refused(preflight, asked(64), cpu=1)
    assert "Local(memory=" in memory
    (cores,) = refused(preflight, asked(64), memory="256Mi")
    assert "Local(cpu=1)" in cores
    (together,) = refused(preflight, asked(64), cpu=1, memory="1Gi")  # what was stated still has to fit
    assert "64 workers with 1.0Gi" in together


def test_a_model_that_lies_here_is_counted_with_its_training_state(preflight, tmp_path):
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(2**30)  # sparse: takes no disk
    (memory,) = refused(preflight, asked(5, str(tmp_path)))
    assert fits(memory) == 23 * 2**30 // (room.WORKER_BYTES + room.MODEL_COPIES * 2**30)
    preflight(asked(5, str(tmp_path)), dataclasses.replace(SMALL, gpus=("0",)))
