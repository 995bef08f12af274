"""A job that has ended without its result is explained from what is left of it, also when the store is away."""

import json
import re
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import RecordedJob, a_record
from train_func import Local, TextClassification, attach
from train_func.client.cli.job import LOGS
from train_func.client.diagnose import explain
from train_func.client.diagnose.incidents import incidents
from train_func.client.job import Job
from train_func.records import EndRecord, Failure, Lease, RankRecord
from train_func.storage import open_store


@pytest.fixture
def store(tmp_path: Path):
    return open_store(f"file://{tmp_path / 'store'}")


@pytest.fixture
def ended(store) -> Callable[..., None]:
    """Puts the end record of worker 0 in the store."""

    def put(attempt: int = 1, **fields: object) -> None:
        end = {"worker": 0, "attempt": attempt, "ended": f"{attempt}", "exit_code": 1, **fields}
        store.put(f"job-a/attempts/{attempt}/worker-0.json", EndRecord(**end).to_json())

    return put


def test_a_worker_that_left_no_record_is_told_by_its_exit_code_and_not_by_its_log(store):
    error = explain(a_record(), RecordedJob("exit_1"), store, "attach(...)")
    assert error.cause == "unknown"
    assert unnamed(error, "worker 0", "exit code 1") == []
    assert "hello" not in str(error)


KILLED_LOG = "worker 1 of 2 starts in job-a-worker-1\nworker 1 meets the others\n[rank 1] slow 0\n[rank 1] slow 1\n"
ENDS = [
    (137, KILLED_LOG, "killed", "worker 0 was killed by SIGKILL"),
    (139, KILLED_LOG, "killed", "worker 0 was killed by SIGSEGV"),
    (147, KILLED_LOG, "killed", "worker 0 ended with exit code 147"),
    (148, KILLED_LOG, "hang", "worker 0 ended with exit code 148"),
    (73, KILLED_LOG, "storage", "worker 0 ended with exit code 73"),
    (144, KILLED_LOG, "storage", "worker 0 ended with exit code 144"),
    (1, f"{KILLED_LOG}ImportError: no torch\n", "unknown", "worker 0 ended with exit code 1: ImportError: no torch"),
]


@pytest.mark.parametrize(("code", "log", "cause", "words"), ENDS)
def test_a_worker_that_could_say_nothing_is_told_by_signal_or_code_without_its_log(store, code, log, cause, words):
    job = RecordedJob("exit_1")
    (status,) = job.recorded["pods"][0]["status"]["containerStatuses"]
    status["state"]["terminated"] |= {"exitCode": code, "message": log}
    (event,) = (found for found in job.recorded["events"] if "exitCode: 1" in found["message"])
    event["message"] = f"Error pod job-a-worker-0 container pytorch exitCode: {code} terminated message: {log}"
    error = explain(a_record(), job, store, "attach(...)")
    assert error.cause == cause
    assert f"{words}\n" in str(error)
    assert "slow" not in str(error)
    while_it_runs = [found.diagnosis.cause for found in incidents(job.pods(), job.events())]
    assert while_it_runs == ([cause] if code > 128 else [])  # a final end is told when the job has failed


def test_a_cancelled_run_is_not_promised_to_go_on(store):
    job = RecordedJob("exit_1")
    for condition in job.recorded["job"]["status"]["conditions"]:
        condition["reason"] = "Cancelled" if condition["type"] == "Failed" else condition["reason"]
    assert "submit again" in str(explain(a_record(), job, store, "attach(...)"))


def test_what_the_supervisor_wrote_as_termination_message_is_read(store):
    job = RecordedJob("exit_1")
    said = {"format": 1, "attempt": None, "exit_code": 77, "cause": "storage", "message": "the keys are wrong"}
    (status,) = job.recorded["pods"][0]["status"]["containerStatuses"]
    status["state"]["terminated"] |= {"exitCode": 77, "message": json.dumps(said)}
    error = explain(a_record(), job, store, "attach(...)")
    assert error.cause == "storage"
    assert unnamed(error, "worker 0", "exit code 77", said["message"]) == []


def test_the_deadline_is_told_with_what_kept_the_workers_from_starting(store):
    assert explain(a_record(), RecordedJob("deadline"), store, "attach(...)").cause == "deadline"
    job = RecordedJob("unschedulable")
    job.recorded["job"] = RecordedJob("deadline").recorded["job"]
    error = explain(a_record(), job, store, "attach(...)")
    assert error.cause == "deadline"
    assert unnamed(error, "worker 0", "Insufficient cpu") == []


