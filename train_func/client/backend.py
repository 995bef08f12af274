"""What every backend can do: where jobs execute, this machine or a cluster; and the backends there are, by name.

Another one is a module of its own, and one line in ``BACKENDS`` or one call of ``register``.
"""

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from train_func.client.status import JobStatus, Snapshot
from train_func.errors import InvalidInput
from train_func.run import Run, name_of
from train_func.storage import Store
from train_func.wire.records import RunRecord

if TYPE_CHECKING:
    from train_func.client.kinds.kind import Operator
    from train_func.client.packages.inventory import Inventory

# The modules that have them; each is loaded when it is first used.
BACKENDS = {"Local": "train_func.client.local.local", "Cluster": "train_func.client.cluster.cluster"}
DEFAULT = "Local"  # of a submission that names none
OF_COMMANDS = frozenset(BACKENDS)  # one that is registered is known in this process alone


@dataclass(frozen=True)
class Input:
    """Files of this machine that a run reads: a file, or those of a folder that belong to it."""

    path: Path
    files: Mapping[str, str]
    """SHA-256 of each, by its name from the folder that ``path`` lies in."""
    sha256: str
    """The SHA-256 of all their names and bytes."""


class RunsAlready(InvalidInput):
    """Another client has started a job of that name at the same moment."""


def runs_already(job: str, theirs: str, ours: str) -> InvalidInput:
    """Returns the error for a job that has the name of a new one: RunsAlready if both runs are in the same store.

    Args:
        job: its name, and where it is.
        theirs: address of the store that its run is in.
        ours: address of the store of the new run.
    """
    if theirs == ours:
        return RunsAlready(f"job {job} runs already: attach to it, or cancel it first")
    return InvalidInput(
        f"job {job} runs already, of the same run in another store, {theirs}, and this is {ours}: attach to it with "
        f"store={theirs!r}, or cancel it there first"
    )


@dataclass(frozen=True)
class JobRequest:
    """A job as a backend executes it, and the options that decided that."""

    manifest: Mapping[str, Any]
    """The job as the backend executes it, plain JSON."""
    options: Mapping[str, Any]
    """The options by name, as plain JSON values."""
    found_by: Mapping[str, Any]
    """Options that lead to the job from anywhere, with those that the backend takes from its surroundings here."""
    ranks_per_worker: int = 1


def provisional(run: Run, store: str) -> RunRecord:
    """A record for a run that has no name yet, to judge by its job whether a backend could execute it."""
    name = name_of(run, function="run", source_sha256="", fingerprints={})
    return RunRecord(run=run, name=name, generation=1, store=store, function="run", source_sha256="")


class BoundJob(Protocol):
    """One job of a backend by its name, whether it is there or not."""

    pause: float
    """Seconds between two looks."""

    @property
    def name(self) -> str:
        """The name of the job."""

    @property
    def operator(self) -> "Operator | None":
        """What executes the job, where that is a program of a cluster."""

    def status(self) -> JobStatus | None:
        """The job's state, or None when there is no such job."""

    def look(self, since: Snapshot | None = None, *, worker: int | None = None, with_logs: bool = True) -> Snapshot:
        """Returns what the job shows now, with the log lines that came after the look ``since``.

        Without ``since`` the lines begin with the first, and a backend that does not answer raises InvalidInput.

        Args:
            since: the look before.
            worker: read only the log of this one; without it a backend may leave out workers of a large job.
            with_logs: read logs at all.
        """

    def stacks_command(self) -> str:
        """Returns the command by which all ranks write where they are to their logs; empty where none runs."""

    def change(
        self,
        *,
        workers: int | None = None,
        node_selector: Mapping[str, str] | None = None,
        suspend: bool | None = None,
    ) -> None:
        """Changes the job while it runs, as far as these are given.

        Args:
            workers: the new number; higher workers end within their grace period, which is no failure, and missing
                ones are started.
            node_selector: labels of the nodes that workers start on from now on, beside those named before.
            suspend: with True all workers end within their grace period, with False they are started again.

        Raises:
            InvalidInput: jobs of that kind cannot be changed, or the right for it is missing.
            JobNotFound: there is no such job.
        """

    def evict(self, worker: int, *, force: bool = False, dry_run: bool = False) -> None:
        """Ends a worker within its grace period, or at once with ``force``; another one takes its place.

        With ``dry_run`` it is only checked whether that can be done.

        Raises:
            InvalidInput: the job has no such worker now, or the right for it is missing.
            JobNotFound: there is no such job.
        """

    def cancel(self) -> None:
        """Stops the job within its grace period; raises JobNotFound."""

    def delete(self) -> None:
        """Stops the job and removes all that belongs to it; nothing happens when there is none."""


