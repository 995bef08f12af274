"""Now and then it is reported how far the training is."""

import pytest

from tests.recorded_jobs import Clock
from train_func.worker.pod import reporting
from train_func.worker.training.progress import Progress


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def told(monkeypatch):
    """What was reported."""
    told = []
    monkeypatch.setattr(reporting, "_sink", [told.append])
    return told


def test_a_line_every_five_seconds_and_the_first_and_the_last(clock, told):
    shown = Progress(num_steps=8, steps_per_epoch=4, clock=clock)
    for step in range(1, 9):
        clock.seconds += 2
        shown.step(step, 16, float(step))
    assert [(one.step, one.epoch, one.loss, one.rows_per_second, one.seconds_left) for one in told] == [
        (1, 0.25, 1, 8, 14),
        (4, 1.00, 3, 8, 8),
        (7, 1.75, 6, 8, 2),
        (8, 2.00, 8, 8, 0),
    ]
    assert str(told[0]) == "progress step=1/8 epoch=0.25 loss=1.0000 rows_per_second=8.0 eta=0:14"


def test_evaluations_do_not_count_as_training(clock, told):
    shown = Progress(num_steps=2, steps_per_epoch=2, clock=clock)
    clock.seconds += 2
    shown.step(1, 16, 1.0)
    clock.seconds += 50
    shown.leave_out(50)
    clock.seconds += 2
    shown.step(2, 16, 1.0)
    assert [one.rows_per_second for one in told] == [8, 8]


def test_long_waits_are_told_in_hours(clock, told):
    shown = Progress(num_steps=3601, steps_per_epoch=3601, clock=clock)
    clock.seconds += 2
    shown.step(1, 16, 1.0)
    assert str(told[0]).endswith(" eta=2:00:00")
