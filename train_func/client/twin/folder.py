"""The folder of one job: where everything lies, written so that a reader never sees half a file."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from train_func import lock
from train_func.client.twin import rules
from train_func.client.twin.record import PodRecord, stamp
from train_func.client.twin.spec import Spec

LINKS = Path("/tmp")  # the path of a socket may have 107 bytes, and multiprocessing makes sockets in TMPDIR


class JobFolder:
    """``$TRAIN_FUNC_HOME/jobs/<job name>``."""

    def __init__(self, home: Path, job_name: str) -> None:
        self.home = home
        self.root = home / "jobs" / job_name
        self.lock = self.root / "controller.lock"
        """Held while the controller lives."""
        self.pid = self.root / "controller.pid"
        self.log = self.root / "controller.log"
        self.cancel = self.root / "cancel"
        """Exists when the job is to be stopped."""
        self.deletions = self.root / "deletions"
        """Holds a file, named by its uid, for every pod that is to be deleted."""
        self.config_maps = self.root / "configmaps"

    @property
    def cache(self) -> Path:
        """The folder that all jobs of this machine share."""
        return self.home / "cache"

    def pod(self, record: PodRecord) -> Path:
        """What belongs to one incarnation of a worker."""
        return self.root / "pods" / record.name / record.uid

    def link(self, record: PodRecord) -> Path:
        """The same folder by a short name, while its container runs."""
        return LINKS / f"train-func-{record.uid[:13]}"

    def pod_log(self, record: PodRecord) -> Path:
        """What it wrote to stdout and stderr."""
        return self.pod(record) / "log"

    def controlled(self) -> bool:
        """Whether a controller lives."""
        return lock.is_held(self.lock)

    def read(self, name: str) -> Any:
        """The JSON file ``name``, or None when it is not there."""
        try:
            return json.loads((self.root / name).read_bytes())
        except FileNotFoundError:
            return None

    def write(self, name: str, value: object) -> None:
        """Replaces the JSON file ``name`` in one step."""
        aside = self.root / f".{name}.new"
        aside.write_text(json.dumps(value, indent=1))
        os.replace(aside, self.root / name)  # noqa: PTH105

    def records(self) -> list[PodRecord]:
        """Every incarnation of every worker, oldest first."""
        return [PodRecord(**plain) for plain in self.read("pods.json") or []]

    def add_event(self, severity: str, reason: str, message: str, about: str) -> None:
        """``severity`` is Normal or Warning, ``about`` such as Pod/name."""
        event = {"time": stamp(), "type": severity, "reason": reason, "message": message, "object": about}
        with (self.root / "events.jsonl").open("a") as file:
            file.write(json.dumps(event) + "\n")

    def events(self) -> Iterator[dict[str, str]]:
        """Oldest first; a line that is just being written is left for later."""
        try:
            text = (self.root / "events.jsonl").read_text()
        except FileNotFoundError:
            return
        yield from (json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n"))

    def prepare(self, manifest: Mapping[str, Any], files: Mapping[str, bytes]) -> None:
        """Lays out a new job; pods of an earlier one under this name stay, with their logs, as deleted."""
        self.retire()
        for old in ("status.json", "cancel"):
            (self.root / old).unlink(missing_ok=True)
        for old_folder in (self.config_maps, self.deletions):
            shutil.rmtree(old_folder, ignore_errors=True)
        self.deletions.mkdir()
        folder = self.config_maps / str(manifest["metadata"]["name"])
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o444)
        self.write("manifest.json", manifest)

    def expired(self) -> bool:
        """Whether the job has finished and its time to live is over."""
        status = self.read("status.json")
        manifest = self.read("manifest.json") if rules.finished(status) else None
        when = rules.expires(Spec.of(manifest), status) if manifest else None
        return when is not None and when <= datetime.now(UTC)

    def remove(self) -> None:
        """Removes all of it, logs included."""
        self.retire()
        shutil.rmtree(self.root)

    def retire(self) -> None:
        """Marks every pod as deleted and removes its volumes; its log stays."""
        records = self.records()
        for record in records:
            if not record.deleted:
                self.clear(record)
                record.deleted = True
                if not record.over:
                    record.phase, record.reason = "Failed", "Interrupted"
        if records:
            self.write("pods.json", [asdict(record) for record in records])

    def clear(self, record: PodRecord) -> None:
        """Removes the volumes of a pod, as its deletion does."""
        self.link(record).unlink(missing_ok=True)
        for path in self.pod(record).glob("*/"):
            shutil.rmtree(path, ignore_errors=True)
