"""A job that has ended without its result is explained from what is left of it, also when the store is away."""

import itertools
import json
import os
import re
import shlex
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import RecordedJob, a_record
from tests.stored_runs import put_checkpoint, put_submission
from train_func import Cluster, Local, TextClassification, attach
from train_func.client.cli.exit_codes import CODES, STORE_REFUSES, code_of
from train_func.client.diagnose import explain
from train_func.client.status import JobStatus
from train_func.client.stored_run import mark_cancelled
from train_func.client.watch import JobLooks
from train_func.errors import CAUSES
from train_func.storage import open_store
from train_func.wire.records import EndRecord, Failure, Lease, RankRecord


def explained(store, job="exit_1", **options):
    job = RecordedJob(job) if isinstance(job, str) else job
    return explain(a_record(**options), job, store, "attach(...).logs()")


def put_end(store, attempt=1, worker=0, **fields) -> None:
    end = {"ended": f"{attempt}{worker}", "exit_code": 1, "message": "", **fields}
    store.put(
        f"job-a/attempts/{attempt}/worker-{worker}.json", EndRecord(worker=worker, attempt=attempt, **end).to_json()
    )


def a_rank(number=0, code=1, stacks="", **fields) -> RankRecord:
    error = Failure(**{"type": "KeyError", "message": "'x'", "traceback": "", "time": "1", **fields})
    return RankRecord(rank=number, exit_code=code, error=error, stacks=stacks)


def ended_with(code: int, message: str) -> Callable[[RecordedJob], None]:
    """The container of worker 0 ended so, by its pod and by the operator's event."""

    def change(job: RecordedJob) -> None:
        (status,) = job.recorded["pods"][0]["status"]["containerStatuses"]
        status["state"]["terminated"] |= {"exitCode": code, "message": message}
        for event in job.recorded["events"]:
            if "exitCode: 1" in event["message"]:
                words = f"Error pod job-a-worker-0 container pytorch exitCode: {code} terminated message: {message}"
                event["message"] = words

    return change


def beside_one_that_follows(job: RecordedJob) -> None:
    """Worker 0 could not write down its end, and neither could worker 1, which had to end with it."""
    ended_with(74, supervisor(74, "storage", "No space left on device"))(job)
    other = json.loads(json.dumps(job.recorded["pods"][0]).replace("job-a-worker-0", "job-a-worker-1"))
    other["metadata"] |= {"uid": "1", "labels": {"training.kubeflow.org/replica-index": "1"}}
    (status,) = other["status"]["containerStatuses"]
    words = "stopped, because of worker 0: No space left on device"
    status["state"]["terminated"]["message"] = supervisor(74, "peer", words)
    job.recorded["pods"].append(other)


def supervisor(code: int, cause: str, message: str, attempt: int | None = None) -> str:
    return json.dumps({"format": 1, "attempt": attempt, "exit_code": code, "cause": cause, "message": message})


def cancelled(job: RecordedJob) -> None:
    for condition in job.recorded["job"]["status"]["conditions"]:
        condition["reason"] = "Cancelled" if condition["type"] == "Failed" else condition["reason"]


def interrupted(job: RecordedJob) -> None:
    job.status = lambda: JobStatus((), interrupted=True)


def without_pods(job: RecordedJob) -> None:
    job.without(pods=True)


def past_its_deadline(job: RecordedJob) -> None:
    job.recorded["job"] = RecordedJob("deadline").recorded["job"]


LOG = "worker 1 of 2 starts in job-a-worker-1\nworker 1 meets the others\n[rank 1] slow 0\n[rank 1] slow 1\n"
NO_PACKAGE = "python: Error while finding module specification (ModuleNotFoundError: No module named 'train_func')\n"
SPENT = "3 of 3 attempts made no progress"


def case(cause, words, recorded="exit_1", change=lambda job: None, ends=()):
    """What backend and store show; and the cause and the words that the error names."""
    words = words.split("; ")
    return pytest.param(recorded, change, ends, cause, words, id=f"{recorded} {cause} {words[0]}")


