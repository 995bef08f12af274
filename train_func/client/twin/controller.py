"""Plays the operator for one job: python -m train_func.client.twin.controller JOB_FOLDER

Outlives the process that starts it, which waits only until the job is accepted. Ends when the job has finished and
none of its processes is left; when it is killed, all of them die with it.
"""

import json
import os
import signal
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from train_func import lock, process_tree
from train_func.client.twin import rules
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
        node = Node(self.spec, folder, Machine.look(os.environ), dict(os.environ))
        self.kubelet = Kubelet(node, folder.records(), self._event)
        self.status = rules.created(self.spec, stamp())
        self._written: dict[str, str] = {}
        self._reconcile()

    def run(self) -> None:
        """Until the job has finished and all its processes have ended."""
        while True:
            self._take_requests()
            if self.folder.cancel.exists():
                self._cancel()
                return
            if self._news():
                self._reconcile()
            elif rules.finished(self.status) and not self.kubelet.live:
                return
            elif self._expired() or signal.SIGTERM in self.kubelet.wait(POLL_SECONDS):
                self._end_pods()
                return

    def _take_requests(self) -> None:
        """What others may change of a job that runs: pods that they delete."""
        for request in self.folder.deletions.iterdir():
            request.unlink()
            for record in self.kubelet.pods:
                if record.uid == request.name:
                    self.kubelet.delete(record)

    def _expired(self) -> bool:
        when = rules.expires(self.spec, self.status)
        return when is not None and when <= datetime.now(UTC)

    def _news(self) -> bool:
        """Whether something has changed since the rules were last applied; as the operator, they look at nothing else.

        The deadline of a job is therefore noticed when a pod changes, which the deadline of the pods sees to.
        """
        return self._seen() != self._looked_at

    def _seen(self) -> tuple[str, str]:
        records = [asdict(record) for record in self.kubelet.records]
        return json.dumps(records), json.dumps(self.status)

    def _reconcile(self) -> None:
        """Applies the operator's rules once."""
        self._looked_at = self._seen()
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
        self._save()

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
        """Writes what has changed: pods first, so that a reader of a finished job sees how its pods ended.

        Every state of a job and of its pods is in the log too, however short it was.
        """
        records = [asdict(record) for record in self.kubelet.records]
        for record in records:
            if self._changed(record["uid"], record):
                self._log(f"pod {json.dumps(record)}")
        if self._changed("pods.json", records):
            self.folder.write("pods.json", records)
        if self._changed("status.json", self.status):
            self.folder.write("status.json", self.status)
        conditions = rules.undated(self.status["conditions"])
        if self._changed("conditions", conditions):
            self._log(f"conditions {json.dumps(conditions)}")

    def _changed(self, name: str, value: object) -> bool:
        """Whether the value is another than at the last question."""
        text = json.dumps(value)
        before = self._written.get(name)
        self._written[name] = text
        return text != before

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
    process_tree.adopt_orphans()
    folder.pid.write_text(str(os.getpid()))
    controller = Controller(folder)
    os.write(write, b"1")
    os.close(write)
    controller.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