def test_a_worker_over_its_memory_is_told_even_when_its_pod_is_gone(store):
    error = explain(a_record(), RecordedJob("out_of_memory").without(pods=True), store, "attach(...)")
    assert error.cause == "memory"
    assert "more memory" in str(error)


def test_a_child_over_the_memory_of_its_worker_is_told(store):
    assert explain(a_record(), RecordedJob("child_out_of_memory"), store, "attach(...)").cause == "memory"


def test_a_worker_that_was_taken_away_is_told(store):
    assert explain(a_record(), RecordedJob("evicted"), store, "attach(...)").cause == "preemption"


@pytest.mark.parametrize("cause", ["killed", "preemption"])
def test_a_worker_that_was_evicted_for_its_disk_is_told_with_what_to_raise(store, ended, cause):
    job = RecordedJob("evicted_disk").without(pods=True)
    assert explain(a_record(), job, store, "attach(...)").cause == "storage"
    ended(exit_code=71, cause=cause, message="3 of 3 attempts")
    error = explain(a_record(), job, store, "attach(...)")
    assert error.cause == "storage"
    assert "disk='20Mi'" in str(error)
    assert "disk=..." in str(error)
    assert "3 of 3 attempts" in str(error)


def test_that_the_attempts_are_used_up_is_told_also_where_only_another_worker_has_written_it_down(store, ended):
    ended(worker=1, exit_code=147, cause="killed", message="rank 1 was killed by SIGKILL")
    ended(worker=0, exit_code=71, cause="killed", message="3 attempts have failed behind step 12", follows=1)
    error = explain(a_record(), RecordedJob("exit_1"), store, "attach(...)")
    assert error.cause == "killed"
    assert unnamed(error, "worker 1", "attempt 1", "3 attempts", "step 12") == []


def test_an_eviction_in_between_hides_no_fault_of_the_function(store, ended):
    ended(cause="code", message="rank 0: KeyError: 'x'")
    assert explain(a_record(), RecordedJob("evicted_disk"), store, "attach(...)").cause == "code"


def test_an_exception_on_record_comes_before_everything_else(store, ended):
    error = Failure("KeyError", "'x'", traceback="", time="1")
    ended(cause="code", message="rank 0: KeyError: 'x'", ranks=(RankRecord(rank=0, exit_code=1, error=error),))
    told = explain(a_record(), RecordedJob("out_of_memory"), store, "attach(...)")
    assert told.cause == "code"
    assert "KeyError: 'x'" in str(told)


@pytest.mark.parametrize("left", ["nothing", "a result", "a model"])
def test_a_failure_after_publishing_says_that_the_model_is_there_and_whether_its_copy_is(store, ended, left):
    ended(cause="code", message="rank 1: ValueError: too late")
    keys = a_record().keys
    if left != "nothing":
        store.put(keys.result, b"{}")
    if left == "a model":
        store.put(f"{keys.model}/manifest.json", b"{}")
    told = str(explain(a_record(), RecordedJob("exit_1"), store, "attach(...)"))
    assert ("job.fetch()" in told, "no step is done again" in told) == (left == "a model", left == "a result")
    assert "resume=" not in told


def test_a_store_that_is_away_hides_neither_the_cause_nor_itself(tmp_path):
    folder = tmp_path / "store"
    store = open_store(f"file://{folder}")
    folder.rmdir() if folder.exists() else None
    folder.write_text("no folder any more")
    error = explain(a_record(), RecordedJob("child_out_of_memory"), store, "attach(...)")
    assert error.cause == "memory"
    assert unnamed(error, "store") == []


EARLIER, NEWEST = "2026-11-21T13:00:00", "2026-11-21T14:00:00"


def test_a_fault_of_an_earlier_submission_is_not_that_of_the_newest(store, ended):
    error = Failure("ValueError", "'x'", traceback="", time="1")
    ended(
        cause="code",
        message="rank 0: ValueError",
        ranks=(RankRecord(rank=0, exit_code=1, error=error),),
        submitted=EARLIER,
    )
    store.put("job-a/run.json", json.dumps({"submitted": EARLIER}).encode())
    assert explain(a_record(), RecordedJob("exit_1"), store, "attach(...)").cause == "code"
    store.put("job-a/run.json", json.dumps({"submitted": NEWEST}).encode())
    told = explain(a_record(), RecordedJob("exit_1"), store, "attach(...)")
    assert told.cause == "unknown"
    assert unnamed(told, "worker 0", "exit code 1") == []
    assert "ValueError" not in str(told)


