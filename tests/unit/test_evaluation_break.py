"""When the ranks ask in an evaluation whether it is broken off, and that weights put in for it are seen."""

import pytest
import torch

from train_func.worker.training import evaluation_break
from train_func.worker.training.evaluation_break import LOOK, EvaluationBreak


def asked_after(seconds_per_batch, num_batches):
    made, found, last = EvaluationBreak(torch.nn.Linear(1, 1), {}, {}), [], 0
    for number in range(1, num_batches + 1):
        if made.is_due(number):
            made.has_asked(number, seconds_per_batch * (number - last))
            found.append(number)
            last = number
    return found


@pytest.mark.parametrize(
    ("seconds", "numbers"), [(2.0, [1, 2, 3, 4]), (LOOK / 3, [1, 4, 7, 10]), (0.0, [1])], ids=["long", "short", "none"]
)
def test_the_ranks_ask_after_the_first_batch_and_then_twice_a_second(seconds, numbers):
    assert asked_after(seconds, 10 if numbers[-1] > 4 else 4) == numbers


def test_averages_that_an_evaluation_puts_into_the_model_are_seen(monkeypatch):
    monkeypatch.setattr(evaluation_break, "SAMPLE", 4)
    model = torch.nn.Sequential(torch.nn.Linear(7, 101), torch.nn.Linear(101, 1))
    made = EvaluationBreak(model, {}, {})
    assert made.own(has_failed=False, is_stopped=True)[:3] == [0, 1, 0]
    model[1].weight.data.mul_(0.5)  # which raises no version
    assert made.own(has_failed=True, is_stopped=False)[:3] == [1, 0, 1]
