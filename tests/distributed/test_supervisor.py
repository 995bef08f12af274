"""Real supervisors with real ranks: how they end, what they leave behind, and what they never leave behind."""

import contextlib
import json
import os
import signal
import socket
import time

import psutil
import pytest

from tests.distributed.pods import PROMPT, seconds_until_gone
from tests.messages import unnamed
from train_func.storage import open_store
from train_func.wire.records import Verdict
from train_func.worker.supervisor.coordinator import Report, Status

MEET = """
def meet():
    import torch
    import torch.distributed as dist
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    return dist, total
"""
MEET_FOR_EVER = (
    MEET
    + """
def train_func(parameters):
    import os
    attempt = os.environ["TRAIN_FUNC_ATTEMPT"]
    dist, total = meet()
    print("training", flush=True)
    while True:
        dist.all_reduce(total)
"""
)


WAITS = """
def train_func(parameters):
    import time
    print("training", flush=True)
    time.sleep(600)
"""


def test_success_of_two_workers_with_two_ranks_each(job):
    source = MEET + (
        """
def train_func(parameters):
    import os, subprocess
    dist, total = meet()
    left_over = subprocess.Popen(["sleep", "600"], start_new_session=True)
    threads = os.environ["OMP_NUM_THREADS"]
    print(f"sum={int(total)} attempt={os.environ['TRAIN_FUNC_ATTEMPT']} threads={threads} child={left_over.pid}")
    print(f"epochs={parameters['epochs']}")
"""
    )
    made = job(source, workers=2, ranks=2, epochs=7).start()
    assert made.exit_codes() == [0, 0]
    for worker, pod in made.pods.items():
        record = made.end_record(1, worker)
        assert (record["exit_code"], record["cause"], record["pod"]) == (0, None, f"a-run-worker-{worker}")
        assert [(rank["rank"], rank["exit_code"], rank["error"]) for rank in record["ranks"]] == [
            (2 * worker, 0, None),
            (2 * worker + 1, 0, None),
        ]
        children = [pod.says(rf"^\[rank {2 * worker + i}\] sum=4 attempt=1 threads=1 child=(\d+)$")[1] for i in (0, 1)]
        assert not any(psutil.pid_exists(int(child)) for child in children)
        assert f"[rank {2 * worker}] epochs=7\n" in made.log(1, worker)
        assert pod.termination["attempt"] == 1
    assert made.pods[0].says(r"^attempt 1 .*1 of at most 3 attempts")


@pytest.mark.parametrize(("workers", "ranks"), [(1, 2), pytest.param(2, 1, marks=pytest.mark.slow)])
def test_an_exception_is_the_root_also_where_its_process_stays_and_the_peer_fails_first(job, workers, ranks):
    source = MEET + (
        """
import logging
import threading

class Stays(logging.Handler):
    def flush(self):
        threading.Event().wait()

def train_func(parameters):
    dist, total = meet()
    if dist.get_rank() == 1:
        logging.getLogger().addHandler(Stays())
        dist.destroy_process_group()
        mistyped
    while True:
        dist.all_reduce(total)
"""
    )
    made = job(source, workers=workers, ranks=ranks).start()
    assert made.exit_codes() == [70] * workers
    root = made.end_record(1, workers - 1)
    assert (root["cause"], root["ranks"][-1]["error"]["type"]) == ("code", "NameError")
    assert unnamed(made.pods[0].termination["message"], "rank 1", "NameError", "'mistyped'") == []


