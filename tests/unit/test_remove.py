"""A run is removed whole: its files, its jobs and its own inputs; at every point in between it is no half result."""

import dataclasses
import hashlib
import json
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.messages import unnamed
from tests.runs import a_run
from tests.stored_runs import put_checkpoint, put_run, put_submission, store_address
from tests.turns import race
from tests.unit.test_checkpoint_damage import MEMORY
from train_func import Local, Run, attach, remove, runs
from train_func.client.backend import JobRequest
from train_func.client.control.remove import Removal
from train_func.client.model.fetch import MERGED
from train_func.client.status import Condition, JobStatus
from train_func.client.stored_run import start_job
from train_func.errors import InvalidInput, JobNotFound, StorageFailed
from train_func.storage import open_store
from train_func.text import sized
from train_func.wire.layout import MODEL_MANIFEST, SUMS, wheel_key
from train_func.wire.result import FileEntry, Result, write_sums

SHARED, OWN = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def backend(store):
    return Local(store=store.address)


def keys_of(store):
    return {entry.key for entry in store.list("")}


@pytest.mark.parametrize("kind", ["folder", "minio"])
def test_all_generations_go_and_no_other_run(kind, tmp_path):
    with store_address(kind, tmp_path) as address:
        store = open_store(address)
        put_run(store, Run(name="kept"))
        before = keys_of(store)
        gone = put_run(store, Run(name="gone"))
        for generation in (2, 10):
            put_run(store, Run(name="gone"), generation=generation)
        remove(gone.name, on=Local(store=address))
        assert keys_of(store) == before
        with pytest.raises(JobNotFound, match=gone.name):
            remove(gone.name, on=Local(store=address))


def test_a_name_that_only_begins_the_same_is_another_run(store, backend):
    record = put_run(store, Run(name="a"))
    for key in (f"{record.name}0/run.json", f"{record.name}.txt"):
        store.put(key, b"x")
    remove(record.name, on=backend)
    assert keys_of(store) == {f"{record.name}0/run.json", f"{record.name}.txt"}


def test_what_goes_is_told_first_with_its_sizes(store, backend, capsys):
    record = put_run(store, Run(name="gone"))
    put_run(store, Run(name="gone"), generation=2)
    store.put(f"{record.name}/attempts/1/model/large", b"x" * 2_500_000)
    removal = Removal.of(record.name, backend)
    assert store.list(f"{record.name}/")
    files = len(store.list(f"{record.name}/"))
    facts = (record.name, f"{files} files", "2.5 MB", "2 generations", "model/: 1 file, 7 bytes")
    assert unnamed(removal, *facts) == []
    remove(record.name, on=backend)
    assert str(removal) in capsys.readouterr().out


def published_nothing(store):
    """A run that has returned its result, and left no files."""
    record = put_run(store, Run(name="gone"), code=65)
    result = Result.write(1, 1, {"metrics": {}, "returned": {"loss": 0.5}}, {})
    for key, content in ((SUMS, write_sums({})), (MODEL_MANIFEST, result)):
        store.put(f"{record.keys.model}/{key}", content)
    return record


def test_only_what_is_there_is_told(store, backend, home):
    told = str(Removal.of(published_nothing(store).name, backend))
    assert unnamed(told, "model", "inputs", str(home)) == ["model", "inputs", str(home)]


def fetched(store, backend, *, to=None, **fields):
    """A run with a model of one file, and the folder that it was fetched to."""
    record = put_run(store, Run(**fields))
    sums = {"weights": hashlib.sha256(b"weights").hexdigest()}
    result = Result.write(1, 1, {"metrics": {}, "returned": {}}, {"weights": FileEntry(7, sums["weights"])})
    sums[MODEL_MANIFEST] = hashlib.sha256(result).hexdigest()
    store.put(record.keys.result, result)
    return record, attach(record.name, on=backend).fetch(to=to)


