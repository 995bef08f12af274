"""What is published: files, metrics, what the function left and returned; and how a worker that publishes ends."""

import json
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.job_folder import write_job_folder
from tests.messages import unnamed
from tests.runs import a_run
from tests.stored_runs import put_submission
from train_func import Run
from train_func.wire import exits
from train_func.wire.predictions import PREDICTIONS, Predictions
from train_func.wire.records import Verdict
from train_func.worker import masks
from train_func.worker.environment import Environment
from train_func.worker.publish.card import TaskPart
from train_func.worker.publish.publication import Publication
from train_func.worker.rank import end
from train_func.worker.rank.end import Outcome, RankEnd
from train_func.worker.stop import RESERVE_SECONDS, Stop
from train_func.worker.supervisor.alerts.alerter import Alerter
from train_func.worker.supervisor.attempt import SHORTEST_SECONDS, WorkerAttempt
from train_func.worker.supervisor.coordinator import Coordinator, GroupState, Report
from train_func.worker.supervisor.group import Member
from train_func.worker.supervisor.lead import FixedLead, Way
from train_func.worker.supervisor.log import LogTee
from train_func.worker.supervisor.main import Supervisor
from train_func.worker.supervisor.verdict import stop_verdict


@pytest.fixture
def supervisor(tmp_path, record, store, pending):
    """One whose ranks have trained and sealed their model, and which has not met the end of its work yet."""
    pending.add(writes(weights="trained"), is_model=True)
    pending.report({"metrics": {}})
    made = Supervisor(environment_of(0, tmp_path), LogTee(), Stop())
    made._attempt = WorkerAttempt(
        made._environment, record, store, made._log_tee, made._stop, made._lead, made._alerter, SimpleNamespace()
    )
    made._attempt.launcher = SimpleNamespace(ends=list, pids=set, step=0, out_of_memory=False, has_ranks=True)
    return made


def a_group_that_goes_on():
    return SimpleNamespace(is_lead=True, hear=lambda *phases, **says: None, tell=lambda **says: None)


def environment_of(worker, folder):
    return Environment(
        store="",
        submission="",
        work_dir=folder,
        temporary_dir=folder,
        worker=worker,
        pod="a-run-worker-0",
        pod_uid="",
        num_cpus=1,
        grace=30.0,
        num_workers=2,
        min_workers=2,
        num_ranks=1,
        endpoint="127.0.0.1:1",
        rendezvous_id="a-run",
        cache_dir=folder / "cache",
    )


@pytest.fixture
def record(tmp_path, store):
    return write_job_folder(tmp_path / "job", "def train_func(): ...", store=store.address)


@pytest.fixture
def pending(tmp_path, store, record):
    """What waits in the pod to be published."""
    return Publication(tmp_path, store, record, 1)


@pytest.fixture
def published(store, record):
    """Publishes what waits, and returns result.json and the files under the model folder."""

    def publish(pending):
        pending.publish(Stop())
        model = f"{record.keys.model}/"
        names = {entry.key.removeprefix(model) for entry in store.list(model)}
        return json.loads(store.get(record.keys.result).data), names - {"manifest.json", "SHA256SUMS"}

    return publish


def writes(**files):
    def write(folder):
        for name, text in files.items():
            (folder / name).write_text(text)

    return write


OF_EVERY_RUN = {"run.json", "versions.json"}


@pytest.mark.parametrize("is_replaced", [False, True])
def test_predictions_are_published_with_the_model_that_they_are_of(pending, published, is_replaced):
    pending.add(writes(weights="old"), is_model=True)
    pending.add_predictions(Predictions(step=1, num_rows=1, columns={"row": [7], "loss": [0.5]}))
    if is_replaced:
        pending.add(writes(weights="new"), is_model=True)
    result, names = published(pending)
    assert (PREDICTIONS in names) is (PREDICTIONS in result["files"]) is not is_replaced


def test_files_add_up_and_another_model_replaces_all_of_the_one_before(pending, published):
    pending.add(writes(part_1="old", part_2="old"), is_model=True)
    pending.add(writes(curve="drawn"))
    pending.add(writes(part_1="new"), is_model=True)
    pending.report({"metrics": {"loss": 2.0, "rows": 7}})
    pending.report({"metrics": {"loss": 1.0}})
    result, names = published(pending)
    assert names - OF_EVERY_RUN == {"part_1", "curve", "metrics.json"}
    assert result["files"]["part_1"]["size"] == 3
    assert result["metrics"] == {"loss": 1.0, "rows": 7}


