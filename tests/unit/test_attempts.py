"""Numbers are claimed once each, and the budget counts what it should."""

import dataclasses
import json
import threading
import time
from types import SimpleNamespace

import pytest

from tests.messages import unnamed
from train_func.errors import StorageFailed
from train_func.records import Failure, RunRecord, Verdict
from train_func.run import Run
from train_func.storage import open_store
from train_func.worker import masks, store_wait
from train_func.worker.rank.end import Outcome, RankEnd, running
from train_func.worker.stop import Stop
from train_func.worker.store_wait import patient, patiently
from train_func.worker.supervisor.budget import Attempts
from train_func.worker.supervisor.verdict import following, of_ranks


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


def record(generation=1, submitted="", max_attempts=3):
    return RunRecord(
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
    return Attempts(store, record(), worker=0, pod="a-run-worker-0", pod_uid="uid-0")


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
    assert Attempts(store, record(generation=2), worker=0, pod="p").claim().attempt == 1
    lease = json.loads(store.get("a-run/attempts/2/lease.json").data)
    assert set(lease) == {
        "format",
        "attempt",
        "generation",
        "pod",
        "pod_uid",
        "worker",
        "submitted",
        "started",
        "formed",
    }
    assert (lease["attempt"], lease["generation"], lease["pod"]) == (2, 1, "a-run-worker-0")
    assert lease["pod_uid"] == "uid-0"


def test_claimants_at_the_same_moment_get_a_number_each(store):
    numbers = []
    barrier = threading.Barrier(8)

    def claim(worker):
        barrier.wait()
        numbers.append(Attempts(store, record(), worker=worker, pod="p").claim().attempt)

    threads = [threading.Thread(target=claim, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 9))


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
    made = Attempts(store, record(max_attempts=2), worker=0, pod="p")
    for number, (at, step) in enumerate(zip(saved, failed, strict=True), 1):
        ended_behind(made, step)
        if at:
            save(made, number, at)
    assert (made.account().num_charged, made.account().spent) == (num_charged, num_charged == 2)


def test_of_an_attempt_whose_checkpoints_were_replaced_it_is_not_known_whether_it_made_progress(store):
    made = Attempts(store, record(), worker=0, pod="p")
    ended_behind(made, 41, 60, 70)
    save(made, 3, 50)
    assert made.account().num_charged == 1
    save(made, 3, 61)
    assert made.account().num_charged == 0


def test_a_checkpoint_of_the_next_training_is_progress(store):
    made = Attempts(store, record(), worker=0, pod="p")
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
        ([146, 147], 2),  # the first never formed
        ([147, 147, 71, 147], 1),  # submitted anew after a final end
        ([147, 0], 0),
        ([None, 70, None], 1),
    ],
    ids=str,
)
def test_an_attempt_is_charged_unless_it_was_stopped_or_belongs_to_an_earlier_submission(attempts, codes, num_charged):
    lived(attempts, *codes)
    account = attempts.account()
    assert account.num_charged == num_charged
    assert account.spent == (num_charged >= 3)


@pytest.mark.parametrize("codes", [(147, 0, 147), (None, 71, None), (0, 0, 145)], ids=str)
def test_within_one_submission_no_end_gives_the_attempts_back(store, codes):
    """A worker that is done, or has told the end of all, and is lost with its group starts again, and is counted."""
    attempts = Attempts(store, record(submitted="2026-11-21T14:00:00+00:00"), worker=0, pod="p")
    lived(attempts, *codes)
    account = attempts.account()
    assert (account.num_charged, account.spent) == (3, True)


def test_workers_whose_group_never_formed_end_under_one_number_however_many_they_are(store):
    pods = [Attempts(store, record(), worker=worker, pod=f"p-{worker}") for worker in range(7)]
    end_together(pods, 143)
    assert numbers(store) == {1: set(range(7))}
    end_together(pods, 146)  # started again, and again in vain
    assert numbers(store) == {1: set(range(7)), 2: set(range(7))}
    account = pods[0].account()
    assert (account.num_started, account.num_charged) == (2, 1)
    assert pods[0].claim().attempt == 3
    pods[1].write_end(pods[1].claim_unformed(), verdict(146, worker=1), [])
    assert numbers(store)[4] == {1}  # not under that of a group that has formed


