"""What a backend shows and what the store keeps become one log: nothing is lost, nothing comes twice."""

import random
import time

import pytest

from train_func import events
from train_func.client.logs import StoredLogs, joined
from train_func.client.logs.stored import Seen, after
from train_func.client.status import LogCut, LogLine, Pod
from train_func.records import EndRecord, Lease, RunRecord
from train_func.run import Run
from train_func.storage import open_store
from train_func.worker.supervisor.log import BoundedLog

SUBMITTED = "2026-01-02T12:00:00+00:00"


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def kept(store):
    record = RunRecord(
        run=Run(workers=2),
        name="a-run",
        generation=1,
        store=store.address,
        function="f",
        source_sha256="",
    )
    return StoredLogs(record, store)


def log_of(worker, uid, *texts):
    starts = events.WorkerStarts(
        worker=worker, num_workers=2, pod="p", pod_uid=uid, time=SUBMITTED, submitted=SUBMITTED
    )
    return [events.line(starts), *texts]


def keep(store, attempt, worker, uid, *texts, ended=True):
    root = f"a-run/attempts/{attempt}"
    lease = Lease(attempt=attempt, pod_uid=f"{attempt}-0", submitted=SUBMITTED)
    store.put(f"{root}/lease.json", lease.to_json())
    store.put(f"{root}/worker-{worker}.log", "".join(f"{text}\n" for text in log_of(worker, uid, *texts)).encode())
    if ended:
        end = EndRecord(attempt=attempt, worker=worker, pod_uid=uid, exit_code=0, cause=None, message="")
        store.put(f"{root}/worker-{worker}.json", end.to_json())


def pod(uid, *, deleted=False):
    return Pod("p", uid, int(uid[-1]), "Running", None, "", "", None, None, deleted)


def lines(worker, uid, *texts):
    return [LogLine(worker, uid, text) for text in log_of(worker, uid, *texts)]


def told(kept, pods, live, worker=None):
    found = joined(kept, pods, live, worker=worker)
    return [(line.attempt.number, line.worker, line.text) for line in found if not line.text.startswith("worker ")]


def test_pods_that_are_gone_come_from_the_store_and_the_others_from_the_place(store, kept):
    keep(store, 1, 0, "1-0", "one")
    keep(store, 1, 1, "1-1", "two", ended=False)
    keep(store, 2, 0, "2-0", "three")
    live = lines(0, "2-0", "three", "four")
    assert told(kept, [pod("2-0")], live) == [(1, 0, "one"), (1, 1, "two"), (2, 0, "three"), (2, 0, "four")]


def test_when_the_job_is_gone_the_store_has_everything(store, kept):
    keep(store, 1, 0, "1-0", "one")
    keep(store, 10, 0, "10-0", "ten")
    keep(store, 2, 1, "2-1", "two")
    assert told(kept, [], []) == [(1, 0, "one"), (2, 1, "two"), (10, 0, "ten")]
    assert told(kept, [], [], worker=1) == [(2, 1, "two")]


def test_a_pod_deleted_in_mid_stream_is_completed_from_the_store(store, kept):
    def live():
        yield from lines(0, "1-0", "one", "two")
        keep(store, 1, 0, "1-0", "one", "two", "three", "four")  # written while the stream was cut
        yield LogCut(0, "1-0")
        yield from lines(0, "2-0", "five")

    found = told(kept, [pod("1-0")], live())
    assert found == [(1, 0, "one"), (1, 0, "two"), (1, 0, "three"), (1, 0, "four"), (2, 0, "five")]


def test_a_cut_of_an_unknown_pod_adds_nothing(store, kept):
    assert told(kept, [pod("1-0")], [*lines(0, "1-0", "one"), LogCut(0, "1-0")]) == [(1, 0, "one")]


def test_a_pod_gone_before_anything_was_seen_is_shown_whole(store, kept):
    def live():
        keep(store, 1, 0, "1-0", "one")
        yield LogCut(0, "1-0")

    assert told(kept, [pod("1-0")], live()) == [(1, 0, "one")]


def test_the_living_beside_the_pod_that_claimed_a_number_have_it_too(store, kept):
    keep(store, 3, 0, "3-0", "one")
    live = [*lines(1, "3-1", "other"), *lines(0, "3-0", "one")]
    assert told(kept, [pod("3-1"), pod("3-0")], live) == [(3, 1, "other"), (3, 0, "one")]