def test_a_job_is_ended_by_none_but_its_workers(job):
    """A pod of the same cluster knows where the workers meet, and the words that they use there."""
    source = """
def train_func(parameters):
    import os, time
    from pathlib import Path
    print("waits", flush=True)
    while not Path(os.environ["STRANGERS_DONE"]).exists():
        time.sleep(0.02)
    return {"GROUP_SECRET": os.environ.get("TRAIN_FUNC_GROUP_SECRET")}
"""
    made = job(source, workers=2)
    done = made.folder / "done"
    made.environment["STRANGERS_DONE"] = str(done)
    made.start()
    for worker in (0, 1):
        made.pods[worker].says(rf"^\[rank {worker}\] waits")
    verdict = Verdict(70, "code", "the function has failed", 1)
    report = Report(1, "a-run-worker-1", 1, Status.FAILED, verdict).to_json()
    with contextlib.ExitStack() as strangers:
        for hello in (b"", bytes(64), b"known to the workers alone", b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000):
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", made.port)))
            with contextlib.suppress(OSError):
                stranger.sendall(hello + len(report).to_bytes(4) + report)
        for _ in range(100):  # that stay and say nothing
            strangers.enter_context(socket.create_connection(("127.0.0.1", made.port)))
        done.touch()
        assert made.exit_codes() == [0, 0]
    assert json.loads(open_store(made.record.store).get("a-run/result.json").data)["returned"] == {"GROUP_SECRET": None}


def test_a_peer_that_waits_in_vain_is_told_that_the_other_failed(job):
    source = """
import os, sys, time
from pathlib import Path

def train_func(parameters):
    waits = Path(os.environ["RANK_1_WAITS"])
    if os.environ["RANK"] == "0":
        while not waits.exists():
            time.sleep(0.02)
        sys.exit(9)
    waits.touch()
    time.sleep(600)
"""
    made = job(source, workers=2)
    made.environment["RANK_1_WAITS"] = str(made.folder / "waits")
    assert made.start().exit_codes() == [9, 9]
    record = made.end_record(1, 1)
    assert record["cause"] == "peer"
    assert "sys.exit(9)" in record["message"]
    (rank,) = record["ranks"]
    assert (rank["rank"], rank["exit_code"], rank["error"]) == (1, 143, None)  # it was asked to end
    assert "time.sleep(600)" in rank["stopped_at"]


