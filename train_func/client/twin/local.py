"""Local: runs jobs on this machine, and finds them again from any process of it.

Nothing is kept in the object: every job lives in its folder and in its controller process, so that another kernel
sees the same. The environment is read here, once per call, and handed on.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train_func.client import manifest as manifests
from train_func.client.home import home
from train_func.client.observed import Condition, Event, Input, JobStatus, LogLine, Pod, WhyNot
from train_func.client.placement import Placement, memory_fault, whole_fault
from train_func.client.twin import admission, credentials, lock, logs, processes, rules, substitutes
from train_func.client.twin.folder import JobFolder
from train_func.client.twin.machine import Machine
from train_func.client.twin.record import moment, stamp
from train_func.client.twin.spec import Spec
from train_func.errors import InvalidInput, JobFailed, JobNotFound
from train_func.run import Run, RunRecord
from train_func.storage import Store

IMAGE = "train-func"  # this interpreter stands in for it
START_SECONDS = 30.0  # for a controller to accept a job, on a machine that is busy
LOOK_SECONDS = 0.3  # between two looks at a job that is waited for
END_SECONDS = 15.0  # for a controller to end, beyond the grace period of its pods


@dataclass(frozen=True, kw_only=True)
class Local:
    """This machine as a place for jobs; needs Linux, or WSL on Windows.

    Raises:
        InvalidInput: naming every option that cannot work, what it was and what it may be.
    """

    store: str | None = None
    """``file:///folder`` or ``s3://bucket/prefix``; default: TRAIN_FUNC_STORE, else a folder below TRAIN_FUNC_HOME."""
    cpu: int | None = None
    """Cores of each worker; default: those of this machine shared evenly."""
    memory: str | None = None
    """Memory at which a worker is killed, such as ``"4Gi"``; default: none."""
    gpu: int | None = None
    """GPUs of each worker; default: those of this machine shared evenly, none if there are fewer than workers."""

    def __post_init__(self) -> None:
        faults = [
            None if sys.platform == "linux" else f"Local() needs Linux, or WSL on Windows; this is {sys.platform}",
            whole_fault("cpu", self.cpu, 1) if self.cpu is not None else None,
            memory_fault(self.memory) if self.memory is not None else None,
            whole_fault("gpu", self.gpu, 0) if self.gpu is not None else None,
        ]
        if found := [fault for fault in faults if fault]:
            raise InvalidInput(found)

    def store_address(self) -> str:
        """Address of the store that runs here use."""
        if given := self.store or os.environ.get("TRAIN_FUNC_STORE"):
            return given
        home(os.environ).mkdir(parents=True, exist_ok=True)  # the folder above a store has to be there
        return f"file://{home(os.environ) / 'store'}"

    def models_folder(self) -> Path:
        """Where fetched models go by default."""
        return home(os.environ) / "models"

    def render(self, record: RunRecord, files: Sequence[str]) -> dict[str, Any]:
        """The PyTorchJob of a run for this machine; ``files`` are the names in its ConfigMap."""
        machine, workers = Machine.look(os.environ), record.run.workers
        placement = Placement(
            image=IMAGE,
            cpu=self.cpu or max(1, machine.cores // workers),
            memory=self.memory,
            gpu=len(machine.gpus) // workers if self.gpu is None else self.gpu,
            s3_endpoint=os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"),
            s3_region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        )
        return manifests.render(record, placement, files)

    def preflight(self, run: Run) -> None:
        """Raises InvalidInput with everything that would keep the run from starting on this machine."""
        manifest = self.render(manifests.provisional(run, self.store_address()), manifests.FILES)
        _refuse(manifest, Machine.look(os.environ))

    def carry(self, run: Run, inputs: Mapping[str, Input], store: Store) -> Run:
        """The run as it is: the workers read this machine's files where they lie."""
        return run

    def create(self, job_name: str, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Starts a job; one of that name that has ended is replaced, its logs stay readable.

        Args:
            files: contents of the ConfigMap that is named like the job.

        Raises:
            InvalidInput: the manifest cannot be executed here, or the job runs already.
        """
        machine = Machine.look(os.environ)
        _refuse(manifest, machine)
        folder = _folder(job_name)
        if (status := self.status(job_name)) and status.finished:
            self.cancel(job_name)  # the last of its pods may still be ending
        folder.root.mkdir(parents=True, exist_ok=True)
        with lock.hold(folder.root.parent / ".lock"):
            if folder.controlled():
                raise InvalidInput(
                    f"job {job_name} runs already, controlled by process {folder.pid.read_text()}: "
                    f"attach to it, cancel it, or submit with fresh=True"
                )
            _sweep(folder)
            folder.prepare(manifest, files, asdict(machine))
            _start_controller(folder, manifest)

    def status(self, job_name: str) -> JobStatus | None:
        """The job's state, or None when there is no such job here."""
        folder = _folder(job_name)
        controlled = folder.controlled()  # before reading: a controller writes its last status before it ends
        status = folder.read("status.json")
        if status is None:
            return None
        return JobStatus(
            conditions=tuple(_condition(found) for found in status["conditions"]),
            start_time=moment(status["startTime"]) if "startTime" in status else None,
            completion_time=moment(status["completionTime"]) if "completionTime" in status else None,
            interrupted=not rules.finished(status) and not controlled and not folder.controlled(),
        )

    def pods(self, job_name: str) -> list[Pod]:
        """Every incarnation of every worker, the deleted ones and those of earlier jobs too, oldest first."""
        folder = _folder(job_name)
        controlled = folder.controlled()
        return [record.observed(controlled=controlled) for record in folder.records()]

    def events(self, job_name: str) -> list[Event]:
        """All events, oldest first."""
        return [_event(found) for found in _folder(job_name).events()]

    def log_lines(self, job_name: str, *, follow: bool, worker: int | None = None) -> Iterator[LogLine]:
        """Lines of every incarnation from its first; with ``follow`` until the job has ended and all was read.

        Args:
            worker: only of this one.
        """
        return logs.lines(_folder(job_name), follow=follow, worker=worker)

    def await_change(self, job_name: str, seconds: float) -> None:
        """Returns when something about the job may have changed, or after so many seconds."""
        time.sleep(min(seconds, LOOK_SECONDS))  # a look here costs next to nothing

    def why_not(self, job_name: str) -> WhyNot | None:
        """Nothing: a job that this machine has no room for was refused at once."""
        return None

    def cancel(self, job_name: str) -> None:
        """Ends all processes of a job within its grace period; it then has Failed for the reason Cancelled.

        Raises:
            JobNotFound: there is no such job here.
            JobFailed: its controller does not end.
        """
        if self.status(job_name) is None:
            raise JobNotFound(f"this machine has no job {job_name!r} in {home(os.environ) / 'jobs'}")
        folder = _folder(job_name)
        folder.cancel.touch()
        _await_end(folder)
        _sweep(folder)
        _record_cancellation(folder)

    def delete(self, job_name: str) -> None:
        """Cancels a job and removes its folder with all logs; nothing happens when there is none."""
        if self.status(job_name) is not None:
            self.cancel(job_name)
        folder = _folder(job_name)
        if folder.root.exists():
            folder.retire()
            shutil.rmtree(folder.root)


def _refuse(manifest: Mapping[str, Any], machine: Machine) -> None:
    if faults := admission.faults(manifest):
        raise InvalidInput(faults)
    if faults := admission.capacity_faults(manifest, machine):
        raise InvalidInput(faults, cause="scheduling")


def _folder(job_name: str) -> JobFolder:
    if not admission.JOB_NAME.fullmatch(job_name):
        raise InvalidInput(f"{job_name!r} cannot be the name of a job: {admission.NAME_RULE}")
    return JobFolder(home(os.environ), job_name)


def _condition(found: Mapping[str, str]) -> Condition:
    changed = moment(found["lastTransitionTime"])
    return Condition(found["type"], found["status"], found["reason"], found["message"], changed)


def _event(found: Mapping[str, str]) -> Event:
    return Event(moment(found["time"]), found["type"], found["reason"], found["message"], found["object"])


def _start_controller(folder: JobFolder, manifest: Mapping[str, Any]) -> None:
    """Starts it in a session of its own, and returns when it has accepted the job."""
    environment = {
        **substitutes.image_environment(os.environ),
        **credentials.found(manifest, os.environ),
        "TRAIN_FUNC_HOME": str(folder.home),
        "TRAIN_FUNC_JOB": folder.root.name,
    }
    with folder.log.open("ab") as log:
        starting = subprocess.Popen(
            [sys.executable, "-P", "-m", "train_func.client.twin.controller", str(folder.root)],
            env=environment,
            cwd=folder.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    if starting.wait(timeout=START_SECONDS) != 0:
        last = "\n".join(folder.log.read_text(errors="replace").splitlines()[-5:])
        raise JobFailed(
            f"the controller of job {folder.root.name} did not start; {folder.log}:\n{last}", cause="unknown"
        )


def _await_end(folder: JobFolder) -> None:
    grace = Spec.of(folder.read("manifest.json")).pod.get("terminationGracePeriodSeconds", 30)
    end = time.monotonic() + grace + END_SECONDS
    while folder.controlled():
        if time.monotonic() > end:
            raise JobFailed(
                f"job {folder.root.name} did not end within {grace + END_SECONDS:.0f} s; "
                f"its controller is process {folder.pid.read_text()}, see {folder.log}",
                cause="unknown",
            )
        time.sleep(0.02)


def _sweep(folder: JobFolder) -> None:
    """Ends what is left of a job whose controller and shims were killed together, and waits until it is gone."""
    wanted = {"TRAIN_FUNC_JOB": folder.root.name, "TRAIN_FUNC_HOME": str(folder.home)}
    end = time.monotonic() + processes.KILL_SECONDS
    while (left := set(processes.of_environment(wanted)) - {os.getpid()}) and time.monotonic() < end:
        for pid in left:
            processes.send(pid, signal.SIGKILL)
        time.sleep(0.01)


def _record_cancellation(folder: JobFolder) -> None:
    """An interrupted job has no controller that could say that it was cancelled."""
    status = folder.read("status.json")
    if not rules.finished(status):
        message = f"{rules.KIND} {folder.root.name} was cancelled after its controller had died."
        rules.set_condition(status, "Failed", rules.CANCELLED, message, stamp())
        folder.write("status.json", status)
    folder.cancel.unlink(missing_ok=True)
