"""What was trained is published by whoever is left; where it cannot be, why the work has ended stays known."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from tests.job_folder import write_job_folder
from train_func import exits
from train_func.storage import open_store
from train_func.worker.pod.attempt import Attempt
from train_func.worker.pod.environment import Environment
from train_func.worker.pod.mirror import Mirror
from train_func.worker.pod.peers import Peers, PeersLost
from train_func.worker.pod.stop import Stop, Stopped
from train_func.worker.pod.supervisor import Supervisor
from train_func.worker.pod.verdict import RankEnd, Verdict
from train_func.worker.training.pending import Pending


@pytest.fixture
def supervisor(tmp_path):
    """One whose ranks have trained and sealed their model, and which has not met the end of its work yet."""
    record = write_job_folder(tmp_path / "job", "def train_func(): ...", store=(tmp_path / "store").as_uri())
    seal(tmp_path)
    made = Supervisor(environment_of(0, tmp_path, record), Mirror(), Stop())
    made._attempt = Attempt(made._environment, record, open_store(record.store), made._mirror, made._stop)
    made._agent = SimpleNamespace(ends=list)
    return made


def environment_of(worker, folder, record):
    return Environment(
        job_dir=folder / "job",
        work_dir=folder,
        temporary_dir=folder,
        store=record.store,
        worker=worker,
        pod="a-run-worker-0",
        pod_uid="",
        num_cpus=1,
        grace=30.0,
        num_workers=2,
        num_ranks=1,
        endpoint="127.0.0.1:1",
        rendezvous_id="a-run",
        rendezvous={},
    )


def seal(folder):
    pending = Pending(folder)
    pending.begin()
    pending.folder.mkdir()
    (pending.folder / "weights").write_bytes(b"trained")
    pending.seal(1, {"metrics": {}})


def unreadable(folder):
    (folder / "publication" / "sealed.json").write_bytes(b"\xff{")


def gone(folder):
    sealed = folder / "publication" / "sealed.json"
    sealed.unlink()
    sealed.mkdir()


@pytest.mark.parametrize("damage", [unreadable, gone])
@pytest.mark.parametrize(
    "end, code",
    [
        (PeersLost("worker 1 is gone", Verdict(exits.KILLED, "killed", "rank 1 was killed", 1)), exits.PEER),
        (Stopped("SIGTERM"), exits.STOPPED),
    ],
)
def test_what_cannot_be_read_leaves_the_verdict_to_the_end_of_the_ranks(
    supervisor, tmp_path, monkeypatch, capsys, damage, end, code
):
    damage(tmp_path)

    def ends():
        raise end

    monkeypatch.setattr(supervisor, "_train", ends)
    supervisor._work()
    assert supervisor._verdict.exit_code == code
    assert "could not be published" in capsys.readouterr().out


def test_a_model_is_published_also_when_the_peers_are_lost(supervisor, tmp_path, monkeypatch):
    def ends():
        raise PeersLost("worker 1 is gone")

    monkeypatch.setattr(supervisor, "_train", ends)
    supervisor._work()
    assert supervisor._verdict.exit_code == exits.DONE
    assert not (tmp_path / "publication").exists()


@pytest.fixture
def last_attempt(tmp_path):
    """Both workers of a formed group, in the only attempt that their run may have."""
    record = write_job_folder(
        tmp_path / "job", "def train_func(): ...", store=(tmp_path / "store").as_uri(), max_attempts=1
    )
    group = HashStore()

    def member(worker):
        stop = Stop()
        environment = replace(environment_of(worker, tmp_path / str(worker), record), job_dir=tmp_path / "job")
        made = Attempt(environment, record, open_store(record.store), SimpleNamespace(flush=lambda seconds: None), stop)
        made._peers = Peers(group, worker=worker, num_workers=2, stop=stop)
        return made

    first, second = member(0), member(1)
    first.lease = second.lease = first._attempts.claim()
    return first, second


def publishes(first, folder):
    seal(folder / "0")
    assert first.publish_pending([]).exit_code == exits.DONE


def ends(first, folder):
    lost = Verdict(exits.PEER, "peer", "worker 1 is gone", 0, root=False)
    assert first.close([], lost, first._peers.verdict(60)).exit_code == exits.SPENT


class Gone:
    """A store of the rendezvous whose host has ended."""

    def __getattr__(self, name):
        raise RuntimeError("Connection refused")


def is_gone(first, folder):
    """So is what it had trained."""


def has_published_and_is_gone(first, folder):
    open_store((folder / "store").as_uri()).put("a-run/result.json", b"{}")


@pytest.mark.parametrize(
    ("does", "code"),
    [
        (publishes, exits.KILLED),
        (ends, exits.SPENT),
        (is_gone, exits.SPENT),
        (has_published_and_is_gone, exits.KILLED),
    ],
)
def test_in_the_last_attempt_a_lost_worker_ends_for_good_only_where_no_model_is_left(
    last_attempt, tmp_path, does, code
):
    first, second = last_attempt
    if does in (is_gone, has_published_and_is_gone):
        second._peers._store = Gone()
    with ThreadPoolExecutor(1) as beside:
        closed = beside.submit(second.close, [RankEnd(1, -9, None, False, 0)], None)
        does(first, tmp_path)
    assert closed.result().exit_code == code