def end(cause, message, exit_code=71, **fields):
    return {"cause": cause, "message": message, "exit_code": exit_code, **fields}


GONE, ROOT = "out_of_memory", "worker 1, rank 1; KeyError"
CASES = [
    case("unknown", "worker 0 ended with exit code 1"),
    case("killed", "worker 0 was killed by SIGKILL\n", change=ended_with(137, LOG)),
    case("killed", "worker 0 was killed by SIGSEGV\n", change=ended_with(139, LOG)),
    case("killed", "worker 0 ended with exit code 147\n", change=ended_with(147, LOG)),
    case("hang", "worker 0 ended with exit code 148\n", change=ended_with(148, LOG)),
    case("storage", "exit code 73\n; the job that has taken over", change=ended_with(73, LOG)),
    case("storage", "worker 0 ended with exit code 144\n", change=ended_with(144, LOG)),
    case("unknown", "exit code 1: ImportError: no torch\n", change=ended_with(1, f"{LOG}ImportError: no torch\n")),
    case("storage", "worker 0; exit code 77; bad keys", change=ended_with(77, supervisor(77, "storage", "bad keys"))),
    case(
        "killed",
        f"worker 0 was killed by SIGKILL; {SPENT}",
        change=ended_with(137, LOG),
        ends=[end("peer", SPENT, worker=1)],  # which of the others it lost, it may not know
    ),
    case("storage", "worker 0 ended with exit code 74: No space", change=beside_one_that_follows),
    case("image", "ModuleNotFoundError; make image", change=ended_with(1, NO_PACKAGE)),
    case("cancelled", "submit again", change=cancelled),
    case("interrupted", "submit again", change=interrupted, ends=[end("preemption", "asked to stop", 143)]),
    case("code", "KeyError: 'x'; fix", change=interrupted, ends=[end("code", "", 70, ranks=(a_rank(),))]),
    case("deadline", "raise deadline=...", "deadline"),
    case("deadline", "86400 s; raise deadline=...", ends=[end("deadline", "not done after 86400 s", 72)]),
    case("deadline", "worker 0; Insufficient cpu", "unschedulable", past_its_deadline),
    case("memory", "worker 0; more memory", GONE, without_pods),
    case("memory", "worker 0; more memory", "child_out_of_memory"),
    case(
        "memory", SPENT, "child_out_of_memory", ended_with(71, supervisor(71, "memory", SPENT)), [end("memory", SPENT)]
    ),
    case("preemption", "worker 0 was evicted", "evicted"),
    case("storage", '"20Mi"; disk=...', "evicted_disk", without_pods),
    case("storage", f'"20Mi"; disk=...; {SPENT}', "evicted_disk", without_pods, [end("killed", SPENT)]),
    case("storage", f'"20Mi"; disk=...; {SPENT}', "evicted_disk", without_pods, [end("preemption", SPENT)]),
    case("code", "rank 0: KeyError", "evicted_disk", ends=[end("code", "rank 0: KeyError", 1)]),
    case("code", "KeyError: 'x'; worker 0, rank 0, attempt 1; fix", GONE, ends=[end("code", "", 1, ranks=(a_rank(),))]),
    # Who wrote down that the attempts are used up, and who wrote first, says nothing of whom it began with.
    case(
        "killed",
        f"worker 1, attempt 1; {SPENT}",
        ends=[end("killed", "", 147, worker=1), end("killed", SPENT, follows=1)],
    ),
    case("storage", ROOT, ends=[end("storage", SPENT, follows=1), end("storage", SPENT, worker=1, ranks=(a_rank(1),))]),
]