def test_an_image_without_this_package_is_named_as_the_fault(store):
    job = RecordedJob("exit_1")
    (status,) = job.recorded["pods"][0]["status"]["containerStatuses"]
    said = "/usr/local/bin/python: Error while finding module specification for 'train_func.worker' "
    status["state"]["terminated"] |= {"message": f"{said}(ModuleNotFoundError: No module named 'train_func')\n"}
    error = explain(a_record(), job, store, "attach(...)")
    assert error.cause == "image"
    assert "ModuleNotFoundError" in str(error)
    assert "make image" in str(error)


def test_what_pod_and_record_both_say_of_the_memory_is_said_once(store, ended):
    said = {"attempt": 1, "exit_code": 71, "cause": "memory", "message": "3 of 3 attempts made no progress"}
    job = RecordedJob("child_out_of_memory")
    (status,) = job.recorded["pods"][0]["status"]["containerStatuses"]
    status["state"]["terminated"]["message"] = json.dumps(said)
    ended(cause="memory", exit_code=71, message=said["message"])
    assert str(explain(a_record(), job, store, "attach(...)")).count(said["message"]) == 1


def way_to_logs(error):
    (way,) = re.findall("the whole log: (.*)", str(error))
    return way


def test_in_a_notebook_the_way_to_the_whole_log_finds_the_job_by_its_name_and_shows_without_obeying(
    tmp_path, monkeypatch, shell
):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    store = open_store((tmp_path / "store").as_uri())
    record = replace(a_record(), store=store.address, name="job-0123456789ab")
    job = Job(record, Local(), store)
    store.put(record.keys.run, json.dumps(record.to_dict()).encode())
    store.put(record.keys.attempt(1).lease, Lease(attempt=1).to_json())
    log = "[rank 0] grün\n[rank 0] 'quoted' \x1b[2J\rgone\n"
    store.put(record.keys.attempt(1).log(0), log.encode())
    way = way_to_logs(explain(record, RecordedJob("exit_1"), store, job.attach_expression))
    lines = eval(way, {"attach": attach, "job": "another run"})
    assert repr(lines).splitlines()[1:] == ["[worker 0] [rank 0] grün", "[worker 0] [rank 0] 'quoted' \\x1b[2J\\rgone"]
    assert [*lines][1:] == ["[worker 0] [rank 0] grün", "[worker 0] [rank 0] 'quoted' \x1b[2J\rgone"]


@pytest.mark.parametrize("backend", ["", "Cluster"])
def test_elsewhere_the_way_to_the_whole_log_is_a_command(store, backend):
    record = replace(a_record(), store="file:///data of us/store")
    interpreter, *line = shlex.split(way_to_logs(explain(record, RecordedJob("exit_1"), store, "attach(...)", backend)))
    assert (interpreter, line[:2]) == ("python", ["-m", "train_func"])
    found = Namespace()
    parser = ArgumentParser()
    LOGS.add_arguments(parser)
    parser.parse_args(line[3:], found)
    assert (line[2], found.name, found.store) == ("logs", record.name, record.store)
    assert found.on == (backend or "Local")


CELLS = {
    "function": "train",
    "sha256": "0",
    "pieces": [
        {"origin": "cell In[5]", "line": 1, "first": 1, "last": 2, "text": "def train():\n    helper()\n"},
        {"origin": "/lab/steps.py", "line": 7, "first": 3, "last": 4, "text": "def helper():\n    raise KeyError\n"},
    ],
}


@pytest.mark.parametrize(
    ("lines", "origin"),
    [([2], "cell In[5]"), ([2, 4], "/lab/steps.py"), ([], "the function")],
    ids=["cell", "file", "nowhere"],
)
def test_what_has_to_be_fixed_is_called_by_where_it_stands(store, ended, lines, origin):
    traceback = "".join(f'  File "/run/source.py", line {line}, in f\n' for line in lines)
    error = Failure("KeyError", "'x'", traceback=traceback, time="1")
    ended(cause="code", message="rank 0: KeyError", ranks=(RankRecord(rank=0, exit_code=1, error=error),))
    store.put(a_record().keys.cells, json.dumps(CELLS).encode())
    (advice,) = re.findall("next: (.*)", str(explain(a_record(), RecordedJob("exit_1"), store, "attach(...)")))
    assert unnamed(advice, origin) == []
    assert "cell" not in advice or origin == "cell In[5]"


