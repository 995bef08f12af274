"""The ranks of one worker, as their supervisor sees them end."""

import subprocess
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from train_func.worker.environment import Environment
from train_func.worker.supervisor import ranks
from train_func.worker.supervisor.coordinator import Order, Phase
from train_func.worker.supervisor.ranks import Launcher


class Rank:
    """Ends with ``exit_code`` after it was looked at so many times; its process has gone long since."""

    def __init__(self, num_looks, exit_code, outcome):
        process = subprocess.Popen(["true"], start_new_session=True)
        process.wait()
        self.pid, self._left, self._exit_code, self._outcome = process.pid, num_looks, exit_code, outcome

    def poll(self):
        self._left -= 1
        if self._left >= 0:
            return None
        self._outcome.with_suffix(".running").unlink(missing_ok=True)  # as a rank does at the end of its function
        return self._exit_code

    def wait(self, seconds):
        self._left = 0
        return self.poll()

    def send_signal(self, signal):
        pass


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """Makes one of a worker with one rank."""
    monkeypatch.setattr(ranks, "LOOK", 0.0)
    monkeypatch.setattr(ranks, "kill_descendants", lambda *args, **others: None)  # those of this process

    def make(num_looks, exit_code):
        environment = Environment(
            job_dir=tmp_path,
            work_dir=tmp_path,
            temporary_dir=tmp_path,
            worker=0,
            pod="a-pod",
            pod_uid="",
            num_cpus=1,
            grace=10.0,
            num_workers=1,
            num_ranks=1,
            endpoint="",
            rendezvous_id="",
            cache_dir=tmp_path,
        )

        def rank(variables, output, others):
            return Rank(num_looks, exit_code, Path(variables["TRAIN_FUNC_OUTCOME_FILE"]))

        template = MagicMock(pid=None, rank=rank)
        stop, member = MagicMock(requested=False), MagicMock(address="127.0.0.1")
        member.hear.return_value = Order(Phase.START, 1, address="127.0.0.1:1", members=(0,))
        return Launcher(environment, MagicMock(), stop, member, template, 60.0)

    return make


@pytest.mark.parametrize("num_looks", range(12))
@pytest.mark.parametrize("exit_code", [0, 70])
def test_a_rank_has_ended_well_only_where_it_has_whenever_it_is_seen(launcher, num_looks, exit_code):
    assert launcher(num_looks, exit_code).run({}) == (exit_code == 0)