@pytest.mark.parametrize(("recorded", "change", "ends", "cause", "words"), CASES)
def test_the_first_failure_is_named_with_its_cause_and_what_to_do(store, recorded, change, ends, cause, words):
    job = RecordedJob(recorded)
    change(job)
    for fields in ends:
        put_end(store, **fields)
    error = explained(store, job)
    assert error.cause == cause
    assert [fact for fact in words if fact not in str(error)] == []
    assert [fact for fact in ("slow", "hello") if fact in str(error)] == []  # that is for the log
    assert str(error).count(SPENT) <= 1


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize(
    ("code", "helps"), [(74, False), (73, False), (65, False), (77, False), (144, True), (71, True), (72, True)]
)
def test_of_a_store_that_failed_a_job_the_exit_code_of_a_command_says_whether_the_same_again_may_help(
    store, code, helps, is_written
):
    job = RecordedJob("exit_1")
    if is_written:
        put_end(store, cause="storage", message="no space", exit_code=code)
    else:
        ended_with(code, supervisor(code, "storage", "no space"))(job)
    assert code_of(explained(store, job)) == (CODES["storage"] if helps else STORE_REFUSES)


def test_a_failure_that_its_worker_still_writes_down_is_waited_for(store, monkeypatch):
    """A job fails with the first worker that ends, and that may be one which only follows."""
    put_end(store, cause="peer", message="stopped, because of worker 1", exit_code=70, follows=1, root_cause=False)
    names, looks = store.list, []

    def list_later(prefix):
        looks.append(prefix)
        if len(looks) == 4:
            put_end(store, worker=1, cause="code", exit_code=70, ranks=(a_rank(1, 70),))
        return names(prefix)

    monkeypatch.setattr(store, "list", list_later)
    error = explained(store, workers=2)
    assert error.cause == "code"
    assert unnamed(error, "KeyError: 'x'", "worker 1, rank 1") == []


@pytest.mark.parametrize("cause", CAUSES)
def test_whatever_the_cause_the_error_says_what_to_do_next(store, cause):
    put_end(store, cause=cause, message="words of the worker")
    error = explained(store)
    assert error.cause == cause
    assert unnamed(error, "words of the worker", "next: ") == []


def test_a_record_of_another_format_hides_only_itself(store):
    put_end(store, message="the disk is full", cause="storage")
    store.put("job-a/attempts/1/worker-1.json", b'{"format": 99}')
    error = explained(store, workers=2)
    assert error.cause == "storage"
    assert unnamed(error, "the disk is full", "attempts/1/worker-1.json") == []


@pytest.mark.parametrize("left", ["nothing", "a result", "a model"])
def test_a_failure_after_publishing_says_that_the_model_is_there_and_whether_its_copy_is(store, left):
    put_end(store, cause="code", message="rank 1: ValueError: too late")
    keys = a_record().keys
    if left != "nothing":
        store.put(keys.result, b"{}")
    if left == "a model":
        store.put(f"{keys.model}/manifest.json", b"{}")
    told = str(explained(store))
    assert ("fetch" in told, "no step is done again" in told) == (left == "a model", left == "a result")
    assert "resume=" not in told


def test_a_store_that_is_away_hides_neither_the_cause_nor_itself(tmp_path):
    folder = tmp_path / "store"
    store = open_store(f"file://{folder}")
    folder.symlink_to(folder)  # answers as a dead mount does
    looks = JobLooks(a_record(), RecordedJob("child_out_of_memory"), store, Local())
    assert looks.wait(None, print) == "Failed"
    error = looks.failure("Failed")
    assert error.cause == "memory"
    assert unnamed(error, "store") == []


def test_a_fault_of_an_earlier_submission_is_not_that_of_the_newest(store):
    earlier, newest = "2026-11-21T13:00:00", "2026-11-21T14:00:00"
    put_end(store, cause="code", message="rank 0", ranks=(a_rank(),), submitted=earlier)
    put_submission(store, replace(a_record(), submitted=earlier))
    assert explained(store).cause == "code"
    put_submission(store, replace(a_record(), submitted=newest))
    assert explained(store).cause == "unknown"
    assert "KeyError" not in str(explained(store))


