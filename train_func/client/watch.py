"""A plain display of a running job: its state, its progress, its evaluations."""

import queue
import re
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from train_func.client.job import Job

PROGRESS_SECONDS = 5.0  # between two progress lines
LOOK_SECONDS = 0.5  # between two looks at the state while no worker says anything
_TOLD = re.compile(
    r"^\[worker \d+\] (?:\[rank 0\] )?"
    r"(?P<text>(?P<kind>attempt|session|note|progress|evaluation|audit|published) .*)$"
)
_STEP = re.compile(r"step=(\d+)/(\d+)")


def watch(job: "Job") -> str:
    """Prints until the job has finished; an interrupt ends the watching, not the job."""
    display = _Display()
    try:
        for line in _lines(job, display):
            if told := _TOLD.match(line):
                display.tell(told["kind"], told["text"])
        display.state(job.name, job.wait())
    except KeyboardInterrupt:
        print(f"{job.name}: no longer watched; it goes on")
    return job.state


class _Display:
    """Lines behind the seconds since the watching began; of the progress only some, and the last."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._progress = -PROGRESS_SECONDS
        self._state = ""

    def state(self, name: str, state: str) -> None:
        if state != self._state:
            self._state = state
            self._say(f"{name}: {state}")

    def tell(self, kind: str, text: str) -> None:
        now = time.monotonic()
        if kind == "progress":
            if now - self._progress < PROGRESS_SECONDS and not _is_last(text):
                return
            self._progress = now
        self._say(text)

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:6.1f} s  {text}", flush=True)


def _is_last(progress: str) -> bool:
    step = _STEP.search(progress)
    return step is not None and step[1] == step[2]


def _lines(job: "Job", display: _Display) -> Iterator[str]:
    """The lines of the job as they come; its state is shown meanwhile."""
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_follow, args=(job, lines), daemon=True).start()
    while True:
        display.state(job.name, job.state)
        try:
            line = lines.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            continue
        if line is None:
            return
        yield line


def _follow(job: "Job", lines: "queue.Queue[str | None]") -> None:
    try:
        for line in job.logs(follow=True):
            lines.put(line)
    finally:
        lines.put(None)
