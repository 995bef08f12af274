"""Of all clients that submit one run, at once or later, here or in another place, one has the job; none loses it."""

import hashlib
import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from tests.api_servers import Answer, ApiServer, Authority, running, write_kubeconfig
from tests.messages import unnamed
from tests.stored_runs import put_checkpoint, put_run, put_submission, whole_model
from train_func import Cluster, InvalidInput, JobNotFound, Local, Run, attach, remove, submit
from train_func.client import backend as backends
from train_func.client import elsewhere
from train_func.client import submit as submitting
from train_func.client.backend import JobRequest, RunsAlready
from train_func.client.cli import main
from train_func.client.job import Job
from train_func.client.status import Condition, JobStatus
from train_func.client.stored_run import Submission, newest_generation
from train_func.errors import JobFailed, StorageFailed
from train_func.storage import open_store
from train_func.wire.layout import MODEL_MANIFEST, SUMS
from train_func.wire.records import SignOfLife
from train_func.wire.result import FileEntry, Result


def train_func(parameters):
    return parameters


def status(condition="Running"):
    return JobStatus((Condition(condition, "True", "", ""),))


class Room:
    """A place for jobs, by its number; what is given as ``meanwhile`` happens before a job is created there."""

    packages = ()
    jobs_of: dict[int, dict[str, JobStatus]] = {}  # noqa: RUF012
    address = ""

    def __init__(self, room=1, *, colour="red", before=lambda: None, meanwhile=lambda: None):
        self.room, self.colour, self.before, self.meanwhile = room, colour, before, meanwhile
        self.there = self.jobs_of.setdefault(room, {})
        self.found_by, self.place, self.identity = {"room": room}, f"room {room}", {"room": str(room)}

    def store_address(self):
        return self.address

    def inventory(self):
        return None

    def adapt(self, run):
        return run

    def check(self, run):
        pass

    def prepare(self, record, inputs, num_model_bytes, store):
        self.before()
        return record.run

    def job(self, name):
        return SimpleNamespace(
            name=name, status=lambda: self.there.get(name), delete=lambda: self.there.pop(name, None)
        )

    def request(self, record):
        return JobRequest({"name": record.job_name, "colour": self.colour}, {"colour": self.colour}, self.found_by)

    def submit(self, submission):
        self.meanwhile()
        if submission.manifest["name"] in self.there:
            raise RunsAlready("it is there")
        self.there[submission.manifest["name"]] = status()


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    module = ModuleType("rooms_for_tests")
    module.Room = Room
    monkeypatch.setitem(sys.modules, "rooms_for_tests", module)
    monkeypatch.setattr(backends, "BACKENDS", {**backends.BACKENDS, "Room": "rooms_for_tests"})
    monkeypatch.setattr(submitting, "OTHER_SECONDS", 1.0)
    store = open_store((tmp_path / "store").as_uri())
    monkeypatch.setattr(Room, "jobs_of", {})
    monkeypatch.setattr(Room, "address", store.address)
    return store


@pytest.fixture
def unknown(monkeypatch):
    """As on a machine on which no other room can be asked."""
    return lambda: monkeypatch.delitem(backends.BACKENDS, "Room")


def reads(parameters):
    import os

    os.environ["OMP_WAIT_POLICY"] = "passive"
    known = os.environ["OMP_WAIT_POLICY"], os.environ["RANK"], os.getenv("HF_HUB_OFFLINE")
    return os.environ.get("A_TEAM"), os.getenv("A_PLACE"), os.getenv("HF_DATASETS_OFFLINE"), known


