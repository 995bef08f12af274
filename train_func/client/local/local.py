"""Local: runs jobs on this machine, and finds them again from any process of it.

The object has no state: every job is in its folder and its controller process, so that another kernel sees the same.
"""

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from train_func.client.backend import BoundJob, Input, JobRequest
from train_func.client.job_spec import JobSpec, SecretKey
from train_func.client.local.job_folder import make_folder
from train_func.client.local.local_job import LocalJob, job_folders
from train_func.client.local.machine import Machine, capacity_faults, identity
from train_func.client.placement import Placement, environment_faults, job_spec, memory_fault
from train_func.errors import InvalidInput
from train_func.fields import NamedFields, whole_fault
from train_func.inputs import claim_of
from train_func.run import Run
from train_func.storage import Store, schemes_of
from train_func.text import counted
from train_func.wire.layout import home
from train_func.wire.records import RunRecord

if TYPE_CHECKING:
    from train_func.client.packages.inventory import Inventory

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
    """Cores of each worker; then any number of workers may start. Default: an even share of this machine."""
    memory: str | None = None
    """Memory at which a worker is killed, such as ``"4Gi"``. Default: no limit, for as many workers as should fit."""
    gpu: int | None = None
    """GPUs of each worker. Default: an even share of this machine, none if it has fewer GPUs than workers."""
    packages: Sequence[str] = ()
    """Requirements such as ``"scikit-learn==1.9.1"``: what this interpreter lacks travels with the run, as wheels."""
    environment: Mapping[str, str | SecretKey] = field(default_factory=dict)
    """Variables of the workers, without CUDA_VISIBLE_DEVICES; a SecretKey stands for the variable of that name here."""

    def __post_init__(self) -> None:
        if isinstance(folder := cast(object, self.store), Path):
            object.__setattr__(self, "store", folder.expanduser().absolute().as_uri())
        faults = [
            None if sys.platform == "linux" else f"Local() needs Linux, or WSL on Windows; this is {sys.platform}",
            whole_fault("cpu", self.cpu, 1) if self.cpu is not None else None,
            memory_fault(self.memory) if self.memory is not None else None,
            whole_fault("gpu", self.gpu, 0) if self.gpu is not None else None,
            *environment_faults(self.environment),
        ]
        if self.packages != ():
            from train_func.client.packages.requirements import requirement_faults

            faults += requirement_faults(self.packages)
        if faults := [fault for fault in faults if fault]:
            raise InvalidInput(faults)

    @property
    def found_by(self) -> Mapping[str, Any]:
        """Returns the store, if it was named."""
        return {"store": self.store} if self.store else {}

    @property
    def place(self) -> str:
        """Returns machine and home, by which any process finds the jobs."""
        return f"machine {socket.gethostname()}, TRAIN_FUNC_HOME {home(os.environ)}"

    @property
    def identity(self) -> Mapping[str, str]:
        mark = identity(home(os.environ))
        return {"home": mark} if mark else {}

    def store_address(self) -> str:
        if address := self.store or os.environ.get("TRAIN_FUNC_STORE"):
            return address
        make_folder(home(os.environ))  # the folder above a store has to be there
        return (home(os.environ) / "store").as_uri()

    def inventory(self) -> "Inventory | None":
        """Returns the packages of this interpreter, if the run brings packages that have to fit them."""
        if not self.packages:
            return None
        from train_func.client.packages.inventory import Inventory

        return Inventory.of_this_environment()

    def check(self, run: Run) -> None:
        """Raises InvalidInput with all reasons for which the run cannot start on this machine."""
        faults = []
        if lacking := [name for name in TRAINS_WITH if find_spec(name) is None]:
            from train_func.client.packages.inventory import pip_install

            faults.append(
                f"Local() trains on this machine, and {sys.executable} has no {' and no '.join(lacking)}: "
                f"{pip_install('local')}, or submit with on=Cluster()"
            )
        faults += [
            f"inputs[{name!r}]={address!r}: this machine has no claims; name a file or folder of this machine here, as "
            f"inputs={{{name!r}: '/data'}}, or submit with on=Cluster()"
            for name, address in run.inputs.items()
            if claim_of(address)
        ]
        faults += [
            f"environment[{name!r}]={value!r}: {name} is not set in this process, which has no Secrets; set os.environ"
            f"[{name!r}] before submit, or say optional=True"
            for name, value in self.environment.items()
            if isinstance(value, SecretKey) and not value.optional and name not in os.environ
        ]
        faults += [
            f"environment[{name!r}]={value!r}: Local() assigns GPUs to the workers; set os.environ[{name!r}] before "
            "submit to name those that it may assign"
            for name, value in self.environment.items()
            if name == "CUDA_VISIBLE_DEVICES"
        ]
        if faults:
            raise InvalidInput(faults)

    def adapt(self, run: Run) -> Run:
        """Returns the run unchanged."""
        return run

    def prepare(self, record: RunRecord, inputs: Mapping[str, Input], num_model_bytes: int, store: Store) -> Run:
        """Returns the run unchanged, because the workers read this machine's files directly.

        Raises:
            InvalidInput: this machine has no room for the workers now.
        """
        self.job(record.job_name).clear_away()
        machine, run = Machine.look(os.environ), record.run
        gpu = self._gpus_of_each(machine, run.workers)
        if faults := capacity_faults(
            run.workers, machine, num_model_bytes=num_model_bytes, cpu=self.cpu, memory=self.memory, gpu=gpu
        ):
            raise InvalidInput(faults, cause="scheduling")
        gpus = len(machine.gpus)
        if self.gpu is None and 0 < gpus < run.workers:
            print(f"note: {counted(gpus, 'GPU')} for {run.workers} workers: none is used; workers={gpus} would use all")
        if run.workers > machine.cores:
            print(
                f"note: {run.workers} workers share the {counted(machine.cores, 'core')} of this machine: "
                f"workers={machine.cores} trains as fast"
            )
        return run

    def request(self, record: RunRecord) -> JobRequest:
        """Returns the request for the job of a run on this machine; its manifest is the JobSpec."""
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
        spec = job_spec(record, placement)
        return JobRequest(spec.to_dict(), placement.options, self.found_by, spec.ranks)

    def submit(self, request: JobRequest) -> BoundJob:
        """Starts a job; it replaces an ended job of that name.

        Raises:
            RunsAlready: another process of this machine has started it.
        """
        spec = JobSpec.from_dict(request.manifest, "the job")
        job = self.job(spec.name)
        job.start(spec)
        return job

    def job(self, name: str) -> LocalJob:
        """Returns the handle of the job; raises InvalidInput if no job can have that name."""
        return LocalJob(name)

    def jobs(self) -> list[BoundJob]:
        return [self.job(folder.root.name) for folder in job_folders(home(os.environ) / "jobs")]

    def _gpus_of_each(self, machine: Machine, workers: int) -> int:
        return len(machine.gpus) // workers if self.gpu is None else self.gpu
