"""Loops of one's own over a plan, which exchange their gradients in all the ways there are, or do not."""

import torch
import torch.distributed as dist
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from train_func.wire.events import Note
from train_func.worker.rank import reporting
from train_func.worker.training import own_loop
from train_func.worker.training.plan import build_plan

NUM_ROWS = 40


def by_ddp(model):
    return DistributedDataParallel(model)


def by_hook(model):
    def average(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    return model


def not_at_all(model):
    return model


WAYS = {way.__name__: way for way in (by_ddp, by_hook, not_at_all)}


def notes_of(way, size, rank):
    """What rank 0 says of such a loop, and the steps before which it has said it."""
    draw = torch.Generator().manual_seed(0)
    rows = Dataset.from_dict({"x": torch.randn(NUM_ROWS, 3, generator=draw).numpy(), "y": list(range(NUM_ROWS))})
    cut = {"batch_size": 8, "micro_batch_size": 2, "num_micro_batches": 4}
    part = split_dataset_by_node(build_plan(rows, seed=1, num_epochs=1, world_size=size, **cut), rank, size)
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    model = way(inner)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.0)  # as where a schedule begins with a warm-up
    said, before = [], []
    usual = reporting._sink[0]
    reporting.report_to(said.append)
    for step in own_loop.steps(part, torch.device("cpu"), None):
        before.append(sum(isinstance(of, Note) for of in said))
        for batch, weight in step:
            (weight * (model(batch["x"]).squeeze(1) - batch["y"]).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    reporting.report_to(usual)
    return [of.text for of in said if isinstance(of, Note)], before


def run(size, rank, folder):
    return {name: notes_of(way, size, rank) for name, way in WAYS.items()}
