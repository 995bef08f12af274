"""A plain display of a running job: its state, its progress, its evaluations."""

import queue
import re
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from train_func.client.job import Job

PROGRESS_SECONDS = 5.0  # between two progress lines
_TOLD = re.compile(r"^\[worker \d+\] (?:\[rank 0\] )?(?P<text>(?P<kind>progress|evaluation|audit|attempt) .*)$")


def watch(job: "Job") -> str:
    """Prints until the job has finished; an interrupt ends the watching, not the job."""
    try:
        return _watch(job)
    except KeyboardInterrupt:
        print(f"{job.name}: no longer watched; it goes on")
        return job.state


def _watch(job: "Job") -> str:
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_follow, args=(job, lines), daemon=True).start()
    state, started, latest, shown = "", time.monotonic(), "", 0.0
    while True:
        if (now := job.state) != state:
            state = now
            _say(started, f"{job.name}: {state}")
        try:
            line = lines.get(timeout=0.5)
        except queue.Empty:
            continue
        if line is None:
            break
        told = _TOLD.match(line)
        if told is None:
            continue
        if told["kind"] != "progress":
            _say(started, told["text"])
        elif time.monotonic() - shown >= PROGRESS_SECONDS:
            shown, latest = time.monotonic(), ""
            _say(started, told["text"])
        else:
            latest = told["text"]
    if latest:
        _say(started, latest)
    final = job.wait()
    if final != state:
        _say(started, f"{job.name}: {final}")
    return final


def _say(started: float, text: str) -> None:
    print(f"{time.monotonic() - started:6.1f} s  {text}", flush=True)


def _follow(job: "Job", lines: "queue.Queue[str | None]") -> None:
    try:
        for line in job.logs(follow=True):
            lines.put(line)
    finally:
        lines.put(None)
