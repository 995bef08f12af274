"""What was trained and cannot be published any more hides nothing of why the work has ended."""

from types import SimpleNamespace

import pytest

from tests.job_folder import write_job_folder
from train_func import exits
from train_func.storage import open_store
from train_func.worker.pod.attempt import Attempt
from train_func.worker.pod.environment import Environment
from train_func.worker.pod.mirror import Mirror
from train_func.worker.pod.peers import PeersLost
from train_func.worker.pod.stop import Stop, Stopped
from train_func.worker.pod.supervisor import Supervisor
from train_func.worker.pod.verdict import Verdict
from train_func.worker.training.pending import Pending


@pytest.fixture
def supervisor(tmp_path):
    """One whose ranks have trained and sealed their model, and which has not met the end of its work yet."""
    record = write_job_folder(tmp_path / "job", "def train_func(): ...", store=(tmp_path / "store").as_uri())
    environment = Environment(
        job_dir=tmp_path / "job",
        work_dir=tmp_path,
        temporary_dir=tmp_path,
        store=record.store,
        worker=0,
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
    pending = Pending(tmp_path)
    pending.begin()
    pending.folder.mkdir()
    (pending.folder / "weights").write_bytes(b"trained")
    pending.seal(1, {"metrics": {}})
    made = Supervisor(environment, Mirror(), Stop())
    made._attempt = Attempt(environment, record, open_store(record.store), made._mirror, made._stop)
    made._agent = SimpleNamespace(ends=list)
    return made


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