@pytest.mark.parametrize(("before", "after"), [("plot", "plot/loss.png"), ("plot/loss.png", "plot")])
def test_a_file_and_a_folder_of_one_name_replace_each_other(pending, published, store, record, before, after):
    def writes_at(name):
        def write(folder):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(name)

        return write

    pending.add(writes_at(before))
    store.delete(f"{record.keys.attempt(1).model}/{before}")  # else a folder, unlike S3, has no room for the other
    pending.add(writes_at(after))
    pending.report({})
    result, names = published(pending)
    assert names - OF_EVERY_RUN == {*result["files"]} - OF_EVERY_RUN == {after}


def test_of_a_model_that_another_one_replaces_nothing_that_was_reported_is_published(pending, published):
    pending.add_metrics({"minutes": 3, "rows": 5})
    pending.add(writes(part="old"), is_model=True)
    pending.report({"step": 9, "metrics": {"accuracy": 0.9, "rows": 7}, "note": "of the old one"})
    pending.add_metrics({"seconds": 4})
    pending.add(writes(curve="drawn"))
    pending.add(writes(part="new"), is_model=True)
    pending.report({"step": 4, "metrics": {}})
    result, _ = published(pending)
    assert (result["step"], result["metrics"], result["note"]) == (4, {"minutes": 3, "seconds": 4}, "")


@pytest.mark.parametrize("is_supervised", [False, True])
def test_a_metric_that_is_no_json_is_told_of_once(tmp_path, store, record, monkeypatch, capsys, is_supervised):
    monkeypatch.setattr(end, "here", end.Sessions())
    publication = Publication(tmp_path, store, record, 1, is_supervised=is_supervised)
    publication.add_metrics({"loss": 1.0, "plot": object()})
    publication.conclude(tmp_path / "none", replace(ended(), notes=tuple(end.here.notes)))
    publication.publish(Stop())
    told = [line for line in capsys.readouterr().out.splitlines() if not unnamed(line, "plot", "object")]
    assert len(told) == 1


def test_files_of_an_earlier_attempt_in_the_same_pod_are_removed_and_not_published(
    tmp_path, pending, published, store, record
):
    pending.add(writes(old="1"), is_model=True)
    second = Publication(tmp_path, store, record, 2)
    second.add(writes(new="2"))
    assert not pending.folder.exists()
    second.report({})
    assert published(second)[1] - OF_EVERY_RUN == {"new"}


def test_a_write_that_fails_leaves_what_was_there(pending, published):
    pending.add(writes(whole="1"))

    def fails(folder):
        (folder / "half").write_text("2")
        raise OSError("no space left")

    with pytest.raises(OSError):
        pending.add(fails)
    pending.report({})
    assert published(pending)[1] - OF_EVERY_RUN == {"whole"}


def ended(returned=None, left_out=()):
    return Outcome(0, None, follows=False, failure=None, returned=returned or {}, left_out=tuple(left_out))


def test_what_the_function_left_and_returned_is_published_with_a_note_of_what_is_not(
    tmp_path, pending, published, store, record
):
    output = tmp_path / "output"
    (output / "plots").mkdir(parents=True)
    for name in ("plots/loss.png", "taken", "manifest.json"):
        (output / name).write_text("left")
    pending.add(writes(taken="published"))
    pending.report({"metrics": {"loss": 2.0, "rows": 7}})
    outcome = replace(ended({"loss": 1.0}, ["model (Linear)"]), notes=("the ranks differ", "begun anew"))
    pending.conclude(output, outcome)
    result, names = published(pending)
    assert names - OF_EVERY_RUN == {"taken", "plots/loss.png", "metrics.json"}
    assert result["files"]["taken"]["size"] == len("published")
    assert (result["returned"], result["metrics"]) == ({"loss": 1.0}, {"loss": 2.0, "rows": 7})
    kept = store.get(f"{record.keys.model}/metrics.json").data
    assert json.loads(kept) == {"loss": 1.0, "rows": 7}  # what result() gives
    assert all(
        told in result["note"]
        for told in (
            "model (Linear)",
            "publish",
            "manifest.json",
            "taken",
            "loss",
            "ranks differ",
            "begun anew",
        )
    )
    assert sorted(path.name for path in output.iterdir() if path.is_file()) == ["manifest.json", "taken"]


