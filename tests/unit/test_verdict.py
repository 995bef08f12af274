"""Of the ends of a worker's ranks, the one that is to blame; and a worker whose peer is to blame only follows."""

from dataclasses import replace

import pytest

from tests.messages import unnamed
from train_func.wire.records import Failure, Verdict
from train_func.worker.rank.end import Outcome, RankEnd, running_file
from train_func.worker.supervisor.verdict import follower_verdict, worker_verdict


def ended(rank, code=70, *, follows=False, time=0, was_signalled=False, order=0):
    failure = Failure("NameError", "a message", "a traceback", f"2026-01-01T00:00:0{time}+00:00")
    outcome = Outcome(code, "code", follows, failure) if code > 0 else None
    return RankEnd(rank, code, outcome, was_signalled, order)


def left(end):
    """The same, and it had left its loop."""
    return replace(end, left_steps="after 3 of 10 steps")


WELL, LOST, ABORTED = RankEnd(1, 0, Outcome(0, None, False, None), False, 0), ended(0, 145, follows=True), ended(1, -6)
UNFINISHED = RankEnd(1, 0, None, False, 1, unfinished=True)
VERDICTS = {
    "the first error of one that does not follow": (
        [ended(0, 145, follows=True, time=1), ended(1, time=3), ended(2, time=2), ended(3, 143, was_signalled=True)],
        (70, "code", True),
        ["rank 2 failed: NameError: a message"],
    ),
    "a kill, whatever the others say": (
        [ended(0), ended(1, -9, order=1)],
        (147, "killed", True),
        ["rank 1", "SIGKILL"],
    ),
    "a signal without a name": ([ended(1, -61)], (147, "killed", True), ["rank 1", "signal 61"]),
    "an error whose process is killed then": ([LOST, replace(ended(1), exit_code=-9)], (70, "code", True), ["rank 1"]),
    "an error whose process stays": ([LOST, replace(ended(1), exit_code=None)], (70, "code", True), ["rank 1"]),
    "an error beside an abort": (
        [ABORTED, ended(0, time=5, order=1)],
        (70, "code", True),
        ["rank 0 failed", "NameError"],
    ),
    "an abort that others follow": ([ABORTED, LOST], (147, "killed", True), ["rank 1", "SIGABRT"]),
    "a loop that one leaves": ([LOST, left(WELL)], (70, "code", True), ["rank 1 left", "3 of 10 steps"]),
    "none here where all may have left together": ([left(LOST), left(WELL)], (145, "peer", False), []),
    "an error beside a loop that one leaves": (
        [ended(0), left(WELL)],
        (70, "code", True),
        ["rank 0 failed", "NameError"],
    ),
    "none here where aborts come behind the loop": ([left(ended(0, -6)), left(ABORTED)], (145, "peer", False), []),
    "none here where all follow": ([LOST], (145, "peer", False), []),
    "an exit code after the end": ([replace(WELL, exit_code=3)], (3, "code", True), ["rank 1", "exit code 3"]),
    "exit code 0 before the end": ([LOST, UNFINISHED], (70, "code", True), ["rank 1", "exit code 0"]),
}


@pytest.mark.parametrize(("ends", "verdict", "facts"), VERDICTS.values(), ids=VERDICTS)
def test_the_root_of_a_failure_is(ends, verdict, facts):
    found = worker_verdict(ends, worker=0, out_of_memory=False)
    assert (found.exit_code, found.cause, found.root_cause) == verdict
    assert unnamed(found.message, *facts) == []


@pytest.mark.parametrize(
    "ends",
    [[WELL, ended(1, -15, was_signalled=True)], [left(WELL)], [replace(UNFINISHED, was_signalled=True)]],
    ids=["well", "left", "asked to end"],
)
def test_there_is_no_verdict_where_no_rank_failed_by_itself(ends):
    assert worker_verdict(ends, worker=0, out_of_memory=False) is None


def test_where_memory_ran_out_a_kill_is_of_that_and_another_signal_is_not():
    killed, crashed = (worker_verdict([ended(1, code)], worker=0, out_of_memory=True) for code in (-9, -11))
    assert (killed.exit_code, killed.cause) == (70, "memory")
    assert unnamed(crashed.message, "rank 1", "SIGSEGV") == []


def test_ranks_that_only_follow_make_a_worker_that_follows():
    own = worker_verdict([LOST], worker=0, out_of_memory=False)
    assert follower_verdict(None, own) == own
    killed = follower_verdict(Verdict(147, "killed", "why", 1), own)
    assert (killed.exit_code, killed.cause) == (145, "peer")
    typo = follower_verdict(Verdict(70, "code", "a typo", 1), own)
    assert (typo.exit_code, typo.cause) == (70, "peer")
    assert unnamed(typo.message, "worker 1", "a typo") == []
    assert follower_verdict(Verdict(71, "killed", "why", 1), own).cause == "killed"


def test_a_rank_that_came_to_its_end_says_so_even_where_it_can_write_nothing(tmp_path):
    path = tmp_path / "0.json"
    running_file(path).touch()
    path.with_suffix(".unfinished").mkdir()
    Outcome(0, None, False, False, None).write(path)
    assert not path.is_file()
    assert not running_file(path).exists()
