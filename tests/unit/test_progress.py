"""Now and then it is reported how far the training is."""

from itertools import pairwise

import pytest

from tests.recorded_jobs import Clock
from train_func.wire.metrics import row_of
from train_func.worker.rank import reporting
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
    trained(Progress(num_steps=401, clock=clock), clock, [*range(1, 9), 401], steps_per_epoch=200)
    assert [(one.step, one.epoch, one.rows_per_second) for one in told if one.is_line] == [
        (1, 0.005, 8),
        (4, 0.020, 8),
        (7, 0.035, 8),
        (401, 2.005, 8),
    ]
    assert told[-1].seconds_left == 0


def trained(progress, clock, steps, seconds=2, steps_per_epoch=4):
    """Each takes so many seconds; its loss is its number."""
    for step in steps:
        clock.seconds += seconds
        progress.step(step, step / steps_per_epoch, 16, float(step))


def test_a_training_of_few_steps_has_a_row_for_each_and_no_more_lines(clock, told):
    trained(Progress(num_steps=8, clock=clock), clock, range(1, 9))
    assert [(one.step, one.loss) for one in told if one.is_row] == [(step, step) for step in range(1, 9)]
    assert [one.step for one in told if one.is_line] == [1, 4, 7, 8]
    assert str(told[0]) == "progress step=1/8 epoch=0.25 loss=1.0000 rows_per_second=8.0"


def test_how_long_the_rest_takes_is_told_once_it_is_known_and_the_slow_first_step_does_not_count(clock, told):
    progress = Progress(num_steps=100, clock=clock)
    trained(progress, clock, [1], seconds=60)
    trained(progress, clock, range(2, 101))
    assert [one.seconds_left for one in told] == [None] * 4 + [2 * (100 - step) for step in range(5, 101)]
    assert str(told[9]).endswith(" eta=3:00")
    assert "eta" not in str(told[0])


@pytest.mark.parametrize("num_steps", [201, 1_001, 12_345])
def test_a_training_has_the_same_rows_on_a_fast_machine_and_on_a_slow_one_and_not_too_many(clock, told, num_steps):
    rows = []
    for seconds in (0.001, 7):
        told.clear()
        progress = Progress(num_steps=num_steps, clock=clock)
        trained(progress, clock, range(1, num_steps + 1), seconds)
        rows.append([row_of(one).values["loss"] for one in told if row_of(one)])
        assert (row_of(told[0]).step, row_of(told[-1]).step) == (1, num_steps)
    assert rows[0] == rows[1]
    assert min(num_steps, 500) <= len(rows[0]) <= 1_002


def test_more_rows_are_there_where_they_are_asked_for_and_never_fewer(clock, told):
    for logging_steps, step in ((2, 2), (500, 5)):
        told.clear()
        progress = Progress(num_steps=5_000, logging_steps=logging_steps, clock=clock)
        trained(progress, clock, range(1, 31), 0.001)
        assert [one.step for one in told if one.is_row] == [1, *range(step, 31, step)]


def test_evaluations_do_not_count_as_training(clock, told):
    shown = Progress(num_steps=2, clock=clock)
    clock.seconds += 2
    shown.step(1, 0.5, 16, 1.0)
    clock.seconds += 50
    shown.leave_out(50)
    clock.seconds += 2
    shown.step(2, 1.0, 16, 1.0)
    assert [one.rows_per_second for one in told] == [8, 8]


@pytest.mark.parametrize("seconds", [0.001, 0.05, 2, 7])
def test_the_lines_together_have_the_curve_of_all_steps(clock, told, seconds):
    trained(Progress(num_steps=101, clock=clock), clock, range(1, 102), seconds)
    lines = [one for one in told if one.is_line]
    points = [point for line in lines for point in line.points]
    assert [line.points[-1][0] for line in lines] == [line.step for line in lines]
    assert max(len(line.points) for line in lines) <= 20
    widths = [step - before for (before, *_), (step, *_) in pairwise([(0, 0, 0), *points])]
    assert sum(width * loss for width, (_, _, loss) in zip(widths, points, strict=True)) == pytest.approx(101 * 51)
    ended = {step: line.points[-1][1] - age for line in lines for step, age, _ in line.points}
    assert all(-5 - seconds <= moment <= 0 for moment in ended.values())


def test_a_loop_that_keeps_its_losses_to_itself_has_lines_and_no_rows(clock, told):
    progress = Progress(num_steps=8, clock=clock)
    for step in range(1, 9):
        clock.seconds += 2
        progress.step(step, step / 4, 16)
    assert [one.step for one in told if one.is_line] == [1, 4, 7, 8]
    assert str(told[-1]) == "progress step=8/8 epoch=2.00 rows_per_second=8.0 eta=0:00"
    assert [row_of(one) for one in told] == [None] * len(told)
