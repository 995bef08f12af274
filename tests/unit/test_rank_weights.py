"""Ranks that train apart are told of: their weights are compared by sketches, rounding and buffers aside."""

import copy
import json

import pytest
import torch
from torch import nn
from torch.distributed import HashStore

from tests.messages import unnamed
from train_func.worker.pod.rank_weights import differing
from train_func.worker.training.sketch import WIDTH, sketch

LARGE = 7  # rows of a matrix of more elements than a sketch takes at once


def a_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 40), nn.BatchNorm1d(40), nn.Linear(40, 1))


def trained(model, seed, lr=0.1):
    """A copy after one step on rows of its own."""
    model = copy.deepcopy(model)
    rows = torch.randn(7, 3, generator=torch.Generator().manual_seed(seed))
    model(rows).pow(2).mean().backward()
    torch.optim.SGD(model.parameters(), lr=lr).step()
    return model


def told(*models):
    """The notes on what the ranks have published, as it travels from rank to rank."""
    return differing({rank: json.loads(json.dumps(sketch(model))) for rank, model in enumerate(models)})


@pytest.mark.parametrize("form", [lambda model: model, nn.Module.state_dict], ids=["module", "state dict"])
def test_ranks_that_trained_apart_are_named_with_the_first_tensor(form):
    start = a_model()
    zero, one, two = (form(trained(start, seed)) for seed in (0, 0, 1))
    assert told(zero, one) == []
    (note,) = told(zero, one, two)
    assert unnamed(note, "rank 2", "'0.weight'", "DistributedDataParallel") == []
    (note,) = told(zero, two, two)
    assert unnamed(note, "ranks 1, 2") == []


def test_a_small_step_is_told_from_rounding():
    start = a_model()
    rounded = copy.deepcopy(start)
    with torch.no_grad():
        for parameter in rounded.parameters():
            parameter.mul_(1 + 1e-6 * torch.randn(parameter.shape))
    assert told(start, rounded) == []
    assert len(told(start, trained(start, 0, lr=1e-2))) == 1


def test_one_parameter_that_differs_is_the_one_that_is_named():
    one, other = a_model(), a_model()
    with torch.no_grad():
        other[2].bias.add_(1e-3)
    (note,) = told(one, other)
    assert unnamed(note, "'2.bias'", "1 tensor of 6") == []


def test_buffers_of_a_normalisation_may_differ():
    one, other = a_model(), a_model()
    other(torch.randn(7, 3))
    assert not torch.equal(one[1].running_mean, other[1].running_mean)
    assert told(one, other) == told(one.state_dict(), other.state_dict()) == []


@pytest.mark.parametrize("place", [0, LARGE * WIDTH, -1])
def test_a_difference_anywhere_in_a_large_tensor_is_seen(place):
    one = {"weight": torch.ones(LARGE * WIDTH, WIDTH // 4)}
    other = {"weight": one["weight"].clone()}
    other["weight"].view(-1)[place] += 10
    assert told(one, {"weight": one["weight"].clone()}) == []
    assert len(told(one, other)) == 1


def test_in_half_precision_its_rounding_is_none():
    one = {"weight": torch.randn(101, 7, generator=torch.Generator().manual_seed(0)).bfloat16()}
    assert told(one, {"weight": (one["weight"].float() * 1.004).bfloat16()}) == []
    assert len(told(one, {"weight": (one["weight"].float() * 1.5).bfloat16()})) == 1


def test_a_model_that_has_diverged_on_all_ranks_is_one_model():
    lost = {"weight": torch.full((7,), float("nan"))}
    assert told(lost, lost) == []
    assert len(told(lost, {"weight": torch.ones(7)})) == len(told({"weight": torch.ones(7)}, lost)) == 1


def test_ranks_that_publish_nothing_or_another_kind_of_thing_are_not_compared():
    model = a_model()
    for other in ({}, "report.csv", ["a", "b"], {"a": 1}, nn.Identity(), nn.Linear(7, 7), {3: torch.ones(2)}):
        assert told(model, other) == told(other, model) == []
    assert differing({}) == differing({1: sketch(model)}) == []


@pytest.fixture
def mesh():
    torch.distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_of_weights_that_are_sharded_over_the_ranks_each_has_another_part(mesh):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    torch.distributed.fsdp.fully_shard(model[0], mesh=mesh)
    assert type(model[0].weight).__name__ == "DTensor"
    assert set(sketch(model)) == set(sketch(model.state_dict())) == {"1.weight", "1.bias"}
