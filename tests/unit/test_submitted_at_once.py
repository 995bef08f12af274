"""Of clients that submit one run at the same moment the records are those of the job there is; the others attach."""

import hashlib
import json
import re
import threading
from types import SimpleNamespace

import pytest

from tests.stored_runs import put_checkpoint, put_run
from tests.wheels import wheel
from train_func import Run
from train_func.client import attach
from train_func.client.backend import RunsAlready, Submission
from train_func.client.claim import Claim
from train_func.client.cluster.timings import Timings
from train_func.client.cluster.uploads import upload_inputs
from train_func.client.identity import newest_generation
from train_func.client.packages import carry
from train_func.client.packages.wheels import Resolved, Wheel
from train_func.client.status import Condition, JobStatus
from train_func.client.submit import submit
from train_func.errors import InvalidInput, JobFailed, SourceRefused, StorageFailed
from train_func.layout import INPUTS, RunKeys
from train_func.storage import open_store
from train_func.storage.folder import FolderStore

RUNNING = JobStatus((Condition("Running", "True", "", ""),))


def train_func(parameters):
    return parameters


class Room:
    """A backend that keeps jobs in a dict; what a test gives as ``meanwhile`` happens before a job is created."""

    place, identity, found_by, packages = "room", {"room": "one"}, {}, ()

    def __init__(self, store, jobs, colour, *, meanwhile=lambda submission: None, before=lambda: None):
        self.store, self.jobs_there, self.colour = store, jobs, colour
        self.meanwhile, self.before = meanwhile, before

    def store_address(self):
        return self.store.address

    def inventory(self):
        return None

    def adapted(self, run):
        return run

    def check(self, run):
        pass

    def prepare(self, record, inputs, num_model_bytes, store):
        self.before()
        return record.run

    def job(self, name):
        return SimpleNamespace(status=lambda: RUNNING if name in self.jobs_there else None)

    def submission(self, record, files):
        return Submission({"name": record.job_name, "colour": self.colour}, {"colour": self.colour}, self.found_by)

    def submit(self, submission, files):
        self.meanwhile(submission)
        self.create(submission)

    def create(self, submission):
        if submission.manifest["name"] in self.jobs_there:
            raise RunsAlready("it is there")
        self.jobs_there[submission.manifest["name"]] = submission


@pytest.fixture
def room(tmp_path, monkeypatch):
    """Makes backends with the same jobs and the same store."""
    monkeypatch.setattr(attach, "OTHER_SECONDS", 1.0)
    store, jobs = open_store((tmp_path / "store").as_uri()), {}
    return lambda colour, **options: Room(store, jobs, colour, **options)


def records(room):
    """What the store holds of the only run: its deadline, and the colours that manifest and submission were given."""
    store = room("any").store
    (name,) = {entry.key.partition("/")[0] for entry in store.list("")}
    run, manifest, submission = (
        json.loads(store.get(f"{name}/{file}.json").data) for file in ("run", "manifest", "submission")
    )
    return run["run"]["deadline"], manifest["colour"], submission["options"]["colour"]


def test_a_fault_of_the_function_waits_for_no_registry(room):
    answer = threading.Event()  # of a registry that is silent

    def with_a_fault():
        return undefined_thing  # noqa: F821

    backend = room("red")
    backend.inventory = answer.wait
    with pytest.raises(SourceRefused):
        submit(with_a_fault, Run(), on=backend)
    assert not answer.is_set()
    answer.set()


def test_a_first_submission_reads_nothing_of_other_runs(room, monkeypatch):
    backend = room("red")
    other = put_run(backend.store, Run(name="train-func"), function="train_func", code=70)
    put_checkpoint(backend.store, other, step=7)
    read = []
    for name in ("get", "names", "list", "checksum"):
        ask = getattr(FolderStore, name)
        monkeypatch.setattr(FolderStore, name, lambda self, key, ask=ask: (read.append(key), ask(self, key))[1])
    job = submit(train_func, Run(), on=backend)
    assert {key.partition("/")[0] for key in read if key} <= {job.name, "probes", "inputs"}


def test_one_that_comes_while_a_job_is_created_attaches_and_changes_no_record(room, capsys):
    """Both have seen that there is no job; the one that came first creates it."""

    def second(submission):
        def first_is_quicker(_):
            first.create(submission)

        submit(train_func, Run(deadline=60), on=room("blue", meanwhile=first_is_quicker))
        first.jobs_there.clear()  # it is created once more, by the first itself

    first = room("red", meanwhile=second)
    job = submit(train_func, Run(deadline=70), on=first)
    assert records(room) == (70, "red", "red")
    assert job.record.run.deadline == 70
    told = capsys.readouterr().out
    assert re.findall(r"deadline=\d+", told) == ["deadline=70", "deadline=60"]
    assert "colour='red'" in told


def test_the_records_are_those_of_the_second_when_its_job_came_first(room, capsys):
    first = room("red", meanwhile=lambda _: submit(train_func, Run(deadline=60), on=room("blue")))
    job = submit(train_func, Run(deadline=70), on=first)
    assert records(room) == (60, "blue", "blue")
    assert job.record.run.deadline == 60
    assert re.findall(r"deadline=\d+", capsys.readouterr().out) == ["deadline=60", "deadline=70"]


def test_one_that_was_overtaken_before_it_wrote_anything_is_told_what_differs(room, capsys):
    late = room("red", before=lambda: submit(train_func, Run(deadline=60), on=room("blue")))
    assert submit(train_func, Run(deadline=70), on=late).record.run.deadline == 60
    assert records(room) == (60, "blue", "blue")
    assert re.findall(r"deadline=\d+", capsys.readouterr().out) == ["deadline=60", "deadline=70"]


