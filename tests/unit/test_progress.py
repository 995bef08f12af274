"""A log line now and then says how far the training is."""

import re

import pytest

from train_func.worker.training import progress
from train_func.worker.training.progress import Progress

LINE = r"progress step=(\d+)/(\d+) epoch=([\d.]+) loss=([\d.]+) rows_per_second=([\d.]+) eta=([\d:]+)"


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""

    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def lines(capsys):
    return [re.fullmatch(LINE, line).groups() for line in capsys.readouterr().out.splitlines()]


def test_a_line_every_five_seconds_and_the_first_and_the_last(clock, capsys):
    shown = Progress(num_steps=8, steps_per_epoch=4)
    for step in range(1, 9):
        clock.now += 2
        shown.step(step, 16, float(step))
    assert lines(capsys) == [
        ("1", "8", "0.25", "1.0000", "8.0", "0:14"),
        ("4", "8", "1.00", "3.0000", "8.0", "0:08"),
        ("7", "8", "1.75", "6.0000", "8.0", "0:02"),
        ("8", "8", "2.00", "8.0000", "8.0", "0:00"),
    ]


def test_evaluations_do_not_count_as_training(clock, capsys):
    shown = Progress(num_steps=2, steps_per_epoch=2)
    clock.now += 2
    shown.step(1, 16, 1.0)
    clock.now += 50
    shown.leave_out(50)
    clock.now += 2
    shown.step(2, 16, 1.0)
    assert [line[4] for line in lines(capsys)] == ["8.0", "8.0"]
    assert shown.rows_per_second == 8


def test_long_waits_are_told_in_hours(clock, capsys):
    shown = Progress(num_steps=3601, steps_per_epoch=3601)
    clock.now += 2
    shown.step(1, 16, 1.0)
    assert lines(capsys)[0][5] == "2:00:00"
