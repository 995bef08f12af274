"""Where a job is shown: as a panel where a notebook or a terminal can draw one, and else in plain lines."""

import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from train_func.client.display.lines import Lines
from train_func.client.display.panel import Subject, draw
from train_func.client.display.trace import Trace
from train_func.client.watch import News

PAUSE_SECONDS = 0.5  # between two repaints
SHOWN_SECONDS = 5.0  # after which a panel is painted again though nothing has changed: it shows a time
SILENT_SECONDS = 60.0  # after which it says that nothing is new


class Screen(Protocol):
    """What shows a job."""

    @property
    def state(self) -> str:
        """The state of the job that was shown last."""
        ...

    def take(self, news: News) -> None:
        """Shows what a look has brought."""
        ...

    def finish(self, explanation: str) -> None:
        """Shows the end; ``explanation``: why the job failed, empty where it did not."""
        ...


class Notebook:
    """A panel in the output of a cell, which is replaced as a whole by each repaint."""

    def __init__(self, subject: Subject, how_to_look: Callable[[], str]) -> None:
        self._subject, self._how_to_look = subject, how_to_look
        self._trace = Trace()
        self._handle: Any = None
        self._painted = self._changed = time.monotonic()

    @property
    def state(self) -> str:
        """The state of the job that was shown last."""
        return self._trace.state

    def take(self, news: News) -> None:
        """Repaints, if something is new, and not too often."""
        has_changed = bool(news.lines or news.diagnoses) or news.state != self._trace.state
        self._trace.take(news)
        now = time.monotonic()
        if has_changed:
            self._changed = now
        is_due = self._changed > self._painted and now - self._painted >= PAUSE_SECONDS
        if self._handle is None or is_due or now - self._painted >= SHOWN_SECONDS:
            silent = now - self._changed
            self._paint(how_to_look=self._how_to_look() if silent >= SILENT_SECONDS else "", silent=silent)

    def finish(self, explanation: str) -> None:
        """Paints the last frame."""
        self._paint(explanation)

    def _paint(self, explanation: str = "", *, how_to_look: str = "", silent: float = 0.0) -> None:
        from IPython.display import display

        frame = {
            "text/html": draw(self._subject, self._trace, explanation, silent=silent, how_to_look=how_to_look),
            "text/plain": f"{self._subject.name}: {self._trace.summary}",
        }
        self._painted = time.monotonic()
        if self._handle is None:
            self._handle = display(frame, raw=True, display_id=True)
        else:
            self._handle.update(frame, raw=True)


def screen_of(subject: Subject, how_to_look: Callable[[], str]) -> Screen:
    """Returns the best there is where this program prints.

    Args:
        subject: what is shown.
        how_to_look: tells, in words, how a person learns what the ranks of a silent job do.
    """
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return Notebook(subject, how_to_look)
    return Lines(subject.name, how_to_look)
