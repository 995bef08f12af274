"""Numbers of attempts are claimed once each, and the budget counts what it should."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from tests.messages import unnamed
from train_func.errors import StorageFailed
from train_func.run import Run
from train_func.wire import exits
from train_func.wire.records import Failure, RunRecord, Verdict
from train_func.worker import masks
from train_func.worker.ledger import Ledger
from train_func.worker.rank.end import Outcome, RankEnd
from train_func.worker.supervisor.verdict import follower_verdict


def record(generation=1, submitted="", max_attempts=3, submission=0):
    return RunRecord(
        submission=submission,
        submitted=submitted,
        run=Run(workers=2, max_attempts=max_attempts),
        name="a-run",
        generation=generation,
        store="",
        function="train_func",
        source_sha256="",
    )


@pytest.fixture
def attempts(store):
    return Ledger(store, record(), worker=0, pod="a-run-worker-0", pod_uid="uid-0")


def verdict(code, worker=0, root_cause=True, message="why"):
    return Verdict(code, "preemption" if code == 143 else "killed", message, worker, root_cause=root_cause)


def lived(attempts, *codes):
    """Claims one attempt for every code and ends it so; None: it vanished."""
    for code in codes:
        lease = attempts.claim()
        if code is not None:
            attempts.write_end(lease, verdict(code), [])


def test_numbers_go_up_from_one_and_generations_do_not_mix(store, attempts):
    assert [attempts.claim().attempt for _ in range(3)] == [1, 2, 3]
    assert Ledger(store, record(generation=2), worker=0, pod="p").claim().attempt == 1
    lease = json.loads(store.get("a-run/attempts/2/lease.json").data)
    assert (lease["attempt"], lease["generation"], lease["pod"]) == (2, 1, "a-run-worker-0")


def test_claimants_at_the_same_moment_get_a_number_each(store):
    numbers = []
    at_once(lambda worker: numbers.append(Ledger(store, record(), worker=worker, pod="p").claim().attempt), 8)
    assert sorted(numbers) == list(range(1, 9))


def at_once(call, num_workers):
    """Calls it for each worker, in a thread of its own."""
    barrier = threading.Barrier(num_workers)

    def run(worker):
        barrier.wait()
        call(worker)

    with ThreadPoolExecutor(num_workers) as threads:
        list(threads.map(run, range(num_workers)))


def test_a_claim_whose_answer_was_lost_is_not_made_twice(store, attempts, monkeypatch):
    put = type(store).put

    def put_without_answer(*args, **kwargs):
        put(*args, **kwargs)
        monkeypatch.undo()
        raise StorageFailed("no answer", reason="unreachable")

    monkeypatch.setattr(type(store), "put", put_without_answer)
    with pytest.raises(StorageFailed):
        attempts.claim()
    assert [attempts.claim().attempt for _ in range(2)] == [1, 2]


def ended_behind(attempts, *steps, code=147, cause="killed"):
    for step in steps:
        attempts.write_end(attempts.claim(), Verdict(code, cause, "why", 0), [], step)


def save(attempts, attempt, step, training=0):
    store = attempts._store
    store.put(f"{attempts._keys.checkpoints_of(training)}/{attempt}-{step}/manifest.json", b"{}")


@pytest.mark.parametrize(
    ("saved", "failed", "num_charged"),
    [
        ([0, 0], [0, 7], 2),
        ([40, 0, 0], [41, 41, 41], 2),
        ([40, 41, 41], [41, 41, 41], 2),  # what ends them lies in step 42, whatever they save
        ([40, 60, 0], [79, 70, 70], 2),
        ([40, 60, 80], [79, 70, 101], 0),
        ([0, 0, 7], [5, 3, 9], 0),
    ],
)
def test_an_attempt_is_charged_unless_it_saved_a_checkpoint_beyond_the_failures_before(
    store, saved, failed, num_charged
):
    made = Ledger(store, record(max_attempts=2), worker=0, pod="p")
    for number, (at, step) in enumerate(zip(saved, failed, strict=True), 1):
        ended_behind(made, step)
        if at:
            save(made, number, at)
    assert (made.account().num_charged, made.account().spent) == (num_charged, num_charged == 2)


def test_a_checkpoint_of_the_next_training_is_progress(store):
    made = Ledger(store, record(), worker=0, pod="p")
    ended_behind(made, 101, 7)
    save(made, 1, 101)
    assert made.account().num_charged == 1
    save(made, 2, 3, training=1)
    assert made.account().num_charged == 0


@pytest.mark.parametrize(
    ("codes", "num_charged"),
    [
        ([], 0),
        ([147], 1),
        ([147, None, 145], 3),
        ([143, 143, 147], 1),  # asked to stop from outside
        ([146, 147], 2),  # the port of the first was in use
        ([147, 0, 147], 3),  # one that is done and is lost with its group starts again within its submission
        ([None, 71, None], 3),
        ([0, 0, 145], 3),
    ],
)
def test_an_attempt_is_charged_unless_it_was_stopped(attempts, codes, num_charged):
    lived(attempts, *codes)
    account = attempts.account()
    assert (account.num_charged, account.spent) == (num_charged, num_charged >= 3)


def test_workers_whose_group_never_formed_end_under_one_number_however_many_they_are(store):
    pods = [Ledger(store, record(), worker=worker, pod=f"p-{worker}") for worker in range(7)]
    end_together(pods, 143)
    assert numbers(store) == {1: set(range(7))}
    end_together(pods, 146)  # started again, and again in vain
    assert numbers(store) == {1: set(range(7)), 2: set(range(7))}
    account = pods[0].account()
    assert (account.num_started, account.num_charged) == (2, 0)  # there may be no room for all pods
    assert pods[0].claim().attempt == 3
    pods[1].write_end(pods[1].claim_unformed(), verdict(146, worker=1), [])
    assert numbers(store)[4] == {1}  # not under that of a group that has formed


def end_together(pods, code):
    end = Verdict(code, exits.cause_of(code), "why", 0)
    at_once(lambda worker: pods[worker].write_end(pods[worker].claim_unformed(), replace(end, worker=worker), []), 7)


def numbers(store):
    """Which workers ended under which number."""
    found = {}
    for entry in store.list("a-run/attempts/"):
        number, name = entry.key.split("/")[2:]
        if name.startswith("worker-"):
            found.setdefault(int(number), set()).add(int(name[7:-5]))
    return found


def test_a_stop_of_one_worker_frees_the_attempt_of_all(store, attempts):
    lease = attempts.claim()
    attempts.write_end(lease, verdict(145, root_cause=False), [])
    assert attempts.account().num_charged == 1
    Ledger(store, record(), worker=1, pod="p").write_end(lease, verdict(143, worker=1), [])
    assert attempts.account().num_charged == 0


def test_the_time_of_a_submission_counts_from_its_first_group_that_formed(store):
    before, after = (Ledger(store, record(submitted=day), worker=0, pod="p") for day in ("2026-01-01", "2026-01-02"))
    lived(before, 147)
    after.write_end(after.claim_unformed(), verdict(143), [])
    assert after.account().began == ""
    first = after.claim()
    lived(after, 147, 147)
    assert after.account().began == first.started


def test_the_attempt_that_ends_is_counted_although_a_peer_has_recorded_its_final_end(store, attempts):
    lived(attempts, 147, 147)
    lease = attempts.claim()
    Ledger(store, record(), worker=1, pod="p").write_end(lease, verdict(71, worker=1), [])
    assert attempts.account(lease.attempt).spent


def test_an_attempt_that_ends_does_not_count_those_that_have_begun_without_it(attempts):
    lived(attempts, 147)
    lease = attempts.claim()
    lived(attempts, None)
    account = attempts.account(lease.attempt)
    assert (account.num_charged, account.spent) == (2, False)


def test_each_submission_has_all_its_attempts_and_numbers_go_on(store):
    first, second = (
        Ledger(store, record(submitted=f"2026-11-21T14:00:0{second}+00:00"), worker=0, pod="p") for second in (0, 9)
    )
    lived(first, 147, 143, None)  # cancelled or interrupted: no end was final
    account = second.account()
    assert (account.num_started, account.num_charged, account.at_most) == (0, 0, 3)
    lived(second, 147)
    account = second.account()
    assert (account.num_started, account.num_charged, account.at_most) == (1, 1, 3)
    assert second.claim().attempt == 5


@pytest.mark.parametrize("code", [147, 143])
def test_the_end_of_a_job_that_was_superseded_gives_no_attempt_back(store, code):
    newer = Ledger(store, record(submitted="2026-01-02T00:00:00.000+00:00"), worker=0, pod="p")
    for _ in range(3):
        lived(newer, 147)
        before = Ledger(store, record(submitted=FIRST), worker=0, pod="q")
        before.write_end(before.claim_unformed(), verdict(code), [])
    account = newer.account()
    assert (account.num_started, account.num_charged, account.spent) == (3, 3, True)


def test_the_last_known_reason_is_named_when_the_attempts_are_used_up(store, attempts):
    lived(attempts, 147)
    lease = attempts.claim()
    attempts.write_end(lease, verdict(145, root_cause=False, message="lost a peer"), [])
    Ledger(store, record(), worker=1, pod="p").write_end(lease, verdict(147, worker=1, message="killed"), [])
    lived(attempts, None)
    final = attempts.account().verdict(worker=0)
    assert (final.exit_code, final.cause) == (71, "killed")
    assert "3 of 3 attempts" in final.message
    assert "killed" in final.message
    anew = Ledger(store, record(submitted=FIRST), worker=0, pod="p")
    lived(anew, None, None, None)
    assert "left no record" in anew.account().verdict(worker=0).message


@pytest.mark.parametrize("is_recorded", [False, True])
def test_an_attempt_ended_because_of_the_worker_that_was_lost_even_if_only_the_others_could_record_it(
    store, attempts, is_recorded
):
    lease = attempts.claim()
    lost = Verdict(145, "peer", "worker 1 left no record (killed?)", 0, root_cause=False, follows=1)
    attempts.write_end(lease, lost, [], step=39)
    if is_recorded:
        fault = Verdict(147, "killed", "rank 1 was killed by SIGKILL", 1)
        Ledger(store, record(), worker=1, pod="p").write_end(lease, fault, [], step=38)
    reason, step = attempts.end_of(1)
    facts = ["worker 1", "SIGKILL"] if is_recorded else ["worker 1", "no record"]
    assert (unnamed(reason, *facts), "worker 0" in reason, step) == ([], False, 39)
    assert attempts.end_of(2) == ("", 0)
    alone = Ledger(store, record(), worker=2, pod="p")
    alone.write_end(alone.claim_unformed(), verdict(146, worker=2), [])
    assert attempts.end_of(2) == (reason, step)


def test_who_is_out_of_attempts_follows_the_worker_in_which_the_last_one_ended(store, attempts):
    lived(attempts, 147, 147, 148)
    hang = Verdict(148, "hang", "rank 1 hangs", worker=1, hangs=1)
    finals = [attempts.account(3).verdict(worker, hang) for worker in (0, 1)]
    other, own = (follower_verdict(hang, final) for final in finals)
    assert (own.root_cause, own.follows, own.hangs, own.exit_code) == (True, None, 1, 71)
    assert (other.root_cause, other.follows, other.hangs, other.exit_code) == (False, 1, 1, 71)


def test_attempts_of_another_format_are_passed_over_and_not_counted(store, attempts):
    lived(attempts, 147, 147)
    for key in ("lease.json", "worker-0.json"):
        kept = json.loads(store.get(f"a-run/attempts/2/{key}").data)
        store.put(f"a-run/attempts/2/{key}", json.dumps({**kept, "format": 99, "exit_code": 71}).encode())
    lived(attempts, 147)
    assert attempts.account().num_charged == 1
    assert attempts.claim().attempt == 4


ERROR = Failure("NameError", "a message", "a traceback", "2026-01-01T00:00:00+00:00")


def rank_ends(*ranks):
    return [RankEnd(rank, code, Outcome(code, "code", code == 145, ERROR), False, 0) for rank, code in ranks]


def test_a_record_shows_the_root_and_hides_the_errors_that_it_caused(store, attempts):
    lease = attempts.claim()
    attempts.write_end(lease, verdict(70), rank_ends((1, 145), (0, 70)))
    ranks = json.loads(store.get("a-run/attempts/1/worker-0.json").data)["ranks"]
    assert [(rank["rank"], rank["exit_code"]) for rank in ranks] == [(0, 70), (1, 145)]
    assert set(ranks[0]["error"]) == {"type", "message", "traceback", "time", "missing_file", "checkpoints_of"}
    assert ranks[1]["error"] is None


def test_a_record_has_no_secret_and_still_tells_its_pod_and_its_submission(store, request):
    request.addfinalizer(lambda: masks.begin({}))
    masks.begin({"TRAIN_FUNC_SECRETS": "USER", "USER": "2026-01-01"})
    own = Ledger(store, record(submitted=FIRST), worker=0, pod="on-2026-01-01-0", pod_uid="2026-01-01")
    own.write_end(own.claim(), verdict(70, message="since 2026-01-01"), rank_ends((0, 70)))
    end = json.loads(store.get("a-run/attempts/1/worker-0.json").data)
    assert (end["pod"], end["pod_uid"], end["submitted"]) == ("on-2026-01-01-0", "2026-01-01", FIRST)
    assert end["ranks"][0]["error"]["time"] == ERROR.time
    assert end["message"] == "since ***"


FIRST = "2026-01-01T00:00:00.000+00:00"


def submit(store, number):
    store.put(record().keys.submission(number), b"{}")


def test_a_job_that_was_cancelled_or_whose_run_was_submitted_again_begins_no_attempt(store):
    own = Ledger(store, record(submitted=FIRST, submission=1), worker=0, pod="a-run-worker-0")
    own.check_wanted(0.0)
    submit(store, 1)
    own.check_wanted(0.0)
    submit(store, 2)
    with pytest.raises(StorageFailed) as refused:
        own.check_wanted(0.0)
    assert refused.value.reason == "conflict"
    assert unnamed(refused.value, "a-run", FIRST, record().keys.submission(2)) == []
    store.delete(record().keys.submission(2))
    store.put(record().keys.cancelled(2), b"{}")
    own.check_wanted(0.0)
    store.put(record().keys.cancelled(1), b"{}")
    with pytest.raises(StorageFailed) as refused:
        own.check_wanted(0.0)
    assert (refused.value.reason, unnamed(refused.value, "a-run", "cancelled")) == ("conflict", [])


def test_a_client_that_was_slower_takes_its_submission_back_in_a_moment_which_is_waited_for(store):
    class Slower:
        address = store.address

        def names(self, folder):
            found = store.names(folder)
            if folder == record().keys.submissions:
                store.delete(record().keys.submission(2))
            return found

        def get(self, key):
            return store.get(key)

    submit(store, 1)
    submit(store, 2)
    Ledger(Slower(), record(submission=1), worker=0, pod="a-run-worker-0").check_wanted(60.0)
