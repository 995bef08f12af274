"""The model of benchmarks/scale.py keeps its promises."""

from dataclasses import replace

import pytest

from benchmarks import scale

MODELS = scale.models(scale.MEASURED)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_more_workers_are_each_less_efficient_and_one_alone_exchanges_nothing(model):
    efficiencies = [scale.efficiency(model, workers) for workers in scale.WORKERS]
    assert efficiencies == sorted(efficiencies, reverse=True)
    assert efficiencies[0] == 1
    assert scale.exchange_seconds(4 * model.trainable, 1, model.worker, model.network) == 0


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_faster_network_makes_no_step_longer(model):
    steps = [scale.step_seconds(replace(model, network=network), 64) for network in scale.NETWORKS]
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize(("name", "value"), scale.predictions(scale.MEASURED).items())
def test_what_was_measured_and_not_fitted_is_within_30_percent(name, value):
    assert value == pytest.approx(scale.MEASURED[name], rel=0.3)


@pytest.mark.parametrize("between_losses", [600, 86_400, 1e7])
def test_dalys_interval_costs_least(between_losses):
    interval = scale.daly_interval(0.4, between_losses)
    costs = [scale.slowdown(interval * factor, 0.4, between_losses, 6.6) for factor in (0.5, 0.9, 1, 1.1, 2)]
    assert min(costs) == costs[2]


def test_where_checkpoints_are_cheap_dalys_interval_is_youngs():
    assert scale.daly_interval(0.4, 1e7) == pytest.approx((2 * 0.4 * 1e7) ** 0.5, rel=0.001)
