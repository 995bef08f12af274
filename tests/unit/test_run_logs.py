"""What a backend shows and what the store has become one log: attempt by attempt, each line once."""

import time
from dataclasses import replace
from datetime import datetime

import pytest

from train_func.client.logs import Numbering, RunLogs, of_attempt, with_headings
from train_func.client.status import LogLine, LogPosition, Pod, Snapshot
from train_func.errors import StorageFailed
from train_func.run import Run
from train_func.wire import events
from train_func.wire.records import EndRecord, Lease, RunRecord
from train_func.worker.supervisor.log import BoundedLog

MORNING, NOON = "2026-01-02T08:00:00+00:00", "2026-01-02T12:00:00+00:00"


@pytest.fixture
def record(store):
    return RunRecord(
        run=Run(workers=2), name="a-run", generation=1, store=store.address, function="f", source_sha256=""
    )


@pytest.fixture
def logs(record, store):
    return RunLogs(record, store)


def first(worker, uid, at="2026-01-02T12:00:01+00:00", submitted=NOON):
    starts = events.WorkerStarts(worker=worker, num_workers=2, pod="p", pod_uid=uid, time=at, submitted=submitted)
    return LogLine(worker, uid, events.line(starts))


def lines(worker, uid, *texts):
    return [first(worker, uid), *(LogLine(worker, uid, text) for text in texts)]


def keep(store, attempt, worker, uid, *texts, ended=True):
    root = f"a-run/attempts/{attempt}"
    store.put(f"{root}/lease.json", Lease(attempt=attempt, pod_uid=f"{attempt}-0", submitted=NOON).to_json())
    data = "".join(f"{line.text}\n" for line in lines(worker, uid, *texts)).encode()
    store.put(f"{root}/worker-{worker}.log", data)
    if ended:
        end = EndRecord(attempt=attempt, worker=worker, pod_uid=uid, exit_code=0, cause=None, message="")
        store.put(f"{root}/worker-{worker}.json", end.to_json())


def pod(uid):
    return Pod("p", uid, int(uid[-1]), "Running", None, "", "", None, None, deleted=False)


def seen(*lines, pods=(), lost=()):
    return Snapshot(pods=tuple(map(pod, pods)), lines=lines, lost=frozenset(lost))


def told(logs, *snapshots):
    found = [line for snapshot in snapshots for line in logs.lines(snapshot)]
    return [(line.attempt.number, line.worker, line.text) for line in found if "same pod" not in line.text]


def printed(logs, *snapshots):
    return [line for line in told(logs, *snapshots) if not line[2].startswith("worker ")]


def test_pods_that_are_gone_come_from_the_store_and_the_others_from_the_backend(store, logs):
    keep(store, 1, 0, "1-0", "one")
    keep(store, 1, 1, "1-1", "two", ended=False)
    keep(store, 2, 0, "2-0", "three")
    live = seen(*lines(0, "2-0", "three", "four"), pods=["2-0"])
    assert printed(logs, live) == [(1, 0, "one"), (1, 1, "two"), (2, 0, "three"), (2, 0, "four")]


def test_when_the_job_is_gone_the_store_has_everything(store, logs):
    keep(store, 1, 0, "1-0", "one\u2028", "")
    keep(store, 10, 0, "10-0", "ten")
    keep(store, 2, 1, "2-1", "two")
    assert printed(logs, seen()) == [(1, 0, "one\u2028"), (1, 0, ""), (2, 1, "two"), (10, 0, "ten")]


@pytest.mark.parametrize("num_seen", range(5))
def test_a_pod_that_goes_while_it_is_followed_is_continued_from_the_store(store, logs, num_seen):
    before = seen(*lines(0, "1-0", *"abcd")[: num_seen + 1], pods=["1-0"])
    shown = printed(logs, before)
    keep(store, 1, 0, "1-0", *"abcd")
    shown += printed(logs, seen(*lines(0, "2-0", "next"), lost=["1-0"]), seen(lost=["1-0"]))
    assert sorted(shown) == [*((1, 0, text) for text in "abcd"), (2, 0, "next")]


def test_a_pod_that_is_gone_without_a_record_adds_nothing(logs):
    assert printed(logs, seen(*lines(0, "1-0", "one"), pods=["1-0"]), seen(lost=["1-0"])) == [(1, 0, "one")]


@pytest.mark.parametrize(("failures", "is_over", "more"), [(0, False, []), (1, False, ["b"]), (0, True, ["b"])])
def test_what_the_backend_does_not_hand_out_is_completed_at_the_end(store, logs, failures, is_over, more):
    keep(store, 1, 0, "1-0", "a", "b")
    last = seen(*lines(0, "1-0", "a"), pods=["1-0"])
    list(logs.lines(last))
    last = replace(last, positions={"1-0": LogPosition(failures=failures)})
    assert [line.text for line in logs.finish(last, is_over=is_over)] == more


