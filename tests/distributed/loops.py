"""Loops of one's own over a plan, which bring their models and optimizers in all the ways there are, or do wrong."""

import torch
import torch.distributed as dist
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.parity import flat
from train_func.errors import InvalidInput
from train_func.wire.events import Note
from train_func.worker.rank import end, reporting
from train_func.worker.training import own_loop
from train_func.worker.training.plan import build_plan, lengths_of

SIZES = {"101-rows": (101, 16, 4, 4), "40-rows": (40, 12, 2, 6), "7-rows": (7, 16, 8, 2)}
RATE = 0.1


class Branches(nn.Module):
    """Some rows go one way and some the other, so that a micro-batch may leave a layer out; another is never used."""

    def __init__(self):
        super().__init__()
        self.first, self.even, self.odd = nn.Linear(3, 5), nn.Linear(5, 1), nn.Linear(5, 1)
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        hidden = torch.relu(self.first(x))
        return self.even(hidden) if len(x) % 2 == 0 else self.odd(hidden)


def by_ddp(model):
    return DistributedDataParallel(model)


def by_optimizer(model):
    return model


def by_average(model):
    return model


def by_hook(model):
    def average(parameter):
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(average)
    return model


def average(model):
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


WAYS = {way.__name__: way for way in (by_ddp, by_optimizer, by_average)}


def plan_of(name, size, rank):
    num_rows, batch_size, micro_batch_size, num_micro_batches = SIZES[name]
    draw = torch.Generator().manual_seed(0)
    rows = Dataset.from_dict({"x": torch.randn(num_rows, 3, generator=draw).numpy(), "y": list(range(num_rows))})
    cut = {"batch_size": batch_size, "micro_batch_size": micro_batch_size, "num_micro_batches": num_micro_batches}
    return split_dataset_by_node(
        build_plan(rows, lengths_of(rows), seed=1, num_epochs=2, world_size=size, **cut), rank, size
    )


def loss_of(model, batch):
    return (model(batch["x"]).squeeze(1) - batch["y"] / 50).square().mean()


def trained(way, name, size, rank):
    """The weights after such a loop, and what rank 0 has said before its first step."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1)) if way is by_hook else Branches()
    model = way(inner)
    optimizer = torch.optim.AdamW(inner.parameters(), lr=RATE)
    said, before = [], []
    usual = reporting._sink[0]
    reporting.report_to(said.append)
    for step in own_loop.steps(plan_of(name, size, rank), torch.device("cpu"), None):
        before.append([of.text for of in said if isinstance(of, Note)])
        for batch, weight in step:
            loss = loss_of(model, batch)
            (weight * loss / 2).backward()
            (weight * loss_of(model, batch) / 2).backward()  # also in two parts a gradient is one of a micro-batch
        if way is by_average:
            average(inner)
        optimizer.step()
        optimizer.zero_grad()
    reporting.report_to(usual)
    return {"weights": flat(inner.parameters()), "notes": before[0]}


def steps_too_early(step, model, optimizer):
    for batch, weight in step:
        (weight * loss_of(model, batch)).backward()
        optimizer.step()


def leaves_a_step(step, model, optimizer):
    for batch, weight in step:
        (weight * loss_of(model, batch)).backward()
        break


def steps_with_another_model(step, model, optimizer):
    model = Branches()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch, weight in step:
        (weight * loss_of(model, batch)).backward()
    optimizer.step()


def uses_a_sparse_layer(step, model, optimizer):
    for batch, weight in step:
        (weight * model(batch["y"]).square().mean()).backward()
    optimizer.step()


def goes_through_it_first(step, model, optimizer):
    for batch, weight in [*step]:
        (weight * loss_of(model, batch)).backward()
    optimizer.step()


def trains_on_behind_it(step, model, optimizer):
    for batch, weight in step:
        (weight * loss_of(model, batch)).backward()
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    optimizer.step()


def adds_to_it_behind_it(step, model, optimizer):
    for batch, weight in step:
        (weight * loss_of(model, batch)).backward()
    loss_of(model, batch).backward()
    optimizer.step()


def adds_to_what_it_unfreezes(step, model, optimizer):
    thawed = next(iter(model.parameters())).requires_grad_(True)  # said_of has frozen it before the loop
    for batch, weight in step:
        (weight * loss_of(model, batch)).backward()
    loss_of(model, batch).backward(inputs=[thawed])
    optimizer.step()


def gives_a_closure(step, model, optimizer):
    for batch, weight in step:
        (weight * loss_of(model, batch)).backward()
    optimizer.step(lambda: loss_of(model, batch))


def sums_by_hand(step, model, optimizer):
    for batch, weight in step:
        (weight * loss_of(model, batch)).backward()
    for of in model.parameters():
        if of.grad is not None:
            of.grad.mul_(0.5)
            of.grad = of.grad.nan_to_num()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()


UNSUMMED = {
    way.__name__: way
    for way in (
        goes_through_it_first,
        trains_on_behind_it,
        adds_to_it_behind_it,
        adds_to_what_it_unfreezes,
        gives_a_closure,
        sums_by_hand,
    )
}


def notes_of(way, size, rank):
    """What is noted of such a loop for its result."""
    end.here.notes.clear()
    assert said_of(way, size, rank) is None
    return [*end.here.notes]


WRONG = {way.__name__: way for way in (steps_too_early, leaves_a_step, steps_with_another_model, uses_a_sparse_layer)}


def said_of(way, size, rank, **differs):
    torch.manual_seed(differs.get("seed", 0))
    model = nn.Embedding(40, 2, sparse=True) if way is uses_a_sparse_layer else Branches()
    next(iter(model.parameters())).requires_grad_(way is not adds_to_what_it_unfreezes)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    try:
        for step in own_loop.steps(plan_of("40-rows", size, rank), torch.device("cpu"), None):
            way(step, model, optimizer)
            optimizer.zero_grad()
    except InvalidInput as error:
        return error.cause, str(error)
    return None


def run(size, rank, folder):
    weights = {way: {name: trained(of, name, size, rank) for name in SIZES} for way, of in WAYS.items()}
    wrong = {name: said_of(way, size, rank) for name, way in WRONG.items()}
    wrong["other_weights"] = said_of(steps_too_early, size, rank, seed=rank)
    unsummed = {name: notes_of(way, size, rank) for name, way in UNSUMMED.items()}
    return {
        **weights,
        "unsummed": unsummed,
        "notes of hooks": trained(by_hook, "40-rows", size, rank)["notes"],
        "wrong": wrong,
    }
