"""Watches a running job: joins what its workers say with its state, until it has ended."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from train_func.client.diagnose import JobMonitor, patiently
from train_func.client.display import Display
from train_func.client.logs import AttemptLine
from train_func.client.stored_run import FINISHED
from train_func.events import Evaluated, Event, Reported, StepProgress
from train_func.text import in_ipython

LOOK_SECONDS = 0.5  # between two looks at the state while no worker says anything
SUMMED_UP = (StepProgress, Reported, Evaluated)  # of each the last, where a job had ended before


class Watched(Protocol):
    """What a display needs of the handle on a job."""

    @property
    def name(self) -> str: ...

    @property
    def state(self) -> str: ...

    @property
    def attach_expression(self) -> str: ...

    def wait(self) -> str:
        """The state, when the job has ended."""
        ...


def watch(
    job: "Watched",
    lines: Callable[[], Iterator[AttemptLine]],
    submitted: Callable[[], str],
    monitor: JobMonitor,
    stop: threading.Event,
    amiss: Callable[[], str],
) -> str:
    """Prints until the job has finished or hangs for good; an interrupt ends the watching, not the job.

    Of a job that had finished before only a summary is printed.

    In IPython an interrupt returns. In a program it is raised again, so that it ends the program too.

    Args:
        lines: asks the backend for what the workers say, followed.
        submitted: asks the store for the time of the newest submission; what belongs to an earlier one is only counted.
        monitor: diagnoses what hinders the job.
        stop: is set at the end, and stops ``lines``.
        amiss: a warning about a job that has succeeded, in words; mostly empty.

    Returns:
        The state; after an interrupt the one that was shown last, so that no request delays the return.
    """
    display = Display(how_to_look=lambda: _how_to_look(job, monitor))
    try:
        newest = submitted()
        if (state := job.state) in FINISHED:
            last = _last_told(lines(), newest)
            amiss_of_it = amiss() if state == "Succeeded" else ""
            display.say_of_ended(job.name, state, last, job.attach_expression, amiss_of_it)
            return state
        display.state(job.name, state)
        for line in _as_they_come(job, state, lines(), display, monitor):
            if _is_earlier(line, newest):
                display.pass_over(line.attempt)
            else:
                display.tell(line)
        state = job.state if monitor.failure() else job.wait()
        display.finish(job.name, state, amiss() if state == "Succeeded" else "")
    except KeyboardInterrupt:
        again = f"{job.attach_expression}.watch() shows it again, .cancel() stops it"
        print(f"{job.name}: stopped watching; the job keeps running: {again}")
        if not in_ipython():
            raise KeyboardInterrupt(f"{job.name} keeps running") from None  # without the frames of what was waited for
        return display.shown
    finally:
        stop.set()
    return state


def _how_to_look(job: "Watched", monitor: JobMonitor) -> str:
    """What a person can do about a silence; empty where there is nothing."""
    command = monitor.stacks_command()
    return command and f"`{command}` has every rank write where it is to the log: {job.attach_expression}.logs()"


def _is_earlier(line: AttemptLine, newest: str) -> bool:
    """Whether it belongs to a submission before the newest one."""
    return bool(newest) and line.attempt.submitted not in ("", newest)


def _last_told(lines: Iterator[AttemptLine], newest: str) -> list[Event]:
    """Of the newest submission the last progress, report and evaluation, as far as there are any, in their order."""
    last: dict[type[Event], Event] = {}
    for line in lines:
        if isinstance(line.event, SUMMED_UP) and not _is_earlier(line, newest):
            last.pop(type(line.event), None)
            last[type(line.event)] = line.event
    return list(last.values())


def _as_they_come(
    job: "Watched", state: str, lines: Iterator[AttemptLine], display: Display, monitor: JobMonitor
) -> Iterator[AttemptLine]:
    """The lines, until the job has ended or hangs for good; the state and what hinders it are shown meanwhile."""
    come: queue.Queue[AttemptLine | BaseException | None] = queue.Queue()
    threading.Thread(target=_follow, args=(lines, come), daemon=True).start()
    looked = -LOOK_SECONDS
    while True:
        if time.monotonic() - looked >= LOOK_SECONDS:
            state = patiently(lambda: job.state, state)
            if state not in FINISHED:  # an end is shown behind the last lines
                display.state(job.name, state)
            display.diagnoses(monitor.look())
            if monitor.failure():
                return
            looked = time.monotonic()
        try:
            line = come.get(timeout=LOOK_SECONDS)
        except queue.Empty:
            display.idle()
            continue
        if isinstance(line, BaseException):
            raise line
        if line is None:
            return
        yield line


def _follow(lines: Iterator[AttemptLine], come: "queue.Queue[AttemptLine | BaseException | None]") -> None:
    try:
        for line in lines:
            come.put(line)
    except Exception as error:  # raised where the lines are shown
        come.put(error)
    come.put(None)