def test_a_variable_that_is_set_here_alone_is_told_before_a_worker_reads_nothing(monkeypatch, capsys):
    for name in ("A_TEAM", "RANK", "OMP_WAIT_POLICY", "HF_DATASETS_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.setenv(name, "1")
    submit(reads, on=Room())
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert unnamed(note, "reads", "Room(environment={'A_TEAM': ..., 'HF_DATASETS_OFFLINE': ...})") == []
    room = Room(2)
    room.environment = {"A_TEAM": "1", "HF_DATASETS_OFFLINE": "1"}
    submit(reads, Run(parameters={"again": 1}), on=room)
    assert "note: " not in capsys.readouterr().out


def loops(parameters):
    from train_func.worker import Session

    with Session(parameters) as session:
        for step in session.steps(session.plan([])):
            step.end()


def keeps(parameters):
    from train_func.worker import Session

    with Session(parameters) as session:
        for step in session.steps(session.plan([])):
            step.end()
        session.publish(None)


@pytest.mark.parametrize(("function", "is_told"), [(loops, True), (keeps, False), (train_func, False)])
def test_a_loop_whose_model_nothing_publishes_is_told_before_it_trains(function, is_told, capsys):
    submit(function, Run(), on=Room())
    assert ("note: loops trains over session.steps, and nothing" in capsys.readouterr().out) is is_told


def test_a_field_that_the_function_does_not_use_is_told_before_it_starts(capsys):
    submit(train_func, Run(epochs=5), on=Room())
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert unnamed(note, "train_func", "epochs=5", "session.plan") == []


def test_a_misspelt_argument_is_refused_with_the_one_that_was_meant():
    with pytest.raises(InvalidInput, match=r"no argument 'fresch': did you mean 'fresh'\?"):
        submit(train_func, fresch=True)


def with_deadline(seconds, backend, **options):
    return submit(train_func, Run(deadline=seconds), on=backend, **options)


def files(store):
    return {entry.key: store.get(entry.key).data for entry in store.list("")}


def numbers(store, job):
    return store.names(job.record.keys.submissions)


@pytest.mark.parametrize("at", ["before", "meanwhile"])
def test_of_two_clients_at_once_the_slower_attaches_and_is_told_what_differs(store, capsys, at):
    """Both have seen no job; the other one is quicker before this has written anything, or before its job is there."""
    late = Room(colour="blue", **{at: lambda: with_deadline(60, Room())})
    job = with_deadline(70, late)
    assert job.record.run.deadline == 60
    assert re.findall(r"deadline=\d+", capsys.readouterr().out) == ["deadline=60", "deadline=70"]
    newest = Submission.newest(store, job.record.keys)
    assert (newest.options, len(numbers(store, job))) == ({"colour": "red"}, 1)


def test_who_waits_for_the_job_of_another_client_is_not_given_the_failure_of_the_one_before(store, monkeypatch):
    monkeypatch.setattr(submitting, "OTHER_SECONDS", 0.1)
    first = with_deadline(60, Room())
    Room.jobs_of[1][first.record.job_name] = status("Failed")  # whose removal the other client waits for
    with pytest.raises(JobNotFound, match="submit it again"):
        with_deadline(60, Room(before=lambda: put_submission(store, first.record, Room())))


def test_a_job_whose_run_is_gone_from_the_store_is_named_to_who_submits_it(store):
    job = with_deadline(60, Room())
    for key in files(store):
        store.delete(key)
    with pytest.raises(JobNotFound, match=f"{job.record.job_name} of room 1 is Running"):
        with_deadline(60, Room())


def test_of_two_clients_that_train_afresh_at_once_the_slower_attaches(store):
    first = with_deadline(60, Room())
    Room.jobs_of[1][first.record.job_name] = status("Succeeded")
    others = []
    quicker = lambda: others.append(with_deadline(60, Room(), fresh=True))  # noqa: E731
    job = with_deadline(60, Room(meanwhile=quicker), fresh=True)  # whose submission is there, and no job yet
    assert {each.record.generation for each in (job, *others)} == {2}
    assert [*Room.jobs_of[1]] == [first.record.job_name, job.record.job_name]


def test_a_fresh_training_ends_no_job_of_the_generation_before_that_another_client_has_started(store):
    first = with_deadline(60, Room())
    jobs = Room.jobs_of[1]
    jobs[first.record.job_name] = status("Failed")
    again = with_deadline(60, Room(meanwhile=lambda: jobs.update({first.record.job_name: status()})), fresh=True)
    assert (first.state, again.state) == ("Running", "Running")


@pytest.mark.parametrize("completes", ["fetch", "submit"])
@pytest.mark.parametrize(("ends", "is_completed"), [("Succeeded", True), ("Running", False)])
def test_a_model_folder_that_a_killed_worker_left_is_completed_once_no_worker_can(
    store, tmp_path, completes, ends, is_completed
):
    record = put_run(store, Run(parameters={"lr": 0.1}))
    sha256 = hashlib.sha256(b"weights").hexdigest()
    result = Result.write(1, 1, {}, {"weights": FileEntry(7, sha256)})
    store.put(record.keys.result, result)
    store.delete(f"{record.keys.model}/{SUMS}", f"{record.keys.model}/weights")
    store.put(f"{record.keys.model}/{MODEL_MANIFEST}", b"of the generation before")
    Room.jobs_of[1] = {record.job_name: status(ends)}
    if completes == "fetch":
        Job(record, Room(), store).fetch()
    else:
        submitting.attach_to(record, Room(), store, ends)
    if is_completed:
        assert (whole_model(store, record.keys.model, tmp_path / "copy") / "weights").read_bytes() == b"weights"
    else:
        assert [entry.key for entry in store.list(f"{record.keys.model}/")] == [f"{record.keys.model}/{MODEL_MANIFEST}"]


def test_a_job_that_does_not_go_on_from_the_run_that_is_named_now_is_attached_to_with_a_note(store, capsys):
    with_deadline(60, Room())
    for resume in (None, "another-run"):
        with_deadline(60, Room(), resume=resume)
        assert ("resume=None; you asked for resume=another-run" in capsys.readouterr().out) == bool(resume)


def test_a_job_that_goes_on_from_what_the_named_run_was_to_go_on_from_is_attached_to_without_a_note(store, capsys):
    first = put_run(store, Run(name="first"), code=70)
    put_checkpoint(store, first, step=7)
    second = replace(put_run(store, Run(name="second"), code=70), resumes=first.name, resumes_generation=1)
    put_submission(store, second)
    for _ in range(2):
        with_deadline(60, Room(), resume="second")
        assert "you asked for" not in capsys.readouterr().out
    for entry in store.list(f"{second.name}/"):
        store.delete(entry.key)
    with_deadline(60, Room(), resume="second")  # which was removed since
    assert "you asked for resume=second" in capsys.readouterr().out


def test_a_fresh_training_has_its_handle_though_the_job_before_cannot_be_removed(store, capsys):
    first = with_deadline(60, Room())
    Room.jobs_of[1][first.record.job_name] = status("Failed")
    room = Room()
    job_of = room.job

    def away():
        raise StorageFailed("no answer", reason="unreachable")

    room.job = lambda name: SimpleNamespace(**{**vars(job_of(name)), "delete": away})
    again = with_deadline(60, room, fresh=True)
    assert (again.record.generation, again.state) == (2, "Running")
    assert unnamed(capsys.readouterr().out, first.record.job_name, "no answer") == []


def test_a_command_finds_a_run_in_the_place_that_it_was_submitted_to(store, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_STORE", store.address)
    job = with_deadline(60, Room())
    assert main(["delete", job.name, "--on", "Local"]) == 0
    assert job.state == "Running"
    assert main(["delete", job.name]) == 0
    assert job.state == "Absent"


@pytest.mark.parametrize("is_known", [True, False], ids=["can be asked", "cannot be asked"])
def test_a_run_that_runs_in_another_place_is_refused_with_its_handle(store, unknown, is_known):
    job = with_deadline(60, Room(1))
    if not is_known:
        unknown()
    before = files(store)
    for ask in (lambda: with_deadline(60, Room(2)), lambda: with_deadline(60, Room(2), fresh=True)):
        with pytest.raises(InvalidInput) as refused:
            ask()
        assert unnamed(refused.value, f"attach({job.name!r}, on=Room(room=1)).cancel()", "room 1") == []
    with pytest.raises(InvalidInput, match="nothing was removed"):
        remove(job.name, on=Room(2))
    assert files(store) == before
    assert [*Room.jobs_of[1]] == [job.record.job_name]
    assert not Room.jobs_of[2]


@pytest.mark.parametrize("ended", [None, "Failed", "Succeeded", "interrupted"])
def test_one_that_has_ended_there_stands_in_nobodys_way(store, ended):
    job = with_deadline(60, Room(1))
    Room.jobs_of[1].clear()
    if ended:
        state = replace(status(), interrupted=True) if ended == "interrupted" else status(ended)
        Room.jobs_of[1][job.record.job_name] = state
    again = with_deadline(60, Room(2))
    assert numbers(store, again) == ["1.json", "2.json"]
    assert Room.jobs_of[2]


def test_one_that_cannot_be_asked_is_neither_started_nor_removed_until_it_is_given_up(store, unknown):
    job = with_deadline(60, Room(1))
    unknown()
    attach(job.name, on=Room(2)).cancel()
    assert with_deadline(60, Room(2)).record.submission == 2
    Room.jobs_of[2].clear()
    remove(job.name, on=Room(2))
    assert files(store) == {}


def test_signs_of_life_count_more_than_an_end_that_the_store_tells_of(store, unknown, monkeypatch):
    """As of a job that was cancelled, and saves a last checkpoint."""
    record = put_run(store, Run(name="a"), code=70, backend=Room(1))
    unknown()
    beats = iter(range(1000))

    def beat(_=0.0, *, is_over=False):
        sign = SignOfLife(time=f"2026-01-01T00:00:{next(beats)}", pod="a-worker-0", is_over=is_over)
        store.put(record.keys.alive, sign.to_json())

    beat()
    with monkeypatch.context() as patched:
        patched.setattr(elsewhere.time, "sleep", beat)
        with pytest.raises(InvalidInput, match="a-worker-0"):
            elsewhere.refuse_elsewhere(record.keys, Room(2), store)
        with pytest.raises(JobNotFound, match="room 1"):
            attach(record.name, on=Room(2)).cancel()
    beat(is_over=True)
    elsewhere.refuse_elsewhere(record.keys, Room(2), store)


def test_the_mark_of_a_cancelled_submission_says_nothing_of_the_next(store):
    job = with_deadline(60, Room())
    Room.jobs_of[1].clear()
    store.put(job.record.keys.cancelled(1), b"{}")
    assert job.state == "Cancelled"
    again = with_deadline(60, Room())
    Room.jobs_of[1].clear()
    assert again.state == "Absent"


@pytest.mark.parametrize("error", [InvalidInput("no room"), JobFailed("the old job stays", cause="unknown")], ids=repr)
def test_a_refused_submission_leaves_everything_as_it_was(store, error):
    def refuse():
        raise error

    with_deadline(60, Room())
    Room.jobs_of[1].clear()
    before = files(store)
    for fresh in (False, True):
        with pytest.raises(type(error)):
            with_deadline(70, Room(meanwhile=refuse), fresh=fresh)
        found = files(store)
        assert {key: found[key] for key in before} == before
        assert not any("generations" in key and "submissions" in key for key in found)
    (name,) = {key.partition("/")[0] for key in before}
    assert newest_generation(store, name) == 1


def test_where_the_cluster_gave_no_answer_the_submission_stays_because_its_job_may_have_come(store):
    def lose():
        raise InvalidInput("no answer", cause="cluster")

    with pytest.raises(InvalidInput):
        with_deadline(60, Room(meanwhile=lose))
    (name,) = {key.partition("/")[0] for key in files(store)}
    assert attach(name, on=Room()).record.run.deadline == 60


def test_a_handle_needs_no_backend_where_the_submission_tells_it(store, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_STORE", store.address)
    job = with_deadline(60, Room(3))
    assert attach(job.name).attach_expression == f"attach({job.name!r}, on=Room(room=3))"
    assert attach(job.name).state == "Running"
    assert "on=Local" in attach(job.name, on=Local(store=store.address)).attach_expression


@pytest.mark.parametrize("content", [b"", b"[1]", b"no JSON", b'{"format": 99}'])
def test_a_submission_that_cannot_be_read_is_named_and_stands_until_another_generation(store, content):
    job = with_deadline(60, Room())
    Room.jobs_of[1].clear()
    key = job.record.keys.submission(2)
    store.put(key, content)
    for ask in (lambda: attach(job.name, on=Room()), lambda: with_deadline(60, Room())):
        with pytest.raises(StorageFailed) as refused:
            ask()
        assert (refused.value.reason, unnamed(refused.value, key)) == ("damaged", [])
    assert store.get(key).data == content


def test_a_home_is_itself_for_every_process_and_no_other(store, tmp_path, monkeypatch):
    record = put_run(store, Run(name="a"))
    kept = Submission.newest(store, record.keys)
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


def submitted_to(store, backend):
    return Submission.newest(store, put_submission(store, put_run(store, Run(name="a")), backend).keys)


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
    store, clusters, tmp_path, there, here, is_same
):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    authorities = {name: Authority(tmp_path / name) for name in ("one", "two")}
    first, second = (clusters(uid, authorities[name]) for uid, name in (there, here))
    kept = submitted_to(store, first())
    assert kept.is_at(second()) is is_same
    assert kept.is_at(first())
    assert not kept.is_at(Local())


def test_another_namespace_of_a_cluster_and_another_kind_of_job_in_it_are_other_places(store, clusters):
    use = clusters("uid-a")
    kept = submitted_to(store, use())
    others = [Cluster(namespace="other", store="s3://bucket/runs"), Cluster(kind="TrainJob", store="s3://bucket/runs")]
    assert [kept.is_at(other) for other in (use(), *others)] == [True, False, False]
