"""Local: runs jobs on this machine, and finds them again from any process of it.

Nothing is kept in the object: every job lives in its folder and in its controller process, so that another kernel
sees the same. The environment is read here, once per call, and handed on.
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from train_func import lock
from train_func.client.backend import BoundJob, Input, RunsAlready, Submission, provisional
from train_func.client.extras import pip_install
from train_func.client.kinds.pod import FILES
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.packages.inventory import Inventory
from train_func.client.packages.wheels import requirement_faults
from train_func.client.placement import Placement, SecretKey, environment_faults, memory_fault
from train_func.client.twin import room, start_and_end
from train_func.client.twin.capacity import capacity_faults
from train_func.client.twin.folder import JobFolder
from train_func.client.twin.local_job import LocalJob, folder_of
from train_func.client.twin.machine import Machine, identity
from train_func.errors import InvalidInput
from train_func.fields import NamedFields, whole_fault
from train_func.inputs import claim_of
from train_func.layout import home
from train_func.records import RunRecord
from train_func.run import Run
from train_func.storage import Store, schemes_of
from train_func.text import counted

IMAGE = "train-func"  # this interpreter stands in for it
TRAINS_WITH = ("torch", "accelerate")  # the extra `local`


@dataclass(frozen=True, kw_only=True)
class Local(NamedFields):
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
    packages: Sequence[str] = ()
    """Requirements such as ``"scikit-learn==1.9.1"``: what this interpreter lacks travels with the run, as wheels."""
    environment: Mapping[str, str | SecretKey] = field(default_factory=dict)
    """Further variables of the workers: plain values; a SecretKey stands for the variable of that name here."""

    def __post_init__(self) -> None:
        if isinstance(given := cast(object, self.store), Path):
            object.__setattr__(self, "store", given.expanduser().absolute().as_uri())
        faults = [
            None if sys.platform == "linux" else f"Local() needs Linux, or WSL on Windows; this is {sys.platform}",
            whole_fault("cpu", self.cpu, 1) if self.cpu is not None else None,
            memory_fault(self.memory) if self.memory is not None else None,
            whole_fault("gpu", self.gpu, 0) if self.gpu is not None else None,
            *requirement_faults(self.packages),
            *environment_faults(self.environment),
        ]
        if found := [fault for fault in faults if fault]:
            raise InvalidInput(found)

    @property
    def found_by(self) -> Mapping[str, Any]:
        """The store, if it was named."""
        return {"store": self.store} if self.store else {}

    @property
    def place(self) -> str:
        """Any process of this machine with this home finds its jobs."""
        return f"machine {socket.gethostname()}, TRAIN_FUNC_HOME {home(os.environ)}"

    @property
    def identity(self) -> Mapping[str, str]:
        own = identity(home(os.environ))
        return {"home": own} if own else {}

    def store_address(self) -> str:
        if given := self.store or os.environ.get("TRAIN_FUNC_STORE"):
            return given
        home(os.environ).mkdir(parents=True, exist_ok=True)  # the folder above a store has to be there
        return (home(os.environ) / "store").as_uri()

    def models_folder(self) -> Path:
        return home(os.environ) / "models"

    def inventory(self) -> Inventory | None:
        """What this interpreter has, where packages have to fit it."""
        return Inventory.of_this_environment() if self.packages else None

    def check(self, run: Run) -> None:
        """Raises InvalidInput with everything that would keep the run from starting on this machine."""
        if lacking := [name for name in TRAINS_WITH if find_spec(name) is None]:
            raise InvalidInput(
                f"Local() trains on this machine, and {sys.executable} has no {' and no '.join(lacking)}: "
                f"{pip_install('local')}, or submit with on=Cluster()"
            )
        if claims := [name for name, address in run.inputs.items() if claim_of(address)]:
            raise InvalidInput(
                [
                    f"inputs[{name!r}]={run.inputs[name]!r}: this machine has no claims; name a file or folder of this "
                    f"machine here, as inputs={{{name!r}: '/data'}}, or submit with on=Cluster()"
                    for name in claims
                ]
            )
        self._check_secrets()
        machine = Machine.look(os.environ)
        record = provisional(run, self.store_address())
        _refuse(self.submission(record, FILES).manifest, machine)
        gpus = len(machine.gpus)
        if self.gpu is None and 0 < gpus < run.workers:
            print(f"note: {counted(gpus, 'GPU')} for {run.workers} workers: none is used; workers={gpus} would use all")

    def adapted(self, run: Run) -> Run:
        """The run as it is."""
        return run

    def prepare(self, record: RunRecord, inputs: Mapping[str, Input], num_model_bytes: int, store: Store) -> Run:
        """The run as it is: the workers read this machine's files where they lie.

        Raises:
            InvalidInput: this machine has no room for the workers now.
        """
        start_and_end.clear_away(folder_of(record.job_name))
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
        return run

    def submission(self, record: RunRecord, files: Sequence[str]) -> Submission:
        machine, workers = Machine.look(os.environ), record.run.workers
        read = schemes_of([record.store, *record.run.inputs.values()])
        placement = Placement(
            image=IMAGE,
            cpu=self.cpu or max(1, machine.cores // workers),
            memory=self.memory,
            gpu=self._gpus_of_each(machine, workers),
            store_settings={n: v for scheme in read for n, v in scheme.worker_settings(os.environ).items()},
            environment=self.environment,
        )
        manifest = PYTORCHJOB.render(record, placement, files)
        return Submission(manifest, placement.options, self.found_by, placement.ranks, frozenset(os.environ))

    def submit(self, submission: Submission, files: Mapping[str, bytes]) -> BoundJob:
        """Starts a job; one of that name that has ended is replaced, its logs stay readable.

        Raises:
            InvalidInput: this machine has less than the job asks for.
            RunsAlready: another process of this machine has started it.
        """
        manifest = submission.manifest
        _refuse(manifest, Machine.look(os.environ))
        folder = folder_of(manifest["metadata"]["name"])
        for other in folder.root.parent.glob("[a-z]*"):
            start_and_end.forget_expired(JobFolder(folder.home, other.name))
        start_and_end.clear_away(folder)
        folder.root.mkdir(parents=True, exist_ok=True)
        with lock.hold(folder.root.parent / ".lock"):
            if folder.controlled():
                raise RunsAlready(
                    f"job {folder.root.name} runs already, controlled by process {folder.pid.read_text()}: "
                    f"attach to it, or cancel it first"
                )
            start_and_end.sweep(folder)
            folder.prepare(manifest, files)
            start_and_end.start(folder, manifest)
        return self.job(folder.root.name)

    def job(self, name: str) -> LocalJob:
        """The job of that name; raises InvalidInput when no job can have it."""
        folder_of(name)
        return LocalJob(name)

    def jobs(self) -> list[BoundJob]:
        found = (self.job(folder.name) for folder in sorted((home(os.environ) / "jobs").glob("[a-z]*")))
        return [job for job in found if job.status() is not None]

    def _check_secrets(self) -> None:
        if missing := [
            f"environment[{name!r}]={value!r}: {name} is not set in this process, which has no Secrets; set os.environ"
            f"[{name!r}] before submit, or say optional=True"
            for name, value in self.environment.items()
            if isinstance(value, SecretKey) and not value.optional and name not in os.environ
        ]:
            raise InvalidInput(missing)

    def _gpus_of_each(self, machine: Machine, workers: int) -> int:
        return len(machine.gpus) // workers if self.gpu is None else self.gpu


def _refuse(manifest: Mapping[str, Any], machine: Machine) -> None:
    if faults := capacity_faults(manifest, machine):
        raise InvalidInput(faults, cause="scheduling")
