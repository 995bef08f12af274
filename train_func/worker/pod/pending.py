"""What was trained and is not yet published, kept in the pod: the process that is left only has to upload.

Publishing waits for a store that is away, and the rank or the supervisor that waits may die meanwhile. Loads no torch.
"""

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.pod import reporting
from train_func.worker.pod.publish import publish, take_source
from train_func.worker.pod.stop import Stop
from train_func.worker.pod.store_wait import patient
from train_func.worker.pod.timings import Timings

PUBLISH_SECONDS = 15 * 60.0  # longest wait for the store after the training; the job's deadline ends it earlier


class Pending:
    """The publication in the working folder of a pod."""

    def __init__(self, work_dir: Path) -> None:
        self._root = work_dir / "publication"
        self._sealed = self._root / "sealed.json"
        self.folder = self._root / "model"
        """Where the files are written before ``seal``."""

    def begin(self) -> None:
        """Makes room for the files; what a rank left that died while it wrote them is removed."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(parents=True)

    def seal(self, attempt: int, report: Mapping[str, Any], seconds: float = PUBLISH_SECONDS) -> None:
        """From now on the files are whole, and may be published within ``seconds`` by any process of the pod.

        The last report that was sealed is the one that is published.
        """
        sealed = {"attempt": attempt, "report": report, "until": time.time() + seconds}
        unfinished = self._sealed.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(sealed))
        unfinished.replace(self._sealed)

    @property
    def is_sealed(self) -> bool:
        """Whether something waits here."""
        return self._sealed.exists()

    @property
    def attempt(self) -> int | None:
        """The attempt that trained what waits here; None when nothing does."""
        return int(self._read()["attempt"]) if self.is_sealed else None

    def upload(self, store: Store, record: RunRecord, stop: Stop) -> None:
        """Publishes it and removes it here.

        Raises:
            StorageFailed: the store is away for too long, or what ``publish`` raises.
            Stopped: on a signal.
        """
        sealed = self._read()
        waiting = patient(store, stop, sealed["until"] - time.time(), "publish what was trained", Timings())
        if note := sealed["report"].get("note"):
            reporting.note(note)
        (self.folder / "metrics.json").write_text(json.dumps(sealed["report"]["metrics"], indent=1) + "\n")
        take_source(waiting, record, self.folder)
        publish(waiting, record, sealed["attempt"], self.folder, sealed["report"])
        shutil.rmtree(self._root, ignore_errors=True)

    def _read(self) -> dict[str, Any]:
        sealed: dict[str, Any] = json.loads(self._sealed.read_text())
        return sealed
