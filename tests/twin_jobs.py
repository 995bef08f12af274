"""Small jobs for tests of the twin: the real manifest of a run, with a program of the test as the command."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import pytest

from train_func import Local
from train_func.client.backend import Submission
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.placement import Placement, SecretKey
from train_func.client.status import JobStatus, Pod
from train_func.client.twin.folder import JobFolder
from train_func.records import RunRecord
from train_func.run import Run

LIMIT_SECONDS = 120.0  # only a hang comes near it
Found = TypeVar("Found")


def until(condition: Callable[[], Found], what: str, seconds: float = LIMIT_SECONDS) -> Found:
    """Waits until the condition gives something true, and returns that."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.02)
    return found


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
    """Short names of the twin for folders below this one; those of other jobs come and go meanwhile."""
    found = []
    for link in Path("/tmp").glob("train-func-*"):
        with contextlib.suppress(OSError):  # gone by now, or a folder of another user
            if link.readlink().is_relative_to(folder):
                found.append(link)
    return found


def worker_manifest(
    code: str,
    *,
    name: str,
    workers: int = 2,
    memory: str | None = None,
    grace: int = 2,
    policy: dict[str, Any] | None = None,
    environment: dict[str, str | SecretKey] | None = None,
    store: str = "file:///srv/store",
) -> dict[str, Any]:
    """A job whose workers run a Python program; ``policy`` replaces fields of the runPolicy."""
    record = RunRecord(
        run=Run(workers=workers),
        name=name,
        generation=1,
        store=store,
        function="f",
        source_sha256="0",
    )
    placement = Placement(image="i", cpu=1, memory=memory, grace_seconds=grace, environment=environment or {})
    job = PYTORCHJOB.render(record, placement, ["run.json"])
    container_of(job)["command"] = ["python", "-u", "-c", code]
    job["spec"]["runPolicy"] |= policy or {}
    return job


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    return container


class Jobs:
    """Starts jobs in a home of their own and looks at them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.backend = Local()

    def start(self, code: str, *, name: str = "job-a", files: dict[str, bytes] | None = None, **shape: Any) -> str:
        self.create(worker_manifest(code, name=name, **shape), files or {"run.json": b"{}"})
        return name

    def create(self, job: dict[str, Any], files: dict[str, bytes]) -> None:
        self.backend.submit(Submission(job, {}, {}), files)

    def ended(self, name: str = "job-a", seconds: float = LIMIT_SECONDS) -> JobStatus:
        """Waits until the job has finished and its controller is gone."""
        folder = JobFolder(self.home, name)  # a process has no environment any more before it lets go of its lock
        what = f"end of {name}\n{self.controller_log(name)}"
        until(lambda: not self.processes(name) and not folder.controlled(), what, seconds)
        status = self.backend.job(name).status()
        assert status is not None
        assert status.finished, self.controller_log(name)
        return status

    def conditions(self, name: str = "job-a") -> list[str]:
        """Every set of conditions that held, in order, as the controller logged them."""
        lines = self.controller_log(name).splitlines()
        told = (json.loads(line.split(" conditions ")[1]) for line in lines if " conditions [" in line)
        held = (" ".join(kind for kind, status, *_ in conditions if status == "True") for conditions in told)
        return [holding for holding, _ in groupby(held)]

    def moment(self, which: str, name: str = "job-a") -> datetime | None:
        """The startTime or completionTime of its status."""
        told = JobFolder(self.home, name).read("status.json").get(which)
        return datetime.fromisoformat(told) if told else None

    def controller_log(self, name: str = "job-a") -> str:
        return (self.home / "jobs" / name / "controller.log").read_text()

    def text(self, name: str = "job-a", worker: int | None = None) -> list[str]:
        lines = self.backend.job(name).logs(follow=False)
        return [line.text for line in lines if worker in (None, line.worker)]

    def processes(self, name: str) -> list[int]:
        return processes(TRAIN_FUNC_HOME=str(self.home), TRAIN_FUNC_JOB=name)

    def controller(self, name: str = "job-a") -> int:
        return int((self.home / "jobs" / name / "controller.pid").read_text())


def first_end(jobs: Jobs, name: str = "job-a") -> Pod:
    """Waits until a pod has ended, which may have been replaced by then, and returns it."""

    def ended() -> list[Pod]:
        return [pod for pod in jobs.backend.job(name).pods() if pod.exit_code is not None]

    return until(ended, f"end of a pod of {name}")[0]


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jobs]:
    """Afterwards no process, no link and no folder of any job is left."""
    home = tmp_path / "home"
    for variable in ("TRAIN_FUNC_STORE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(home))
    found = Jobs(home)
    yield found
    for folder in (home / "jobs").glob("[a-z]*"):
        found.backend.job(folder.name).delete()
    until(lambda: not processes(TRAIN_FUNC_HOME=str(home)), "no process left")
    assert not list((home / "jobs").glob("[a-z]*"))
    assert links_into(home) == []