def test_files_of_the_function_named_like_its_source_are_published_as_they_are_and_told_of(
    pending, store, record, capsys
):
    store.put(record.keys.source, b"the source")
    put_submission(store, record, cells={"the": "cells"})
    own = {"source.py": "mine", "cells.json": "[]"}
    pending.add(writes(**own))
    pending.report({})
    pending.publish(Stop())
    for name, text in own.items():
        assert store.get(f"{record.keys.model}/{name}").data == text.encode()
    said = capsys.readouterr().out
    told = {name: "".join(line for line in said.splitlines() if not unnamed(line, name)) for name in own}
    assert unnamed(told["source.py"], record.keys.source) == []
    assert unnamed(told["cells.json"], f"{record.keys.submissions}/1.json") == []


def test_folders_of_the_function_named_like_files_that_are_added_stay(pending, store, published):
    def write(folder):
        for name in ("source.py", "run.json"):
            (folder / name).mkdir()
            (folder / name / "inner").write_text("mine")

    pending.add(write)
    store.put("a-run/source/source.py", b"the source")
    pending.report({})
    assert published(pending)[1] == {"source.py/inner", "run.json/inner", "versions.json"}


def test_no_published_text_has_a_secret(tmp_path, pending, store, record, request):
    request.addfinalizer(lambda: masks.begin({}))
    secret = "hf_CANARY5e1f0c9b"
    masks.begin({masks.VARIABLE: "TOKEN", "TOKEN": secret})
    pending.add(writes(weights="trained"), is_model=True, card=TaskPart("It classifies."))
    pending.report({"metrics": {f"accuracy of {secret}": 0.9}, "note": f"trained with {secret}"})
    pending.conclude(tmp_path / "output", ended({"by": secret}))
    pending.publish(Stop())
    texts = {entry.key: store.get(entry.key).data.decode() for entry in store.list(record.keys.model)}
    assert {"README.md", "metrics.json"} <= {key.rpartition("/")[2] for key in texts}
    assert [key for key, text in texts.items() if secret in text] == []


def test_of_a_link_what_it_leads_to_is_published_or_it_is_named(tmp_path, pending, published):
    output, elsewhere = tmp_path / "output", tmp_path / "elsewhere.pt"
    (output / "step-7").mkdir(parents=True)
    (output / "best.pt").write_text("best")
    elsewhere.write_text("elsewhere")
    links = {"a-last.pt": output / "best.pt", "last.pt": output / "best.pt", "near.pt": "best.pt", "far.pt": elsewhere}
    nowhere = {"newest": "step-7", "gone.pt": output / "removed.pt"}
    for name, target in {**links, **nowhere}.items():
        (output / name).symlink_to(target)
    pending.conclude(output, ended())
    result, names = published(pending)
    assert names - OF_EVERY_RUN == {"best.pt", *links}
    assert {name: result["files"][name]["size"] for name in links} == {**dict.fromkeys(links, 4), "far.pt": 9}
    assert unnamed(result["note"], *nowhere) == []
    assert elsewhere.read_text() == "elsewhere"


def test_a_function_that_leaves_nothing_has_a_result_all_the_same(tmp_path, pending, published):
    pending.conclude(tmp_path / "output", ended())
    result, names = published(pending)
    assert (result["files"], result["returned"], names) == ({}, {}, set())


@pytest.fixture
def last_attempt(tmp_path, record, store):
    """Both workers of a group in the only attempt of their run."""
    record, group = replace(record, run=a_run(max_attempts=1)), Coordinator(GroupState(2, 2))

    def attempt(worker):
        stop = Stop()
        environment = environment_of(worker, tmp_path / str(worker))
        log_tee = SimpleNamespace(begin=lambda *given: None, flush=lambda seconds: None)
        parts = (FixedLead(environment), Alerter(environment), SimpleNamespace())
        made = WorkerAttempt(environment, record, store, log_tee, stop, *parts)
        way = Way(group.report, "127.0.0.1", lead=0)
        made._member = Member(way, Report(worker, f"pod {worker}", round=1), stop)
        return made

    while 0 in [group.report(Report(worker, f"pod {worker}")).round for worker in range(2)]:
        pass
    first, second = attempt(0), attempt(1)
    first.lease = second.lease = first._ledger.claim()
    return first, second


KILLED = [RankEnd(1, -9, None, False, 0)]