def test_a_job_that_is_gone_because_it_was_cancelled_is_said_to_be_cancelled(store):
    put_submission(store, a_record())
    put_end(store, cause="preemption", message="the worker was asked to stop by SIGTERM", exit_code=143)
    mark_cancelled(store, a_record().keys)
    job = RecordedJob("exit_1").without(pods=True, events=True)
    job.status = lambda: None
    assert explained(store, job).cause == "cancelled"


@pytest.mark.parametrize("is_earlier", [True, False])
def test_a_pod_that_had_gone_before_the_job_was_created_says_nothing_of_it(store, is_earlier):
    job = RecordedJob("exit_1")
    created, (pod,) = job.status().created, job.pods()
    gone = created + timedelta(hours=-1 if is_earlier else 1)
    job.pods = lambda: [replace(pod, uid="earlier", reason="OOMKilled", deleted=True, ended=gone), pod]
    assert explained(store, job).cause == ("unknown" if is_earlier else "memory")


def way_to_logs(error):
    (way,) = re.findall("the whole log: (.*)", str(error))
    return way


def test_in_a_notebook_the_way_to_the_whole_log_finds_the_job_by_its_name_and_shows_without_obeying(
    tmp_path, monkeypatch, shell
):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    store = open_store((tmp_path / "store").as_uri())
    record = replace(a_record(), store=store.address, name="job-0123456789ab")
    put_submission(store, record)
    store.put(record.keys.attempt(1).lease, Lease(attempt=1).to_json())
    store.put(record.keys.attempt(1).log(0), "[rank 0] grün\n[rank 0] 'quoted' \x1b[2J\rgone\n".encode())
    way = way_to_logs(JobLooks(record, RecordedJob("exit_1"), store, Local()).failure("Failed"))
    lines = eval(way, {"attach": attach, "job": "another run"})
    assert repr(lines).splitlines()[1:] == ["[worker 0] [rank 0] grün", "[worker 0] [rank 0] 'quoted' \\x1b[2J\\rgone"]
    assert [*lines][1:] == ["[worker 0] [rank 0] grün", "[worker 0] [rank 0] 'quoted' \x1b[2J\rgone"]


def test_elsewhere_the_way_to_the_whole_log_is_a_command_with_what_is_not_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    lines = {}
    for name in ("store", "data of us"):
        (tmp_path / name).mkdir()
        store = open_store((tmp_path / name).as_uri())
        record = replace(a_record(), store=store.address)
        error = JobLooks(record, RecordedJob("exit_1"), store, Local(store=store.address)).failure("Failed")
        lines[name] = shlex.split(way_to_logs(error))
    assert lines["store"] == ["python", "-m", "train_func", "logs", record.name]
    assert lines["data of us"][5:] == ["--on", "Local", "--store", record.store]


def test_the_command_for_a_run_of_a_cluster_finds_it_in_its_context_namespace_and_kind(store):
    cluster = Cluster(context="c", namespace="a", kind="TrainJob", store="s3://bucket/runs")
    command = shlex.split(JobLooks(a_record(), RecordedJob("exit_1"), store, cluster).how_to("watch"))
    where = ["--on", "Cluster", "--store", a_record().store]
    assert command[5:] == [*where, "--option", "context=c", "namespace=a", "kind=TrainJob"]


KNOWN_ERRORS = {
    "a GPU that is not there": ("RuntimeError", "Found no NVIDIA driver on your system", ["gpu=1", "session.device"]),
    "a torch without CUDA": ("AssertionError", "Torch not compiled with CUDA enabled", ["gpu=1", "session.device"]),
    "a question to nobody": ("EOFError", "EOF when reading a line", ["input()", "parameters="]),
    "a path of this machine": (
        "FileNotFoundError",
        "[Errno 2] No such file: '/data/a.csv'",
        ["inputs=", "TRAIN_FUNC_INPUT_DATA"],
    ),
}


