"""Why a training is slow: what is said of how the ranks of a group spend their time, and of what they use."""

import pytest

from train_func.wire import events
from train_func.worker.rank.marks import Phase
from train_func.worker.supervisor.usage import (
    LEAST_STEPS,
    LINE_SECONDS,
    GroupMeter,
    RankTime,
    RankUsage,
    Usage,
    slowness_of,
)


def ranks(number, *others, num_steps=20, **seconds):
    """So many ranks that spend an interval of 20 steps like this, each one a worker, and behind them ``others``."""
    times = [RankTime(rank, rank, num_steps, **seconds) for rank in range(number)]
    return times + [RankTime(number + place, number + place, num_steps, **of) for place, of in enumerate(others)]


QUICK = {"data": 0.5, "compute": 3, "exchange": 6.5}
CASES = {
    "all alike": (ranks(4, data=1, compute=7, exchange=2), None),
    "one rank alone": (ranks(1, data=9, compute=1), None),
    "two ranks alike": (ranks(2, compute=7, exchange=3), None),
    "one of two in data": (ranks(1, {"data": 7, "compute": 3}, **QUICK), ("data", 1)),
    "one of two in compute": (ranks(1, {"data": 0.5, "compute": 9, "exchange": 0.5}, **QUICK), ("compute", 1)),
    "one of two in saving": (ranks(1, {"compute": 3, "saving": 7}, **QUICK), ("saving", 1)),
    "one of two in callbacks": (ranks(1, {"compute": 3, "callbacks": 7}, **QUICK), ("callbacks", 1)),
    "one of 200 in compute": (ranks(199, {"data": 0.5, "compute": 9, "exchange": 0.5}, **QUICK), ("compute", 199)),
    "three of eight, the slowest is named": (
        ranks(5, *({"compute": work, "exchange": 10 - work} for work in (8, 8.5, 8)), compute=4, exchange=6),
        ("compute", 6),
    ),
    "the next one is hardly quicker": (ranks(1, {"compute": 8, "exchange": 2}, compute=7, exchange=3), None),
    "a large part of a small part": (
        ranks(3, {"data": 0.4, "compute": 8, "exchange": 1.6}, compute=8, exchange=2),
        None,
    ),
    "all wait in the exchange": (ranks(8, compute=2, exchange=8), ("exchange", None)),
    "all wait, and one a little less": (
        ranks(7, {"compute": 2.2, "exchange": 7.8}, compute=2, exchange=8),
        ("exchange", None),
    ),
    "a long evaluation of one": (
        ranks(1, {"compute": 3, "exchange": 1, "evaluation": 6}, compute=3, exchange=1, other=6),
        None,
    ),
    "a window with a step less": (
        [RankTime(0, 0, 10, compute=7.6, exchange=2.4), RankTime(1, 1, 11, compute=8.4, exchange=1.6)],
        None,
    ),
    "a loop of its own, with an exchange of its own": (ranks(4, compute=10), None),
}


@pytest.mark.parametrize(("times", "expected"), CASES.values(), ids=CASES)
def test_a_rank_is_named_that_the_others_wait_for_with_what_it_is_slow_in(times, expected):
    slowness = slowness_of(times)
    assert (slowness and (slowness.part, slowness.rank)) == expected
    if slowness:
        assert ("rank" in slowness.message, bool(slowness.remedy)) == (True, True)


class Group:
    """Workers of one rank each, measured by a clock of its own; in each step rank 1 loads its rows for a while."""

    def __init__(self, num_workers=2):
        self.now = 0.0
        self.meter = GroupMeter(clock=lambda: self.now)
        self.seconds = [[0.0] * len(Phase) for _ in range(num_workers)]
        self.num_steps = 0

    def train(self, seconds, *, slow=0.0, num_steps=LEAST_STEPS, memory=lambda worker: 10**9):
        """Returns what is said then; rank 1 spends ``slow`` of the time in the loading of rows."""
        self.now += seconds
        self.num_steps += num_steps
        for rank, spent in enumerate(self.seconds):
            spent[Phase.LOADING if rank == 1 else Phase.EXCHANGE] += slow * seconds
            spent[Phase.STEP] += (1 - slow) * seconds
        usages = {
            worker: Usage(memory(worker), 0, (RankUsage(worker, self.num_steps, tuple(spent)),))
            for worker, spent in enumerate(self.seconds)
        }
        return self.meter.measure(lambda: usages)


def test_a_rank_is_named_once_it_was_slow_for_two_intervals_and_no_more_when_it_is_not():
    group = Group()
    said = [group.train(LINE_SECONDS, slow=slow) for slow in (0, 0.6, 0, 0.6, 0.6, 0.6, 0)]
    assert [event.slow_rank for event in said] == [None, None, None, None, 1, 1, None]
    assert (said[4].slow_worker, said[4].slow_part) == (1, "data")
    assert said[4].workers["1"]["ranks"] == {"1": [60, 40, 0, 0, 0, 0]}


def test_an_interval_of_few_steps_goes_on_until_there_are_more():
    group = Group()
    said = [group.train(LINE_SECONDS, slow=0.6, num_steps=LEAST_STEPS // 2) for _ in range(4)]
    assert [event.seconds for event in said] == [LINE_SECONDS, 2 * LINE_SECONDS, LINE_SECONDS, 2 * LINE_SECONDS]
    assert [event.slow_rank for event in said] == [None, None, None, 1]


def test_a_rank_stays_named_while_steps_are_slow_and_not_while_there_are_none_as_in_a_long_evaluation():
    group = Group()
    steps = [LEAST_STEPS, LEAST_STEPS, LEAST_STEPS // 2, 1, 0, 0, 1, LEAST_STEPS]
    said = [group.train(LINE_SECONDS, slow=0.6, num_steps=num_steps) for num_steps in steps]
    assert [event.slow_rank for event in said] == [None, 1, 1, 1, None, None, None, 1]


def test_a_day_of_training_says_it_less_often_than_its_first_minutes():
    group = Group()
    first = sum(group.train(1.0) is not None for _ in range(600))
    later = sum(group.train(1.0) is not None for _ in range(23 * 3600))
    assert (50 <= first <= 60, later < 1500) == (True, True)


@pytest.mark.parametrize("num_workers", [1, 2, 16, 1000])
def test_a_line_is_short_however_many_workers_and_has_those_that_need_a_look(num_workers):
    group = Group(num_workers)
    for _ in range(3):
        said = group.train(LINE_SECONDS, slow=0.6, memory=lambda worker: 10**11 + worker)
    assert len(events.line(said).encode()) < events.LONGEST
    assert "left_out" not in events.line(said)
    assert (said.num_workers, len(said.workers)) == (num_workers, min(16, num_workers))
    assert ({"1", f"{num_workers - 1}"} - {*said.workers} == set()) or num_workers == 1
    assert said.slow_rank == (1 if num_workers > 1 else None)