def test_the_copy_that_was_fetched_goes_and_is_told_with_its_size(store, backend, home):
    (gone, folder), (_, kept) = (fetched(store, backend, name=name) for name in ("gone", "kept"))
    assert folder.is_relative_to(home)
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert unnamed(Removal.of(gone.name, backend), folder, "3 files", sized(size)) == []
    remove(gone.name, on=backend)
    assert not folder.exists()
    assert (kept / "weights").exists()


def test_the_merged_model_goes_as_it_was_written(store, backend):
    record, folder = fetched(store, backend)
    merged = folder.with_name(f"{folder.name}.merged")
    merged.mkdir()
    for name in ("model.safetensors", "README.md"):
        (merged / name).write_text("as it was merged")
    files = dict.fromkeys(("model.safetensors", "README.md"), hashlib.sha256(b"as it was merged").hexdigest())
    (merged / MERGED).write_text(json.dumps({"run": record.name, "adapters": {}, "files": files}))
    (merged / "README.md").write_text("of the user")
    assert unnamed(Removal.of(record.name, backend), merged, "2 files") == []
    remove(record.name, on=backend)
    assert [path.name for path in merged.iterdir()] == ["README.md"]


def test_a_folder_that_the_user_named_stays(store, backend, tmp_path):
    record, folder = fetched(store, backend, to=tmp_path / "mine")
    assert unnamed(Removal.of(record.name, backend), folder) == [str(folder)]
    remove(record.name, on=backend)
    assert (folder / "weights").read_bytes() == b"weights"


@pytest.mark.parametrize("own", ["weights", "notes.txt", "deep/notes.txt"])
def test_a_file_that_was_put_or_changed_beside_a_fetched_model_stays(store, backend, own):
    record, folder = fetched(store, backend)
    (folder / own).parent.mkdir(exist_ok=True)
    (folder / own).write_text("of the user")
    remove(record.name, on=backend)
    assert [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()] == [own]


def test_a_link_to_a_folder_of_the_user_is_not_followed(store, backend, tmp_path):
    record, folder = fetched(store, backend)
    folder.rename(tmp_path / "mine")
    folder.symlink_to(tmp_path / "mine")
    remove(record.name, on=backend)
    assert (tmp_path / "mine/weights").exists()


def with_input(store, name, *digests):
    """A run whose task names carried files, and these files."""
    addresses = [f"{store.address}/inputs/{digest}/rows.csv" for digest in digests]
    for digest in digests:
        store.put(f"inputs/{digest}/rows.csv", b"text,label\n")
    fields = dict(zip(("dataset", "held_out"), addresses, strict=False))
    return put_run(store, a_run(**fields, name=name))


def test_inputs_go_when_no_other_run_names_them(store, backend):
    gone, last = with_input(store, "gone", SHARED, OWN), with_input(store, "last", SHARED)
    assert unnamed(Removal.of(gone.name, backend), "inputs", "1 file") == []
    remove(gone.name, on=backend)
    assert {key for key in keys_of(store) if key.startswith("inputs/")} == {f"inputs/{SHARED}/rows.csv"}
    remove(last.name, on=backend)
    assert keys_of(store) == set()


def test_inputs_stay_that_an_earlier_generation_of_another_run_names(store, backend):
    gone, other = with_input(store, "gone", SHARED), with_input(store, "other", SHARED)
    put_submission(store, dataclasses.replace(other, generation=2))
    remove(gone.name, on=backend)
    assert f"inputs/{SHARED}/rows.csv" in keys_of(store)


def test_wheels_go_when_no_other_run_names_them(store, backend):
    records = [put_run(store, Run(name=name)) for name in ("gone", "last")]
    for record in records:
        put_submission(store, dataclasses.replace(record, wheels={"own.whl": OWN}))
    store.put(wheel_key("own.whl", OWN), b"wheel")
    remove(records[0].name, on=backend)
    assert wheel_key("own.whl", OWN) in keys_of(store)
    remove(records[1].name, on=backend)
    assert keys_of(store) == set()


INPUT = f"inputs/{SHARED}/rows.csv"


