"""Running statistics of BatchNorm in one process: left aside by micro-batches, merged in order, else alone."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.messages import unnamed
from train_func.errors import InvalidInput
from train_func.worker.training.batch_norm import BatchStatistics, check_layers

ROWS = (4, 3, 2, 5)


def model_of(momentum=0.1, **others):
    torch.manual_seed(1)
    layers = [nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4, momentum=momentum, **others), nn.ReLU(), nn.BatchNorm1d(4)]
    return nn.Sequential(*layers)


def inputs():
    draw = torch.Generator().manual_seed(2)
    return [torch.randn(rows, 3, 7, generator=draw) for rows in ROWS]


def merged(model, order, forward=None):
    """After two steps whose micro-batches come in an order of their own."""
    statistics = BatchStatistics([model], len(ROWS))
    with statistics.watch():
        for _ in range(2):
            for number in order:
                with statistics.micro_batch(number, counts=True):
                    (forward or model)(inputs()[number]).sum().backward()
            statistics.merge()
    return model


def in_turn(model):
    for _ in range(2):
        for values in inputs():
            model(values)
    return model


@pytest.mark.parametrize("momentum", [0.1, 0.5, None])
def test_merged_statistics_are_those_of_the_micro_batches_in_turn_whatever_the_order_of_work(momentum):
    expected = dict(in_turn(model_of(momentum)).named_buffers())
    first = dict(merged(model_of(momentum), (2, 0, 3, 1)).named_buffers())
    second = dict(merged(model_of(momentum), (0, 1, 2, 3)).named_buffers())
    for name, value in first.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-6, atol=1e-6)
        assert torch.equal(value, second[name])


def test_what_is_computed_again_for_gradients_is_counted_once():
    model = model_of()
    again = merged(model, range(4), lambda values: checkpoint(model, values, use_reentrant=False))
    expected = merged(model_of(), range(4))
    for name, value in again.named_buffers():
        assert torch.equal(value, dict(expected.named_buffers())[name])


def test_a_layer_that_is_called_twice_counts_twice():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, values):
            return self.norm(self.norm(values) + 1)

    expected, found = in_turn(Twice()), merged(Twice(), (3, 1, 0, 2))
    assert int(found.norm.num_batches_tracked) == 16
    torch.testing.assert_close(dict(found.named_buffers()), dict(expected.named_buffers()))


def test_fillers_other_passes_and_evaluation_change_nothing():
    model = model_of()
    before = {name: value.clone() for name, value in model.named_buffers()}
    statistics = BatchStatistics([model], 2)
    with statistics.watch():
        with statistics.micro_batch(-1, counts=False):
            loss = model(inputs()[0][:1]).sum()
            (loss * 0).backward()
        statistics.merge()
        model.eval()
        with statistics.micro_batch(0, counts=True):
            model(inputs()[0])
        model.train()
        assert all(layer.training for layer in model.modules())
    statistics.merge()
    assert all(torch.equal(before[name], value) for name, value in model.named_buffers())
    model(inputs()[0])
    assert int(model[1].num_batches_tracked) == 1  # a pass of no step is the function's own


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.SyncBatchNorm(4), "SyncBatchNorm: 1."),
        (nn.InstanceNorm1d(4, track_running_stats=True), "track_running_stats=True: 1."),
    ],
)
def test_layers_whose_statistics_depend_on_the_ranks_are_refused_by_their_names(layer, named):
    with pytest.raises(InvalidInput) as caught:
        check_layers(nn.Sequential(nn.Linear(3, 4), layer))
    assert caught.value.cause == "code"
    assert named in str(caught.value)


def test_a_model_that_was_compiled_and_called_before_is_merged_alike_in_every_training():
    model = model_of()
    compiled = torch.compile(model, backend="eager")
    compiled(inputs()[0]).sum().backward()
    statistics = BatchStatistics([model], 3)
    for training in (1, 2):
        with statistics.watch():
            for number, counts in enumerate((True, True, False)):
                with statistics.micro_batch(number, counts=counts):
                    compiled(inputs()[number]).sum().backward()
            statistics.merge()
        assert int(model[1].num_batches_tracked) == 1 + 2 * training


@pytest.mark.parametrize("counts", [True, False])
def test_statistics_that_change_without_a_call_of_the_layer_are_refused_by_its_name(counts):
    model = model_of()
    statistics = BatchStatistics([model], 1)
    with pytest.raises(InvalidInput) as caught, statistics.watch(), statistics.micro_batch(0, counts=counts):
        model[3](model[1].forward(torch.randn(2, 4, 7)))
    assert caught.value.cause == "code"
    assert "layer 1 " in str(caught.value)


def test_buffers_that_a_forward_pass_changes_are_told_once_by_name(monkeypatch):
    notes = []
    monkeypatch.setattr("train_func.worker.rank.world.note", notes.append)
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Flatten(), nn.utils.parametrizations.spectral_norm(nn.Linear(21, 4)))
    statistics = BatchStatistics([model], 3)
    with statistics.watch():
        for number, counts in enumerate((False, True, True)):
            with statistics.micro_batch(number, counts=counts):
                model(inputs()[number])
            assert len(notes) == counts
        statistics.merge()
    assert unnamed(notes[0], "2.parametrizations.weight.0._u", "2.parametrizations.weight.0._v") == []
    assert "running_mean" not in notes[0]
