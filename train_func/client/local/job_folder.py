"""The folder of one job: its spec, later changes by clients, the logs of its workers, and a journal.

The journal has the states and events of the job and its workers.
"""

import contextlib
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from train_func.client.job_spec import JobSpec
from train_func.client.status import Condition, ContainerEnd, JobEvent, JobStatus, Pod
from train_func.errors import InvalidInput
from train_func.process import lock
from train_func.wire.codec import Record

OLD = ".old-"  # begins the names of folders that are removed
_ENTRIES: dict[str, type[JobStatus | Pod | JobEvent]] = {kind.__name__: kind for kind in (JobStatus, Pod, JobEvent)}


class Journal(NamedTuple):
    """The content of a journal."""

    status: JobStatus | None
    """The newest status; None until the job is accepted."""
    pods: dict[str, Pod]
    """Every incarnation of every worker by uid, oldest first."""
    events: list[JobEvent]
    """Oldest first."""


@dataclass(frozen=True, kw_only=True)
class Changes(Record):
    """Changes that clients request of a running job; its controller reads them periodically."""

    workers: int
    suspend: bool = False
    """Whether the job has no workers for now."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """The node of workers that start from now on; this machine has one node, and only records it."""
    evictions: Mapping[str, bool] = field(default_factory=dict)
    """Pods that have to end, by uid, and whether without a grace period."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises InvalidInput for a block that cannot write a folder of TRAIN_FUNC_HOME."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(
            f"TRAIN_FUNC_HOME: jobs, default store and cache cannot be kept in {path}: {error}; set it to a folder "
            "with free space that this user can write to",
            cause="storage",
        ) from error


def make_folder(path: Path) -> None:
    """Makes a folder of TRAIN_FUNC_HOME. Raises InvalidInput if that fails."""
    with writing(path):
        path.mkdir(parents=True, exist_ok=True)


class JobFolder:
    """``$TRAIN_FUNC_HOME/jobs/<job name>``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root.parents[1]
        self.journal = root / "journal.jsonl"
        self.changes = root / "changes.json"
        """The file of the changes; one client at a time writes it as a whole."""
        self.log = root / "controller.log"
        self.pid = root / "controller.pid"
        """Locked while the controller or its guardian lives; its number may be that of a process elsewhere."""
        self._written, self._unwritten = 0, b""  # of the journal; the second while the disk is full

    def is_controlled(self) -> bool:
        """Returns whether a controller lives."""
        return lock.is_held(self.pid)

    def pod(self, pod: Pod) -> Path:
        """Returns the folder of one incarnation of a worker."""
        return self.root / "pods" / f"{pod.worker}-{pod.uid[:8]}"  # sockets lie below it, whose paths are limited

    def spec(self) -> JobSpec:
        """Returns the submitted spec."""
        path = self.root / "spec.json"
        return JobSpec.from_json(path.read_bytes(), str(path))

    def read_changes(self) -> Changes:
        """Returns the current changes; those of the submission if clients have changed nothing."""
        return Changes.from_json(self.changes.read_bytes(), str(self.changes))

    def write_changes(self, changes: Changes) -> None:
        """Replaces the changes."""
        new = self.changes.with_suffix(".new")
        new.write_bytes(changes.to_json())
        new.replace(self.changes)

    def ask_to_end(self) -> None:
        """Asks the controller to end the job. An empty file can be made on a full disk, too."""
        (self.root / "cancel").touch()

    def is_asked_to_end(self) -> bool:
        """Returns whether a client has asked for that."""
        return any(path.name == "cancel" for path in self.root.iterdir())  # NFS remembers that a file was not there

    def remove(self) -> None:
        """Removes the folder. What cannot be removed goes to another name, so that the name of the job is free."""
        old = self.root.with_name(f"{OLD}{secrets.token_hex(8)}")
        with contextlib.suppress(FileNotFoundError):
            self.root.rename(old)
        shutil.rmtree(old, ignore_errors=True)

    def prepare(self, spec: JobSpec) -> None:
        """Makes the folder of a new job; it replaces an earlier one of that name, whose logs are in the store."""
        self.remove()
        self.root.mkdir()
        (self.root / "spec.json").write_bytes(spec.to_json())
        self.write_changes(Changes(workers=spec.workers, node_selector=spec.node_selector))

    def add(self, *entries: JobStatus | Pod | JobEvent) -> bool:
        """Appends to the journal, which one controller writes; the newest entry of a job and of each pod counts.

        Returns whether all is written: a full disk delays it.
        """
        for entry in entries:
            line = json.dumps({type(entry).__name__: asdict(entry)}, default=datetime.isoformat)
            self._unwritten += f"{line}\n".encode()
        with contextlib.suppress(OSError):
            while self._unwritten:
                with self.journal.open("ab", buffering=0) as file:
                    file.truncate(self._written)  # NFS may tell of a full disk as it closes a file, and keep a part
                    written = file.write(self._unwritten)
                self._written, self._unwritten = self._written + written, self._unwritten[written:]
        return not self._unwritten

    def read(self) -> Journal:
        """Returns the journal; leaves out a line that is still being written."""
        journal, text = Journal(None, {}, []), ""
        with contextlib.suppress(FileNotFoundError):
            text = self.journal.read_text()
        for line in text.split("\n")[:-1]:
            entry = _entry(line)
            if isinstance(entry, JobStatus):
                journal = journal._replace(status=entry)
            elif isinstance(entry, Pod):
                journal.pods[entry.uid] = entry
            else:
                journal.events.append(entry)
        return journal


def _entry(line: str) -> JobStatus | Pod | JobEvent:
    ((kind, values),) = json.loads(line).items()
    times = ("created", "started", "ended", "time")
    values |= {name: datetime.fromisoformat(values[name]) for name in times if values.get(name)}
    if kind == "JobStatus":
        values["conditions"] = tuple(Condition(**condition) for condition in values["conditions"])
    if kind == "JobEvent" and values["end"]:
        values["end"] = ContainerEnd(**values["end"])
    return _ENTRIES[kind](**values)