def submit_with_input(store, record, backend):
    """Submits the run as a client does that carries its input; returns whether its job was started."""
    if not store.list(f"inputs/{SHARED}/"):
        store.put(INPUT, b"text,label\n")
    request = JobRequest({}, {}, {})
    return start_job(record, "", {}, request, [f"{store.address}/{INPUT}"], backend, store)


class Accepts(Local):
    """A backend that starts no process."""

    def submit(self, request):
        return None


@pytest.mark.parametrize("seeds", [range(20), pytest.param(range(20, 250), marks=pytest.mark.slow)])
@pytest.mark.parametrize("again", ["another run", "the same run"])
def test_no_input_vanishes_under_a_submission_that_comes_while_another_run_is_removed(again, seeds):
    for seed in seeds:
        with TemporaryDirectory(dir=MEMORY) as folder:
            plain = open_store((Path(folder) / "store").as_uri())
            gone = with_input(plain, "gone", SHARED)
            backend = Accepts(store=plain.address)
            removal = Removal.of(gone.name, backend)
            new = with_input(open_store((Path(folder) / "other").as_uri()), "new", SHARED)
            record = dataclasses.replace(gone if again == "the same run" else new, store=plain.address, submission=2)
            acts = {
                1: lambda store, removal=removal: dataclasses.replace(removal, store=store).carry_out(),
                2: lambda store, record=record, backend=backend: submit_with_input(store, record, backend),
            }
            ended = race(seed, plain, acts)
            assert ended[2] in (True, "conflict")
            if ended[2] is True:
                assert INPUT in keys_of(plain)
            else:
                assert record.keys.submission(record.submission) not in keys_of(plain)


def test_a_submission_whose_input_an_interrupted_removal_has_marked_names_that_and_succeeds_after_it(
    store, backend, monkeypatch
):
    gone, new = with_input(store, "gone", SHARED), put_run(store, a_run(name="new"), code=None)
    record, here = dataclasses.replace(new, submission=2), Accepts(store=store.address)
    stop_after(monkeypatch, store, 0)
    with pytest.raises(Stops):
        remove(gone.name, on=backend)
    monkeypatch.undo()
    with pytest.raises(StorageFailed) as refused:
        submit_with_input(store, record, here)
    assert unnamed(refused.value, new.name, f"remove {gone.name}") == []
    assert record.keys.submission(2) not in keys_of(store)
    remove(gone.name, on=backend)
    assert not store.list("inputs/")
    assert submit_with_input(store, record, here)


class Stops(Exception):
    """The removing process is killed."""


@pytest.mark.parametrize("code", [0, 65])
def test_wherever_it_is_interrupted_no_half_result_is_left_and_it_can_go_on(tmp_path, monkeypatch, code):
    """After every number of deletions: fetched is the whole model or none, and success means that there is a result."""
    num_files = None
    for allowed in range(100):
        store = open_store((tmp_path / f"store-{allowed}").as_uri())
        backend = Local(store=store.address)
        for generation in (1, 2):
            record = put_run(store, Run(name="gone"), generation=generation, code=code, metrics={"loss": 0.5})
        whole = keys_of(store)
        num_files = num_files or len(whole)
        if allowed == num_files:
            break
        stop_after(monkeypatch, store, allowed)
        with pytest.raises(Stops):
            remove(record.name, on=backend)
        monkeypatch.undo()
        monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
        left = keys_of(store)
        assert len(whole - left) == allowed
        job = attach(record.name, on=backend)
        if job.state == "Succeeded":
            assert job.result() == {"loss": 0.5}
        if f"{record.name}/model/manifest.json" in left:
            assert f"{record.name}/model/weights" in left
        assert [*runs(on=backend).index] == [record.name]
        remove(record.name, on=backend)
        assert keys_of(store) == set()
    assert num_files is not None
    assert num_files > 7


def stop_after(monkeypatch, store, allowed):
    delete, left = type(store).delete, [allowed]

    def deleted(self, *keys):
        for key in keys:
            if left[0] == 0:
                raise Stops
            left[0] -= 1
            delete(self, key)

    monkeypatch.setattr(type(store), "delete", deleted)


