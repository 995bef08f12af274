"""A job whose workers are started again when they have ended, as the Training Operator does it with ``ExitCode``."""

import contextlib
import json
import re
import signal
import time

import psutil

from tests.distributed.pods import is_alive
from train_func.storage import open_store
from train_func.wire import exits
from train_func.wire.layout import MODEL_MANIFEST

HANG = 300.0  # seconds; nothing of such a job takes so long
LOOK = 0.01  # seconds between two looks
ENDS = r"worker \d+ (?:ends with exit code|starts its ranks again).*"  # of an attempt, as a supervisor says it


class Wrong(Exception):
    """The job did what it must not do."""


class Operated:
    """Of ``job``, which has not begun; leaving it as a context manager ends what is left of it."""

    def __init__(self, job):
        self._job = job
        self.num_workers = job.num_workers
        self.ended = []
        """Number of the worker and exit code of each pod that has ended, in this order."""
        self._pods = {worker: [] for worker in range(job.num_workers)}
        self._num_begun = 0

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for pod in self._job.started:
            if pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()

    def start(self):
        self._begun_at = time.monotonic()
        for worker in self._pods:
            self._start(worker)

    @property
    def pods(self):
        """Those started last, by worker."""
        return {worker: pods[-1] for worker, pods in self._pods.items()}

    @property
    def seconds(self):
        """Since the start."""
        return time.monotonic() - self._begun_at

    def is_published(self):
        """Whether the model folder is whole: no worker may end well before, as the operator then ends the others."""
        manifest = f"{self._job.record.keys.model}/{MODEL_MANIFEST}"
        return bool(open_store(self._job.record.store).list(manifest))

    def result(self):
        """What does not depend on when and how often the job was started."""
        plain = json.loads(open_store(self._job.record.store).get(self._job.record.keys.result).data)
        return {"returned": plain.get("returned"), "weights": plain["files"].get("model.safetensors")}

    def await_start(self):
        """Returns when an attempt has begun that had not when this was asked before, or every worker has ended well.

        Whether one has begun: a job that is stopped on its last lines needs no further one.
        """
        self._await(lambda: self._has_begun() or self._has_ended(), "start")
        has_begun, self._num_begun = self._has_begun(), self._said(0).count("] begun\n")
        return has_begun

    def _has_begun(self):
        return self._said(0).count("] begun\n") > self._num_begun

    def _has_ended(self):
        return all(pod.process.poll() == 0 for pod in self.pods.values())

    def await_mark(self, words):
        """Returns when rank 0 has said so in the attempt that ``await_start`` has seen."""
        self._await(lambda: self._has_said(words), words)

    def _has_said(self, words):
        return f"] {words}" in self._said(0).split("] begun\n", max(1, self._num_begun))[-1]

    def await_end(self):
        """Returns when every worker has ended well."""
        self._await(self._has_ended, "end")
        self._operate()

    def pause(self, seconds, words):
        """So long, while what ends is started again, or until rank 0 has said these words."""
        end = time.monotonic() + seconds
        self._await(lambda: time.monotonic() >= end or self._has_said(words), "a moment")

    def stop(self, pods, number, again):
        """Seconds from the signal to the end of the last of these; ``again``: after how many it is sent once more."""
        pods, begun = list(pods), time.monotonic()
        for pod in pods:
            pod.signal(number)

        def has_ended():
            nonlocal again
            if again is not None and time.monotonic() - begun >= again:
                again = None
                for pod in pods:
                    pod.signal(number)
            return all(pod.process.poll() is not None for pod in pods)

        self._await(has_ended, "end of what was told to stop")
        return time.monotonic() - begun

    def ranks(self, worker):
        """Processes of those that live."""
        while self.pods[worker].process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):  # of any process that has just ended: looks again
                return self.pods[worker].ranks()
        return []

    def stop_rank(self, process):
        """Seconds from the signal to the end of this rank; None where it had ended before."""
        begun = time.monotonic()
        try:
            process.send_signal(signal.SIGTERM)
        except psutil.NoSuchProcess:
            return None
        self._await(lambda: not is_alive(process), "end of a rank that was told to stop")
        return time.monotonic() - begun

    def await_next(self):
        """Seconds until an attempt has begun that ``await_start`` has not seen, or every worker has ended well; and
        whether one has begun."""
        begun = time.monotonic()
        self._await(lambda: self._has_begun() or self._has_ended(), "end of an attempt, one of whose ranks was stopped")
        return time.monotonic() - begun, self._has_begun()

    def said_of_ends(self, worker):
        """How the supervisors of this worker have told the ends of attempts."""
        return re.findall(ENDS, self._said(worker), re.MULTILINE)

    def steps(self, worker):
        """The steps that its rank has done, over all attempts."""
        return [int(step) for step in self._done(worker)]

    def last_step(self):
        """The highest that was done."""
        return max(self.steps(0), default=0)

    @staticmethod
    def num_lost(done):
        """Steps that were done more than once."""
        return len(done) - len(set(done))

    def _done(self, worker):
        return re.findall(r"\] step (\d+) is done at [\d.]+$", self._said(worker), re.MULTILINE)

    def _said(self, worker):
        return "\n".join(pod.output for pod in self._pods[worker])

    def _start(self, worker):
        self._job.start(worker)
        self._pods[worker].append(self._job.pods[worker])

    def _await(self, condition, what):
        end = time.monotonic() + HANG
        while not condition():
            self._operate()
            if time.monotonic() > end:
                raise Wrong(f"hangs: no {what} after {HANG:.0f} s")
            time.sleep(LOOK)

    def _operate(self):
        for worker, pod in self.pods.items():
            code = pod.process.poll()
            if code is None or (code == 0 and any(of == (worker, 0) for of in self.ended)):
                continue
            self.ended.append((worker, code))
            if code == 0 and not self.is_published():
                raise Wrong(f"worker {worker} ended with exit code 0 before its model was there")
            if code and code != -signal.SIGTERM and not exits.retryable(code):
                raise Wrong(f"worker {worker} ended with exit code {code}: {pod.output[-2000:]}")
            if code:
                self._start(worker)