@pytest.mark.parametrize("num_seen", range(6))
def test_the_attempts_of_one_pod_are_continued_each_from_its_own_log(store, logs, num_seen):
    again = events.line(events.RanksRestart(worker=0, attempt=2, message="a rank was killed", follows=0))
    live = lines(0, "1-0", "one", "two", again, "one", "two")
    shown = printed(logs, seen(*live[: num_seen + 1], pods=["1-0"]))
    keep(store, 1, 0, "1-0", "one", "two")
    keep(store, 2, 0, "1-0", again, "one", "two")
    shown += printed(logs, seen(lost=["1-0"]))
    assert [(number, text) for number, _, text in shown] == [(1, "one"), (1, "two"), (2, "one"), (2, "two")]


class Away:
    """Lists what the store holds, except while it is away; of what it reads it gives so many objects."""

    def __init__(self, store):
        self._store, self.address, self.num_objects = store, store.address, 0

    def list(self, prefix):
        if self.num_objects == 0:
            raise StorageFailed("no answer", reason="unreachable")
        return self._store.list(prefix)

    def get(self, key):
        self.num_objects -= 1
        if self.num_objects < 0:
            raise StorageFailed("no answer", reason="unreachable")
        return self._store.get(key)


@pytest.mark.parametrize("num_objects", range(7))
def test_while_a_job_is_followed_what_a_store_has_that_is_away_comes_later_and_once(store, record, num_objects):
    keep(store, 1, 0, "1-0", "one")
    keep(store, 1, 1, "1-1", "other")
    keep(store, 2, 0, "2-0", "two", "three")
    logs, shown = RunLogs(record, away := Away(store), is_followed=True), []
    first, quiet, lost = seen(*lines(0, "2-0", "two"), pods=["2-0"]), seen(pods=["2-0"]), seen(lost=["2-0"])
    for away.num_objects, look in ((num_objects, first), (99, quiet), (0, lost), (99, lost)):
        shown += printed(logs, look)
    assert shown == [(1, 0, "one"), (1, 1, "other"), (2, 0, "two"), (2, 0, "three")]


def test_a_store_that_is_away_all_the_time_hides_no_line_of_the_backend_and_ends_what_is_not_followed(store, record):
    followed, read = (RunLogs(record, Away(store), is_followed=is_followed) for is_followed in (True, False))
    look = seen(*lines(0, "1-0", "one"), pods=["1-0"])
    assert printed(followed, look) == []
    assert [line.text for line in followed.finish(look, is_over=True)][1:] == ["one"]
    with pytest.raises(StorageFailed, match="no answer"):
        printed(read, look)


def test_of_a_pod_that_goes_while_the_store_is_away_the_head_comes_before_the_rest(store, record):
    logs = RunLogs(record, away := Away(store), is_followed=True)
    assert printed(logs, seen(*lines(0, "1-0", "one", "two"), pods=["1-0"])) == []
    keep(store, 1, 0, "1-0", "one", "two", "three")
    away.num_objects = 99
    shown = printed(logs, seen(*lines(0, "2-0", "four"), pods=["2-0"], lost=["1-0"]))
    assert shown == [(1, 0, "one"), (1, 0, "two"), (1, 0, "three"), (2, 0, "four")]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}"])
def test_a_record_that_is_damaged_hides_no_log(store, logs, content):
    keep(store, 1, 0, "1-0", "one")
    keep(store, 2, 0, "2-0", "two")
    for key in ("lease.json", "worker-0.json"):
        store.put(f"a-run/attempts/2/{key}", content)
    assert printed(logs, seen()) == [(1, 0, "one"), (2, 0, "two")]


def test_a_gap_in_the_stored_log_is_counted(store, logs):
    log = BoundedLog(head=400, tail=40)
    everything = [line.text for line in lines(0, "1-0", *(f"line {number}" for number in range(100)))]
    for text in everything:
        log.add(f"{text}\n".encode())
    shown = printed(logs, seen(*(LogLine(0, "1-0", text) for text in everything[:98]), pods=["1-0"]))
    keep(store, 1, 0, "1-0")
    store.put("a-run/attempts/1/worker-0.log", log.render())
    shown += printed(logs, seen(lost=["1-0"]))
    assert [text for _, _, text in shown] == [f"line {number}" for number in range(100)]


def test_ten_thousand_equal_lines_are_shown_in_under_a_second(store, logs):
    begun = time.process_time()
    shown = printed(logs, seen(*lines(0, "1-0", *["same"] * 5_000), pods=["1-0"]))
    keep(store, 1, 0, "1-0", *["same"] * 10_000)
    shown += printed(logs, seen(lost=["1-0"]))
    assert len(shown) == 10_000
    assert time.process_time() - begun < 1