class OneJob:
    """In the states of its conditions."""

    def __init__(self, *conditions, **facts):
        self.found = JobStatus(conditions=tuple(Condition(kind, "True", "", "") for kind in conditions), **facts)
        self.deleted = False

    def status(self):
        return None if self.deleted else self.found

    def delete(self):
        self.deleted = True


def with_jobs(store, **jobs):
    """A backend that has these jobs."""

    class WithJobs(Local):
        def job(self, name):
            return jobs.get(name.rpartition("-")[2]) or super().job(name)

    return WithJobs(store=store.address)


@pytest.mark.parametrize(
    "job",
    [OneJob(), OneJob("Created"), OneJob("Running"), OneJob("Suspended"), OneJob("Succeeded", deleting=True)],
    ids=["new", "Created", "Running", "Suspended", "deleting"],
)
@pytest.mark.parametrize("of", ["first", "second"])
def test_while_a_job_of_any_generation_has_not_ended_nothing_is_removed(store, job, of):
    record = put_run(store, Run(name="a"))
    put_run(store, Run(name="a"), generation=2)
    before = keys_of(store)
    named = {record.name.rpartition("-")[2] if of == "first" else "g2": job}
    with pytest.raises(InvalidInput) as refused:
        remove(record.name, on=with_jobs(store, **named))
    assert unnamed(refused.value, f"cancel {record.name}") == []
    assert keys_of(store) == before
    assert not job.deleted


def put_resuming(store, other, **fields):
    """A run that was submitted to go on from the checkpoints of the other."""
    record = put_run(store, Run(name="b", epochs=7), code=None, **fields)
    resumes = dataclasses.replace(record, resumes=other.name, resumes_generation=other.generation)
    put_submission(store, resumes)
    return record


@pytest.mark.parametrize("conditions", [(), ("Running",), ("Suspended",)])
@pytest.mark.parametrize("generation", [1, 2])
def test_while_another_run_that_goes_on_from_it_has_not_ended_nothing_is_removed(store, conditions, generation):
    job = OneJob(*conditions)
    record = put_run(store, Run(name="a"), code=None)
    put_checkpoint(store, record, step=7)
    if generation > 1:
        put_run(store, Run(name="b", epochs=7))
    other = put_resuming(store, record, generation=generation)
    before = keys_of(store)
    named = {"g2" if generation > 1 else other.name.rpartition("-")[2]: job}
    with pytest.raises(InvalidInput) as refused:
        remove(record.name, on=with_jobs(store, **named))
    assert unnamed(refused.value, record.name, f"cancel {other.name}") == []
    assert keys_of(store) == before
    job.delete()
    remove(record.name, on=with_jobs(store, **named))
    assert keys_of(store) == {key for key in before if not key.startswith(f"{record.name}/")}


def test_the_model_of_a_run_stays_while_another_run_that_trains_from_it_has_not_ended(store, backend):
    record, job = put_run(store, Run(name="a")), OneJob("Running")
    model = f"{store.address}/{record.keys.model}"
    other = put_run(store, a_run(name="b", model=model), code=None)
    before, on = keys_of(store), with_jobs(store, **{other.name.rpartition("-")[2]: job})
    with pytest.raises(InvalidInput) as refused:
        remove(record.name, on=on)
    assert unnamed(refused.value, record.name, f"cancel {other.name}") == []
    assert keys_of(store) == before
    job.delete()
    remove(record.name, on=on)
    assert not store.list(f"{record.name}/")


@pytest.mark.parametrize("job", [OneJob("Succeeded"), OneJob("Failed"), OneJob("Running", interrupted=True)])
def test_jobs_that_have_ended_are_deleted(store, job):
    record = put_run(store, Run(name="a"))
    remove(record.name, on=with_jobs(store, **{record.name.rpartition("-")[2]: job}))
    assert job.deleted