class Backend(Protocol):
    """Where jobs execute. Credentials and environment stay inside the backend."""

    @property
    def packages(self) -> Sequence[str]:
        """Requirements that the workers' environment has to fulfil; what it lacks travels as wheels."""

    @property
    def found_by(self) -> Mapping[str, Any]:
        """The options that another backend needs to find the same jobs, without those left to their defaults."""

    @property
    def place(self) -> str:
        """Where its jobs are, in words such as ``namespace lab of context 'kind'``."""

    @property
    def identity(self) -> Mapping[str, str]:
        """What tells that place from all others, by the kind of mark, the surest first; empty where nothing does.

        Two backends have the same jobs when the first kind that both know has the same mark.

        Raises:
            InvalidInput: the backend cannot be asked for it.
        """

    def store_address(self) -> str:
        """Address of the store that runs here use."""

    def inventory(self) -> "Inventory | None":
        """Returns what the workers' environment holds; None where that is not known, or is what this process has."""

    def check(self, run: Run) -> None:
        """Raises InvalidInput with everything that would keep the run from starting here; creates nothing."""

    def adapt(self, run: Run) -> Run:
        """The run as a job of this backend can execute it; prints nothing, because it may not be submitted."""

    def prepare(self, record: RunRecord, inputs: Mapping[str, Input], num_model_bytes: int, store: Store) -> Run:
        """Brings the run's local files to where its workers read them; returns the run with their addresses there.

        Args:
            record: of the run that is about to start.
            inputs: its local files, by field.
            num_model_bytes: of the weights that each worker loads.
            store: of the run.

        Raises:
            InvalidInput: a job of the run, started now, finds no room and could not wait for it.
        """

    def request(self, record: RunRecord) -> JobRequest:
        """The job of a run for this backend."""

    def submit(self, request: JobRequest) -> BoundJob:
        """Starts a job; raises InvalidInput when it cannot run here, RunsAlready when it runs."""

    def job(self, name: str) -> BoundJob:
        """The job of that name; nothing is asked yet."""

    def jobs(self) -> list[BoundJob]:
        """Returns the jobs of train_func that are there now, by name."""


def register(name: str, module: str) -> None:
    """Makes the class ``name`` of a module a backend that jobs are submitted to and found again on."""
    BACKENDS[name] = module


def make_backend(name: str, options: Mapping[str, Any]) -> Backend:
    """The backend of that name with these options; raises KeyError when none is registered under it."""
    backend: Backend = getattr(importlib.import_module(BACKENDS[name]), name)(**options)
    return backend


def backend_or_default(on: Backend | None) -> Backend:
    """Returns ``on``, or the default backend where it is None; raises InvalidInput where it is no backend."""
    if on is None:
        return make_backend(DEFAULT, {})
    if isinstance(on, type) or not hasattr(on, "store_address"):
        names = [on.__name__] if isinstance(on, type) else BACKENDS
        raise InvalidInput(f"on={on!r}: a backend is expected: on={' or '.join(f'{name}()' for name in names)}")
    return on


def name_of_backend(backend: Backend) -> str:
    """The name under which a backend is registered, or else that of its class."""
    names = [kind.__name__ for kind in type(backend).__mro__]
    return next((name for name in names if name in BACKENDS), names[0])


def argument_of(name: str, found_by: Mapping[str, Any]) -> str:
    """The argument of ``submit`` and ``attach`` that stands for a backend; empty for the default one."""
    if name == DEFAULT and not found_by:
        return ""
    return f"on={name}({', '.join(f'{option}={value!r}' for option, value in found_by.items())})"