def test_what_another_client_removes_before_the_run_is_recorded_is_carried_again(room, tmp_path, monkeypatch):
    def files():
        return [entry.key for entry in store.list(f"{INPUTS}/")]

    class Carrying(Room):
        def prepare(self, record, inputs, num_model_bytes, store):
            return upload_inputs(record.run, inputs, store, Timings())

        def submission(self, record, names):
            for key in files() if names else ():  # the record is about to be written
                removed.append(key)
                store.delete(key)
            return super().submission(record, names)

    (tmp_path / "rows.csv").write_bytes(b"text\n" * 7)
    path = wheel(tmp_path, "own")
    carried = Resolved(wheels=(Wheel(path, hashlib.sha256(path.read_bytes()).hexdigest()),))
    monkeypatch.setattr(carry, "check", lambda *_: carried)
    removed, there, store = [], [], room("any").store
    backend = Carrying(store, {}, "red", meanwhile=lambda _: there.extend(files()))
    submit(train_func, Run(inputs={"rows": str(tmp_path / "rows.csv")}), on=backend)
    assert len(there) == 2
    assert there == removed


def test_of_three_at_once_the_records_are_those_of_the_one_whose_job_was_created(room):
    """Each replaces the records of the one before; the first one's job is created while the last is about to."""

    def third(submission):
        def job_of_the_first(_):
            first.create(firsts[0])

        submit(train_func, Run(deadline=50), on=room("green", meanwhile=job_of_the_first))

    def second(submission):
        firsts.append(submission)
        submit(train_func, Run(deadline=60), on=room("blue", meanwhile=third))
        first.jobs_there.clear()

    firsts = []
    first = room("red", meanwhile=second)
    submit(train_func, Run(deadline=70), on=first)
    assert records(room) == (70, "red", "red")


def test_one_that_is_refused_after_another_has_replaced_its_records_leaves_those(room):
    def second(_):
        submit(train_func, Run(deadline=60), on=room("blue"))
        raise refusal

    refusal = InvalidInput("the first is refused")
    with pytest.raises(InvalidInput) as refused:
        submit(train_func, Run(deadline=70), on=room("red", meanwhile=second))
    assert refused.value is refusal
    assert records(room) == (60, "blue", "blue")


def test_the_client_whose_job_was_created_writes_its_records_again_where_others_have_replaced_them(tmp_path):
    store, keys = open_store((tmp_path / "store").as_uri()), RunKeys("run-0123")
    claims = []
    for number in range(3):
        claims.append(Claim(store, keys))
        assert claims[-1].write({keys.run: b"run %d" % number, keys.manifest: b"manifest %d" % number})
    for loser in claims[1:]:
        loser.undo()  # not in the opposite order: what the last one replaced was the second one's
    assert store.get(keys.run).data == b"run 1"
    claims[0].confirm()
    assert [store.get(key).data for key in (keys.run, keys.manifest)] == [b"run 0", b"manifest 0"]


def test_a_job_that_took_the_files_of_the_client_that_came_later_has_the_records_of_that_client(room):
    def adopted(submission):
        second.create(submission)
        there = RunsAlready("it is there")
        there.has_own_files = True
        raise there

    first = room("red")
    submit(train_func, Run(), on=first)
    first.jobs_there.clear()
    second = room("blue", meanwhile=adopted)
    submit(train_func, Run(deadline=60), on=second)
    assert records(room) == (60, "blue", "blue")


def keys(store):
    return {entry.key: store.get(entry.key).data for entry in store.list("")}


def refusing(error):
    def refuse(_):
        raise error

    return refuse


REFUSED = [InvalidInput("no room"), JobFailed("the old job stays", cause="unknown")]


@pytest.mark.parametrize("error", REFUSED, ids=lambda error: type(error).__name__)
def test_a_refused_submission_changes_no_record_and_takes_no_mark_away(room, error):
    first = room("red")
    job = submit(train_func, Run(), on=first)
    first.jobs_there.clear()
    first.store.put(job.record.keys.cancelled, b"{}")
    before = keys(first.store)
    with pytest.raises(type(error)):
        submit(train_func, Run(deadline=60), on=room("blue", meanwhile=refusing(error)))
    assert keys(first.store) == before


def test_a_refused_fresh_submission_leaves_no_generation_behind(room):
    first = room("red")
    submit(train_func, Run(), on=first)
    first.jobs_there.clear()
    with pytest.raises(InvalidInput):
        submit(train_func, Run(), on=room("blue", meanwhile=refusing(InvalidInput("no room"))), fresh=True)
    assert newest_generation(first.store, next(iter(first.store.names(""))).removesuffix("/")) == 1


def test_where_the_cluster_gave_no_answer_the_records_are_those_of_the_job_that_may_have_come(room):
    first = room("red")
    submit(train_func, Run(), on=first)
    first.jobs_there.clear()
    lost = InvalidInput("no answer", cause="cluster")
    with pytest.raises(InvalidInput):
        submit(train_func, Run(deadline=60), on=room("blue", meanwhile=refusing(lost)))
    assert records(room) == (60, "blue", "blue")


def test_a_store_that_is_full_halfway_has_the_records_of_before(room, monkeypatch):
    first = room("red")
    submit(train_func, Run(), on=first)
    first.jobs_there.clear()
    before, put = keys(first.store), first.store.put

    def full(key, data, **options):
        if key.endswith("manifest.json"):
            raise StorageFailed("full", reason="full")
        return put(key, data, **options)

    with monkeypatch.context() as patched, pytest.raises(StorageFailed):
        patched.setattr(type(first.store), "put", lambda store, key, data, **options: full(key, data, **options))
        submit(train_func, Run(deadline=60), on=room("blue"))
    assert keys(first.store) == before
