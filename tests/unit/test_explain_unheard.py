"""Who waits is told what keeps the news away, and what keeps workers from their store, and goes on waiting."""

import pytest

from tests.recorded_jobs import Clock, RecordedPlace, a_record, looked
from train_func.client.explain import Lookout, patiently
from train_func.errors import InvalidInput

AWAY = InvalidInput("context 'c' cannot be reached: nothing listens there", cause="cluster")
FORBIDDEN = InvalidInput("watch pods in namespace lab: forbidden: no; have this Role applied", cause="permission")
STARTS = "worker 0 of 1 starts in job-a-worker-0 (uid) at 2026-11-21T14:42:20+00:00"
WAITS = (
    "the store is away, waiting up to {} s more for it: put of 'a/probe-{}' in s3://b/runs, server "
    "http://no-store:9000 [10.96.0.1]: connection refused: nothing listens there (tried 4 times in 1.{} s). "
    "See whether the server is up"
)


@pytest.fixture
def place():
    """A job that runs."""
    place = RecordedPlace("evicted")
    (pod,) = place.job["pods"]
    del pod["metadata"]["deletionTimestamp"]
    pod["status"]["conditions"] = []
    return place


def test_a_job_that_runs_is_no_matter(place):
    assert looked(place)[0] == []


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN], ids=["away", "forbidden"])
def test_that_nothing_is_heard_is_told_once_and_that_it_is_over_and_again(place, error):
    clock = Clock()
    lookout, told = Lookout(a_record(), place, clock), []
    for place.silence in [None, error, error, None, None, error, None]:
        told += lookout.look()
        clock.seconds += 2
        assert [trouble.cause for trouble in lookout.current] == ([error.cause] if place.silence else [])
        assert lookout.failure() is None
    first, over, again, over_again = told
    assert str(error) in str(first)
    assert first.cause == error.cause
    assert "heard of again" in str(over)
    assert (again, over_again) == (first, over)


def test_what_was_seen_last_is_no_reason_to_give_up_while_the_cluster_is_away(place):
    lost = RecordedPlace("secret_missing")
    lost.silence = AWAY
    assert looked(lost)[2] is None


def test_a_place_that_raises_instead_is_told_the_same_way_unless_it_does_from_the_start(place, monkeypatch):
    clock = Clock()
    lookout = Lookout(a_record(), place, clock)
    lookout.look()

    def refuses(job_name):
        raise FORBIDDEN

    monkeypatch.setattr(place, "pods", refuses)
    clock.seconds += 2
    assert [trouble.cause for trouble in lookout.look()] == ["permission"]
    with pytest.raises(InvalidInput, match="have this Role applied"):
        Lookout(a_record(), place, clock).look()


@pytest.mark.parametrize("error", [AWAY, FORBIDDEN], ids=["away", "forbidden"])
def test_the_state_before_stands_while_a_place_does_not_say_it(error):
    def asked():
        raise error

    assert patiently(asked, "Running") == "Running"


def test_a_fault_of_the_asking_is_raised():
    def asked():
        raise InvalidInput("namespace='x': there is none")

    with pytest.raises(InvalidInput, match="there is none"):
        patiently(asked, "Running")


def test_a_worker_that_waits_for_its_store_is_told_once_with_the_address(place):
    clock = Clock()
    lookout, told = Lookout(a_record(), place, clock), []
    for number in range(60):
        place.last_line = STARTS if number < 5 else WAITS.format(60 - number, number, number % 10)
        told += lookout.look()
        clock.seconds += 1
    (trouble,) = told
    assert trouble.cause == "storage"
    assert trouble.what == (
        "worker 0 waits for the store: s3://b/runs, server http://no-store:9000 [10.96.0.1]: "
        "connection refused: nothing listens there"
    )
    assert "s3_endpoint=..." in trouble.next
    assert lookout.failure() is None


def test_a_worker_that_has_gone_on_is_no_longer_asked(place, monkeypatch):
    asked = []
    monkeypatch.setattr(place, "last_lines", lambda name, pods: asked.append(pods) or {pods[0].uid: place.last_line})
    place.last_line = "worker 0 meets the others at job-a-worker-0:23456"
    told, lookout, _ = looked(place, 60)
    assert (told, lookout.current) == ([], [])
    assert len(asked) == 1