def end_together(pods, code):
    barrier = threading.Barrier(len(pods))

    def end(worker):
        barrier.wait()
        pods[worker].write_end(pods[worker].claim_unformed(), verdict(code, worker=worker), [])

    threads = [threading.Thread(target=end, args=(worker,)) for worker in range(len(pods))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def numbers(store):
    """Which workers ended under which number."""
    found = {}
    for entry in store.list("a-run/attempts/"):
        number, name = entry.key.split("/")[2:]
        if name.startswith("worker-"):
            found.setdefault(int(number), set()).add(int(name[7:-5]))
    return found


class Counting:
    """A store, and how many requests it has had."""

    def __init__(self, store):
        self._store, self.num_requests = store, 0

    def __getattr__(self, name):
        def call(*args, **kwargs):
            self.num_requests += 1
            return getattr(self._store, name)(*args, **kwargs)

        return call


def requests_of_starts(address, num_workers, num_attempts):
    """Of worker 0, which counts and claims, once so many attempts have ended."""
    store, submission = open_store(address), "2026-11-21T14:00:00+00:00"
    pods = [Attempts(store, record(submitted=submission), worker=of, pod=f"p-{of}") for of in range(num_workers)]
    for step in range(num_attempts):
        lease = pods[0].claim()
        for worker, pod in enumerate(pods):
            pod.write_end(lease, verdict(147, worker, root_cause=worker == 0), [], step)
    counting = Counting(store)
    starting = Attempts(counting, record(submitted=submission), worker=0, pod="again")
    assert starting.account().num_charged == num_attempts
    assert starting.claim().attempt == num_attempts + 1
    return counting.num_requests


def test_a_worker_that_starts_asks_the_store_as_often_whatever_the_number_of_workers_and_ends_before_it(tmp_path):
    few = requests_of_starts((tmp_path / "few").as_uri(), 2, 2)
    assert requests_of_starts((tmp_path / "many").as_uri(), 40, 2) == few
    more = requests_of_starts((tmp_path / "more").as_uri(), 7, 5)
    assert more == few + 3  # worker 0 reads the lease of each attempt of its submission


def test_an_end_that_is_written_down_anew_counts_as_it_is_then(store, attempts):
    lease = attempts.claim()
    attempts.write_end(lease, verdict(143), [])
    assert attempts.account().num_charged == 0
    attempts.write_end(lease, verdict(147), [])
    assert attempts.account().num_charged == 1


def test_a_stop_of_one_worker_frees_the_attempt_of_all(store, attempts):
    lease = attempts.claim()
    attempts.write_end(lease, verdict(145, root_cause=False), [])
    assert attempts.account().num_charged == 1
    Attempts(store, record(), worker=1, pod="p").write_end(lease, verdict(143, worker=1), [])
    assert attempts.account().num_charged == 0


def test_the_attempt_that_ends_is_counted_although_a_peer_has_recorded_its_final_end(store, attempts):
    lived(attempts, 147, 147)
    lease = attempts.claim()
    Attempts(store, record(), worker=1, pod="p").write_end(lease, verdict(71, worker=1), [])
    assert attempts.account(lease.attempt).spent


def test_how_many_attempts_there_may_be_is_foreseen(attempts):
    assert attempts.account().at_most == 3
    lived(attempts, 143, 147)
    assert attempts.account().at_most == 4


def test_each_submission_has_all_its_attempts_and_numbers_go_on(store):
    first, second = (
        Attempts(store, record(submitted=f"2026-11-21T14:00:0{second}+00:00"), worker=0, pod="p") for second in (0, 9)
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
    newer = Attempts(store, record(submitted=NEXT), worker=0, pod="p")
    for _ in range(3):
        lived(newer, 147)
        before = Attempts(store, record(submitted=FIRST), worker=0, pod="q")
        before.write_end(before.claim_unformed(), verdict(code), [])
    account = newer.account()
    assert (account.num_started, account.num_charged, account.spent) == (3, 3, True)


def test_the_last_known_reason_is_named_when_the_attempts_are_used_up(store, attempts):
    lived(attempts, 147)
    lease = attempts.claim()
    attempts.write_end(lease, verdict(145, root_cause=False, message="lost a peer"), [])
    Attempts(store, record(), worker=1, pod="p").write_end(lease, verdict(147, worker=1, message="killed"), [])
    lived(attempts, None)
    final = attempts.account().verdict(worker=0)
    assert (final.exit_code, final.cause) == (71, "killed")
    assert "3 of 3 attempts" in final.message
    assert "killed" in final.message
    lived(attempts, 71, None, None, None)
    assert "left no record" in attempts.account().verdict(worker=0).message


def test_who_is_out_of_attempts_follows_the_worker_in_which_the_last_one_ended(store, attempts):
    lived(attempts, 147, 147, 148)
    hang = Verdict(148, "hang", "rank 1 hangs", worker=1, hangs=1)
    finals = [attempts.account(3).verdict(worker, hang) for worker in (0, 1)]
    other, own = (following(hang, final) for final in finals)
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


def failure(time, kind="NameError"):
    return Failure(kind, "a message", "a traceback", f"2026-01-01T00:00:0{time}+00:00")


def ended(rank, code=70, *, follows=False, time=0, was_signalled=False, order=0):
    outcome = None if code is None or code < 0 else Outcome(code, "code", follows, failure(time))
    return RankEnd(rank, code, outcome, was_signalled, order)


def test_the_root_is_the_first_that_did_not_follow():
    found = of_ranks(
        [
            ended(0, 145, follows=True, time=1),
            ended(1, 70, time=3),
            ended(2, 70, time=2),
            ended(3, 143, was_signalled=True),
        ],
        worker=0,
        out_of_memory=False,
    )
    assert (found.exit_code, found.message) == (70, "rank 2: NameError: a message")


def test_a_killed_rank_is_the_root_whatever_the_others_say_about_it():
    found = of_ranks([ended(0, 70, time=1), ended(1, -9, order=1)], worker=0, out_of_memory=False)
    assert (found.exit_code, found.cause) == (147, "killed")
    assert unnamed(found.message, "rank 1", "SIGKILL") == []
    final = of_ranks([ended(1, -9)], worker=0, out_of_memory=True)
    assert (final.exit_code, final.cause) == (70, "memory")
    assert unnamed(of_ranks([ended(1, -11)], worker=0, out_of_memory=True).message, "rank 1", "SIGSEGV") == []


@pytest.mark.parametrize("code", [None, -9])
def test_an_error_that_was_written_down_is_the_root_however_its_process_goes_then(code):
    end = dataclasses.replace(ended(1, 70), exit_code=code)
    found = of_ranks([ended(0, 145, follows=True), end], worker=0, out_of_memory=True)
    assert (found.exit_code, found.message) == (70, "rank 1: NameError: a message")


def test_a_rank_that_its_backend_aborts_hides_no_error_of_another():
    aborted = ended(1, code=-6)
    assert of_ranks([aborted, ended(0, time=5, order=1)], worker=0, out_of_memory=False).exit_code == 70
    assert of_ranks([aborted, ended(0, follows=True)], worker=0, out_of_memory=False).exit_code == 147


def with_left(end, steps="after 3 of 10 steps"):
    return dataclasses.replace(end, left_steps=steps)


def test_who_left_the_steps_is_the_root_only_where_another_rank_went_on_and_none_failed_by_itself():
    well = RankEnd(1, 0, Outcome(0, None, False, None), False, 0)
    lost, fails = ended(0, 145, follows=True), ended(0, 70)
    found = of_ranks([lost, with_left(well)], worker=0, out_of_memory=False)
    assert (found.exit_code, found.cause, found.root_cause) == (70, "code", True)
    assert unnamed(found.message, "rank 1 left", "3 of 10 steps") == []
    everywhere = of_ranks([with_left(lost), with_left(well)], worker=0, out_of_memory=False)
    assert (everywhere.exit_code, everywhere.cause) == (145, "peer")  # all may have left together
    for end in (fails, with_left(fails)):
        assert of_ranks([end, with_left(well)], worker=0, out_of_memory=False).message == "rank 0: NameError: a message"
    assert of_ranks([with_left(well)], worker=0, out_of_memory=False) is None


def test_an_abort_after_a_loop_that_all_have_left_is_no_fault_of_the_function():
    aborted = [dataclasses.replace(ended(rank, -6), left_steps="after 3 of 10 steps") for rank in (0, 1)]
    found = of_ranks(aborted, worker=0, out_of_memory=False)
    assert (found.retryable, found.cause, found.root_cause) == (True, "peer", False)
    alone = of_ranks([ended(0, -6)], worker=0, out_of_memory=False)
    assert (alone.retryable, alone.root_cause) == (True, True)
    went_on = of_ranks([aborted[0], ended(1, 145, follows=True)], worker=0, out_of_memory=False)
    assert (went_on.exit_code, went_on.cause, went_on.root_cause) == (70, "code", True)


def test_ranks_that_only_follow_make_a_worker_that_follows():
    own = of_ranks([ended(0, 145, follows=True)], worker=0, out_of_memory=False)
    assert (own.exit_code, own.root_cause) == (145, False)
    assert following(None, own) == own
    killed = following(verdict(147, worker=1), own)
    assert (killed.exit_code, killed.cause) == (145, "peer")
    typo = following(verdict(70, worker=1, message="a typo"), own)
    assert (typo.exit_code, typo.cause) == (70, "peer")
    assert unnamed(typo.message, "worker 1", "a typo") == []
    assert following(verdict(71, worker=1), own).cause == "killed"


def test_no_verdict_where_no_rank_failed_by_itself():
    ends = [RankEnd(0, 0, Outcome(0, None, False, None), False, 0), ended(1, -15, was_signalled=True)]
    assert of_ranks(ends, worker=0, out_of_memory=False) is None


def test_a_rank_that_left_with_code_0_before_its_end_is_the_root_and_others_that_say_so_only_follow():
    left = RankEnd(1, 0, None, False, 1, unfinished=True)
    found = of_ranks([ended(0, 145, follows=True, time=1), left], worker=0, out_of_memory=False)
    assert (found.exit_code, found.cause, found.root_cause) == (70, "code", True)
    assert unnamed(found.message, "rank 1", "exit code 0") == []
    asked = RankEnd(1, 0, None, True, 1, unfinished=True)
    assert of_ranks([asked], worker=0, out_of_memory=False) is None


def test_a_rank_that_came_to_its_end_says_so_even_where_it_can_write_nothing(tmp_path):
    path = tmp_path / "0.json"
    running(path).touch()
    path.with_suffix(".unfinished").mkdir()
    Outcome(0, None, False, False, None).write(path)
    assert not path.is_file()
    assert not running(path).exists()


def test_a_record_shows_the_root_and_hides_the_errors_that_it_caused(store, attempts):
    lease = attempts.claim()
    attempts.write_end(lease, verdict(70), [ended(1, 145, follows=True), ended(0, 70)])
    ranks = json.loads(store.get("a-run/attempts/1/worker-0.json").data)["ranks"]
    assert [(rank["rank"], rank["exit_code"]) for rank in ranks] == [(0, 70), (1, 145)]
    assert set(ranks[0]["error"]) == {"type", "message", "traceback", "time", "missing_file", "checkpoints_of"}
    assert ranks[1]["error"] is None


def test_a_record_has_no_secret_and_still_tells_its_pod_and_its_submission(store, request):
    request.addfinalizer(lambda: masks.begin({}))
    masks.begin({"TRAIN_FUNC_SECRETS": "USER", "USER": "2026-01-01"})
    own = Attempts(store, record(submitted=FIRST), worker=0, pod="on-2026-01-01-0", pod_uid="2026-01-01")
    own.write_end(own.claim(), verdict(70, message="since 2026-01-01"), [ended(0)])
    end = json.loads(store.get("a-run/attempts/1/worker-0.json").data)
    assert (end["pod"], end["pod_uid"], end["submitted"]) == ("on-2026-01-01-0", "2026-01-01", FIRST)
    assert end["ranks"][0]["error"]["time"] == failure(0).time
    assert end["message"] == "since ***"


class Away:
    """A call that finds the store away a few times."""

    def __init__(self, times, reason="unreachable"):
        self.times, self.reason, self.calls = times, reason, 0

    def __call__(self, *arguments, **options):
        self.calls += 1
        if self.calls <= self.times:
            raise StorageFailed("no answer", reason=self.reason)
        return "there"


def test_a_store_that_comes_back_is_waited_for(capsys, monkeypatch):
    monkeypatch.setattr(store_wait, "PAUSE", 0.01)
    assert patiently(Away(1), Stop()) == "there"
    assert "no answer" in capsys.readouterr().out


def test_the_wait_for_a_store_has_an_end_and_other_faults_have_none():
    with pytest.raises(StorageFailed, match="no answer"):
        patiently(Away(9), Stop(), seconds=1)
    denied = Away(9, reason="denied")
    with pytest.raises(StorageFailed):
        patiently(denied, Stop())
    assert denied.calls == 1


class Flaky:
    """A store that is away for the first calls of each kind."""

    address = "file:///srv/store"

    def __init__(self, times, kind=Away):
        self._calls, self._times, self._kind = {}, times, kind

    def __getattr__(self, name):
        return self._calls.setdefault(name, self._kind(self._times))

    def num_calls(self, name):
        return self._calls[name].calls


def test_a_patient_store_waits_with_each_call_and_does_none_twice_that_was_done(capsys, monkeypatch):
    monkeypatch.setattr(store_wait, "PAUSE", 0.01)
    flaky = Flaky(1)
    waiting = patient(flaky, Stop(), 60, "publish")
    assert [waiting.get("a"), waiting.get("b"), waiting.put("c", b"")] == ["there"] * 3
    assert (flaky.num_calls("get"), flaky.num_calls("put")) == (3, 2)
    (said,) = capsys.readouterr().out.splitlines()  # and not one with every try
    assert unnamed(said, "publish", "no answer") == []


class Slow(Away):
    """Such a call that takes a while of this clock, whatever comes of it."""

    def __init__(self, times, now, seconds):
        super().__init__(times)
        self._now, self._seconds = now, seconds

    def __call__(self, *arguments, **options):
        self._now[0] += self._seconds
        return super().__call__()


@pytest.fixture
def now(monkeypatch):
    """The clock of the wait for a store."""
    now = [1000.0]
    monkeypatch.setattr(store_wait, "PAUSE", 0.01)
    monkeypatch.setattr(store_wait, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


@pytest.mark.parametrize(("seconds", "waited"), [(3.0, 60.0), (600.0, 600.0)])
def test_the_wait_for_a_store_is_counted_from_the_failure_behind_the_last_success(now, seconds, waited):
    """An upload that takes longer than the whole wait, and fails at its end, is done once more."""
    waiting = patient(Flaky(1, lambda times: Slow(times, now, seconds)), Stop(), 60, "publish")
    assert [waiting.upload("a"), waiting.put("b"), waiting.upload("c"), waiting.get("d")] == ["there"] * 4
    waiting = patient(Flaky(9**9, lambda times: Slow(times, now, seconds)), Stop(), 60, "publish")
    begun = now[0]
    with pytest.raises(StorageFailed, match="no answer"):
        waiting.upload("a")
    assert now[0] - begun - seconds == waited


def test_all_calls_of_a_patient_store_wait_together_no_longer_than_stated(monkeypatch):
    monkeypatch.setattr(store_wait, "PAUSE", 0.01)
    waiting = patient(Flaky(9**9), Stop(), 0.2, "publish")
    begun = time.monotonic()
    for call in (lambda: waiting.get("a"), lambda: waiting.list(""), lambda: waiting.delete("a")):
        with pytest.raises(StorageFailed, match="no answer"):
            call()
    assert time.monotonic() - begun < 10


FIRST, NEXT = "2026-01-01T00:00:00.000+00:00", "2026-01-02T00:00:00.000+00:00"


def submit_at(store, time):
    store.put(record().keys.run, json.dumps({"submitted": time}).encode())


def test_a_job_that_was_cancelled_or_whose_run_was_submitted_again_begins_no_attempt(store):
    own = Attempts(store, record(submitted=FIRST), worker=0, pod="a-run-worker-0")
    own.check_wanted(0.0)
    submit_at(store, FIRST)
    own.check_wanted(0.0)
    submit_at(store, NEXT)
    with pytest.raises(StorageFailed) as refused:
        own.check_wanted(0.0)
    assert (refused.value.reason, unnamed(refused.value, "a-run", FIRST, NEXT)) == ("conflict", [])
    submit_at(store, FIRST)
    store.put(record().keys.cancelled, b"{}")
    with pytest.raises(StorageFailed) as refused:
        own.check_wanted(0.0)
    assert (refused.value.reason, unnamed(refused.value, "a-run", "cancelled")) == ("conflict", [])


def test_the_record_of_a_client_that_was_slower_is_put_back_in_a_moment_and_waited_for(store):
    class Slower:
        address = store.address

        def get(self, key):
            found = store.get(key)
            if key == record().keys.run:
                submit_at(store, FIRST)
            return found

    submit_at(store, NEXT)
    Attempts(Slower(), record(submitted=FIRST), worker=0, pod="a-run-worker-0").check_wanted(60.0)
