"""How rank 0 publishes: files are kept in the pod and sent to the store, and become the result when all is done."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.pod import reporting, sessions
from train_func.worker.pod.card import TaskPart
from train_func.worker.pod.pending import PUBLISH_SECONDS, Pending
from train_func.worker.pod.returned import plain_result
from train_func.worker.pod.stop import Stop
from train_func.worker.pod.store_wait import patient
from train_func.worker.pod.timings import Timings


class Publishing:
    """Of one Session, on its rank 0."""

    def __init__(self, work_dir: Path, store: Store, record: RunRecord, attempt: int, *, is_supervised: bool) -> None:
        """``is_supervised``: by a supervisor, which makes the result when the ranks of all workers have ended."""
        self._is_supervised, self._is_over = is_supervised, False
        self._pending = Pending(work_dir)
        self._store = store
        self._record = record
        self._attempt = attempt
        self._seconds = min(PUBLISH_SECONDS, record.run.deadline)

    @property
    def folder(self) -> Path:
        """Where the files lie that were added last, with those before them."""
        return self._pending.folder

    def add(self, write: Callable[[Path], object], is_model: bool, card: TaskPart | None = None) -> None:
        """Files that ``write`` makes in a folder. Raises StorageFailed, or InvalidInput when the result is there."""
        self._check_open()
        self._pending.add(write, self._attempt, is_model=is_model, card=card)
        self._send()

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Metrics of the function's own. Raises InvalidInput when the result is there."""
        self._check_open()
        found, left_out = plain_result(metrics)
        self._pending.report(self._attempt, {"metrics": found})
        if left_out:
            note = f"not JSON, and therefore not among the metrics as it was given: {', '.join(left_out)}"
            sessions.here.notes.append(note)  # which a supervisor tells with the result
            reporting.note(note)

    def note(self, text: str) -> None:
        """What a person should know of the files."""
        self._pending.report(self._attempt, {"note": text})

    def keep(self, write: Callable[[Path], object], report: Mapping[str, Any], card: TaskPart | None) -> None:
        """A model that has been trained to its end, and what is told of it until it is measured."""
        self._check_open()
        self._pending.add(write, self._attempt, is_model=True, card=card)
        self._pending.report(self._attempt, report)

    def measured(self, report: Mapping[str, Any]) -> None:
        """What is told of that model in the end. Raises StorageFailed."""
        self._pending.report(self._attempt, {"note": "", **report})
        if self._is_supervised:
            self._send()
        else:
            self.finish()

    def finish(self) -> None:
        """Makes the result of what was added, where no supervisor does."""
        if not (self._is_supervised or self._is_over or self._pending.attempt is None):
            self._is_over = True
            self._pending.publish(self._store, self._record, Stop())

    def _send(self) -> None:
        self._pending.send(
            patient(self._store, Stop(), self._seconds, "publish what was trained", Timings()), self._record
        )

    def _check_open(self) -> None:
        if self._is_over:
            raise InvalidInput(
                "the result of this run is published already: where a function is called without submit, its Trainer "
                "is published last, and other files before it",
                cause="code",
            )