@pytest.fixture
def missing(store, ended, tmp_path, monkeypatch):
    """What is advised when rank 0 found no file of this name, called from a file beside which it may lie."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    script = tmp_path / "scripts" / "misc.py"
    script.parent.mkdir()
    script.touch()
    piece = {"origin": str(script), "line": 1, "first": 1, "last": 1, "text": "read()\n"}

    def advice(name):
        error = Failure(
            "FileNotFoundError", name, traceback='  File "/run/source.py", line 1, in f\n', time="1", missing_file=name
        )
        ended(cause="code", message="rank 0", ranks=(RankRecord(rank=0, exit_code=70, error=error),))
        store.put(a_record().keys.cells, json.dumps({"pieces": [piece]}).encode())
        (found,) = re.findall("next: (.*)", str(explain(a_record(), RecordedJob("exit_1"), store, "attach(...)")))
        return found

    return advice


def test_a_file_that_is_missing_by_a_relative_path_travels_as_an_input(missing, tmp_path):
    assert unnamed(missing("my reviews.csv"), "'my_reviews': 'my reviews.csv'", "TRAIN_FUNC_INPUT_MY_REVIEWS") == []
    for folder in (tmp_path / "scripts", tmp_path / "here"):
        beside = folder / "2026.csv"
        beside.touch()
        seen = beside if folder.name == "scripts" else beside.name
        assert unnamed(missing("2026.csv"), f"'file_2026': '{seen}'", "TRAIN_FUNC_INPUT_FILE_2026") == []
        assert missing("2026.csv").count(str(seen)) == 2


def test_what_helps_against_too_little_memory_depends_on_who_makes_the_batches(store):
    tasks = [None, TextClassification(model="m", dataset="d", text="t", label="l")]
    told = [str(explain(a_record(task=task), RecordedJob("out_of_memory"), store, "attach(...)")) for task in tasks]
    assert ["micro_batch_size" in error for error in told] == [False, True]


def stacks(line, of="helper"):
    """As faulthandler prints them: another thread, and the main one behind it."""
    other = 'Thread 0x1 (most recent call first):\n  File "/run/source.py", line 1 in train\n\n'
    frames = f'  File "/lib/torch/x.py", line 3 in wait\n  File "/run/source.py", line {line} in {of}\n'
    return f"{other}Current thread 0x2 (most recent call first):\n{frames}"


def put_hang(store, attempt, hangs):
    """Worker 1, with rank 1, has found the hang, and worker 0 wrote down its end before."""
    fields = {"attempt": attempt, "exit_code": 71, "cause": "hang", "message": "3 of 3 attempts", "hangs": hangs}
    for worker, line in ((0, 2), (1, 4)):
        lost = Failure("RuntimeError", "GLHF", traceback='  File "/run/source.py", line 1, in train\n', time="1")
        ranks = (RankRecord(rank=worker, exit_code=-9, error=lost, stacks=stacks(line)),)
        other = {"root_cause": worker == 1, "follows": None if worker else 1, "ended": f"{worker}"}
        end = EndRecord(worker=worker, ranks=ranks, **fields, **other)
        store.put(f"job-a/attempts/{attempt}/worker-{worker}.json", end.to_json())


def test_the_error_of_the_worker_it_began_in_is_told_although_a_follower_wrote_its_end_down_before(store):
    error = Failure("KeyError", "'x'", traceback="", time="1")
    for worker, ranks in ((0, ()), (1, (RankRecord(rank=1, exit_code=71, error=error),))):
        fields = {"exit_code": 71, "cause": "storage", "message": "3 of 3 attempts", "follows": None if worker else 1}
        end = EndRecord(worker=worker, attempt=3, ended=f"{worker}", ranks=ranks, root_cause=worker == 1, **fields)
        store.put(f"job-a/attempts/3/worker-{worker}.json", end.to_json())
    assert (
        unnamed(explain(a_record(), RecordedJob("exit_1"), store, "attach(...)"), "worker 1, rank 1", "KeyError") == []
    )


@pytest.mark.parametrize("hangs", [1, None])
def test_a_hang_names_the_worker_it_began_in_and_where_in_the_function_the_rank_was(store, hangs):
    put_hang(store, 2, 1)
    put_hang(store, 3, hangs)
    store.put(a_record().keys.cells, json.dumps(CELLS).encode())
    error = explain(a_record(), RecordedJob("exit_1"), store, "attach(...)")
    first, *lines = str(error).splitlines()
    assert unnamed(first, "worker 1", "attempt 3") == []
    assert "GLHF" not in str(error)
    places = [line.strip() for line in lines if "line" in line]
    own = "rank 1 in /lab/steps.py, line 8: `raise KeyError`"
    assert places == ([own] if hangs else ["rank 0 in cell In[5], line 2: `helper()`", own])
