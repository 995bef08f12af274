"""A run that trains on one backend is not started on another, and a refused submission changes no record."""

import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from train_func import InvalidInput, Local, Run
from train_func.client import attach, registry, submit
from train_func.client.backend import Submission, provisional
from train_func.client.claim import Claim
from train_func.client.source import pack
from train_func.client.status import Condition, JobStatus
from train_func.client.submission import SubmissionRecord
from train_func.storage import open_store


def status(condition="Running"):
    return JobStatus((Condition(condition, "True", "", ""),))


class Elsewhere:
    """A backend whose one job has the state that a test gives it, and that refuses every submission."""

    place, found_by, state = "room 7", {"room": 7}, None

    def __init__(self, room=7):
        self.room = room

    def job(self, name):
        return SimpleNamespace(status=lambda: self.state)

    def submission(self, record, files):
        return Submission({"kind": "Other"}, {"room": 8}, self.found_by)

    def submit(self, submission, files):
        raise InvalidInput("room 7 is closed")


@pytest.fixture
def elsewhere(monkeypatch):
    module = ModuleType("elsewhere_for_tests")
    module.Elsewhere = Elsewhere
    monkeypatch.setitem(sys.modules, "elsewhere_for_tests", module)
    monkeypatch.setattr(registry, "BACKENDS", {**registry.BACKENDS, "Elsewhere": "elsewhere_for_tests"})
    monkeypatch.setattr(Elsewhere, "state", None)
    return Elsewhere


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def record(store, elsewhere):
    record = provisional(Run(), store.address)
    kept = SubmissionRecord.of(elsewhere(), elsewhere().submission(record, ()))
    store.put(record.keys.submission, kept.to_json())
    return record


def test_a_run_that_runs_elsewhere_is_refused_with_its_handle(store, record, elsewhere, monkeypatch):
    monkeypatch.setattr(elsewhere, "state", status())
    with pytest.raises(InvalidInput) as refused:
        attach.refuse_elsewhere(record, Local(store=store.address), store)
    assert f"attach({record.name!r}, on=Elsewhere(room=7))" in str(refused.value)
    assert "room 7" in str(refused.value)
    attach.refuse_elsewhere(record, elsewhere(), store)


@pytest.mark.parametrize("state", [None, status("Failed"), status("Succeeded"), replace(status(), interrupted=True)])
def test_one_that_has_ended_there_is_not(store, record, elsewhere, monkeypatch, state):
    monkeypatch.setattr(elsewhere, "state", state)
    attach.refuse_elsewhere(record, Local(store=store.address), store)


def test_a_backend_that_is_not_known_here_is_told_and_does_not_stand_in_the_way(store, record, monkeypatch, capsys):
    monkeypatch.delitem(registry.BACKENDS, "Elsewhere")
    attach.refuse_elsewhere(record, Local(store=store.address), store)
    assert "room 7" in capsys.readouterr().out


def test_a_refused_submission_leaves_the_records_of_the_one_before(store, record, elsewhere):
    def train_func(parameters):
        return parameters

    store.put(record.keys.run, json.dumps(record.to_dict()).encode())
    store.put(record.keys.manifest, b"{}")
    keys = (record.keys.run, record.keys.submission, record.keys.manifest)
    before = [store.get(key).data for key in keys]
    with pytest.raises(InvalidInput, match="closed"):
        submit._start(record, pack(train_func), elsewhere(), store, Claim(store, record.keys), id)
    assert [store.get(key).data for key in keys] == before
