"""What counts as a hang and what does not, on a clock that the tests make."""

from dataclasses import replace

import pytest

from train_func import Run
from train_func.worker.rank.marks import Mark, Phase
from train_func.worker.supervisor.hangs import Judge, RankState

LOOK = 0.25
LIMIT = Run().hang_after
STEADY = 7  # steps


class Rank:
    """One rank: its marks, and whether it is stopped."""

    def __init__(self, number=0):
        self.number, self.mark, self.is_stopped = number, Mark(), False

    def at(self, now, phase, **fields):
        self.mark = replace(self.mark, number=self.mark.number + 1, time=now, phase=phase, **fields)


class Watch:
    """A judge, its ranks, and the time."""

    def __init__(self, num_ranks=1, limit=LIMIT):
        self.now, self.worked = 1000.0, 0.0
        self.judge, self.ranks = Judge(limit), [Rank(number) for number in range(num_ranks)]

    def step(self, seconds, *, phase=Phase.BETWEEN):
        """All ranks do one step in so many seconds."""
        assert self.wait(seconds) is None
        for rank in self.ranks:
            done = {"step": rank.mark.step + 1, "num_steps": rank.mark.num_steps + 1}
            rank.at(self.now, phase, **done)

    def steps(self, num=STEADY, seconds=0.25):
        for _ in range(num):
            self.step(seconds)
        return self

    def wait(self, seconds):
        """The hang found within so many seconds without a mark."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + LOOK, end)
            seen = [RankState(rank.number, rank.mark, rank.is_stopped) for rank in self.ranks]
            if found := self.judge.look(self.now, seen, self.worked):
                return found
        return None

    def until_hang(self):
        begun = self.now
        found = self.wait(100_000)
        return found, self.now - begun


@pytest.mark.parametrize("limit", [1, 7, LIMIT, 3600])
@pytest.mark.parametrize("phase", [Phase.STEP, Phase.BETWEEN])
def test_a_rank_without_progress_hangs_after_the_seconds_of_the_run(limit, phase):
    watch = Watch(limit=limit).steps()
    watch.ranks[0].at(watch.now, phase)
    found, seconds = watch.until_hang()
    assert (found.rank, found.mark.step, found.is_stopped) == (0, STEADY, False)
    assert limit <= seconds <= limit + LOOK


def test_a_pause_of_almost_a_minute_is_no_hang_of_any_step_but_the_first_and_the_first_may_take_longer():
    """As of a callback that uploads, or of a volume that stalls."""
    watch = Watch()
    watch.ranks[0].at(watch.now, Phase.STEP)
    watch.step(1800)
    for _ in range(3):
        watch.step(LIMIT - 2 * LOOK)
    assert watch.until_hang()[0].rank == 0


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.is_watched])
def test_nothing_is_judged_outside_of_the_steps(phase):
    watch = Watch().steps()
    watch.ranks[0].at(watch.now, phase)
    assert watch.wait(1000) is None


def test_an_evaluation_is_judged_by_its_own_batches_from_the_first_on():
    watch = Watch().steps()
    watch.ranks[0].at(watch.now, Phase.EVALUATION)
    assert watch.wait(1000) is None
    for num in range(1, STEADY):
        watch.ranks[0].at(watch.now, Phase.EVALUATION, num_batches=num)
        assert watch.wait(LIMIT - LOOK) is None
    assert watch.until_hang()[0].mark.phase is Phase.EVALUATION


def test_a_rank_that_waits_for_another_is_not_named():
    watch = Watch(2).steps()
    watch.ranks[0].at(watch.now, Phase.EXCHANGE)
    watch.wait(1)
    watch.ranks[1].at(watch.now, Phase.BETWEEN)
    found, _ = watch.until_hang()
    assert (found.rank, found.mark.phase) == (1, Phase.BETWEEN)


@pytest.mark.parametrize("phase", [Phase.OUTSIDE, Phase.SAVING])
def test_ranks_that_wait_for_one_that_is_not_judged_are_not_named(phase):
    watch = Watch(2).steps()
    watch.ranks[0].at(watch.now, Phase.EXCHANGE)
    watch.ranks[1].at(watch.now, phase)
    assert watch.wait(1000) is None
    assert watch.judge.waiting is None


def test_ranks_that_all_wait_are_told_of_and_none_is_named():
    watch = Watch(3).steps()
    for rank, phase in zip(watch.ranks, (Phase.EXCHANGE, Phase.OWN, Phase.EXCHANGE), strict=True):
        rank.at(watch.now, phase)
    assert watch.wait(LIMIT - LOOK) is None
    assert watch.judge.waiting is None
    assert watch.wait(2 * LOOK) is None
    assert watch.judge.waiting is not None
    watch.step(0.1)
    assert watch.wait(0.1) is None
    assert watch.judge.waiting is None


def test_a_stopped_process_is_named_before_those_that_wait_for_it():
    watch = Watch(2).steps()
    for rank in watch.ranks:
        rank.at(watch.now, Phase.OWN)  # of a loop of the user's own: nothing tells who waits
    watch.ranks[1].is_stopped = True
    found, seconds = watch.until_hang()
    assert (found.rank, found.is_stopped) == (1, True)
    assert seconds <= LIMIT


def test_a_process_that_goes_on_in_time_was_not_hanging():
    watch = Watch().steps()
    watch.ranks[0].is_stopped = True
    assert watch.wait(LIMIT / 2) is None
    watch.ranks[0].is_stopped = False
    watch.steps(3)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_machine_that_stood_still_is_no_hang(is_stopped):
    """All of the pod was paused, with its supervisor: no look came in between."""
    watch = Watch(2).steps()
    for rank in watch.ranks:
        rank.is_stopped = is_stopped
    assert watch.wait(LIMIT / 2) is None
    watch.now += 3600
    assert watch.wait(LIMIT / 2) is None
    for rank in watch.ranks:
        rank.is_stopped = False
    watch.steps()
    assert watch.until_hang()[1] <= LIMIT + LOOK


def test_a_supervisor_that_works_for_long_between_two_looks_finds_a_hang_all_the_same():
    """As one that reads all pages of ranks with hundreds of GB."""
    watch = Watch().steps()
    for _ in range(round(LIMIT)):
        watch.now += 3
        watch.worked += 3
        if watch.wait(LOOK):
            return
    pytest.fail("no hang was found")
