"""The ranks of one worker, as their supervisor sees them end."""

import subprocess
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from train_func import exits
from train_func.worker.environment import Environment
from train_func.worker.supervisor import ranks
from train_func.worker.supervisor.coordinator import Order, Phase
from train_func.worker.supervisor.group import PeersLost
from train_func.worker.supervisor.ranks import Launcher
from train_func.worker.supervisor.verdict import stopped


class Rank:
    """Ends with ``exit_code`` after it was looked at so many times; its process has gone long since."""

    def __init__(self, num_looks, exit_code, outcome):
        process = subprocess.Popen(["true"], start_new_session=True)
        process.wait()
        self.pid, self._left, self._exit_code, self._outcome = process.pid, num_looks, exit_code, outcome
        self.was_killed = False

    def poll(self):
        self._left -= 1
        if self._left >= 0:
            return None
        self._outcome.with_suffix(".running").unlink(missing_ok=True)  # as a rank does at the end of its function
        return self._exit_code

    def wait(self, seconds):
        self.was_killed, self._left = self._left >= 0, 0
        return self.poll()

    def send_signal(self, signal):
        pass


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    """Makes one of a worker with one rank."""
    monkeypatch.setattr(ranks, "LOOK", 0.0)
    monkeypatch.setattr(ranks, "kill_descendants", lambda *args, **others: None)  # those of this process

    def make(num_looks, exit_code, grace=10.0):
        environment = Environment(
            job_dir=tmp_path,
            work_dir=tmp_path,
            temporary_dir=tmp_path,
            worker=0,
            pod="a-pod",
            pod_uid="",
            num_cpus=1,
            grace=grace,
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


@pytest.mark.parametrize("grace", [1.0, 5.0, 7.0])
def test_ranks_that_stop_with_those_of_another_worker_have_a_moment_in_any_grace_period(launcher, grace):
    stops = launcher(12, exits.STOPPED, grace)
    stops._member.look.side_effect = [None, None, PeersLost("worker 1 has ended", stopped(1, "SIGTERM"))]
    with pytest.raises(PeersLost):
        stops.run({})
    assert not stops._processes[0].was_killed
