"""How an attempt of a worker begins."""

from types import SimpleNamespace

import pytest

from tests.job_folder import write_job_folder
from tests.messages import unnamed
from train_func.errors import StorageFailed
from train_func.wire import events
from train_func.wire.records import Verdict
from train_func.worker import store_wait
from train_func.worker.ledger import Ledger
from train_func.worker.rank import reporting
from train_func.worker.stop import Stop, Stopped
from train_func.worker.supervisor.attempt import WorkerAttempt


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


def test_why_the_previous_attempt_has_ended_is_told_also_where_the_store_is_away_for_a_moment(
    tmp_path, store, monkeypatch, capsys
):
    monkeypatch.setattr(store_wait, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(reporting, "_sink", [(said := []).append])
    record = write_job_folder(tmp_path, "def train_func(): ...", store=store.address)
    before = Ledger(store, record, worker=0, pod="a-run-worker-0")
    before.write_end(before.claim(), Verdict(147, "killed", "rank 0 was killed by SIGKILL", 0), [], step=39)
    environment = SimpleNamespace(
        worker=0, pod="a-run-worker-0", pod_uid="", num_ranks=1, num_threads=1, is_elastic=False, job_dir=tmp_path
    )
    lead, log_tee = SimpleNamespace(check=lambda: None), SimpleNamespace(begin=lambda *given: None)
    attempt = WorkerAttempt(environment, record, AwayOnce(store), log_tee, Stop(), lead, SimpleNamespace())
    order = {"members": (0,), "lease": None, "refused": None}
    member = SimpleNamespace(
        is_lead=True, look=lambda: None, hear=lambda phase, **says: SimpleNamespace(**{**order, **says})
    )
    with pytest.raises(Stopped):
        attempt.run(member, SimpleNamespace(start=stops))
    (begun,) = [event for event in said if isinstance(event, events.AttemptStarts)]
    assert (begun.attempt, unnamed(begun.after, "rank 0", "SIGKILL")) == (2, [])
    assert "failed" not in capsys.readouterr().out