def test_the_living_beside_the_pod_that_claimed_a_number_have_it_too(store, logs):
    keep(store, 3, 0, "3-0", "one")
    live = seen(*lines(1, "3-1", "other"), *lines(0, "3-0", "one"), pods=["3-1", "3-0"])
    assert printed(logs, live) == [(3, 1, "other"), (3, 0, "one")]


def claims(uid, number, num_workers=2):
    sizes = {"num_workers": num_workers, "num_ranks": 2, "num_threads": 1}
    claim = events.AttemptStarts(attempt=number, position=number, at_most=3, **sizes)
    return LogLine(0, uid, events.line(claim))


def joins(worker, uid, number):
    return LogLine(worker, uid, events.line(events.WorkerJoins(worker=worker, attempt=number)))


def again(worker, uid, number):
    event = events.RanksRestart(worker=worker, attempt=number, message="a worker was lost", follows=0)
    return LogLine(worker, uid, events.line(event))


A, B = first(0, "a"), first(1, "b")
# Worker 0 is evicted, the others go on in attempt 2, and its successor joins them in attempt 3.
EVICTED = [A, B, joins(0, "a", 1), joins(1, "b", 1), again(1, "b", 2), first(0, "c"), LogLine(1, "b", "trains")]
LATE = LogLine(1, "b", "late")


@pytest.mark.parametrize(
    ("told", "known", "newest", "numbers"),
    [
        ([A, B, claims("a", 1), LATE, first(0, "c"), first(1, "d"), claims("c", 2)], {}, 0, [1, 1, 1, 1, 2, 2, 2]),
        ([A, B, first(1, "c"), claims("a", 1)], {}, 0, [1, 1, 1, 1]),  # replaced before the group formed
        ([A, B, claims("a", 1), A, first(1, "c"), claims("a", 2)], {}, 0, [1, 1, 1, 2, 2, 2]),  # in the same pod
        ([A, A, B, claims("a", 1)], {}, 0, [1, 1, 1, 1]),
        ([B, A, first(0, "c")], {"a": 4, "b": 4}, 4, [4, 4, 5]),
        ([first(0, "z")], {}, 7, [8]),
        ([A, claims("a", 3), LogLine(0, "a", "on")], {}, 0, [1, 3, 3]),
        ([A, LogLine(0, "a", f"[rank 0] {claims('a', 9).text}")], {}, 0, [1, 1]),
        ([*EVICTED, again(1, "b", 3), joins(0, "c", 3)], {}, 0, [1, 1, 1, 1, 2, 2, 2, 3, 3]),
        ([LogLine(0, "a", "not ours"), LogLine(1, "b", "nor this")], {}, 0, [1, 1]),
    ],
)
def test_each_line_has_the_number_of_its_attempt(told, known, newest, numbers):
    assert [line.attempt.number for line in Numbering(known, newest).number(told)] == numbers


@pytest.mark.parametrize("num_followed", [0, 1, 2])
def test_an_attempt_has_the_lines_of_all_its_workers_though_one_of_them_begins_the_next_one_before(num_followed):
    other = [B, LogLine(1, "b", "other"), again(1, "b", 2)] if num_followed != 1 else []
    told = [A, claims("a", 1), LogLine(0, "a", "one"), again(0, "a", 2), *other, *[LogLine(0, "a", "later")] * 3]
    numbered = Numbering({"a": 1, "b": 1}, 2).number(rest := iter(told))  # as the store knows them
    found = of_attempt(numbered, 1, "a-run", num_followed=lambda: num_followed)
    assert [line.text for line in found if line.event is None] == ["one", "other"][: 2 if other else 1]
    assert len(list(rest)) == (3 if num_followed else 0)


def test_an_attempt_ends_with_the_one_worker_of_the_next_though_it_had_two_itself():
    told = [A, B, claims("a", 1), LogLine(1, "b", "other"), first(0, "c"), claims("c", 2, num_workers=1)]
    numbered = Numbering({}, 0).number(rest := iter([*told, LogLine(0, "c", "later"), LogLine(0, "c", "later")]))
    assert [line.text for line in of_attempt(numbered, 1, "a-run", num_followed=lambda: 2)][-1] == "other"
    assert len(list(rest)) == 2


def here(moment):
    return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def test_attempts_are_headed_by_why_and_when_they_began_and_a_straggler_is_labelled():
    earlier = [first(0, "x", submitted=MORNING)]
    again = first(0, "c", at="2026-01-02T12:05:00+00:00")
    lines = [*earlier, A, B, claims("a", 2), again, LATE]
    text = list(with_headings(Numbering({}, 0).number(lines)))
    assert [line for line in text if line.startswith("---")] == [
        f"--- attempt 1, submitted {here(MORNING)} ---",
        f"--- attempt 2, submitted again {here(NOON)} ---",
        f"--- attempt 3, started again {here('2026-01-02T12:05:00+00:00')} ---",
    ]
    assert text[-1] == "[worker 1, attempt 2] late"
