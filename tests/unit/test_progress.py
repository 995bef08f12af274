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
    trained(Progress(num_steps=401, steps_per_epoch=200, clock=clock), clock, [*range(1, 9), 401])
    assert [(one.step, one.epoch, one.loss, one.rows_per_second, one.is_row_only) for one in told] == [
        (1, 0.005, 1, 8, False),
        (4, 0.020, 3, 8, False),
        (7, 0.035, 6, 8, False),
        (401, 2.005, 204.5, 8, False),
    ]
    assert told[-1].seconds_left == 0


def trained(progress, clock, steps):
    """Each takes two seconds; its loss is its number."""
    for step in steps:
        clock.seconds += 2
        progress.step(step, 16, float(step))


def test_a_short_training_has_a_row_for_each_step_and_no_more_lines(clock, told):
    trained(Progress(num_steps=8, steps_per_epoch=4, clock=clock), clock, range(1, 9))
    assert [(one.step, one.loss) for one in told] == [(step, step) for step in range(1, 9)]
    assert [one.step for one in told if not one.is_row_only] == [1, 4, 7, 8]
    assert str(told[0]) == "progress step=1/8 epoch=0.25 loss=1.0000 rows_per_second=8.0 eta=0:14"


def test_a_long_training_has_a_row_for_every_step_that_is_to_be_logged_over_the_steps_since_the_row_before(clock, told):
    progress = Progress(num_steps=401, steps_per_epoch=401, logging_steps=10, interval=1e9, clock=clock)
    trained(progress, clock, range(1, 41))
    assert [(one.step, one.loss, one.is_row_only) for one in told] == [
        (1, 1, False),
        (10, 6, True),
        (20, 15.5, True),
        (30, 25.5, True),
        (40, 35.5, True),
    ]


def test_rows_of_the_history_alone_are_not_printed(clock, capsys):
    trained(Progress(num_steps=7, steps_per_epoch=7, clock=clock), clock, range(1, 8))
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        f"step={step}/7" for step in (1, 4, 7)
    ]


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
