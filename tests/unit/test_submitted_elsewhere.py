"""A run that may run in another place is not started here, and a refused submission changes no record."""

import json
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from tests.api_servers import Answer, ApiServer, Authority, running, write_kubeconfig
from tests.stored_runs import put_run
from train_func import Cluster, InvalidInput, JobNotFound, Local, Run, attach, remove
from train_func.client import elsewhere as elsewhere_of
from train_func.client import registry, submit
from train_func.client.backend import Submission
from train_func.client.claim import Claim
from train_func.client.elsewhere import refuse_elsewhere
from train_func.client.job import Job
from train_func.client.source import pack
from train_func.client.status import Condition, JobStatus
from train_func.client.submission import SubmissionRecord
from train_func.records import SignOfLife
from train_func.storage import open_store
from train_func.worker.supervisor.uploads import Heartbeat


def status(condition="Running"):
    return JobStatus((Condition(condition, "True", "", ""),))


class Elsewhere:
    """A backend whose one job has the state that a test gives it, and that refuses every submission."""

    place, found_by, state = "room 7", {"room": 7}, None
    identity = {"room": "7"}  # noqa: RUF012

    def __init__(self, room=7):
        self.room = room

    def job(self, name):
        return SimpleNamespace(status=lambda: self.state, delete=lambda: None)

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
def unknown(elsewhere, monkeypatch):
    """As on a machine on which that backend is not registered."""
    return lambda: monkeypatch.delitem(registry.BACKENDS, "Elsewhere")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def here(store):
    return Local(store=store.address)


def submitted_to(store, record, backend):
    kept = SubmissionRecord.of(backend, Submission({}, {}, backend.found_by))
    store.put(record.keys.submission, kept.to_json())
    return record


@pytest.fixture
def record(store, elsewhere):
    """Of a run that no worker has ended yet."""
    return submitted_to(store, put_run(store, Run(name="a"), code=None), elsewhere())


def test_a_run_that_runs_elsewhere_is_refused_with_its_handle(store, record, elsewhere, here, monkeypatch):
    monkeypatch.setattr(elsewhere, "state", status())
    with pytest.raises(InvalidInput) as refused:
        refuse_elsewhere(record, here, store)
    assert f"attach({record.name!r}, on=Elsewhere(room=7))" in str(refused.value)
    assert "room 7" in str(refused.value)
    refuse_elsewhere(record, elsewhere(), store)


@pytest.mark.parametrize("state", [None, status("Failed"), status("Succeeded"), replace(status(), interrupted=True)])
def test_one_that_has_ended_there_is_not(store, record, elsewhere, here, monkeypatch, state):
    monkeypatch.setattr(elsewhere, "state", state)
    refuse_elsewhere(record, here, store)
    remove(record.name, on=here)


def test_one_that_cannot_be_asked_is_neither_started_nor_removed_until_it_is_given_up(store, record, here, unknown):
    unknown()
    before = store.list("")
    for ask in (lambda: refuse_elsewhere(record, here, store), lambda: remove(record.name, on=here)):
        with pytest.raises(InvalidInput, match=r"room 7"):
            ask()
    assert store.list("") == before
    attach(record.name, on=here).cancel()
    refuse_elsewhere(record, here, store)
    remove(record.name, on=here)
    assert store.list("") == []


@pytest.mark.parametrize("code", [0, 70])
def test_one_that_cannot_be_asked_and_has_ended_as_the_store_says_stands_in_nobodys_way(
    store, elsewhere, here, unknown, capsys, code
):
    record = submitted_to(store, put_run(store, Run(name="a"), code=code), elsewhere())
    unknown()
    refuse_elsewhere(record, here, store)
    attach(record.name, on=here).cancel()
    assert store.list(record.keys.cancelled) == []
    remove(record.name, on=here)


def test_signs_of_life_count_more_than_an_end_that_the_store_tells_of(store, elsewhere, here, unknown, monkeypatch):
    """As of a job that was cancelled, and saves a last checkpoint."""
    record = submitted_to(store, put_run(store, Run(name="a"), code=70), elsewhere())
    unknown()
    beats = iter(range(1000))

    def beat(_=0.0, *, is_over=False):
        sign = SignOfLife(time=f"2026-01-01T00:00:{next(beats)}", pod="a-worker-0", is_over=is_over)
        store.put(record.keys.alive, sign.to_json())

    beat()
    with monkeypatch.context() as patched:
        patched.setattr(elsewhere_of.time, "sleep", beat)
        with pytest.raises(InvalidInput, match=r"a-worker-0"):
            refuse_elsewhere(record, here, store)
        with pytest.raises(JobNotFound, match=r"room 7"):
            attach(record.name, on=here).cancel()
    beat(is_over=True)
    refuse_elsewhere(record, here, store)


