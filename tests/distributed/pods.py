"""Supervisors as processes of this machine, each with the environment that its pod would have."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil

from tests.job_folder import write_job_folder
from tests.local_jobs import until
from train_func.storage import open_store
from train_func.wire import events
from train_func.wire.records import SubmissionRecord

LIMIT = 300  # seconds; only a hang comes near it
PROMPT = 30.0  # seconds for what takes no time by itself, on a busy machine; without it ranks would sleep for 600


class Job:
    """The pods of one run whose function is ``source``; a pod that is started again is a new process."""

    def __init__(
        self, folder, source, *, workers=1, min_workers=None, ranks=1, grace=10, store=None, environment=(), **fields
    ):
        self.folder = folder
        self.num_workers = workers
        self.min_workers = min_workers or workers
        self.ranks = ranks
        self.grace = grace
        self.environment = dict(environment)
        self.pods = {}
        self.started = []
        address = store or (folder / "store").as_uri()
        submitted = address.startswith("file://")  # another store is away
        self.record = write_job_folder(
            folder / "job",
            source,
            store=address,
            submitted=submitted,
            workers=workers,
            min_workers=min_workers,
            **fields,
        )
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, *workers):
        """Starts these workers, or all of them."""
        for worker in workers or range(self.num_workers):
            work = self.folder / f"pod-{worker}-{len(self.started)}"
            work.mkdir()
            self.pods[worker] = Pod(self._environment(worker, work), work)
            self.started.append(self.pods[worker])
        return self

    def submit_again(self, time):
        """Writes the submission anew, as made at this time."""
        store, key = open_store(self.record.store), self.record.keys.submission(1)
        before = SubmissionRecord.from_json(store.get(key).data, key)
        store.put(key, replace(before, run=replace(before.run, submitted=time)).to_json())

    def exit_codes(self):
        """Of the pods started last, in the order of workers; waits for their ends."""
        return [self.pods[worker].exit_code() for worker in sorted(self.pods)]

    def end_record(self, attempt, worker):
        store = open_store(self.record.store)
        return json.loads(store.get(f"{self.record.keys.prefix}/attempts/{attempt}/worker-{worker}.json").data)

    def log(self, attempt, worker):
        store = open_store(self.record.store)
        return store.get(f"{self.record.keys.prefix}/attempts/{attempt}/worker-{worker}.log").data.decode()

    def _environment(self, worker, work):
        return {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "TRAIN_FUNC_SUBMISSION": self.record.keys.submission(1),
            "TRAIN_FUNC_WORK_DIR": str(work),
            "TMPDIR": str(work / "tmp"),
            "TRAIN_FUNC_CACHE_DIR": str(self.folder / "cache"),
            "TRAIN_FUNC_TERMINATION_FILE": str(work / "termination"),
            "TRAIN_FUNC_STORE": self.record.store,
            "TRAIN_FUNC_WORKER": str(worker),
            "TRAIN_FUNC_POD": f"a-run-worker-{worker}",
            "TRAIN_FUNC_CPUS": "2",
            "TRAIN_FUNC_GRACE_SECONDS": str(self.grace),
            "TRAIN_FUNC_GROUP_SECRET": "known to the workers alone",
            "PET_NNODES": f"{self.min_workers}:{self.num_workers}",
            "PET_NPROC_PER_NODE": str(self.ranks),
            "PET_RDZV_ENDPOINT": f"127.0.0.1:{self.port}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ID": self.record.job_name,
            "PET_RDZV_CONF": "join_timeout=300",
            "PET_MAX_RESTARTS": "0",
            **self.environment,
        }


class Pod:
    """One supervisor, and what it and its ranks said."""

    def __init__(self, environment, work):
        self.work = work
        self._output = work / "output"
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "train_func.worker", "run"],
                env=environment,
                cwd=Path(__file__).parents[2],
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    @property
    def output(self):
        """As a person reads it."""
        return "\n".join(events.readable(line) for line in self._output.read_text().split("\n"))

    @property
    def termination(self):
        return json.loads((self.work / "termination").read_text())

    def says(self, pattern):
        """Waits until a line matches; returns the match."""
        end = time.monotonic() + LIMIT

        def match():
            has_ended, output = self.process.poll() is not None, self.output
            found = re.search(pattern, output, re.MULTILINE)
            assert found or not has_ended, f"ended without saying {pattern!r}:\n{output}"
            assert found or time.monotonic() < end, f"did not say {pattern!r}:\n{output}"
            return found

        return until(match, pattern, 2 * LIMIT)

    def signal(self, number):
        self.process.send_signal(number)

    def descendants(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def ranks(self):
        return [process for process in self.descendants() if process.name().startswith("rank ")]

    def exit_code(self):
        try:
            return self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            raise AssertionError(f"still running after {LIMIT} s:\n{self.output}") from None


def seconds_until_gone(processes):
    """How long the processes still ran; a dead one that is not reaped yet is gone."""
    start = time.monotonic()
    while any(is_alive(process) for process in processes):
        assert time.monotonic() - start < LIMIT
        time.sleep(0.02)
    return time.monotonic() - start


def is_alive(process):
    """A dead process that is not reaped yet is not."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
