"""A store that two homes share: a run that may run in one is neither started nor removed from the other."""

import os
import signal
import socket

import pytest

from tests.jobs import functions
from tests.local_jobs import processes, until
from tests.messages import unnamed
from tests.stored_runs import store_address
from train_func import InvalidInput, JobNotFound, Local, Run, attach, remove, submit
from train_func.client import elsewhere
from train_func.storage import open_store

LIMIT = 240.0


@pytest.fixture
def homes(tmp_path, monkeypatch):
    """Two of them; each, called, is the one of this process from then on."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()

    def use(name):
        monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / name))
        return tmp_path / name

    return lambda: use("first"), lambda: use("second")


def files(store):
    return {entry.key: entry.size for entry in store.list("") if not entry.key.endswith((".log", "alive.json"))}


@pytest.mark.parametrize("kind", ["folder", pytest.param("minio", marks=pytest.mark.slow)])
def test_a_run_that_trains_in_another_home_is_named_and_left_alone(kind, homes, tmp_path):
    first, second = homes
    with store_address(kind, tmp_path) as address:
        on, store = Local(store=address), open_store(address)
        asked = {"run": Run(parameters={"file": str(tmp_path / "go")}), "on": on}
        facts = (socket.gethostname(), str(first()), address)
        job = submit(functions.waits_for_a_file, **asked)
        until(lambda: any("waiting" in line for line in job.logs()))
        until(lambda: store.list(job.record.keys.alive))
        before, submitted = files(store), attach(job.name, on=on).record.submitted
        second()
        refusals = []
        for ask in (
            lambda: submit(functions.waits_for_a_file, **asked),
            lambda: submit(functions.waits_for_a_file, **asked, fresh=True),
            lambda: submit(functions.waits_for_a_file, Run(), on=on, resume=job.name),
            lambda: remove(job.name, on=on),
            lambda: attach(job.name, on=on).cancel(),
        ):
            with pytest.raises((InvalidInput, JobNotFound)) as refused:
                ask()
            refusals.append(unnamed(refused.value, job.name, submitted, *facts))
        assert refusals == [[]] * 5
        assert files(store) == before
        first()
        assert job.state == "Running"
        (tmp_path / "go").touch()
        assert job.wait(LIMIT) == "Succeeded"
        second()
        assert submit(functions.waits_for_a_file, **asked).state == "Succeeded"
        remove(job.name, on=on)
        assert files(store) == {}


def signalled(home, number):
    for process in processes(TRAIN_FUNC_HOME=str(home)):
        os.kill(process, number)


@pytest.mark.slow
def test_a_silent_job_is_given_up_by_a_person_and_disturbs_nobody_when_it_comes_back(
    homes, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(elsewhere, "SILENT_SECONDS", 7.0)  # a sign of life comes every 5 s
    first, second = homes
    on, store = Local(store=(tmp_path / "store").as_uri()), open_store((tmp_path / "store").as_uri())
    asked = {"run": Run(parameters={"folder": str(tmp_path)}), "on": on}
    home = first()
    job = submit(functions.waits_in_each_attempt, **asked)
    until(lambda: any("attempt 1 waits" in line for line in job.logs()))
    until(lambda: store.list(job.record.keys.alive))
    signalled(home, signal.SIGSTOP)
    try:
        second()
        for ask in (lambda: submit(functions.waits_in_each_attempt, **asked), lambda: remove(job.name, on=on)):
            with pytest.raises(InvalidInput) as refused:
                ask()
            assert unnamed(refused.value, f"train_func cancel {job.name} --on Local --store {on.store}") == []
        attach(job.name, on=on).cancel()
        assert str(home) in capsys.readouterr().out
        again = submit(functions.waits_in_each_attempt, **asked)
        until(lambda: any("attempt 2 waits" in line for line in again.logs()))
    finally:
        signalled(home, signal.SIGCONT)
    first()
    (tmp_path / "1").touch()
    for ask in (lambda: job.wait(LIMIT), job.result):
        with pytest.raises(JobNotFound, match=f"TRAIN_FUNC_HOME {tmp_path / 'second'}"):
            ask()
    second()
    assert again.state == "Running"
    (tmp_path / "2").touch()
    assert again.result(LIMIT) == {"attempt": 2}