class Moved(Elsewhere):
    """Whose job of the run has failed before the run was submitted elsewhere."""

    state = status("Failed")
    identity = {"room": "8"}  # noqa: RUF012


@pytest.mark.parametrize(("code", "state"), [(0, "Succeeded"), (70, "Failed"), (None, "Absent")])
def test_a_run_that_was_submitted_to_another_place_after_its_job_here_failed_has_the_state_of_the_newest(
    store, elsewhere, monkeypatch, code, state
):
    monkeypatch.setattr(registry, "name_of", lambda backend: "Elsewhere")
    record = submitted_to(store, put_run(store, Run(name="a"), code=code), elsewhere())
    job = Job(record, Moved(8), store)
    assert job.state == state
    if code is None:
        monkeypatch.setattr(elsewhere, "state", status())
        with pytest.raises(JobNotFound, match="room 7"):
            job.cancel()
    submitted_to(store, record, Moved(8))
    assert job.state == "Failed"


@pytest.mark.parametrize(("newest", "beats"), [("2026-01-01", True), ("2026-01-02", False)])
def test_a_job_whose_run_was_submitted_again_gives_no_sign_of_life(store, record, newest, beats):
    store.put(record.keys.run, json.dumps(replace(record, submitted=newest).to_dict()).encode())
    heartbeat = Heartbeat(store, replace(record, submitted="2026-01-01"), "a-worker-0")
    heartbeat.start()
    heartbeat.flush(60)
    assert bool(store.list(record.keys.alive)) is beats
    heartbeat.finish(60, is_over=True)
    assert bool(store.list(record.keys.alive)) is beats


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


def test_a_home_is_itself_for_every_process_and_no_other(store, record, tmp_path, monkeypatch):
    kept = SubmissionRecord.of(Local(), Submission({}, {}, {}))
    assert kept.is_at(Local(store=store.address))
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "other"))
    assert not kept.is_at(Local())


@pytest.fixture
def clusters(tmp_path, monkeypatch):
    """Makes servers whose first namespace has this uid, or may not be read; and what has the backend of each."""
    stack = []

    def make(uid, authority=None, name="server"):
        certificate = authority.certificate(name) if authority else None
        server = ApiServer(certificate, authority.path if authority else None)
        answer = Answer(body={"metadata": {"uid": uid}}) if uid else Answer(403, {"kind": "Status", "code": 403})
        server.answer = lambda asked: answer if "kube-system" in asked.path else Answer(404, {"kind": "Status"})
        context = running(server)
        context.__enter__()
        stack.append(context)
        ca = {"certificate-authority": str(authority.path)} if authority else {}
        path = write_kubeconfig(tmp_path / f"kubeconfig-{len(stack)}", {"server": server.url, **ca})

        def use():
            monkeypatch.setenv("KUBECONFIG", str(path))
            return Cluster(store="s3://bucket/runs")

        return use

    yield make
    for context in stack:
        context.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("there", "here", "is_same"),
    [
        (("uid-a", "one"), ("uid-a", "one"), True),
        (("uid-a", "one"), ("uid-b", "one"), False),
        (("uid-a", "one"), ("uid-a", "two"), True),  # behind another address
        (("uid-a", "one"), (None, "one"), True),
        ((None, "one"), ("uid-a", "one"), True),
        ((None, "one"), (None, "one"), True),
        ((None, "one"), (None, "two"), False),
        (("uid-a", "one"), (None, "two"), False),
    ],
)
def test_a_cluster_is_known_by_its_first_namespace_and_to_who_may_not_read_that_by_its_authority(
    clusters, tmp_path, there, here, is_same
):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    authorities = {name: Authority(tmp_path / name) for name in ("one", "two")}
    first, second = (clusters(uid, authorities[name]) for uid, name in (there, here))
    kept = SubmissionRecord.of(first(), Submission({}, {}, {}))
    assert kept.is_at(second()) is is_same
    assert kept.is_at(first())
    assert not kept.is_at(Local())


def test_another_namespace_of_a_cluster_and_another_kind_of_job_in_it_are_other_places(clusters):
    use = clusters("uid-a")
    kept = SubmissionRecord.of(use(), Submission({}, {}, {}))
    others = [Cluster(namespace="other", store="s3://bucket/runs"), Cluster(kind="TrainJob", store="s3://bucket/runs")]
    assert [kept.is_at(other) for other in (use(), *others)] == [True, False, False]
