"""What every backend can do: where jobs execute, this machine or a cluster."""

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from train_func.client.kinds.kind import Operator
from train_func.client.packages.inventory import Inventory
from train_func.client.status import Event, JobStatus, LogCut, LogLine, Pod
from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.run import Run, name_of
from train_func.storage import Store


@dataclass(frozen=True)
class Input:
    """Files of this machine that a run reads: a file, or those of a folder that belong to it."""

    path: Path
    files: Mapping[str, str]
    """SHA-256 of each, by its name from the folder that ``path`` lies in."""
    sha256: str
    """Of all their names and bytes."""


class RunsAlready(InvalidInput):
    """Another client has started a job of that name at the same moment."""

    has_own_files = False
    """Whether that job was given the files of this submission: then its records are those that tell of the job."""


Note = Callable[[str], object]  # is told in words what a person should know


@dataclass(frozen=True)
class Submission:
    """A job as a backend executes it, and the options that decided that."""

    manifest: Mapping[str, Any]
    options: Mapping[str, Any]
    """By name, as plain JSON values."""
    found_by: Mapping[str, Any]
    """As the backend's own, and what it would take from its surroundings."""
    ranks_per_worker: int = 1
    set_here: Collection[str] = ()
    """Variables of the environment in which it is submitted."""


def provisional(run: Run, store: str) -> RunRecord:
    """A record for a run that has no name yet, to judge by its job whether a backend could execute it."""
    name = name_of(run, function="run", source_sha256="", fingerprints={})
    return RunRecord(run=run, name=name, generation=1, store=store, function="run", source_sha256="")


class BoundJob(Protocol):
    """One job of a backend by its name, whether it is there or not; it owns what observes the job."""

    @property
    def name(self) -> str:
        """Of the job."""

    @property
    def operator(self) -> Operator:
        """What executes the job."""

    def status(self) -> JobStatus | None:
        """The job's state, or None when there is no such job."""

    def pods(self) -> list[Pod]:
        """Every incarnation of every worker that is known, the deleted ones too, oldest first."""

    def events(self) -> list[Event]:
        """All events, oldest first."""

    def logs(
        self, *, follow: bool, worker: int | None = None, note: Note, stop: threading.Event
    ) -> Iterator[LogLine | LogCut]:
        """Lines of the pods there are from their first; with ``follow`` until the job has ended and all was read.

        Args:
            follow: a large job may show some of its workers only while it is followed.
            worker: only of this one.
            note: is told in words what is left out, and that nothing comes because the backend is away.
            stop: ends the following when another thread sets it.
        """

    def last_lines(self, pods: Sequence[Pod]) -> Mapping[str, str]:
        """The last line that each of these running pods has written, by its uid; without those that are not known."""

    def wait_for_change(self, seconds: float) -> None:
        """Returns when something about the job may have changed, or after ``seconds``."""

    def outage(self) -> InvalidInput | None:
        """Why there is no news of the job although it is asked for; None while there is."""

    def stacks_command(self) -> str:
        """What is typed so that all ranks write where they are to their logs; empty where none is known to run."""

    def cancel(self) -> None:
        """Stops the job within its grace period; raises JobNotFound."""

    def delete(self) -> None:
        """Stops the job and removes all that belongs to it; nothing happens when there is none."""


class Backend(Protocol):
    """Where jobs execute. Credentials and environment stay inside the backend; ``registry`` names those there are."""

    packages: Sequence[str]
    """Requirements that the workers' environment has to fulfil; what it lacks travels as wheels."""

    @property
    def found_by(self) -> Mapping[str, Any]:
        """The options that another one needs to find the same jobs, without those left to their defaults."""

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

    def models_folder(self) -> Path:
        """Where fetched models go by default."""

    def inventory(self) -> Inventory | None:
        """What the workers' environment holds; None where that is not known, or is what this process has."""

    def check(self, run: Run) -> None:
        """Raises InvalidInput with everything that would keep the run from starting here; creates nothing."""

    def adapted(self, run: Run) -> Run:
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

    def submission(self, record: RunRecord, files: Sequence[str]) -> Submission:
        """The job of a run for this backend; ``files`` are the names of those that travel with it."""

    def submit(self, submission: Submission, files: Mapping[str, bytes]) -> BoundJob:
        """Starts a job; raises InvalidInput when it cannot run here, RunsAlready when it runs."""

    def job(self, name: str) -> BoundJob:
        """The job of that name; nothing is asked yet."""

    def jobs(self) -> list[BoundJob]:
        """Those of train_func that are there now, by name."""
