"""What counts as a hang and what does not, on a clock that the tests make."""

from dataclasses import replace

import pytest

from train_func import exits
from train_func.worker.pod.hang import Judge, Seen
from train_func.worker.pod.progress_mark import Mark, Phase

LOOK = 0.25
STEADY = 20  # steps, after which the first ones are long over


class Rank:
    """One rank: its marks, the processor time it takes per second, and whether it is stopped."""

    def __init__(self, number=0):
        self.number, self.mark, self.is_stopped, self.load, self.cpu = number, Mark(), False, 0.0, 0.0

    def at(self, now, phase, **fields):
        self.mark = replace(self.mark, number=self.mark.number + 1, time=now, phase=phase, **fields)

    def seen(self):
        return Seen(self.number, self.mark, self.is_stopped, lambda: self.cpu)


class Watch:
    """A judge, its ranks, and the time."""

    def __init__(self, num_ranks=1, num_hangs=0):
        self.now, self.judge, self.ranks = 1000.0, Judge(num_hangs), [Rank(number) for number in range(num_ranks)]

    def step(self, seconds, *, phase=Phase.BETWEEN):
        """All ranks do one step in so many seconds."""
        assert self.wait(seconds) is None
        for rank in self.ranks:
            done = {"step": rank.mark.step + 1, "num_steps": rank.mark.num_steps + 1}
            rank.at(self.now, phase, **done)

    def steps(self, num, seconds=0.5):
        for _ in range(num):
            self.step(seconds)
        return self

    def wait(self, seconds):
        """The hang found within so many seconds without a mark, and when."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + LOOK, end)
            for rank in self.ranks:
                rank.cpu += rank.load * LOOK
            if found := self.judge.look(self.now, [rank.seen() for rank in self.ranks]):
                return found
        return None

    def until_hang(self, seconds=100_000):
        begun = self.now
        found = self.wait(seconds)
        return found, self.now - begun


@pytest.mark.parametrize(("step", "bound"), [(0.01, 10), (0.5, 10), (2.0, 10), (4.0, 20), (60.0, 300)])
def test_a_rank_without_progress_hangs_within_10_s_or_5_median_steps(step, bound):
    found, seconds = Watch().steps(STEADY, step).until_hang()
    assert (found.rank, found.mark.step, found.is_stopped) == (0, STEADY, False)
    assert bound * 0.7 < seconds <= bound


@pytest.mark.parametrize("phase", [phase for phase in Phase if not phase.is_watched])
def test_nothing_is_judged_outside_of_the_steps(phase):
    watch = Watch().steps(STEADY)
    watch.ranks[0].at(watch.now, phase)
    assert watch.wait(1000) is None


def test_the_first_steps_may_compile():
    watch = Watch()
    watch.ranks[0].at(watch.now, Phase.STEP)
    assert watch.wait(500) is None
    assert watch.until_hang()[0].rank == 0


def test_the_first_batches_of_an_evaluation_may_compile_whatever_the_steps_took():
    watch = Watch().steps(STEADY)
    watch.ranks[0].at(watch.now, Phase.EVALUATION)
    assert watch.wait(500) is None
    for num in range(1, STEADY):
        watch.ranks[0].at(watch.now, Phase.EVALUATION, num_batches=num)
        assert watch.wait(8) is None
    found, seconds = watch.until_hang()
    assert found.mark.phase is Phase.EVALUATION
    assert 8 * 3 < seconds <= 8 * 5


def test_another_training_of_the_same_process_has_first_steps_of_its_own():
    watch = Watch().steps(STEADY)
    watch.ranks[0].at(watch.now, Phase.STEP, num_steps=0)
    assert watch.wait(500) is None


def test_a_rank_that_waits_for_another_is_not_named():
    watch = Watch(2).steps(STEADY)
    watch.ranks[0].at(watch.now, Phase.EXCHANGE)
    watch.wait(1)
    watch.ranks[1].at(watch.now, Phase.BETWEEN)
    found, _ = watch.until_hang()
    assert (found.rank, found.mark.phase) == (1, Phase.BETWEEN)


@pytest.mark.parametrize("phase", [Phase.OUTSIDE, Phase.SAVING])
def test_ranks_that_wait_for_one_that_is_not_judged_are_not_named(phase):
    watch = Watch(2).steps(STEADY)
    watch.ranks[0].at(watch.now, Phase.EXCHANGE)
    watch.ranks[1].at(watch.now, phase)
    assert watch.wait(1000) is None
    assert watch.judge.waiting is None


def test_ranks_that_all_wait_are_told_of_and_none_is_named():
    watch = Watch(2).steps(STEADY)
    for rank, phase in zip(watch.ranks, (Phase.EXCHANGE, Phase.BACKWARD), strict=True):
        rank.at(watch.now, phase)
    assert watch.wait(8) is None
    assert watch.judge.waiting is None
    assert watch.wait(2) is None
    assert watch.judge.waiting is not None
    watch.step(0.1)
    assert watch.wait(0.1) is None
    assert watch.judge.waiting is None


def test_a_stopped_process_is_named_before_those_that_wait_for_it():
    watch = Watch(2).steps(STEADY)
    for rank in watch.ranks:
        rank.at(watch.now, Phase.STEP)  # of a loop of the user's own: nothing tells who waits
    watch.ranks[1].is_stopped = True
    found, seconds = watch.until_hang()
    assert (found.rank, found.is_stopped) == (1, True)
    assert seconds < 9


def test_a_stopped_process_is_named_wherever_it_is():
    watch = Watch()
    watch.ranks[0].is_stopped = True
    assert watch.until_hang()[0].is_stopped


def test_a_process_that_goes_on_in_time_was_not_hanging():
    watch = Watch().steps(STEADY)
    watch.ranks[0].is_stopped = True
    assert watch.wait(6) is None
    watch.ranks[0].is_stopped = False
    watch.steps(3)


@pytest.mark.parametrize(("num_hangs", "pause"), [(1, 100), (2, 1200), (5, 3500)])
def test_after_each_hang_of_a_submission_a_pause_may_be_longer(num_hangs, pause):
    watch = Watch(num_hangs=num_hangs).steps(STEADY)
    watch.step(pause)
    found, seconds = watch.until_hang()
    assert found.rank == 0
    assert seconds > pause


@pytest.mark.parametrize(("num_hangs", "limit"), [(0, 600), (1, 1200), (2, 2400), (5, 3600)])
def test_the_first_steps_of_an_attempt_may_take_ten_minutes_and_twice_as_long_after_each_hang(num_hangs, limit):
    found, seconds = Watch(num_hangs=num_hangs).steps(1).until_hang()
    assert found.mark.num_steps == 1
    assert limit <= seconds < limit + 1


def test_a_pause_that_a_training_came_back_from_may_come_again_a_bit_longer():
    watch = Watch().steps(STEADY)
    watch.step(8)
    watch.steps(STEADY)
    watch.step(11)
    assert watch.wait(20) is not None


@pytest.mark.parametrize("phase", [Phase.BETWEEN, Phase.STEP, Phase.BACKWARD])
def test_a_rank_that_computes_has_more_time(phase):
    watch = Watch().steps(STEADY)
    watch.ranks[0].load = 1.0
    watch.ranks[0].at(watch.now, phase)
    assert watch.wait(50) is None
    assert watch.judge.waiting is None
    assert (watch.wait(10) or watch.judge.waiting).rank == 0


def test_a_rank_that_only_waits_in_a_loop_of_the_users_own_is_not_named():
    """Another evaluates meanwhile, which nothing tells but its processor time."""
    watch = Watch(2).steps(STEADY)
    for rank in watch.ranks:
        rank.at(watch.now, Phase.OWN)
    watch.ranks[0].load = 1.0
    assert watch.wait(50) is None
    assert watch.judge.waiting is None
    watch.ranks[0].load = 0.0
    assert watch.wait(600) is None
    assert watch.judge.waiting is not None


def test_no_limit_is_widened_beyond_an_hour_nor_at_all_for_a_stopped_rank():
    watch = Watch(num_hangs=1)
    watch.ranks[0].load = 1.0
    watch.ranks[0].at(watch.now, Phase.STEP)
    assert 3000 < watch.until_hang()[1] <= 3700
    stopped = Watch(num_hangs=2)
    stopped.ranks[0].is_stopped = True
    assert stopped.until_hang()[1] < 9


def test_a_rank_that_spins_in_an_exchange_waits():
    watch = Watch().steps(STEADY)
    watch.ranks[0].load = 1.0
    watch.ranks[0].at(watch.now, Phase.EXCHANGE)
    watch.wait(10)
    assert watch.judge.waiting is not None


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_machine_that_stood_still_is_no_hang(is_stopped):
    """All of the pod was paused, with its supervisor: no look came in between."""
    watch = Watch(2).steps(STEADY)
    for rank in watch.ranks:
        rank.is_stopped = is_stopped
    assert watch.wait(5) is None
    watch.now += 3600
    assert watch.wait(5) is None
    for rank in watch.ranks:
        rank.is_stopped = False
    watch.steps(STEADY)
    assert watch.until_hang()[1] < 10


def test_the_verdict_is_retryable_and_has_its_cause():
    verdict = Watch().steps(STEADY).until_hang()[0].verdict(worker=3)
    assert (verdict.exit_code, verdict.cause, verdict.worker) == (exits.HANG, "hang", 3)
    assert verdict.retryable
    assert verdict.root_cause