def test_of_an_attempt_nothing_lives_on_in_the_next_one_of_the_pod(job):
    source = """
def train_func(parameters):
    import random, subprocess
    import numpy, torch
    from datasets.fingerprint import generate_random_fingerprint
    from train_func.worker.rank import process_groups as process_group
    import os, signal
    drawn = [generate_random_fingerprint(), str(random.random()), str(numpy.random.rand())]
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    print("drawn", *drawn, child.pid, flush=True)
    if os.environ["TRAIN_FUNC_ATTEMPT"] == "1" and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""
    made = job(source, task=None, ranks=2).start()
    assert made.exit_codes() == [0]
    drawn = [line.split()[3:] for line in made.pods[0].output.splitlines() if "] drawn " in line]
    assert {len({of[place] for of in drawn}) for place in range(3)} == {len(drawn)}
    assert len(drawn) in (3, 4)  # rank 0 may have been ended before it came there
    assert not any(psutil.pid_exists(int(of[3])) for of in drawn)
    assert "Warning" not in made.pods[0].output


def test_a_killed_supervisor_takes_its_ranks_along_and_its_peer_follows(job):
    made = job(MEET_FOR_EVER, workers=2).start()
    made.pods[0].says(r"^\[rank 0\] training")
    processes = made.pods[0].descendants()
    made.pods[0].signal(signal.SIGKILL)
    assert len(processes) == 2  # the rank, and the template
    assert seconds_until_gone(processes) < PROMPT
    assert made.exit_codes() == [-signal.SIGKILL, 145]
    assert made.end_record(1, 1)["cause"] == "peer"


def test_the_supervisor_is_small_and_ranks_share_what_the_template_has_imported(job):
    made = job(MEET_FOR_EVER).start()
    made.pods[0].says(r"^\[rank 0\] training")
    (rank,) = made.pods[0].ranks()
    (template,) = [process for process in made.pods[0].descendants() if process != rank]
    supervisor = psutil.Process(made.pods[0].process.pid)
    assert supervisor.memory_info().rss < 60e6
    assert supervisor.num_threads() < 20
    assert template.num_threads() == 1
    assert rank.ppid() == supervisor.pid
    assert rank.memory_full_info().uss < template.memory_info().rss / 2


@pytest.mark.slow
def test_without_a_template_that_can_fork_ranks_start_as_programs(job):
    made = job(MEET_FOR_EVER.replace("while True", "while False"), ranks=2)
    (made.folder / "sitecustomize.py").write_text(
        "import os, threading\n"
        "if 'TRAIN_FUNC_TEMPLATE' in os.environ:\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    made.environment["PYTHONPATH"] = os.pathsep.join([str(made.folder), os.environ.get("PYTHONPATH", "")])
    assert made.start().exit_codes() == [0]
    assert made.pods[0].says("^ranks start as new programs: .*threads")


def test_a_stop_while_starting_while_meeting_and_while_training(job):
    made = job(WAITS, task=None, workers=2)
    made.start(0)
    made.pods[0].says("^worker 0 of 2 starts")
    made.pods[0].signal(signal.SIGTERM)
    assert made.exit_codes() == [143]
    assert made.end_record(1, 0)["cause"] == "preemption"

    made.start(0)
    made.pods[0].says("^worker 0 meets the others")
    made.pods[0].signal(signal.SIGTERM)
    assert made.exit_codes() == [143]
    assert made.end_record(2, 0)["ranks"] == []

    made.start(0, 1)  # neither stop counts against the three attempts
    made.pods[0].says("^attempt 3 starts again; .*3 of at most 5")
    made.pods[1].says(r"^\[rank 1\] training")
    made.pods[1].signal(signal.SIGTERM)
    assert made.exit_codes() == [145, 143]
    assert "SIGTERM" in made.end_record(3, 0)["message"]


def test_a_group_that_never_forms_costs_no_attempt_and_says_who_is_missing(job):
    made = job(WAITS, task=None, workers=3, max_attempts=1, environment={"PET_RDZV_CONF": "join_timeout=2"})
    assert made.start(0, 2).exit_codes() == [146, 146]
    records = [made.end_record(1, worker) for worker in (0, 2)]
    assert [(record["cause"], record["formed"]) for record in records] == [("peer", False)] * 2
    assert unnamed(records[0]["message"], "not there yet", "(1", "3 workers") == []  # worker 2 may find 0 gone by then
    assert made.start(0, 2).exit_codes() == [146, 146]


def test_a_stubborn_rank_is_killed_within_the_grace_period(job):
    source = """
import signal, subprocess, time

def train_func():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "600"])
    print("deaf", flush=True)
    while True:
        time.sleep(1)
"""
    made = job(source, grace=7).start()
    made.pods[0].says("deaf")
    processes = made.pods[0].descendants()
    assert len(processes) == 2
    start = time.monotonic()
    made.pods[0].signal(signal.SIGTERM)
    assert made.exit_codes() == [143]
    assert 2 <= time.monotonic() - start < PROMPT  # 2: the grace period less what is kept for records
    assert seconds_until_gone(processes) < PROMPT
    (rank,) = made.end_record(1, 0)["ranks"]
    assert (rank["exit_code"], rank["error"]) == (-signal.SIGKILL, None)


def test_attempts_are_used_up_also_by_pods_that_vanished(job):
    source = """
import os, signal, time

def train_func(parameters):
    if os.environ["TRAIN_FUNC_ATTEMPT"] == "1":
        print("alive", flush=True)
        time.sleep(600)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    made = job(source, max_attempts=2).start()
    made.pods[0].says("alive")
    made.pods[0].signal(signal.SIGKILL)
    assert made.exit_codes() == [-signal.SIGKILL]

    assert made.start().exit_codes() == [71]
    record = made.end_record(2, 0)
    assert record["cause"] == "killed"
    assert unnamed(record["message"], "2 of 2 attempts", "rank 0", "SIGKILL") == []

    made.submit_again("2026-11-21T12:00:00+00:00")
    assert made.start().exit_codes() == [71]
    assert [made.end_record(attempt, 0)["exit_code"] for attempt in (3, 4)] == [147, 71]
    made.pods[0].says("^attempt 3 starts again, number 1 since .*1 of at most 2")


