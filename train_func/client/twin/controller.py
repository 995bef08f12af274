"""Plays the operator for one job: python -m train_func.client.twin.controller JOB_FOLDER

Outlives the process that starts it, which waits only until the job is accepted. Ends when the job has finished and
none of its processes is left; when it is killed, all of them die with it.
"""

import json
import os
import signal
import sys
from pathlib import Path

from train_func.client.twin import lock, processes, rules
from train_func.client.twin.container import Node
from train_func.client.twin.folder import JobFolder
from train_func.client.twin.kubelet import Kubelet
from train_func.client.twin.machine import Machine
from train_func.client.twin.record import stamp
from train_func.client.twin.spec import Spec

POLL_SECONDS = 0.1  # how soon a request to cancel is seen, and a deadline


class Controller:
    """One job, from its acceptance to its end."""

    def __init__(self, folder: JobFolder) -> None:
        self.folder = folder
        self.spec = Spec.of(folder.read("manifest.json"))
        machine = folder.read("machine.json")
        node = Node(self.spec, folder, Machine(**{**machine, "gpus": tuple(machine["gpus"])}), dict(os.environ))
        self.kubelet = Kubelet(node, folder.records(), self._event)
        self.status = rules.created(self.spec, stamp())
        self._written: tuple[str, str] = ("", "")
        self._save()

    def run(self) -> None:
        """Until the job has finished and all its processes have ended."""
        while not rules.finished(self.status) or self.kubelet.live:
            if self.folder.cancel.exists():
                self._cancel()
                return
            if self._reconcile():
                continue
            if signal.SIGTERM in self.kubelet.wait(POLL_SECONDS):
                self._end_pods()
                return
            self._save()

    def _reconcile(self) -> bool:
        """Applies the operator's rules once; true when that asked for something."""
        outcome = rules.reconcile(self.spec, self.status, self.kubelet.pods, stamp())
        self.status = outcome.status
        for severity, reason, message in outcome.events:
            self._event(severity, reason, message, f"{rules.KIND}/{self.spec.name}")
        self._save()
        for record in outcome.delete:
            self.kubelet.delete(record)
        for worker in outcome.create:
            name = self.spec.pod_name(worker)
            self._event("Normal", "SuccessfulCreatePod", f"Created pod: {name}", f"{rules.KIND}/{self.spec.name}")
            self.kubelet.create(worker)
        if rules.finished(self.status):
            self.kubelet.stop_restarting()
            return False
        return bool(outcome.delete or outcome.create)

    def _cancel(self) -> None:
        """Ends the pods; a job that had not finished has then failed for this reason, which no operator gives."""
        self._end_pods()
        if not rules.finished(self.status):
            now, message = stamp(), f"{rules.KIND} {self.spec.namespace}/{self.spec.name} was cancelled."
            self.status.setdefault("completionTime", now)
            rules.set_condition(self.status, "Failed", rules.CANCELLED, message, now)
            self._event("Normal", rules.CANCELLED, message, f"{rules.KIND}/{self.spec.name}")
        self._save()

    def _end_pods(self) -> None:
        for record in self.kubelet.pods:
            if not record.over:
                self.kubelet.delete(record)
        while self.kubelet.live:
            self.kubelet.wait(POLL_SECONDS)
        self._save()

    def _event(self, severity: str, reason: str, message: str, about: str) -> None:
        self._log(f"{severity} {reason} {about}: {message}")
        self.folder.add_event(severity, reason, message, about)

    def _save(self) -> None:
        """Writes what has changed: pods first, so that whoever sees a finished job sees how its pods ended."""
        records = json.dumps([record.to_dict() for record in self.kubelet.records])
        status = json.dumps(self.status)
        if records != self._written[0]:
            self.folder.write_records(self.kubelet.records)
        if status != self._written[1]:
            self.folder.write("status.json", self.status)
            holding = [found["type"] for found in self.status["conditions"] if found["status"] == "True"]
            self._log(f"conditions {' '.join(holding)}")
        self._written = (records, status)

    def _log(self, text: str) -> None:
        print(f"{stamp()} {text}", flush=True)


def main(root: Path) -> int:
    """Leaves the starting process behind as soon as the job is accepted; 1 when it cannot be."""
    ready, write = os.pipe()
    if os.fork() > 0:
        os.close(write)
        return 0 if os.read(ready, 1) else 1
    os.close(ready)
    folder = JobFolder(root.parents[1], root.name)
    if lock.take(folder.lock, seconds=2) is None:
        print(f"{stamp()} another controller holds {folder.lock}", flush=True)
        return 1
    processes.adopt_orphans()
    folder.pid.write_text(str(os.getpid()))
    controller = Controller(folder)
    os.write(write, b"1")
    os.close(write)
    controller.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
