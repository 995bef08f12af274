"""The twin as a stage: its controller's log tells every state, as a watch does."""

import json
import threading
import time
from pathlib import Path
from typing import TextIO

from tests.cluster.conformance import Json, Record, SeenPod
from tests.twin_jobs import links_into, processes
from train_func import Local
from train_func.client.backend import Submission
from train_func.client.kinds.pod import CACHE_DIR, JOB_DIR, TERMINATION_FILE, WORK_DIR
from train_func.client.twin.folder import JobFolder

LOOK_SECONDS = 0.02
LINKS = Path("/tmp")


class TwinStage:
    """Jobs of this machine, below one home."""

    def __init__(self, home: Path, pace: float = 0.5) -> None:
        self.pace = pace
        self.timeout = 120.0
        self.home = home
        self.namespace = "default"
        self.backend = Local()
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()

    def create(self, job: str, job_manifest: Json, files: dict[str, bytes]) -> Record:
        self.backend.submit(Submission(job_manifest, {}, {}), files)
        record = Record()
        # Opened now: it can be read to its end, also when the job expires meanwhile.
        log = (self._folder(job) / "controller.log").open()
        threading.Thread(target=self._follow, args=(job, log, record), daemon=True).start()
        return record

    def status(self, job: str) -> Json:
        status = JobFolder(self.home, job).read("status.json")
        return status or {}

    def let_go(self, job: str) -> None:
        """Nothing is held: the twin's operator never misses how a pod ended."""

    def delete_pod(self, job: str, pod: SeenPod) -> None:
        self.backend.job(job).delete_pod(pod.name)

    def text(self, job: str, pod: SeenPod) -> str:
        log = self._folder(job) / "pods" / pod.name / pod.uid / "log"
        return log.read_text() if log.exists() else ""

    def as_in_manifest(self, job: str, pod: SeenPod, value: str) -> str:
        link = str(LINKS / f"train-func-{pod.uid[:13]}")
        for there, here in {
            f"{link}/work": WORK_DIR,
            f"{link}/termination": TERMINATION_FILE,
            str(self._folder(job) / "configmaps" / job): JOB_DIR,
            str(self.home / "cache"): CACHE_DIR,
            pod.uid: "UID",
        }.items():
            value = value.replace(there, here)
        return value

    def delete(self, job: str) -> None:
        self.backend.job(job).delete()

    def left(self, job: str) -> list[str]:
        folder = self._folder(job)
        running = [f"process {pid}" for pid in processes(TRAIN_FUNC_HOME=str(self.home), TRAIN_FUNC_JOB=job)]
        return [*running, *map(str, links_into(folder)), *([str(folder)] if folder.exists() else [])]

    def _folder(self, job: str) -> Path:
        return self.home / "jobs" / job

    def _follow(self, job: str, log: TextIO, record: Record) -> None:
        begun = ""  # a line that is still being written
        with log:
            while not self._closed.is_set() and not record.gone:
                gone = self.backend.job(job).status() is None and not self.backend.job(job).pods()
                *lines, begun = (begun + log.read()).split("\n")
                for line in lines:
                    _tell(line, record)
                if gone:
                    _take_away(record)
                time.sleep(LOOK_SECONDS)


def _take_away(record: Record) -> None:
    with record.news():
        record.gone = True
        for pod in record.pods.values():
            pod.deleted = True


def _tell(line: str, record: Record) -> None:
    _, _, said = line.partition(" ")
    word, _, value = said.partition(" ")
    if word == "conditions":
        record.tell_conditions(json.loads(value))
    elif word == "pod":
        pod = json.loads(value)
        record.tell_pod(SeenPod(**{name: pod[name] for name in SeenPod.__dataclass_fields__}))
