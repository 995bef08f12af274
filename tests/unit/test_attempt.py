"""How an attempt of a worker begins, and by what it ends before its ranks do."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from tests.job_folder import write_job_folder
from tests.messages import unnamed
from tests.unit.test_publication import environment_of
from train_func.errors import StorageFailed
from train_func.wire import events, exits
from train_func.wire.records import Verdict
from train_func.worker import store_wait
from train_func.worker.ledger import Ledger
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop, Stopped
from train_func.worker.store_wait import KEY_SECONDS
from train_func.worker.supervisor import attempt as attempt_module
from train_func.worker.supervisor import main
from train_func.worker.supervisor.attempt import WorkerAttempt
from train_func.worker.supervisor.coordinator import GroupPhase
from train_func.worker.supervisor.log import LogTee
from train_func.worker.supervisor.main import Supervisor
from train_func.worker.supervisor.verdict import stop_verdict


class AwayOnce:
    """A store that is away for the first listing behind the claim of the second attempt."""

    def __init__(self, store):
        self.address, self._store, self._was_away = store.address, store, False

    def __getattr__(self, name):
        return getattr(self._store, name)

    def list(self, prefix):
        if self._store.list("a-run/attempts/2/lease.json") and not self._was_away:
            self._was_away = True
            raise StorageFailed("no answer", reason="unreachable")
        return self._store.list(prefix)


def stops(*arguments, **options):
    raise Stopped("SIGTERM")


@pytest.fixture
def record(tmp_path, store):
    return write_job_folder(tmp_path, "def train_func(): ...", store=store.address)


@pytest.fixture
def attempt_of(tmp_path, record, store):
    """Makes an attempt of worker 0, the lead of a group of one."""

    def make(store=store, **parts):
        environment = SimpleNamespace(
            worker=0,
            pod="a-run-worker-0",
            pod_uid="",
            num_ranks=1,
            num_threads=1,
            is_elastic=False,
            job_dir=tmp_path,
            work_dir=tmp_path,
        )
        lead = SimpleNamespace(check=lambda: None)
        log_tee = SimpleNamespace(begin=lambda *given: None, flush=lambda seconds: None)
        alerter = SimpleNamespace(look=lambda *given: None, end=lambda *given: None)
        heartbeat = SimpleNamespace(check=lambda: None)
        parts = {"stop": Stop(), "lead": lead, "alerter": alerter, "heartbeat": heartbeat, **parts}
        return WorkerAttempt(environment, record, store, log_tee, **parts)

    return make


@pytest.fixture
def member():
    order = {"members": (0,), "lease": None, "refused": None}
    return SimpleNamespace(
        is_lead=True,
        look=lambda: None,
        hear=lambda phase, **says: SimpleNamespace(**{**order, **says}),
        fail=lambda *given, **options: None,
    )


def test_why_the_previous_attempt_has_ended_is_told_also_where_the_store_is_away_for_a_moment(
    record, store, attempt_of, member, monkeypatch, capsys
):
    monkeypatch.setattr(store_wait, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(reporting, "_sink", [(said := []).append])
    before = Ledger(store, record, worker=0, pod="a-run-worker-0")
    before.write_end(before.claim(), Verdict(147, "killed", "rank 0 was killed by SIGKILL", 0), [], step=39)
    with pytest.raises(Stopped):
        attempt_of(AwayOnce(store)).run(member, SimpleNamespace(start=stops))
    (begun,) = [event for event in said if isinstance(event, events.AttemptStarts)]
    assert (begun.attempt, unnamed(begun.after, "rank 0", "SIGKILL")) == (2, [])
    assert "failed" not in capsys.readouterr().out


def begin_ago(store, record, seconds):
    """An attempt of the same submission began before this one, in a pod that is gone."""
    lease = Ledger(store, record, worker=0, pod="before").lease(1)
    started = datetime.now(UTC) - timedelta(seconds=seconds)
    store.put(record.keys.attempt(1).lease, replace(lease, started=started.isoformat()).to_json())


@pytest.mark.parametrize(("is_over", "has_ranks"), [(True, False), (False, True), (False, False)])
def test_the_deadline_counts_from_the_first_attempt_however_many_pods_there_were(
    record, store, attempt_of, member, monkeypatch, is_over, has_ranks
):
    begin_ago(store, record, record.run.deadline - (-1 if is_over else 60))
    stop = Stop()

    def wait(watch):
        watch()
        stop.check()
        now[0] += 60
        watch()
        stop.check()

    def launcher(*given):
        run = (lambda _: wait(given[-1])) if has_ranks else (lambda _: True)
        return SimpleNamespace(run=run, ends=list, step=0, out_of_memory=False)

    def hear(phase, *others, **says):
        if phase is GroupPhase.FINISH:  # ranks of another worker are not done
            wait(says["watch"])
        return SimpleNamespace(members=(0,), lease=says.get("lease"), refused=says.get("refused"))

    now, told = [1000.0], []
    monkeypatch.setattr(attempt_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(attempt_module, "Launcher", launcher)
    member.hear, member.fail = hear, lambda verdict, *given, **options: told.append(verdict.exit_code)
    made = attempt_of(stop=stop)
    if is_over:
        verdict = made.run(member, SimpleNamespace())
    else:
        with pytest.raises(Stopped, match="deadline"):
            made.run(member, SimpleNamespace(start=lambda *given, **options: None))
        assert now[0] == 1060.0
        verdict = made.close(stop_verdict(0, "SIGTERM"))
        assert told == [exits.STOPPED]  # for which the ranks of all workers save
    assert (verdict.exit_code, verdict.cause) == (exits.DEADLINE, "deadline")
    assert unnamed(verdict.message, f"{record.run.deadline} s") == []


def storage(reason):
    return StorageFailed(f"a fault: {reason}", reason=reason)


@pytest.mark.parametrize(
    ("worker", "error", "has_probed", "others_train", "code", "pauses"),
    [
        # No pod ever had a better key, for all that it knows.
        (0, storage("credentials"), False, True, exits.PERMISSION, []),
        (0, storage("unproven"), False, True, exits.UNREACHABLE, []),
        (1, storage("credentials"), False, True, exits.KEY, [KEY_SECONDS]),
        (1, storage("credentials"), True, False, exits.KEY, [KEY_SECONDS - 20]),
        (1, storage("full"), True, False, exits.FULL, []),
        (1, storage("full"), True, True, exits.PEER, []),
        (1, storage("unreachable"), True, True, exits.UNREACHABLE, []),
        (1, FileNotFoundError("a volume"), True, False, exits.CODE, []),
        (1, FileNotFoundError("a volume"), True, True, exits.PEER, []),
    ],
    ids=str,
)
def test_a_pod_that_another_one_may_do_better_than_ends_with_a_code_that_is_retried(
    tmp_path, monkeypatch, worker, error, has_probed, others_train, code, pauses
):
    def prepare(supervisor):
        supervisor._heartbeat = SimpleNamespace(refused_seconds=20.0) if has_probed else None
        raise error

    paused = []  # while the Secret follows an exchange of the key
    monkeypatch.setattr(Stop, "pause", lambda stop, seconds: paused.append(seconds))
    monkeypatch.setattr(main.Supervisor, "_prepare", prepare)
    monkeypatch.setattr(main, "kill_descendants", lambda **options: None)
    supervisor = Supervisor(environment_of(worker, tmp_path), LogTee(), Stop())
    supervisor._lead = SimpleNamespace(others_train=lambda: others_train)
    verdict = supervisor.run()
    assert (verdict.exit_code, unnamed(verdict.message, error), paused) == (code, [], pauses)


@pytest.mark.parametrize(
    ("worker", "code", "first", "waits"),
    [
        (0, exits.KEY, exits.KEY, True),
        (0, exits.PEER, exits.KEY, True),
        (1, exits.KEY, exits.KEY, True),
        (1, exits.PEER, exits.KEY, False),
        (0, exits.SPENT, exits.KEY, False),
        (0, 147, 147, False),
    ],
)
def test_a_pod_ends_when_the_secret_has_followed_though_a_rank_was_refused_and_the_group_knows_before(
    tmp_path, monkeypatch, worker, code, first, waits
):
    verdict, done = Verdict(code, "storage", "no such key", worker), []
    attempt = SimpleNamespace(
        run=lambda *given: verdict,
        root=replace(verdict, exit_code=first),
        launcher=None,
        next=lambda: None,
        leave=lambda: done.append("leave"),
    )

    def prepare(supervisor):
        supervisor._attempt, supervisor._member = attempt, SimpleNamespace(has_gone=False)

    monkeypatch.setattr(Stop, "pause", lambda stop, seconds: done.append(seconds))
    monkeypatch.setattr(main.Supervisor, "_prepare", prepare)
    monkeypatch.setattr(main, "kill_descendants", lambda **options: None)
    assert Supervisor(environment_of(worker, tmp_path), LogTee(), Stop()).run() == verdict
    assert done == ["leave", *[KEY_SECONDS] * waits]
