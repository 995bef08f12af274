"""The operator of one job: python -m train_func.client.local.controller JOB_FOLDER

Starts the workers, restarts a worker that ends with a retryable code, ends workers that clients no longer ask for, and
writes states and events to the job's journal. It outlives the process that starts it, which waits only until the job is
accepted, and ends once the job has finished and none of its processes is left. Its parent, the guardian, only waits for
it: if the controller is killed, the guardian ends its processes.

The rules are those of Training Operator 1.9: one worker that ends with 0 makes a job succeed, a permanent exit code
makes it fail, and the other workers then end by themselves. A worker whose number is not below the size of the job gets
SIGTERM, and its end fails nothing. A suspended job has the size 0.
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from train_func.client.local.job_folder import JobFolder
from train_func.client.local.worker import Node, Worker
from train_func.client.status import DELETED, Condition, ContainerEnd, JobEvent, JobStatus, Pod
from train_func.process import lock, process_tree
from train_func.wire import exits

LOOK_SECONDS = 0.1  # between two looks at what is due; the end of a worker is seen at once
# A cluster needs a second or more to replace a pod; without any pause a worker that always ends at once fills the disk.
SHORT_LIFE_SECONDS, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 10.0, 0.5, 10.0
SIGNALS = (signal.SIGCHLD, signal.SIGTERM)
CANCELLED, DEADLINE, STOPPED = "Cancelled", "DeadlineExceeded", "Stopped"


@dataclass
class Replica:
    """A worker, in its newest incarnation."""

    pod: Pod
    start_at: float = 0.0
    pause: float = 0.0
    """Seconds before the next incarnation, if this one is short."""
    worker: Worker | None = None
    """The processes of the worker, while there are any."""
    eviction: str = ""
    """Why its processes were asked to end while the job goes on."""

    def wait(self, pause: float) -> None:
        """Sets the time of the next start, and a longer pause before the one after it."""
        self.start_at = time.monotonic() + pause
        self.pause = min(LONGEST_PAUSE_SECONDS, 2 * pause or FIRST_PAUSE_SECONDS)


class Controller:
    """One job, from its acceptance to its end."""

    def __init__(self, folder: JobFolder, node: Node) -> None:
        self._folder, self._node, self._spec = folder, node, node.spec
        self._changes = folder.read_changes()
        self._ending = ""  # why all workers were asked to end; none is started any more
        self._status = JobStatus((), created=datetime.now(UTC), workers=self._changes.workers)
        self._enter("Created", "the job is accepted")
        self._replicas: dict[int, Replica] = {}
        self._follow_changes()

    @property
    def _size(self) -> int:
        """Returns the number of workers that the job should have now."""
        return 0 if self._changes.suspend else self._changes.workers

    def run(self) -> None:
        """Runs until the job's end is written, or it was asked to end, and all its processes have ended."""
        deadline = time.monotonic() + self._spec.deadline
        while True:
            self._reap()
            is_written = self._folder.add()  # what a full disk has delayed
            if self._folder.is_asked_to_end():
                self._end(CANCELLED)
            if not (self._ending or self._status.finished):
                self._follow_changes()
                self._start_due()
            elif (self._ending or is_written) and not any(replica.worker for replica in self._replicas.values()):
                break
            received = signal.sigtimedwait(SIGNALS, LOOK_SECONDS)
            if received and received.si_signo == signal.SIGTERM:  # the machine shuts down: the job reads as interrupted
                self._end(STOPPED)
            elif time.monotonic() >= deadline:
                self._end(DEADLINE)
        for replica in self._replicas.values():
            if replica.pod.phase == "Pending":
                self._folder.add(replace(replica.pod, phase="Failed", reason=self._ending))
        if self._ending == CANCELLED:
            self._enter("Failed", "the job was cancelled", CANCELLED)
        elif self._ending == DEADLINE:
            self._status = replace(self._status, is_over_deadline=True)
            self._enter("Failed", f"the job was active for longer than {self._spec.deadline} s", DEADLINE)

    def _enter(self, state: str, message: str, reason: str = "") -> None:
        """Sets the state of the job, unless it has finished or has that state already."""
        conditions = self._status.conditions
        if self._status.finished or (conditions and conditions[-1].type == state):
            return
        entered = Condition(state, "True", reason or state, message)
        self._status = replace(self._status, conditions=(*conditions[:1], entered))
        severity = "Warning" if state in ("Restarting", "Failed") else "Normal"
        event = JobEvent(datetime.now(UTC), severity, entered.reason, message, f"Job/{self._spec.name}")
        self._folder.add(self._status, event)

    def _tell(self, pod: Pod, severity: str, reason: str, message: str, end: ContainerEnd | None = None) -> None:
        """Adds an event about a pod."""
        now, about = datetime.now(UTC), f"Pod/{pod.name}"
        self._folder.add(
            JobEvent(now, severity, reason, message, about, uid=pod.uid, pod=pod.name, worker=pod.worker, end=end)
        )

    def _create(self, worker: int) -> Pod:
        name, reason = f"{self._spec.name}-worker-{worker}", "ContainerCreating"
        labels = ", ".join(f"{label}={value}" for label, value in self._changes.node_selector.items())
        node = socket.gethostname() + (f" ({labels})" if labels else "")
        pod = Pod(name, str(uuid.uuid4()), worker, "Pending", None, reason, "", None, None, deleted=False, node=node)
        self._folder.add(pod)
        return pod

    def _follow_changes(self) -> None:
        """Ends surplus workers, and begins missing ones."""
        before, self._changes = self._changes, self._folder.read_changes()
        evictions = self._changes.evictions
        for replica in list(self._replicas.values()):
            if replica.pod.worker >= self._size:
                self._evict(
                    replica, "the job is suspended" if self._changes.suspend else "the job has fewer workers now"
                )
            elif replica.pod.uid in evictions:
                self._evict(replica, "a client evicts it", force=evictions[replica.pod.uid])
        for worker in range(self._size):
            if worker not in self._replicas:
                self._replicas[worker] = Replica(self._create(worker))
        if self._changes.workers != before.workers:  # a client waits for this, and may ask for one of them then
            self._status = replace(self._status, workers=self._changes.workers)
            self._folder.add(self._status)
        if self._changes.suspend and not self._replicas:
            self._enter("Suspended", "the job is suspended")
        elif before.suspend and not self._changes.suspend:
            self._enter("Restarting", "the job is resumed")

    def _evict(self, replica: Replica, why: str, *, force: bool = False) -> None:
        """Asks a worker to end; removes one that has not started."""
        if replica.worker is None:
            self._folder.add(replace(replica.pod, phase="Failed", reason=DELETED, message=why, deleted=True))
            del self._replicas[replica.pod.worker]
        elif force:
            replica.worker.kill()
        elif not replica.eviction:
            replica.worker.terminate()
        if replica.worker and not replica.eviction:
            replica.eviction = why
            self._tell(replica.pod, "Normal", "Killing", f"asked to end: {why}")

    def _start_due(self) -> None:
        """Starts the workers whose pause is over; the job is running once it has the workers that it needs."""
        for replica in self._replicas.values():
            if replica.worker or time.monotonic() < replica.start_at:
                continue
            try:
                replica.worker = self._node.start(replica.pod)
            except OSError as error:  # the disk is full, or there are too many processes: the others go on
                self._tell(replica.pod, "Warning", "CreateContainerError", str(error))
                replica.wait(replica.pause)
                continue
            pid = replica.worker.pid
            replica.pod = replace(replica.pod, phase="Running", reason="", started=datetime.now(UTC), pid=pid)
            self._folder.add(replica.pod)
            self._tell(replica.pod, "Normal", "Started", f"started as process {pid}")
        if sum(replica.worker is not None for replica in self._replicas.values()) >= self._spec.min_workers:
            self._enter("Running", "its workers run")

    def _reap(self) -> None:
        """Reaps supervisors that have ended, and ends the processes that they left."""
        living = [replica for replica in self._replicas.values() if replica.worker]
        looks = [(replica, replica.worker, replica.worker.poll()) for replica in living if replica.worker]
        if any(code is not None for _, _, code in looks):
            # Every supervisor adopts its orphans: what is a child of this process now has lost its supervisor.
            process_tree.kill_descendants(spare=[worker.pid for _, worker, code in looks if code is None])
        for replica, worker, code in looks:
            if code is not None:
                self._on_end(replica, code, worker.last_words() if code else "")

    def _on_end(self, replica: Replica, code: int, message: str) -> None:
        """Applies the end of a worker to the worker and the job."""
        now, before = datetime.now(UTC), replica.pod
        shutil.rmtree(self._folder.pod(before) / "work", ignore_errors=True)  # first: the disk may be full of it
        is_extra = code != 0 and before.worker >= self._size
        is_again = exits.retryable(code) and not (is_extra or self._ending or self._status.finished)
        pod = replace(
            before,
            phase="Failed" if code else "Succeeded",
            exit_code=code,
            reason=(reason := self._reason(replica, code)),
            message=replica.eviction if reason == DELETED else message,
            ended=now,
            pid=None,
            deleted=is_again or is_extra,
        )
        self._folder.add(pod)
        replica.pod, replica.worker = pod, None
        what = f"worker {pod.worker} ended with exit code {code}"
        if pod.reason == "Error" and not self._ending:
            self._tell(pod, "Warning", pod.reason, what, ContainerEnd(code, message))
        if is_extra:
            del self._replicas[pod.worker]
        elif is_again:
            self._enter("Restarting", f"{what}, and is started again")
            is_short = (now - (before.started or now)).total_seconds() < SHORT_LIFE_SECONDS
            replica.pod, replica.eviction = self._create(pod.worker), ""
            replica.wait(replica.pause if is_short else 0.0)
        elif not self._ending:
            self._enter("Failed" if code else "Succeeded", what)

    def _reason(self, replica: Replica, code: int) -> str:
        """Returns in one word why a worker has ended."""
        if self._ending == DEADLINE:
            return DEADLINE
        if not code:
            return "Completed"
        return DELETED if replica.eviction and exits.retryable(code) else "Error"

    def _end(self, why: str) -> None:
        """Asks all workers to end, once."""
        if not self._ending:
            self._ending = why
            for replica in self._replicas.values():
                if replica.worker:
                    replica.worker.terminate()
                    self._tell(replica.pod, "Normal", "Killing", f"asked to end: {why}")


def main(root: Path) -> int:
    """Forks guardian and controller; returns in the starting process once the job is accepted, or 1 if it is not."""
    accepted, accept = os.pipe()
    if os.fork() > 0:
        os.close(accept)
        return 0 if os.read(accepted, 1) else 1
    os.close(accepted)
    folder = JobFolder(root)
    if lock.take(folder.pid, seconds=2) is None:  # held by guardian and controller until both have ended
        sys.exit(f"another controller holds {folder.pid}")
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    process_tree.adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="train-func-", dir="/tmp") as directory:
        short = Path(directory, "job")
        short.symlink_to(root)
        controller = os.fork()
        if controller > 0:
            os.close(accept)
            os.waitpid(controller, 0)
            process_tree.kill_descendants()
        else:
            process_tree.adopt_orphans()
            folder.pid.write_text(str(os.getpid()))
            job = Controller(folder, Node(folder, short, dict(os.environ)))
            if folder.read().status is None:
                sys.exit(f"{folder.journal} cannot be written")
            os.write(accept, b"1")
            os.close(accept)
            job.run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
