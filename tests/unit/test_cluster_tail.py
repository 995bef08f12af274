"""A log that is asked for again tells its lines from those that had come."""

from datetime import UTC, datetime

import pytest

from tests.messages import unnamed
from train_func.client.cluster.access import Access
from train_func.client.cluster.logs import MOST_FOLLOWED, Following
from train_func.client.cluster.tail import Resumed, ended, started
from train_func.client.cluster.timings import Timings
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.status import Pod

# Lines as a node hands them out, from a run on Kubernetes 1.34: seconds, fraction, text.
LINES = [
    ("2026-11-21T14:49:01", ".900000001", "a"),
    ("2026-11-21T14:49:02", ".100000000", "b"),
    ("2026-11-21T14:49:02", ".100000000", "b"),
    ("2026-11-21T14:49:02", ".300000000", "c"),
    ("2026-11-21T14:49:03", ".000000000", "d"),
    ("2026-11-21T14:49:09", ".500000000", "e"),
]


def read(resumed, lines):
    """One answer, from where it is asked for."""
    resumed.begin()
    since = (resumed.since or "").removesuffix("Z")
    return [text for second, fraction, text in lines if second >= since and resumed.is_new(second, fraction)]


@pytest.mark.parametrize("dropped", range(len(LINES) + 1))
def test_a_log_that_broke_off_anywhere_goes_on_with_the_next_line(dropped):
    resumed = Resumed()
    first = read(resumed, LINES[:dropped])
    again = read(resumed, LINES[: dropped + 1])
    assert first + again + read(resumed, LINES) == [text for *_, text in LINES]


def test_lines_of_the_same_moment_are_counted():
    resumed = Resumed()
    same = [("2026-11-21T14:49:02", ".1", str(number)) for number in range(5)]
    assert read(resumed, same[:2]) == ["0", "1"]
    assert read(resumed, same) == ["2", "3", "4"]


def test_times_that_are_not_in_order_do_no_harm():
    resumed = Resumed()
    lines = [LINES[3], LINES[1], LINES[4]]
    assert read(resumed, lines[:2]) == ["c", "b"]
    assert read(resumed, lines) == ["d"]


def test_it_is_asked_for_again_from_shortly_before_in_the_nodes_own_zone():
    resumed = Resumed()
    resumed.begin()
    assert resumed.since is None
    resumed.is_new("2026-11-21T14:49:01", ".9", "+02:00")
    resumed.begin()
    assert resumed.since == "2026-11-21T14:48:59+02:00"


def test_what_is_remembered_of_a_long_log_is_bounded():
    resumed = Resumed()
    resumed.begin()
    for second in range(60):
        assert resumed.is_new(f"2026-11-21T14:49:{second:02}", ".5")
    assert len(resumed._seconds) == 3


def pod(worker, *, phase="Running", code=None, deleted=False, born="a"):
    now = datetime.now(UTC)
    ended_at = now if code is not None else None
    return Pod(
        "p", f"{worker}-{born}", worker, phase, code, "", "", now if phase != "Pending" else None, ended_at, deleted
    )


def test_a_pod_has_a_log_when_its_container_has_started():
    assert not started(pod(0, phase="Pending"))
    assert started(pod(0))
    assert not ended(pod(0))
    assert ended(pod(0, code=0))
    assert ended(pod(0, phase="Failed"))


def chosen(pods, tails=(), failed=(), large=True):
    following = Following(None, None, None, print)
    following._tails = dict.fromkeys(tails)
    following._failed = set(failed)
    return [found.uid for found in following._chosen(pods, large)]


def test_of_a_large_job_worker_0_and_those_that_failed_are_followed():
    pods = [pod(worker) for worker in range(200)]
    pods[7] = pod(7, code=1)
    assert chosen(pods, failed={7}) == ["0-a", "7-a"]
    assert chosen(pods, tails=[0], failed={7, 8}) == ["7-a", "8-a"]


def test_never_more_than_sixteen_are_followed_and_the_living_leave_room_for_the_dead():
    living = [pod(worker) for worker in range(200)]
    assert len(chosen(living, failed=range(200))) < MOST_FOLLOWED
    dead = [pod(worker, code=1) for worker in range(200)]
    assert len(chosen(dead, failed=range(200))) == MOST_FOLLOWED
    assert chosen(dead, tails=range(MOST_FOLLOWED), failed=range(200)) == []


def test_a_small_job_is_followed_whole_and_each_worker_one_pod_after_the_other():
    pods = [pod(0, deleted=True), pod(1), pod(0, born="b"), pod(2, phase="Pending")]
    assert chosen(pods, large=False) == ["0-a", "1-a"]
    assert chosen(pods[1:], tails=[1], large=False) == ["0-b"]


class Observed:
    """So many workers, none of which has begun to write."""

    alive, failure, outage = True, None, None

    def __init__(self, num_workers):
        self._pods = [pod(worker, phase="Pending") for worker in range(num_workers)]

    def __call__(self):
        return self

    def ask(self):
        pass

    def pods(self):
        return self._pods


def test_that_most_of_a_large_job_is_left_out_is_said_once_with_how_to_ask_for_one():
    said = []
    for observed in (Observed(MOST_FOLLOWED), Observed(MOST_FOLLOWED + 1)):
        following = Following(None, observed, None, said.append)
        following._start()
        following._start()
    assert len(said) == 1
    assert unnamed(said[0], "only worker 0", "worker=") == []


def test_that_no_line_can_come_is_said_once_each_time():
    said, observed = [], Observed(1)
    following = Following(None, observed, None, said.append)
    for observed.outage in [None, "away", "away", None, "away again"]:
        following._tell_silence()
    assert [words.endswith(outage) for words, outage in zip(said, ("away", "away again"), strict=True)] == [True, True]


def test_a_watch_that_has_given_up_ends_the_following():
    observed = Observed(1)
    observed.failure = RuntimeError("a fault")
    with pytest.raises(RuntimeError, match="a fault"):
        Following(Access("lab", "context 'c'", PYTORCHJOB, Timings(), None), observed, None, print)._tell_silence()
