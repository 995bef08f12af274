"""A loop over session.steps that is left before its end: by one rank it is a fault, by all of them it may be meant."""

import pytest

from tests.messages import unnamed
from train_func.storage import open_store
from train_func.wire.result import Result

SOURCE = """
def train_func(parameters):
    import torch
    from datasets import Dataset
    from datasets.distributed import split_dataset_by_node
    from torch.nn.parallel import DistributedDataParallel
    from train_func.worker import Session

    with Session(parameters) as session:
        rows = Dataset.from_dict({"x": [[float(number)] for number in range(40)]})
        plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
        model = DistributedDataParallel(torch.nn.Linear(1, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
        leaves = session.rank in parameters["ranks"]
        try:
            for step in session.steps(plan):
                for batch, weight in step:
                    (weight * model(batch["x"]).mean()).backward()
                optimizer.step()
                optimizer.zero_grad()
                if leaves and step.number == 3:
                    if parameters["how"] == "caught":
                        raise ValueError("no better than before")
                    break
        except ValueError:
            pass
        if leaves and parameters["how"] == "reduces":  # which meets the exchange of a step, and does not match
            torch.distributed.all_reduce(torch.ones(1))
        session.publish(model)
    return {"step": step.number}
"""


def leave(job, how, *ranks, **fields):
    """A job of which these ranks leave their loop."""
    given = {"batch_size": 8, "micro_batch_size": 2, "epochs": 2, "environment": {"TRAIN_FUNC_CPUS": "1"}, **fields}
    return job(SOURCE, task=None, parameters={"how": how, "ranks": [*ranks]}, **given).start()


@pytest.mark.parametrize(
    ("how", "rank", "workers"),
    [
        ("break", 1, 1),
        pytest.param("caught", 0, 2, marks=pytest.mark.slow),
        pytest.param("reduces", 1, 2, marks=pytest.mark.slow),
    ],
)
def test_a_rank_that_leaves_while_others_go_on_is_named_and_not_tried_again(job, how, rank, workers):
    made = leave(job, how, rank, workers=workers, ranks=2 // workers)
    assert made.exit_codes() == [70] * workers
    worker = rank if workers == 2 else 0
    end = made.end_record(1, worker)
    assert (end["cause"], end["root_cause"]) == ("code", True)
    assert unnamed(end["message"], f"rank {rank} left", "3 of 10 steps") == []
    if workers == 2:
        follower = made.end_record(1, 1 - worker)
        assert (follower["cause"], follower["root_cause"], follower["follows"]) == ("peer", False, worker)
    assert all(pod.termination["attempt"] == 1 for pod in made.pods.values())


@pytest.mark.slow
def test_a_loop_that_all_ranks_leave_has_its_result_and_a_note_of_how_many_steps_were_made(job):
    made = leave(job, "break", 0, 1, workers=2)
    assert made.exit_codes() == [0, 0]
    result = Result.read(open_store(made.record.store).get(made.record.keys.result).data, "the result")
    assert (result.returned, "model.safetensors" in result.files) == ({"step": 3}, True)
    assert unnamed(result.note, "3 of 10 steps") == []
