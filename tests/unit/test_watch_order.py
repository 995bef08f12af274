"""What is watched stands in order: no number behind a newer one, an end in a short line, and why a rank stopped."""

import re
from dataclasses import replace

import pytest

from tests.recorded_jobs import Clock
from train_func import events
from train_func.client.display import LONGEST_REASON, Display
from train_func.client.logs import Attempt, AttemptLine
from train_func.events import Event

FAULT = "StorageFailed: none of the checkpoints can be used:"


@pytest.fixture
def display():
    return Display(clock=Clock())


@pytest.fixture
def shown(capsys):
    return lambda: [re.sub(r"^ *[\d.]+ s  ", "", line) for line in capsys.readouterr().out.splitlines()]


def attempt(number=1):
    return Attempt(number, "", "", first=True)


def tell(display, of, *told: Event, worker=0, late=False):
    for one in told:
        display.tell(AttemptLine(of, worker, str(one), late=late, event=one))


def progress(step):
    return events.StepProgress(step=step, num_steps=99, epoch=1, loss=0.5, rows_per_second=8, seconds_left=60)


def saved(step):
    return events.CheckpointSaved(step=step, size=7, seconds=1)


def evaluated(step):
    return events.Evaluated(step=step, epoch=1, metrics={"eval_loss": 0.5})


def ends(worker, code, message, cause="storage", follows=None):
    return events.WorkerEnds(worker=worker, exit_code=code, cause=cause, message=message, follows=follows)


AUDIT = events.RowsAudited(what="epoch=1", counts={"rows": 7}, world_size=2)
PUBLISHED = events.Published(attempt=1, model="s3://b/model")


@pytest.mark.parametrize(
    ("told", "order"),
    [
        ([progress(1), progress(2), saved(3)], [0, 2]),
        ([progress(1), progress(2), evaluated(3)], [0, 2]),
        ([progress(1), progress(3), evaluated(3)], [0, 1, 2]),
        ([progress(1), progress(3), saved(3), AUDIT], [0, 2, 1, 3]),
        ([progress(1), progress(3), PUBLISHED], [0, 1, 2]),
    ],
    ids=["older than saved", "older than measured", "as old", "before the epoch's end", "before the model"],
)
def test_progress_that_was_held_back_comes_behind_nothing_newer(display, shown, told, order):
    tell(display, attempt(), *told)
    display.finish("a-run", "Succeeded")
    *lines, state = shown()
    assert lines == [str(told[number]) for number in order]
    assert state == "a-run: Succeeded"


def test_of_an_earlier_attempt_only_its_end_and_what_lasts_of_it_are_told_when_a_later_one_has_begun(display, shown):
    one, two, end = attempt(), attempt(2), ends(1, 147, "rank 1 was killed by SIGKILL", "killed")
    tell(display, two, evaluated(20))
    tell(display, one, progress(7), evaluated(7), saved(7), AUDIT, late=True)
    tell(display, one, end, late=True, worker=1)
    assert shown() == [str(of) for of in (evaluated(20), evaluated(7), saved(7), end)]


def test_a_fault_that_came_to_every_rank_is_told_once_in_a_short_line(display, shown):
    one, others = attempt(), "\n  - step 2: worn\n  - step 1: worn"
    for worker in range(3):
        tell(display, one, ends(worker, 65, f"rank {worker}: {FAULT}{others}"), worker=worker)
    (told,) = shown()
    assert FAULT in told
    assert "worn" not in told
    tell(display, attempt(2), ends(0, 65, "x" * 5000))
    assert len(shown()[0]) < LONGEST_REASON + 100


def test_faults_of_two_workers_that_differ_are_both_told(display, shown):
    told = [ends(worker, 70, f"rank {worker}: ValueError: row {worker}", "code") for worker in (0, 1)]
    for end in told:
        tell(display, attempt(), end, worker=end.worker)
    assert shown() == [str(end) for end in told]


def test_what_the_function_reported_is_told_whatever_number_it_gave_it(display, shown):
    reported = events.Reported(step=3, metrics={"accuracy": 0.5})
    tell(display, attempt(), progress(1), reported, saved(1200))
    display.finish("a-run", "Succeeded")
    assert str(reported) in shown()


def test_that_rank_0_was_stopped_is_told_before_the_next_attempt_begins(display, shown):
    tell(display, attempt(), events.RankStops(why="SIGTERM", rank=0))
    tell(display, attempt(2), saved(7), ends(0, 147, "worker 1 had ended", "peer", follows=1))
    lines = shown()
    assert lines[0].startswith("rank 0")
    assert "worker 1" not in lines[0]
    assert lines[1] == str(saved(7))


def test_a_worker_that_was_lost_beside_another_is_told_too(display, shown):
    told = [ends(worker, 147, f"rank {worker} was killed by SIGKILL", "killed") for worker in (0, 1)]
    for end in told:
        tell(display, attempt(), end, worker=end.worker)
    assert shown() == [str(end) for end in told]


@pytest.mark.parametrize("follows", [1, None])
def test_that_rank_0_was_stopped_is_told_with_the_worker_whose_end_it_followed(display, shown, follows):
    one, root = attempt(), ends(1, 70, "rank 1: ValueError: a mistake", "code")
    stops = events.RankStops(why="SIGTERM", rank=0)
    if follows:
        tell(display, one, root, worker=1)
    tell(display, one, stops)
    tell(display, one, replace(stops, rank=1), worker=1)
    tell(display, one, ends(0, 70 if follows else 143, "told", "peer" if follows else "preemption", follows))
    stopped = next(line for line in shown() if line.startswith("rank 0"))
    assert "SIGTERM" in stopped
    assert ("worker 1" in stopped) is bool(follows)


def test_that_rank_0_was_stopped_is_told_in_the_end_where_its_worker_left_no_word(display, shown):
    tell(display, attempt(), events.RankStops(why="SIGTERM", rank=0))
    assert shown() == []
    display.finish("a-run", "Failed")
    assert "SIGTERM" in shown()[0]