@pytest.mark.parametrize(("published", "code"), [(True, exits.KILLED), (False, exits.SPENT)])
def test_in_the_last_attempt_a_lost_worker_ends_for_good_unless_the_run_has_its_result(last_attempt, published, code):
    first, second = last_attempt
    if published:
        first._store.put("a-run/result.json", b"{}")
    second.launcher = SimpleNamespace(ends=lambda: KILLED, step=0, out_of_memory=False)
    assert second.close(None).exit_code == code


class Hangs:
    """A store that answers no upload of a file, and keeps with every small object how many seconds were left for it."""

    def __init__(self, store, ended, seconds_left):
        self.address = store.address
        self._store, self._ended, self._seconds_left = store, ended, seconds_left
        self.left = {}

    def __getattr__(self, name):
        return getattr(self._store, name)

    def upload(self, key, path, **options):
        self._ended.wait()

    def put(self, key, data, **options):
        self.left[key] = self._seconds_left()
        return self._store.put(key, data, **options)


def stop_asked_for(stop, seconds, grace=1000.0):
    """As if the signal had come ``seconds`` ago."""
    stop.grace = grace
    stop._on_signal(signal.SIGTERM, None)
    stop._times[0] -= seconds


def test_publishing_leaves_of_the_grace_period_what_is_kept_for_records(supervisor, monkeypatch):
    attempt, ended = supervisor._attempt, threading.Event()
    attempt.lease = attempt._ledger.claim()
    store = Hangs(attempt._store, ended, attempt.seconds_left)
    attempt._store = attempt._ledger._store = store
    member = a_group_that_goes_on()
    monkeypatch.setattr(supervisor, "_prepare", lambda: attempt.finish(member, []))
    monkeypatch.setattr("train_func.worker.supervisor.main.kill_descendants", lambda seconds: None)  # this test's own
    stop_asked_for(supervisor._stop, seconds=1000.0 - RESERVE_SECONDS)
    try:
        assert supervisor.run().exit_code == exits.STOPPED
        assert store.left["a-run/attempts/1/worker-0.json"] > SHORTEST_SECONDS
    finally:
        ended.set()


def test_no_question_to_a_silent_store_makes_a_worker_late_that_was_asked_to_stop(supervisor):
    attempt, ended = supervisor._attempt, threading.Event()
    attempt.lease = attempt._ledger.claim()
    attempt._ledger._store = SimpleNamespace(list=lambda prefix: ended.wait(), put=lambda *given: ended.wait())
    attempt.launcher.ends = lambda: KILLED
    stop_asked_for(supervisor._stop, seconds=999.0)
    try:
        assert attempt.close(stop_verdict(0, "SIGTERM")).exit_code == exits.KILLED
        assert attempt.seconds_left() == 0  # for the log, which comes last
    finally:
        ended.set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_supervisor_that_cannot_even_record_an_end_says_that_it_has_failed(supervisor, monkeypatch):
    monkeypatch.setattr(supervisor, "_prepare", lambda: Verdict(exits.DONE, None, "done", 0))
    monkeypatch.setattr(supervisor._attempt, "leave", lambda: {}["gone"])
    monkeypatch.setattr(supervisor._attempt.launcher, "ends", lambda: {}["gone"])
    monkeypatch.setattr("train_func.worker.supervisor.main.kill_descendants", lambda seconds: None)  # this test's own
    verdict = supervisor.run()
    assert (verdict.exit_code, unnamed(verdict.message, "supervisor")) == (exits.CODE, [])


def test_a_store_that_is_silent_at_the_end_is_told_as_one_without_an_answer(last_attempt, capsys):
    (attempt, _), ended = last_attempt, threading.Event()
    attempt._ledger._store = SimpleNamespace(list=lambda prefix: ended.wait(), put=lambda *given: ended.wait())
    stop_asked_for(attempt._stop, seconds=999.0)
    try:
        attempt.close(stop_verdict(0, "SIGTERM"))
        assert unnamed(capsys.readouterr().out, "no answer") == []
    finally:
        ended.set()


@pytest.mark.parametrize(
    ("run", "files", "is_told"),
    [(a_run(), {}, True), (a_run(), {"model": "trained"}, False), (Run(), {}, False)],
    ids=["a task and no files", "a task and files", "no task"],
)
def test_a_run_with_a_task_that_publishes_nothing_is_told_of(tmp_path, store, record, published, run, files, is_told):
    pending = Publication(tmp_path, store, replace(record, run=run), 1)
    if files:
        pending.add(writes(**files))
    pending.conclude(tmp_path / "output", ended({"loss": 1.0}))
    result, _ = published(pending)
    assert ("session.publish" in result.get("note", "")) == is_told
