"""Job: the handle on what executes a run, the same for every place and every kernel."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.client.explain import explain
from train_func.client.fetch import fetch
from train_func.client.observed import Event, JobStatus, Place
from train_func.client.watch import watch
from train_func.errors import InvalidInput, JobNotFound, StorageFailed
from train_func.run import RunRecord
from train_func.storage import Store

if TYPE_CHECKING:
    from transformers import Pipeline

FINISHED = ("Succeeded", "Failed", "Cancelled", "Interrupted")
POLL_SECONDS = 0.3
WAY = {
    **dict.fromkeys(("Created", "Running", "Restarting"), "wait() until it has finished"),
    **dict.fromkeys(("Cancelled", "Interrupted", "Absent"), "submit the same again to go on"),
    "Failed": "result() tells why",
    "Succeeded": "its function called no session.publish(trainer)",
}


class Job:
    """Made by ``submit`` and ``attach``; holds nothing that another process could not find again by name."""

    def __init__(self, record: RunRecord, place: Place, store: Store) -> None:
        self.record = record
        self._place = place
        self._store = store

    def __repr__(self) -> str:
        return f"Job({self.name!r}, {self.state})"

    @property
    def name(self) -> str:
        """The run's name; ``attach(name)`` finds it again from any kernel."""
        return self.record.name

    @property
    def state(self) -> str:
        """Created, Running, Restarting, Succeeded, Failed, Cancelled, Interrupted, or Absent."""
        return state_of(self._place.status(self.record.job_name), published=self._published())

    @property
    def manifest(self) -> dict[str, Any]:
        """The whole PyTorchJob that was submitted."""
        manifest: dict[str, Any] = json.loads(self._store.get(f"{self.record.prefix}/manifest.json").data)
        return manifest

    def wait(self, timeout: float | None = None) -> str:
        """Waits until the job has finished and returns its state.

        Raises:
            TimeoutError: after ``timeout`` seconds; the job goes on.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (state := self.state) not in FINISHED:
            if state == "Absent":
                raise self._absent()
            if end is not None and time.monotonic() > end:
                raise TimeoutError(f"{self.name} is {state} after {timeout} s; it goes on: wait again, or cancel()")
            time.sleep(POLL_SECONDS)
        return state

    def watch(self) -> str:
        """Shows state, progress and evaluations as they come, until the job has finished; returns its state."""
        return watch(self)

    def logs(self, *, follow: bool = False, worker: int | None = None, attempt: int | None = None) -> Iterator[str]:
        """Lines of all workers from the first one on, each behind its worker, those of earlier attempts included.

        Args:
            follow: go on until the job has finished.
            worker: only of this one.
            attempt: only of this one, as kept in the store.
        """
        if worker is not None and worker not in range(self.record.run.workers):
            raise InvalidInput(f"worker={worker!r}: {self.name} has the workers 0 to {self.record.run.workers - 1}")
        return self._logs(follow, worker, attempt)

    def _logs(self, follow: bool, worker: int | None, attempt: int | None) -> Iterator[str]:
        live = attempt is None and self._place.status(self.record.job_name) is not None
        for number, text in self._live_lines(follow) if live else self._stored_lines(attempt):
            if worker in (None, number):
                yield f"[worker {number}] {text}"

    def _live_lines(self, follow: bool) -> Iterator[tuple[int, str]]:
        for line in self._place.log_lines(self.record.job_name, follow=follow):
            yield line.worker, line.text

    def _stored_lines(self, attempt: int | None) -> Iterator[tuple[int, str]]:
        root = f"{self.record.prefix}/attempts"
        prefix = f"{root}/" if attempt is None else f"{root}/{attempt}/"
        keys = [entry.key for entry in self._store.list(prefix) if entry.key.endswith(".log")]
        if attempt is not None and not keys:
            raise JobNotFound(f"{self.name} has no attempt {attempt} with a log in {self._store.address}")
        for key in sorted(keys, key=lambda key: (int(key.split("/")[-2]), key)):
            number = int(key.rsplit("worker-", 1)[1].split(".")[0])
            for text in self._store.get(key).data.decode(errors="replace").splitlines():
                yield number, text

    def events(self) -> list[Event]:
        """What happened to the job and its workers, oldest first."""
        return self._place.events(self.record.job_name)

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Waits, then returns the metrics of the run; empty when the function published nothing.

        Raises:
            JobFailed: naming the cause, the worker and the line of the cell.
            TimeoutError: after ``timeout`` seconds; the job goes on.
        """
        if self.wait(timeout) != "Succeeded":
            raise explain(self.record, self._place, self._store)
        metrics: dict[str, Any] = (self._final_manifest() or {}).get("metrics", {})
        return metrics

    def fetch(self, what: str = "model", *, to: str | Path | None = None) -> Path:
        """Downloads the published model and verifies it; returns its folder.

        Args:
            what: ``"model"``.
            to: the folder; by default one named after the run, where this machine keeps models.

        Raises:
            StorageFailed: no model is published yet, or a file is not what was published.
        """
        if what != "model":
            raise InvalidInput(f"fetch({what!r}): only 'model' is kept for fetching")
        folder = Path(to) if to is not None else self._place.models_folder() / self.name
        try:
            return fetch(self._store, self.record.model_prefix, folder.expanduser().absolute())
        except StorageFailed as failure:
            if failure.reason != "absent":
                raise
            raise StorageFailed(
                f"{self.name} has published no model in {self._store.address}: it is {self.state}; {WAY[self.state]}",
                reason="absent",
            ) from None

    def load(self) -> "Pipeline":
        """A ready ``transformers`` pipeline of the fetched and verified model."""
        folder = self.fetch()
        from transformers import pipeline

        return pipeline("text-classification", model=str(folder), truncation=True)

    def cancel(self) -> None:
        """Stops the workers; submitting the same again goes on with the run."""
        self._place.cancel(self.record.job_name)

    def delete(self) -> None:
        """Stops the workers and removes the job; what the store holds stays."""
        self._place.delete(self.record.job_name)

    def _final_manifest(self) -> dict[str, Any] | None:
        try:
            manifest: dict[str, Any] = json.loads(self._store.get(f"{self.record.prefix}/result.json").data)
        except StorageFailed as failure:
            if failure.reason == "absent":
                return None
            raise
        return manifest

    def _published(self) -> bool:
        return bool(self._store.list(f"{self.record.prefix}/result.json"))

    def _absent(self) -> JobNotFound:
        return JobNotFound(f"no job {self.record.job_name} is there any more; submit the run again to go on")


def state_of(status: JobStatus | None, *, published: bool) -> str:
    """One word for a job: its newest true condition, or what its absence means.

    Args:
        published: whether the store holds the final manifest; a job that is gone has then succeeded.
    """
    if status is None:
        return "Succeeded" if published else "Absent"
    true = {condition.type: condition for condition in status.conditions if condition.status == "True"}
    if "Succeeded" in true:
        return "Succeeded"
    if "Failed" in true:
        return "Cancelled" if true["Failed"].reason == "Cancelled" else "Failed"
    if status.interrupted:
        return "Succeeded" if published else "Interrupted"
    return next((state for state in ("Restarting", "Running") if state in true), "Created")
