"""What every backend can do: where jobs execute, this machine or a cluster."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from train_func.client.status import Event, JobStatus, LogCut, LogLine, Pod, SchedulingReport
from train_func.errors import InvalidInput

if TYPE_CHECKING:
    from train_func.records import RunRecord
    from train_func.run import Run
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
    """There is a job of that name, made at the same moment by somebody else."""


Note = Callable[[str], object]  # is told in words what a person should know


class Backend(Protocol):
    """Where jobs execute. Credentials and environment stay inside the backend."""

    @property
    def constructor_repr(self) -> str:
        """The argument by which ``attach(name, ...)`` finds its jobs; empty for the default backend."""
        ...

    def other_backend(self, manifest: Mapping[str, Any]) -> str:
        """The backend, as it is written, that a manifest was made for; empty when it is this one."""
        ...

    def store_address(self) -> str:
        """Address of the store that runs here use."""
        ...

    def models_folder(self) -> Path:
        """Where fetched models go by default."""
        ...

    def render(self, record: "RunRecord", files: Sequence[str]) -> dict[str, Any]:
        """The PyTorchJob of a run for this backend; ``files`` are the names in its ConfigMap."""
        ...

    def preflight(self, run: "Run") -> None:
        """Raises InvalidInput with everything that would keep the run from starting here; creates nothing."""
        ...

    def admit(self, record: "RunRecord", num_model_bytes: int) -> None:
        """Raises InvalidInput when a job of the run, started now, finds no room and could not wait for it."""
        ...

    def upload_inputs(self, run: "Run", inputs: Mapping[str, Input], store: "Store") -> "Run":
        """The run with addresses that its workers can read; ``inputs`` are its local files, by field."""
        ...

    def create(self, job_name: str, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Start a job; raises InvalidInput when it cannot run here, RunsAlready when it runs."""
        ...

    def status(self, job_name: str) -> JobStatus | None:
        """The job's state, or None when there is no such job."""
        ...

    def pods(self, job_name: str) -> list[Pod]:
        """Every incarnation of every worker, the deleted ones too, oldest first."""
        ...

    def events(self, job_name: str) -> list[Event]:
        """All events, oldest first."""
        ...

    def log_lines(
        self, job_name: str, *, follow: bool, worker: int | None = None, note: Note, stop: threading.Event
    ) -> Iterator[LogLine | LogCut]:
        """Lines of the pods there are from their first; with ``follow`` until the job has ended and all was read.

        A large job may show some of its workers only while it is followed; ``worker`` asks for one of them alone.
        ``note`` is told in words what is left out, and that nothing comes because the backend is away. ``stop``, set
        from another thread, ends the following.
        """
        ...

    def last_lines(self, job_name: str, pods: Sequence[Pod]) -> Mapping[str, str]:
        """The last line that each of these running pods has written, by its uid; without those that are not known."""
        ...

    def outage(self, job_name: str) -> "InvalidInput | None":
        """Why nothing new is heard of the job, though it is asked for; None while that is not so."""
        ...

    def await_change(self, job_name: str, seconds: float) -> None:
        """Returns when something about the job may have changed, or after ``seconds``."""
        ...

    def scheduling_report(self, job_name: str) -> SchedulingReport | None:
        """Why its waiting workers find no room; None where that cannot be known."""
        ...

    def cancel(self, job_name: str) -> None:
        """Stop the job within its grace period; raises JobNotFound."""
        ...

    def delete(self, job_name: str) -> None:
        """Stop the job and remove all that belongs to it; nothing happens when there is none."""
        ...
