"""Small jobs for tests of Local(): the JobSpec of a run, with a program of the test as the command."""

import contextlib
import os
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from train_func import Local
from train_func.client.backend import JobRequest
from train_func.client.job_spec import JobSpec, SecretKey
from train_func.client.logs import is_read
from train_func.client.placement import Placement, job_spec
from train_func.client.status import JobStatus
from train_func.client.watch import looks
from train_func.run import Run
from train_func.wire.records import RunRecord

LIMIT_SECONDS = 120.0  # only a hang comes near it
# Between two looks. The longer one takes, the rarer they are: the cores are for what is waited for.
SHORTEST_PAUSE, LONGEST_PAUSE, PAUSE_PER_LOOK = 0.02, 0.5, 9
Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str = "what is waited for", seconds: float = LIMIT_SECONDS) -> Found:
    """Waits until the condition gives something true, and returns that."""
    end = time.monotonic() + seconds
    while True:
        begun = time.thread_time()
        if found := condition():
            return found
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        pause = PAUSE_PER_LOOK * (time.thread_time() - begun)
        time.sleep(min(LONGEST_PAUSE, max(SHORTEST_PAUSE, pause)))


def processes(**wanted: str) -> list[int]:
    """Processes of this machine, but this one, that were started with these variables; zombies have none."""
    entries = {f"{name}={value}".encode() for name, value in wanted.items()}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = set((process / "environ").read_bytes().split(b"\0"))
        except OSError:
            continue
        if entries <= environment and int(process.name) != os.getpid():
            found.append(int(process.name))
    return found


def links_into(folder: Path) -> list[Path]:
    """Short names for folders below this one; those of other jobs come and go meanwhile."""
    links = []
    for link in Path("/tmp").glob("train-func-*/job"):
        with contextlib.suppress(OSError):  # gone by now, or a folder of another user
            if link.readlink().is_relative_to(folder):
                links.append(link)
    return links


@contextlib.contextmanager
def full_disk(room: int = 0) -> Iterator[None]:
    """What this process writes behind the first bytes of a file fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def worker_spec(
    code: str,
    *,
    name: str,
    workers: int = 2,
    memory: str | None = None,
    gpu: int = 0,
    grace: int = 2,
    environment: dict[str, str | SecretKey] | None = None,
    store: str = "file:///srv/store",
    **others: Any,
) -> JobSpec:
    """A job whose workers run a Python program; ``others`` are fields of the JobSpec."""
    record = RunRecord(run=Run(workers=workers), name=name, generation=1, store=store, function="f", source_sha256="0")
    placement = Placement(image="i", cpu=1, memory=memory, gpu=gpu, grace_seconds=grace, environment=environment or {})
    return replace(job_spec(record, placement), **{"command": ("python", "-u", "-c", code), **others})


class Jobs:
    """Starts jobs in a home of their own and looks at them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.backend = Local()

    def start(self, code: str, *, name: str = "job-a", **shape: Any) -> str:
        self.backend.submit(JobRequest(worker_spec(code, name=name, **shape).to_dict(), {}, {}))
        return name

    def ended(self, name: str = "job-a", seconds: float = LIMIT_SECONDS) -> JobStatus:
        """Waits until the job has finished and its controller is gone."""
        folder = self.backend.job(name).folder  # a process has no environment before it lets go of its lock
        what = f"end of {name}\n{self.controller_log(name)}"
        until(lambda: not self.processes(name) and not folder.is_controlled(), what, seconds)
        status = self.backend.job(name).status()
        assert status is not None
        assert status.finished, self.controller_log(name)
        return status

    def controller_log(self, name: str = "job-a") -> str:
        return (self.home / "jobs" / name / "controller.log").read_text()

    def text(self, name: str = "job-a", worker: int | None = None) -> list[str]:
        lines = lines_of(self.backend.job(name))
        return [line.text for line in lines if worker in (None, line.worker)]

    def processes(self, name: str) -> list[int]:
        return processes(TRAIN_FUNC_HOME=str(self.home), TRAIN_FUNC_JOB=name)

    def controller(self, name: str = "job-a") -> int:
        return int((self.home / "jobs" / name / "controller.pid").read_text())


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Afterwards no process, no link and no folder of any job is left."""
    home = tmp_path / "home"
    for variable in ("TRAIN_FUNC_STORE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(home))
    found = Jobs(home)
    yield found
    for job in found.backend.jobs():
        job.delete()
    until(lambda: not processes(TRAIN_FUNC_HOME=str(home)), "no process left")
    assert not found.backend.jobs()
    assert links_into(home) == []


def lines_of(job, *, follow=False):
    """What its pods have written, as a caller that looks again and again gets it."""
    for snapshot in looks(job):
        yield from snapshot.lines
        over = snapshot.status is None or (snapshot.status.finished and is_read(snapshot))
        if not snapshot.has_more and (over or not follow):
            return