@pytest.mark.parametrize(("kind", "message", "words"), KNOWN_ERRORS.values(), ids=KNOWN_ERRORS)
def test_an_error_that_no_change_of_its_line_helps_has_its_own_remedy(store, kind, message, words):
    put_end(store, cause="code", message="rank 0", ranks=(a_rank(code=70, type=kind, message=message),))
    (advice,) = re.findall("next: (.*)", str(explained(store)))
    assert unnamed(advice, *words, "submit again") == []


CELLS = {
    "function": "train",
    "sha256": "0",
    "pieces": [
        {"origin": "cell In[5]", "line": 1, "first": 1, "last": 2, "text": "def train():\n    helper()\n"},
        {"origin": "/lab/steps.py", "line": 7, "first": 3, "last": 4, "text": "def helper():\n    raise KeyError\n"},
    ],
}


def test_a_job_that_was_not_done_in_time_is_told_with_the_lines_at_which_its_ranks_were(store):
    put_submission(store, a_record(), cells=CELLS)
    frames = "".join(f'  File "/run/source.py", line {line}, in f\n' for line in (2, 4))
    ranks = [RankRecord(rank=number, exit_code=143, stopped_at=frames * number) for number in (0, 1)]
    put_end(store, cause="preemption", message="asked to stop by SIGTERM", exit_code=143, ranks=tuple(ranks))
    error = explained(store, "deadline")
    assert unnamed(error, "not done after", "rank 1 was in /lab/steps.py, line 8: `raise KeyError`") == []
    assert "rank 0 was" not in str(error)


@pytest.mark.parametrize(
    ("lines", "origin"),
    [([2], "cell In[5]"), ([2, 4], "/lab/steps.py"), ([], "the function")],
    ids=["cell", "file", "nowhere"],
)
def test_what_has_to_be_fixed_is_called_by_where_it_stands(store, lines, origin):
    frames = "".join(f'  File "/run/source.py", line {line}, in f\n' for line in lines)
    put_end(store, cause="code", message="rank 0: KeyError", ranks=(a_rank(traceback=frames),))
    put_submission(store, a_record(), cells=CELLS)
    (advice,) = re.findall("next: (.*)", str(explained(store)))
    assert unnamed(advice, origin) == []
    assert "cell" not in advice or origin == "cell In[5]"


def test_a_file_that_is_missing_by_a_relative_path_travels_as_an_input(store):
    missing = a_rank(
        code=70, type="FileNotFoundError", traceback='  File "/run/source.py", line 1, in f\n', missing_file="2026.csv"
    )
    put_end(store, cause="code", message="rank 0", ranks=(missing,))
    (advice,) = re.findall("next: (.*)", str(explained(store)))
    assert unnamed(advice, "'file_2026': '2026.csv'", "TRAIN_FUNC_INPUT_FILE_2026") == []


def test_a_variable_that_no_worker_has_is_given_by_the_backend(store):
    try:
        os.environ["NAME_OF_A_TEAM"]
    except KeyError as error:
        lacks = a_rank(code=70, type="KeyError", message=str(error), traceback=traceback.format_exc())
    put_end(store, cause="code", message="rank 0", ranks=(lacks,))
    (advice,) = re.findall("next: (.*)", str(explained(store)))
    assert unnamed(advice, "environment={'NAME_OF_A_TEAM':") == []


@pytest.mark.parametrize(
    ("kind", "message", "changes_the_run"),
    [("RuntimeError", "Found no NVIDIA driver on your system", False), ("ValueError", "of the function", True)],
)
def test_resume_is_named_only_where_the_remedy_makes_another_run(store, kind, message, changes_the_run):
    put_submission(store, a_record())
    put_checkpoint(store, a_record(), step=7)
    put_end(store, cause="code", message="rank 0", ranks=(a_rank(code=70, type=kind, message=message),))
    (advice,) = re.findall("next: (.*)", str(explained(store)))
    assert unnamed(advice, "after step 7") == []
    assert ("resume=" in advice) is changes_the_run


