"""The folder of one job: its spec, what clients have changed since, the logs of its workers, and a journal.

The journal tells what becomes of the job and its workers.
"""

import contextlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from train_func.client.job_spec import JobSpec
from train_func.client.status import Condition, ContainerEnd, JobEvent, JobStatus, Pod
from train_func.errors import InvalidInput
from train_func.process import lock
from train_func.wire.codec import Record

_ENTRIES: dict[str, type[JobStatus | Pod | JobEvent]] = {kind.__name__: kind for kind in (JobStatus, Pod, JobEvent)}


class Journal(NamedTuple):
    """What a journal says."""

    status: JobStatus | None
    """The newest; None before the job is accepted."""
    pods: dict[str, Pod]
    """Every incarnation of every worker by its uid, oldest first."""
    events: list[JobEvent]
    """Oldest first."""


@dataclass(frozen=True, kw_only=True)
class Changes(Record):
    """What clients want of a job that runs; its controller reads it again and again."""

    workers: int
    suspend: bool = False
    """Whether the job has no workers for now."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Where workers that start from now on are; this machine has one node and records it."""
    evictions: Mapping[str, bool] = field(default_factory=dict)
    """Whether a pod that has to end gets no grace period, by its uid."""


def make_folder(path: Path) -> None:
    """Makes a folder of TRAIN_FUNC_HOME. Raises InvalidInput where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"TRAIN_FUNC_HOME: jobs, default store and cache cannot be kept in {path}: {error}; set it to a folder "
            "that this user can write to",
            cause="storage",
        ) from error


class JobFolder:
    """``$TRAIN_FUNC_HOME/jobs/<job name>``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root.parents[1]
        self.journal = root / "journal.jsonl"
        self.changes = root / "changes.json"
        """Written as a whole, by one client at a time."""
        self.log = root / "controller.log"
        self.pid = root / "controller.pid"
        """The file with the process id of the controller; locked while it, or its guardian, lives."""

    def is_controlled(self) -> bool:
        """Returns whether a controller lives."""
        return lock.is_held(self.pid)

    def pod(self, pod: Pod) -> Path:
        """Returns what belongs to one incarnation of a worker."""
        return self.root / "pods" / f"{pod.worker}-{pod.uid[:8]}"  # sockets lie below it, whose paths are limited

    def spec(self) -> JobSpec:
        """Returns what was submitted."""
        path = self.root / "spec.json"
        return JobSpec.from_json(path.read_bytes(), str(path))

    def read_changes(self) -> Changes:
        """Returns what clients want by now; as it was submitted where they have changed nothing."""
        return Changes.from_json(self.changes.read_bytes(), str(self.changes))

    def write_changes(self, changes: Changes) -> None:
        """Replaces what clients wanted before."""
        new = self.changes.with_suffix(".new")
        new.write_bytes(changes.to_json())
        new.replace(self.changes)

    def prepare(self, spec: JobSpec) -> None:
        """Lays out a new job in place of an earlier one of that name, whose logs are in the store."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir()
        (self.root / "spec.json").write_bytes(spec.to_json())
        self.write_changes(Changes(workers=spec.workers, node_selector=spec.node_selector))

    def add(self, *entries: JobStatus | Pod | JobEvent) -> None:
        """Appends to the journal; of a job and of each pod the newest entry counts."""
        with self.journal.open("a") as file:
            for entry in entries:
                file.write(json.dumps({type(entry).__name__: asdict(entry)}, default=datetime.isoformat) + "\n")

    def read(self) -> Journal:
        """Reads the journal; a line that is just being written is left for later."""
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