def test_a_run_of_a_backend_that_cannot_be_asked_stays_and_that_backend_is_named(store, backend):
    record = put_run(store, Run(name="a"), code=None)
    put_submission(store, record, backend="Gone", place="a lab", identity={"lab": "1"}, found_by={"namespace": "lab"})
    before = keys_of(store)
    with pytest.raises(InvalidInput) as refused:
        remove(record.name, on=backend)
    assert unnamed(refused.value, "a lab", "on=Gone(namespace='lab')") == []
    assert keys_of(store) == before


def test_what_a_call_without_submit_has_left_can_be_removed(store, backend):
    name = f"own-{'0' * 12}"
    store.put(f"{name}/attempts/1/lease.json", b"{}")
    store.put(f"{name}/generations/2/attempts/1/lease.json", b"{}")
    remove(name, on=backend)
    assert keys_of(store) == set()


@pytest.mark.parametrize("content", [b"", b"[1]", b"no JSON", b'{"format": 99}'])
def test_a_run_whose_submission_cannot_be_read_may_have_a_job_somewhere_and_is_not_removed(store, backend, content):
    record = put_run(store, Run())
    store.put(record.keys.submission(2), content)
    before = keys_of(store)
    with pytest.raises(InvalidInput) as refused:
        remove(record.name, on=backend)
    assert unnamed(refused.value, record.keys.submission(2), f"{store.address}/{record.name}/") == []
    assert keys_of(store) == before


@pytest.mark.parametrize("name", ["", "inputs", "probes", "data", "../x", ".", "a-0123456789ab/model", None, 7])
def test_what_is_no_name_of_a_run_is_refused(store, backend, name):
    store.put("inputs/0/rows.csv", b"x")
    store.put("data/rows.csv", b"x")
    with pytest.raises((InvalidInput, JobNotFound)) as refused:
        remove(name, on=backend)
    assert unnamed(refused.value, repr(name)) == []
    assert len(keys_of(store)) == 2


def test_the_first_digits_of_the_last_part_are_enough_where_they_tell_a_run_from_others(store, backend):
    records = [put_run(store, Run(name="stars", seed=seed)) for seed in range(20)]  # of 16 first digits
    first = {record.name: record.name[: len("stars-") + 1] for record in records}
    same = next(begin for begin in first.values() if [*first.values()].count(begin) > 1)
    with pytest.raises(InvalidInput) as refused:
        remove(same, on=backend)
    assert unnamed(refused.value, *[name for name, begin in first.items() if begin == same]) == []
    gone = records[0].name
    remove(gone[:-3], on=backend)
    assert {key.partition("/")[0] for key in keys_of(store)} == {record.name for record in records[1:]}


def test_a_run_is_attached_to_by_a_beginning_that_no_other_has_and_several_are_listed(store, backend):
    stars, moons = (put_run(store, Run(name=name)).name for name in ("stars", "stars-and-moons"))
    for given, meant in {moons[:7]: moons, stars[:-3]: stars, stars[: len("stars-") + 1]: stars}.items():
        assert attach(given, on=backend).name == meant
    assert attach(stars, on=backend).name == stars
    with pytest.raises(InvalidInput) as refused:
        attach("star", on=backend)
    assert unnamed(refused.value, "'star'", stars, moons) == []


@pytest.mark.parametrize("name", ["unknown", "stars", f"stars-{'0' * 12}"])
def test_of_an_unknown_name_the_nearest_are_named(store, backend, name):
    near = put_run(store, Run(name="stars"))
    with pytest.raises(JobNotFound) as refused:
        remove(name, on=backend)
    assert unnamed(refused.value, name, near.name, store.address) == []


def test_a_worker_that_goes_on_writing_is_told_of(store, backend, monkeypatch):
    record, delete = put_run(store, Run()), type(store).delete

    def deleted(self, *keys):
        delete(self, *keys)
        store.put(record.keys.attempt(1).log(0), b"again")

    monkeypatch.setattr(type(store), "delete", deleted)
    with pytest.raises(StorageFailed) as refused:
        remove(record.name, on=backend)
    assert refused.value.reason == "conflict"
