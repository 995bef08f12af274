"""Lines of many pods are told apart by attempt, as they come and afterwards."""

from datetime import datetime

import pytest

from train_func import events
from train_func.client.logs import headed
from train_func.client.logs.numbering import Numbering, uid_in
from train_func.client.status import LogLine

MORNING, NOON = "2026-01-02T08:00:00+00:00", "2026-01-02T12:00:00+00:00"


def first(worker, uid, at="2026-01-02T12:00:01+00:00", submitted=NOON):
    pod = f"a-run-worker-{worker}"
    told = events.WorkerStarts(worker=worker, num_workers=2, pod=pod, pod_uid=uid, time=at, submitted=submitted)
    return LogLine(worker, uid, events.line(told))


def said(worker, uid, text):
    return LogLine(worker, uid, text)


def claims(uid, number):
    told = events.AttemptStarts(attempt=number, position=number, at_most=3, num_workers=2, num_ranks=2, num_threads=1)
    return said(0, uid, events.line(told))


def numbers(lines, known=(), newest=0):
    return [(told.attempt.number, told.worker) for told in Numbering(dict(known), newest).told(lines)]


def here(moment):
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def test_a_first_line_names_its_pod():
    assert uid_in(first(1, "uid-b").text) == "uid-b"
    assert uid_in("worker 1 of 2 starts in a-run-worker-1 (uid-b)") == ""


def test_attempts_are_counted_from_the_lines_alone():
    lines = [
        first(0, "a"),
        first(1, "b"),
        claims("a", 1),
        said(1, "b", "x"),
        first(0, "c"),
        first(1, "d"),
        claims("c", 2),
    ]
    assert numbers(lines) == [(1, 0), (1, 1), (1, 0), (1, 1), (2, 0), (2, 1), (2, 0)]


def test_a_pod_that_is_replaced_before_the_group_formed_belongs_to_the_same_attempt():
    assert numbers([first(0, "a"), first(1, "b"), first(1, "c"), claims("a", 1)]) == [(1, 0), (1, 1), (1, 1), (1, 0)]


def test_a_container_that_starts_again_in_its_pod_belongs_to_the_next_attempt():
    before = [first(0, "a"), first(1, "b"), claims("a", 1)]
    again = [first(0, "a"), first(1, "c"), claims("a", 2), said(1, "c", "x")]
    found = numbers([*before, *again])
    assert (found[:3], found[3:]) == ([(1, 0), (1, 1), (1, 0)], [(2, 0), (2, 1), (2, 0), (2, 1)])
    assert numbers([first(0, "a"), first(0, "a"), first(1, "b"), claims("a", 1)]) == [(1, 0), (1, 0), (1, 1), (1, 0)]


def test_a_straggler_of_an_earlier_attempt_is_labelled_with_it():
    lines = [first(0, "a"), first(1, "b"), claims("a", 1), first(0, "c"), said(1, "b", "late"), first(1, "d")]
    told = list(Numbering({}, 0).told(lines))
    assert [str(line) for line in told if line.late] == ["[worker 1, attempt 1] late"]
    assert sum(line.startswith("---") for line in headed(iter(told))) == 2


def test_a_submission_begins_an_attempt_although_the_one_before_never_formed():
    lines = [first(0, "a", submitted=MORNING), first(1, "b", submitted=MORNING), first(0, "c"), first(1, "d")]
    headings = [line for line in headed(Numbering({}, 0).told(lines)) if line.startswith("---")]
    assert headings == [
        f"--- attempt 1, submitted {here(MORNING)} ---",
        f"--- attempt 2, submitted again {here(NOON)} ---",
    ]


def test_a_restart_is_headed_by_when_its_first_worker_started():
    lines = [first(0, "a"), claims("a", 1), first(0, "b", at="2026-01-02T12:05:00+00:00")]
    *_, heading, _ = headed(Numbering({}, 0).told(lines))
    assert heading == f"--- attempt 2, started again {here('2026-01-02T12:05:00+00:00')} ---"


def test_what_the_store_knows_of_a_pod_counts():
    known = {"a": 4, "b": 4}
    assert numbers([first(1, "b"), first(0, "a"), first(0, "c")], known, newest=4) == [(4, 1), (4, 0), (5, 0)]


def test_an_unknown_pod_is_of_the_attempt_after_the_newest_claim():
    assert numbers([first(0, "z")], newest=7) == [(8, 0)]


def test_the_number_that_worker_0_says_is_right():
    lines = [first(0, "a"), claims("a", 3), said(0, "a", "on")]
    told = list(Numbering({}, 0).told(lines))
    assert [line.attempt.number for line in told] == [1, 3, 3]


def test_an_event_is_shown_as_its_words():
    claim = claims("a", 1)
    assert list(headed(Numbering({}, 0).told([claim])))[1] == f"[worker 0] {events.readable(claim.text)}"
    assert events.MARK not in events.readable(claim.text)


@pytest.mark.parametrize("text", [f"[rank 0] {claims('a', 9).text}", events.readable(claims("a", 9).text)])
def test_what_was_printed_is_no_number(text):
    assert numbers([first(0, "a"), said(0, "a", text)]) == [(1, 0), (1, 0)]


def test_lines_of_programs_that_are_not_ours_have_one_attempt():
    assert numbers([said(0, "a", "hello"), said(1, "b", "hello")]) == [(1, 0), (1, 1)]
    assert next(headed(Numbering({}, 0).told([said(0, "a", "hello")]))) == "--- attempt 1, started ---"
