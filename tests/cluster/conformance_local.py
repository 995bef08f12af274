"""This machine as a stage: the journal of a job tells every state, as a watch does."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

from tests.cluster.conformance import Record, SeenPod
from tests.local_jobs import links_into, processes
from train_func import Local
from train_func.client.backend import JobRequest
from train_func.client.job_spec import JobSpec
from train_func.client.kinds.pod import CACHE_DIR, TERMINATION_FILE, WORK_DIR

LOOK_SECONDS = 0.02


class LocalStage:
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

    def create(self, job: str, spec: JobSpec) -> Record:
        self.backend.submit(JobRequest(spec.to_dict(), {}, {}))
        record = Record()
        threading.Thread(target=self._follow, args=(job, record), daemon=True).start()
        return record

    def delete_pod(self, job: str, pod: SeenPod) -> None:
        (pid,) = (each.pid for each in self.backend.job(job).pods() if each.uid == pod.uid)
        os.kill(pid, signal.SIGTERM)

    def text(self, job: str, pod: SeenPod) -> str:
        log = self._folder(job) / "pods" / _folder_name(pod) / "log"
        return log.read_text() if log.exists() else ""

    def as_on_a_cluster(self, job: str, pod: SeenPod, value: str) -> str:
        link = rf"/tmp/train-func-\w+/job/pods/{_folder_name(pod)}"
        for there, here in {
            f"{link}/work": WORK_DIR,
            f"{link}/termination": TERMINATION_FILE,
            str(self.home / "cache"): CACHE_DIR,
            pod.uid: "UID",
        }.items():
            value = re.sub(there, here, value)
        return value

    def delete(self, job: str) -> None:
        self.backend.job(job).delete()

    def left(self, job: str) -> list[str]:
        folder = self._folder(job)
        running = [f"process {pid}" for pid in processes(TRAIN_FUNC_HOME=str(self.home), TRAIN_FUNC_JOB=job)]
        return [*running, *map(str, links_into(folder)), *([str(folder)] if folder.exists() else [])]

    def _folder(self, job: str) -> Path:
        return self.home / "jobs" / job

    def _follow(self, job: str, record: Record) -> None:
        with (self._folder(job) / "journal.jsonl").open() as journal:
            begun = ""  # a line that is still being written
            while not self._closed.is_set():
                *lines, begun = (begun + journal.read()).split("\n")
                for line in lines:
                    ((kind, entry),) = json.loads(line).items()
                    if kind == "JobStatus":
                        record.tell_conditions(entry["conditions"])
                    elif kind == "Pod":
                        record.tell_pod(SeenPod(**{name: entry[name] for name in SeenPod.__dataclass_fields__}))
                time.sleep(LOOK_SECONDS)


def _folder_name(pod: SeenPod) -> str:
    return f"{pod.worker}-{pod.uid[:8]}"
