"""Where a job is shown: as a panel where a notebook or a terminal can draw one, and else in plain lines."""

import sys
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

from train_func.client.display.lines import SILENT_SECONDS, Lines
from train_func.client.display.panel import Panel, Subject, duration, panel_of
from train_func.client.display.trace import Trace
from train_func.client.stored_run import ENDED
from train_func.client.watch import JobLooks, News
from train_func.errors import JobFailed

if TYPE_CHECKING:
    from train_func.client.display.terminal import Terminal

PAUSE_SECONDS = 0.5  # between two repaints
SHOWN_SECONDS = 5.0  # after which a panel is painted again though nothing has changed: it shows a time


class Screen(Protocol):
    """What shows a job."""

    @property
    def state(self) -> str:
        """The state of the job that was shown last."""
        ...

    @property
    def notes(self) -> Collection[str]:
        """The notes of workers that were shown."""
        ...

    def take(self, news: News) -> None:
        """Shows what a look has brought."""
        ...

    def finish(self, failure: JobFailed | None = None) -> None:
        """Shows the last of it; ``failure``: why the job has no result, None where it has one or goes on."""
        ...

    def close(self) -> None:
        """Leaves what is shown, whatever has ended the showing; nothing happens the second time."""
        ...


class PaintedPanel:
    """A panel that is painted again when something is new, and not too often."""

    def __init__(self, looks: JobLooks, printed_notes: frozenset[str], canvas: "Notebook | Terminal") -> None:
        """``printed_notes``: notes that the submission has printed."""
        self._looks, self._canvas = looks, canvas
        self._subject = Subject.of(looks, printed_notes)
        self._trace = Trace()
        self._painted, self._changed = -SHOWN_SECONDS, time.monotonic()

    @property
    def state(self) -> str:
        """The state of the job that was shown last."""
        return self._trace.state

    @property
    def notes(self) -> Collection[str]:
        """The notes of workers that were shown."""
        return self._trace.notes

    def take(self, news: News) -> None:
        """Paints what a look has brought."""
        has_changed = bool(news.lines or news.diagnoses) or news.state != self._trace.state
        self._trace.take(news)
        now = time.monotonic()
        self._changed = now if has_changed else self._changed
        is_due = self._changed > self._painted and now - self._painted >= PAUSE_SECONDS
        if is_due or now - self._painted >= SHOWN_SECONDS:
            self._paint()

    def finish(self, failure: JobFailed | None = None) -> None:
        """Paints the last frame."""
        result = self._looks.result() if self.state == "Succeeded" else {}
        is_stopped = not self._trace.is_over and self.state not in ENDED
        words = str(failure or "")
        self._canvas.paint(panel_of(self._subject, self._trace, words, result=result, is_stopped=is_stopped))
        self.close()

    def close(self) -> None:
        """Leaves the last frame where it is."""
        self._canvas.close()

    def _paint(self) -> None:
        self._painted = time.monotonic()
        silent, silence = self._painted - self._changed, ""
        if silent >= SILENT_SECONDS and self.state == "Running" and (how := self._looks.how_to_look()):
            silence = f"nothing new for {duration(silent)}; {how}"
        self._canvas.paint(panel_of(self._subject, self._trace, silence=silence))


class Notebook:
    """The output of a cell."""

    def __init__(self) -> None:
        self._output: Any = None

    def paint(self, panel: Panel) -> None:
        """Replaces what was painted before."""
        from IPython.display import display

        from train_func.client.display.html import draw

        frame = {"text/html": draw(panel), "text/plain": str(panel)}
        if self._output is None:
            self._output = display(frame, raw=True, display_id=True)
        else:
            self._output.update(frame, raw=True)

    def close(self) -> None:
        """Leaves the last panel where it is."""


def screen_of(looks: JobLooks, printed_notes: frozenset[str]) -> Screen:
    """Returns the best there is where this program prints; the submission has printed ``printed_notes``."""
    shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if getattr(shell, "kernel", None) is not None:
        return PaintedPanel(looks, printed_notes, Notebook())
    if sys.stdout.isatty():
        from train_func.client.display.terminal import Terminal

        return PaintedPanel(looks, printed_notes, Terminal())
    subject = Subject.of(looks, printed_notes)
    return Lines(subject.name, looks.how_to_look, subject.submitted, subject.printed_notes)