@pytest.mark.parametrize("waiting", [(0,), (0, 1)])
def test_a_hang_leads_with_the_one_rank_that_is_in_the_function_while_others_wait_in_an_exchange(store, waiting):
    own = '  File "/run/source.py", line 2 in train\n'
    stacks = {
        True: f'  File "/lib/torch/distributed/c10d.py", line 3 in all_reduce\n{own}',
        False: f'  File "/run/source.py", line 4 in helper\n{own}',
    }
    for worker in (0, 1):
        of = f"Current thread 0x2 (most recent call first):\n{stacks[worker in waiting]}"
        fields = {"exit_code": 71, "cause": "hang", "message": "no progress", "follows": 0 if worker else None}
        put_end(store, 1, worker, ranks=(a_rank(worker, -9, of),), root_cause=not worker, **fields)
    put_submission(store, a_record(), cells=CELLS)
    first = str(explained(store)).splitlines()[0]
    assert ("rank 1 is in /lab/steps.py, line 8: `raise KeyError`" in first) == (len(waiting) == 1)


@pytest.mark.parametrize(
    ("file", "named"), [("transformers/trainer.py", "max_grad_norm"), ("own_loop.py", "torch.nn.utils.clip_grad_norm_")]
)
def test_the_remedy_of_a_divergence_is_one_of_the_trainer_or_of_a_loop_of_ones_own(store, file, named):
    diverged = a_rank(type="InvalidInput", message="is nan", traceback=f'  File "/lib/{file}", line 1, in f\n')
    put_end(store, cause="divergence", message="rank 0", ranks=(diverged,))
    (advice,) = re.findall("next: (.*)", str(explained(store)))
    words = ["max_grad_norm", "torch.nn.utils.clip_grad_norm_"]
    assert [word in advice for word in words] == [word == named for word in words]


def test_what_helps_against_too_little_memory_depends_on_who_makes_the_batches(store):
    tasks = [None, TextClassification(model="m", dataset="d", text="t", label="l")]
    told = [str(explained(store, "out_of_memory", task=task)) for task in tasks]
    assert ["micro_batch_size" in error for error in told] == [False, True]


def stacks(line):
    """As faulthandler prints them: another thread, and the main one behind it."""
    other = 'Thread 0x1 (most recent call first):\n  File "/run/source.py", line 1 in train\n\n'
    frames = f'  File "/lib/torch/x.py", line 3 in wait\n  File "/run/source.py", line {line} in helper\n'
    return f"{other}Current thread 0x2 (most recent call first):\n{frames}"


@pytest.mark.parametrize("hangs", [1, None])
def test_a_hang_names_the_worker_of_a_rank_that_hangs_and_where_in_the_function_the_rank_was(store, hangs):
    """Worker 1, with rank 1, has found the hang, and worker 0 wrote down its end before."""
    lost = {"type": "RuntimeError", "message": "GLHF", "traceback": '  File "/run/source.py", line 1, in train\n'}
    for attempt, (worker, line) in itertools.product([2, 3], [(0, 2), (1, 4)]):
        fields = {"exit_code": 71, "cause": "hang", "message": "3 of 3 attempts", "hangs": hangs if attempt == 3 else 1}
        ranks = (a_rank(worker, -9, stacks(line), **lost),)
        follows = None if worker else 1
        put_end(store, attempt, worker, ranks=ranks, root_cause=worker == 1, follows=follows, **fields)
    put_submission(store, a_record(), cells=CELLS)
    error = explained(store)
    first, *lines = str(error).splitlines()
    assert "attempt 3" in first
    assert ("worker" in first) == (hangs is not None)  # else each may have waited for the others
    assert "GLHF" not in str(error)
    places = [line.strip() for line in lines if "line" in line]
    own = "rank 1 in /lab/steps.py, line 8: `raise KeyError`"
    assert places == ([own] if hangs else ["rank 0 in cell In[5], line 2: `helper()`", own])
