"""Local: runs jobs on this machine, and finds them again from any process of it.

Nothing is kept in the object: every job lives in its folder and in its controller process, so that another kernel
sees the same. The environment is read here, once per call, and handed on.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from train_func import lock
from train_func.client import manifest as manifests
from train_func.client.backend import Input, RunsAlready
from train_func.client.placement import Placement, memory_fault, whole_fault
from train_func.client.status import Condition, Event, JobStatus, LogLine, Pod, SchedulingReport
from train_func.client.twin import admission, logs, room, rules, start_and_end
from train_func.client.twin.folder import JobFolder
from train_func.client.twin.machine import Machine
from train_func.client.twin.record import moment
from train_func.counted import counted
from train_func.errors import InvalidInput, JobNotFound
from train_func.home import home
from train_func.records import RunRecord
from train_func.run import Run
from train_func.storage import Store, scheme_of

IMAGE = "train-func"  # this interpreter stands in for it
LOOK_SECONDS = 0.3  # between two looks at a job that is waited for


@dataclass(frozen=True, kw_only=True)
class Local:
    """This machine as a backend for jobs; needs Linux, or WSL on Windows.

    Raises:
        InvalidInput: naming every option that cannot work, what it was and what it may be.
    """

    store: str | None = None
    """``file:///folder``, its Path, or ``s3://bucket/prefix``: TRAIN_FUNC_STORE, else a folder in TRAIN_FUNC_HOME."""
    cpu: int | None = None
    """Cores of each worker, and then any number of workers; default: those of this machine shared evenly."""
    memory: str | None = None
    """Memory at which a worker is killed, such as ``"4Gi"``; default: none, for as many workers as should fit."""
    gpu: int | None = None
    """GPUs of each worker; default: those of this machine shared evenly, none if there are fewer than workers."""

    def __post_init__(self) -> None:
        if isinstance(given := cast(object, self.store), Path):
            object.__setattr__(self, "store", given.expanduser().absolute().as_uri())
        faults = [
            None if sys.platform == "linux" else f"Local() needs Linux, or WSL on Windows; this is {sys.platform}",
            whole_fault("cpu", self.cpu, 1) if self.cpu is not None else None,
            memory_fault(self.memory) if self.memory is not None else None,
            whole_fault("gpu", self.gpu, 0) if self.gpu is not None else None,
        ]
        if found := [fault for fault in faults if fault]:
            raise InvalidInput(found)

    @property
    def constructor_repr(self) -> str:
        """As a person writes it; empty for the default."""
        return f"on=Local(store={self.store!r})" if self.store else ""

    def other_backend(self, manifest: Mapping[str, Any]) -> str:
        """The cluster that a manifest was made for; one made for a machine names no namespace."""
        there = manifest["metadata"].get("namespace")
        return f"on=Cluster(namespace={there!r})" if there else ""

    def store_address(self) -> str:
        """Address of the store that runs here use."""
        if given := self.store or os.environ.get("TRAIN_FUNC_STORE"):
            return given
        home(os.environ).mkdir(parents=True, exist_ok=True)  # the folder above a store has to be there
        return (home(os.environ) / "store").as_uri()

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
            gpu=self._gpus_of_each(machine, workers),
            store_settings=scheme_of(record.store).worker_settings(os.environ),
        )
        return manifests.render(record, placement, files)

    def preflight(self, run: Run) -> None:
        """Raises InvalidInput with everything that would keep the run from starting on this machine."""
        machine = Machine.look(os.environ)
        _refuse(self.render(manifests.provisional(run, self.store_address()), manifests.FILES), machine)
        gpus = len(machine.gpus)
        if self.gpu is None and 0 < gpus < run.workers:
            print(f"note: {counted(gpus, 'GPU')} for {run.workers} workers: none is used; workers={gpus} would use all")

    def admit(self, record: RunRecord, num_model_bytes: int) -> None:
        """Raises InvalidInput when this machine has no room for the workers now."""
        start_and_end.clear_away(_folder(record.job_name))
        machine, run = Machine.look(os.environ), record.run
        gpu = self._gpus_of_each(machine, run.workers)
        if fault := room.fault(
            run, machine, num_model_bytes=num_model_bytes, cpu=self.cpu, memory=self.memory, gpu=gpu
        ):
            raise InvalidInput(fault, cause="scheduling")
        if words := room.note(self.memory):
            print(words)
        if run.workers > machine.cores:
            print(
                f"note: {run.workers} workers share the {counted(machine.cores, 'core')} of this machine: "
                f"workers={machine.cores} trains as fast"
            )

    def upload_inputs(self, run: Run, inputs: Mapping[str, Input], store: Store) -> Run:
        """The run as it is: the workers read this machine's files where they lie."""
        return run

    def create(self, job_name: str, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Starts a job; one of that name that has ended is replaced, its logs stay readable.

        Args:
            files: contents of the ConfigMap that is named like the job.

        Raises:
            InvalidInput: the manifest cannot be executed here.
            RunsAlready: somebody else was quicker.
        """
        machine = Machine.look(os.environ)
        _refuse(manifest, machine)
        folder = _folder(job_name)
        for other in folder.root.parent.glob("[a-z]*"):
            start_and_end.forget_expired(JobFolder(folder.home, other.name))
        start_and_end.clear_away(folder)
        folder.root.mkdir(parents=True, exist_ok=True)
        with lock.hold(folder.root.parent / ".lock"):
            if folder.controlled():
                raise RunsAlready(
                    f"job {job_name} runs already, controlled by process {folder.pid.read_text()}: "
                    f"attach to it, or cancel it first"
                )
            start_and_end.sweep(folder)
            folder.prepare(manifest, files, asdict(machine))
            start_and_end.start(folder, manifest)

    def status(self, job_name: str) -> JobStatus | None:
        """The job's state, or None when there is no such job here, or none any more: it has expired."""
        folder = _known(job_name)
        controlled = folder.controlled()  # before reading: a controller writes its last status before it ends
        status = folder.read("status.json")
        if status is None or folder.expired():
            return None
        return JobStatus(
            conditions=tuple(_condition(found) for found in status["conditions"]),
            start_time=moment(status["startTime"]) if "startTime" in status else None,
            completion_time=moment(status["completionTime"]) if "completionTime" in status else None,
            interrupted=not rules.finished(status) and not controlled and not folder.controlled(),
        )

    def pods(self, job_name: str) -> list[Pod]:
        """Every incarnation of every worker, the deleted ones and those of earlier jobs too, oldest first."""
        folder = _known(job_name)
        controlled = folder.controlled()
        return [record.observed(controlled=controlled) for record in folder.records()]

    def events(self, job_name: str) -> list[Event]:
        """All events, oldest first."""
        return [_event(found) for found in _known(job_name).events()]

    def log_lines(
        self,
        job_name: str,
        *,
        follow: bool,
        worker: int | None = None,
        note: Callable[[str], object] = print,
        stop: threading.Event | None = None,
    ) -> Iterator[LogLine]:
        """Lines of every incarnation from its first; with ``follow`` until the job has ended and all was read.

        Args:
            worker: only of this one.
            note: is never told anything: all workers of this machine are followed.
            stop: ends the following when it is set.
        """
        return logs.lines(_known(job_name), follow=follow, worker=worker, stop=stop or threading.Event())

    def last_lines(self, job_name: str, pods: Sequence[Pod]) -> Mapping[str, str]:
        """The last line that each of these running pods has written, by its uid."""
        return logs.last_lines(_known(job_name), {pod.uid for pod in pods})

    def outage(self, job_name: str) -> InvalidInput | None:
        """Nothing: this machine can always be asked."""
        return None

    def await_change(self, job_name: str, seconds: float) -> None:
        """Returns when something about the job may have changed, or after ``seconds``."""
        time.sleep(min(seconds, LOOK_SECONDS))  # a look here costs next to nothing

    def suspend(self, job_name: str, suspended: bool = True) -> None:
        """Changes ``spec.runPolicy.suspend`` of a job and returns: its pods go, or come again, as soon as that is seen.

        Raises:
            JobNotFound: there is no such job here, or nobody controls it any more.
        """
        folder = self._controlled(job_name)
        with lock.hold(folder.root.parent / ".lock"):
            manifest = folder.read("manifest.json")
            manifest["spec"].setdefault("runPolicy", {})["suspend"] = suspended
            folder.write("manifest.json", manifest)

    def delete_pod(self, job_name: str, pod_name: str) -> None:
        """Asks for the deletion of a worker's pod and returns; what then becomes of the job is the operator's matter.

        Raises:
            JobNotFound: there is no such job or pod here, or nobody controls it any more.
        """
        folder = self._controlled(job_name)
        existing = {record.name: record.uid for record in folder.records() if not record.deleted}
        if pod_name not in existing or not folder.controlled():
            raise JobNotFound(f"no pod {pod_name!r} of job {job_name} runs; it has: {', '.join(existing) or 'none'}")
        (folder.deletions / existing[pod_name]).touch()

    def scheduling_report(self, job_name: str) -> SchedulingReport | None:
        """Nothing: a job that this machine has no room for was refused at once."""
        return None

    def cancel(self, job_name: str) -> None:
        """Ends all processes of a job within its grace period; it then has Failed for the reason Cancelled.

        Raises:
            JobNotFound: there is no such job here.
            JobFailed: its controller does not end.
        """
        if self.status(job_name) is None:
            raise _not_found(job_name)
        start_and_end.end(_folder(job_name))

    def delete(self, job_name: str) -> None:
        """Cancels a job and removes its folder with all logs; nothing happens when there is none."""
        folder = _known(job_name)
        if folder.read("status.json") is not None:
            start_and_end.end(folder)
        if folder.root.exists():
            folder.remove()

    def _gpus_of_each(self, machine: Machine, workers: int) -> int:
        return len(machine.gpus) // workers if self.gpu is None else self.gpu

    def _controlled(self, job_name: str) -> JobFolder:
        """The folder of a job that changes still reach."""
        status = self.status(job_name)
        if status is None:
            raise _not_found(job_name)
        if status.interrupted:
            raise JobNotFound(f"job {job_name} was interrupted: nobody controls it; submit the run again to go on")
        return _folder(job_name)


def _not_found(job_name: str) -> JobNotFound:
    return JobNotFound(f"this machine has no job {job_name!r} in {home(os.environ) / 'jobs'}")


def _refuse(manifest: Mapping[str, Any], machine: Machine) -> None:
    if faults := admission.faults(manifest):
        raise InvalidInput(faults)
    if faults := admission.capacity_faults(manifest, machine):
        raise InvalidInput(faults, cause="scheduling")


def _folder(job_name: str) -> JobFolder:
    if not admission.JOB_NAME.fullmatch(job_name):
        raise InvalidInput(f"{job_name!r} cannot be the name of a job: {admission.NAME_RULE}")
    return JobFolder(home(os.environ), job_name)


def _known(job_name: str) -> JobFolder:
    """The folder of a job, which is empty when it has expired."""
    folder = _folder(job_name)
    start_and_end.forget_expired(folder)
    return folder


def _condition(found: Mapping[str, str]) -> Condition:
    changed = moment(found["lastTransitionTime"])
    return Condition(found["type"], found["status"], found["reason"], found["message"], changed)


def _event(found: Mapping[str, str]) -> Event:
    return Event(moment(found["time"]), found["type"], found["reason"], found["message"], found["object"])