def test_lines_are_cut_at_line_feeds_only(store, kept):
    keep(store, 1, 0, "1-0", "a\u2028b", "", "c\x0bd")
    assert [text for _, _, text in told(kept, [], [])] == ["a\u2028b", "", "c\x0bd"]


def seen(*texts):
    found = Seen()
    for text in texts:
        found.add(text)
    return found


@pytest.mark.parametrize(
    ("shown", "rest"),
    [
        ([], "abcd"),
        (["a"], "bcd"),
        (["a", "b", "c", "d"], ""),
        (["a", "b", "from native code"], "cd"),
        (["from native code", "a", "b"], "cd"),
        (["a", "b", "c", "d", "printed after the last upload"], ""),
        (["a", "b", "c cut in the midd"], "cd"),
    ],
    ids=str,
)
def test_the_rest_begins_after_what_was_seen(shown, rest):
    assert after(list("abcd"), seen(*shown)) == list(rest)


def test_lines_that_repeat_are_told_apart_by_those_before_them_and_by_their_place():
    assert after(list("xaxbxc"), seen("x", "a", "x")) == list("bxc")
    assert after(["same"] * 1000, seen(*["same"] * 900)) == ["same"] * 100
    assert after(["", "a", "", "b"], seen("", "a", "")) == ["b"]


@pytest.mark.parametrize("line", ["", "[rank 0] "])
def test_a_log_of_5_mib_of_equal_lines_is_joined_within_seconds(line):
    num_lines = 5 * 2**20 // (len(line) + 1)
    shown = seen(*[line] * 1000)
    begun = time.process_time()
    rest = after([line] * num_lines, shown)
    assert time.process_time() - begun < 20  # hours, where every line is compared with every other
    assert len(rest) == num_lines - 1000


def test_the_place_is_that_of_the_longest_agreement_whatever_lines_repeat():
    """Compared with every pair of places, in logs of few different lines."""
    draw = random.Random(14)
    for _ in range(300):
        whole = draw.choices("ab", k=draw.randrange(1, 30))
        begin = draw.randrange(len(whole))
        shown = [*whole[:begin], *draw.choices("abc", k=draw.randrange(3))]
        assert after(whole, seen(*shown)) == by_every_pair(whole, shown), (whole, shown)


def by_every_pair(stored, shown):
    found = []
    for last in range(len(shown)):
        for place in range(len(stored)):
            agreeing = 0
            while agreeing <= min(last, place) and shown[last - agreeing] == stored[place - agreeing]:
                agreeing += 1
            found.append((agreeing, -abs(place - last), place))
    most, _, place = max(found, default=(0, 0, 0))
    return stored[place + 1 :] if most else stored[len(shown) :]


def test_a_gap_in_the_kept_log_is_counted():
    log = BoundedLog(head=40, tail=40)
    everything = [f"line {number}" for number in range(100)]
    for line in everything:
        log.add(f"{line}\n".encode())
    kept = log.render().decode().splitlines()
    gap = next(number for number, line in enumerate(kept) if events.parse(line))
    assert after(kept, seen(*everything[:2])) == kept[2:]
    assert after(kept, seen(*everything[:50])) == kept[gap:]
    assert after(kept, seen(*everything[:97])) == everything[97:]


def restarts(worker, attempt):
    return events.line(events.RanksRestart(worker=worker, attempt=attempt, message="a rank was killed", follows=0))


def keep_two_attempts(store):
    keep(store, 1, 0, "1-0", "one", "two")
    keep(store, 2, 0, "1-0", restarts(0, 2), "one", "two")


def test_the_attempts_of_one_pod_are_told_apart_when_it_is_gone(store, kept):
    keep_two_attempts(store)
    found = [(number, text) for number, _, text in told(kept, [], []) if "same pod" not in text]
    assert found == [(1, "one"), (1, "two"), (2, "one"), (2, "two")]


@pytest.mark.parametrize("num_shown", range(6))
def test_a_pod_of_two_attempts_that_is_deleted_is_completed_from_both_of_its_logs(store, kept, num_shown):
    keep_two_attempts(store)
    live = lines(0, "1-0", "one", "two", restarts(0, 2), "one", "two")
    found = told(kept, [pod("1-0")], [*live[: num_shown + 1], LogCut(0, "1-0")])
    assert [(number, text) for number, _, text in found if "same pod" not in text] == [
        (1, "one"),
        (1, "two"),
        (2, "one"),
        (2, "two"),
    ]
    assert len(found) == 4  # what begins with "worker" is left out
