"""A run with min_workers changes its size and its place while it trains, and its result is that of a quiet training."""

import re
import socket

import pytest
import torch
from safetensors.torch import load_file

from tests.jobs.functions import tells_its_steps
from tests.local_jobs import until
from tests.messages import unnamed
from train_func import InvalidInput, Run, submit
from train_func.client.cli import main

HERE = socket.gethostname()
NUM_STEPS = 7 * 24  # 101 rows in batches of 16


@pytest.fixture
def train(home):
    jobs = []

    def start(workers, min_workers=None, *, pause=0.4, **fields):
        given = {"epochs": 24, "batch_size": 16, "micro_batch_size": 4, "checkpoint_every": 3600.0}
        parameters = {"pause": pause, "rows": 101}
        run = Run(workers=workers, min_workers=min_workers, parameters=parameters, **given | fields)
        jobs.append(submit(tells_its_steps, run))
        return jobs[-1]

    yield start
    for job in jobs:
        job.delete()


def sizes(job):
    """The numbers of workers of the attempts that have begun, in their order."""
    return [int(size) for size in re.findall(r"attempt \d+ starts.*?; workers: (\d+)", "\n".join(job.logs(worker=0)))]


def assert_whole(job, quiet):
    """Every epoch was audited as whole, no step was done twice, and the weights are those of the quiet training."""
    assert job.result() is not None
    said = "\n".join(job.logs())
    audits = set(re.findall(r"audit epoch=(\d+) rows=101 used_once=101 missing=0 repeated=0", said))
    assert audits == {str(epoch) for epoch in range(1, 25)}
    assert job.history()["step"].tolist() == list(range(1, NUM_STEPS + 1))
    theirs, ours = (load_file(next(each.fetch().glob("*.safetensors"))) for each in (quiet, job))
    for name in theirs:
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_job_is_scaled_and_its_workers_move_while_it_trains(train, capsys):
    quiet = train(1, pause=0)
    assert quiet.wait() == "Succeeded"
    job = train(3, min_workers=1)
    until(lambda: sizes(job) == [3], "three workers")
    job.scale(2)
    until(lambda: sizes(job) == [3, 2], "two workers")
    assert main(["scale", job.name, "3"]) == 0
    until(lambda: sizes(job) == [3, 2, 3], "three workers again")
    capsys.readouterr()
    (move,) = job.move(worker=1, to={"zone": "b"}, timeout=120)
    assert (move.worker, move.from_node, move.to_node) == (1, HERE, f"{HERE} (zone=b)")
    assert move.num_steps_repeated == 0
    assert 0 < move.pause < 60
    assert str(move) in capsys.readouterr().out
    assert job.state == "Running"
    assert_whole(job, quiet)


def test_workers_that_cannot_leave_alone_are_neither_scaled_nor_moved_alone(train, capsys):
    """test_drill moves them together."""
    job = train(2)
    with pytest.raises(InvalidInput) as raised:
        job.scale(1)
    assert unnamed(raised.value, "scale(1)", "fixed number of workers, 2", "Run(..., min_workers=1)") == []
    assert main(["move", job.name, "1", "zone=b"]) == 10
    assert unnamed(capsys.readouterr().err, "worker=1: without min_workers", "move together") == []
    for to in ({}, {"zone": 1}, "zone"):
        with pytest.raises(InvalidInput, match="to=.*labels"):
            job.move(to=to)