GOES_AWAY = """
import pathlib, time

def train_func(parameters):
    store = pathlib.Path(parameters["folder"])
    store.rename(store.with_name("away"))
    print("the store is away", flush=True)
    while parameters["returns"] and not store.exists():
        time.sleep(0.05)
    return {"seen": 7}
"""


def goes_away(job, folder, *, returns):
    """A job whose store is in a folder that the function renames."""
    folder.mkdir()
    parameters = {"folder": str(folder), "returns": returns}
    return job(GOES_AWAY, store=(folder / "store").as_uri(), parameters=parameters).start()


def test_a_store_that_is_away_during_the_training_alone_ends_nothing(job, tmp_path):
    folder = tmp_path / "outer"
    made = goes_away(job, folder, returns=True)
    made.pods[0].says("the store is away")
    folder.with_name("away").rename(folder)
    assert made.exit_codes() == [0]
    assert json.loads((folder / "store" / made.record.keys.prefix / "result.json").read_text())["returned"] == {
        "seen": 7
    }


def test_a_store_that_is_gone_at_the_end_is_what_failed(job, tmp_path):
    made = goes_away(job, tmp_path / "outer", returns=False)
    assert made.exit_codes() == [69]
    assert made.pods[0].termination["cause"] == "storage"
    assert made.pods[0].says("the store failed at the end of this attempt")


def test_a_store_that_is_away_is_waited_for_until_the_worker_is_stopped(job):
    made = job(
        "raise SystemExit('this must not run')",
        store="s3://a-bucket/runs",
        environment={
            "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9",
            "AWS_ACCESS_KEY_ID": "stranger",
            "AWS_SECRET_ACCESS_KEY": "something",
        },
    ).start()
    made.pods[0].says("^waiting up to [0-9]+ s more for the store: .*127.0.0.1:9")
    made.pods[0].signal(signal.SIGTERM)
    assert made.exit_codes() == [143]
    assert made.pods[0].termination["attempt"] is None


@pytest.mark.parametrize(("workers", "ranks"), [pytest.param(2, 1, marks=pytest.mark.slow), (1, 2)])
def test_a_rank_that_leaves_with_code_0_in_mid_training_is_the_root(job, workers, ranks):
    source = MEET + (
        """
def train_func(parameters):
    import os
    dist, total = meet()
    for step in range(101):
        dist.all_reduce(total)
        if step == 7 and dist.get_rank() == 1:
            os._exit(0)
"""
    )
    made = job(source, workers=workers, ranks=ranks).start()
    assert made.exit_codes() == [70] * workers
    root = made.end_record(1, workers - 1)
    assert (root["cause"], root["root_cause"]) == ("code", True)
    assert unnamed(root["message"], "rank 1", "exit code 0") == []
    assert [rank["error"] for rank in root["ranks"]] == [None] * ranks
    assert unnamed(made.pods[0].termination["message"], "rank 1", "exit code 0") == []


def test_a_person_who_asks_is_shown_where_the_ranks_of_any_function_are_and_nothing_ends(job):
    source = """
def train_func(parameters):
    import time
    print("waits", flush=True)
    while True:
        time.sleep(0.05)
"""
    pod = job(source, ranks=2).start().pods[0]
    for rank in (0, 1):
        pod.says(rf"^\[rank {rank}\] waits")
    for count in (1, 2):
        pod.signal(signal.SIGQUIT)
        for rank in (0, 1):
            pod.says(rf"(?s)(^\[rank {rank} trace\] +File [^\n]*source.py[^\n]*in train_func$.*){{{count}}}")
    pod.signal(signal.SIGTERM)
    assert pod.exit_code() == 143
