"""The job of a step: finds it by name, refuses another try, and shows it as numbers and a confusion matrix."""

import html
import json
import os
from pathlib import Path
from typing import Any

from train_func.client.backend import Backend
from train_func.client.job import Job, attach
from train_func.client.stored_attempts import all_ends
from train_func.client.stored_run import stored_record, submission_time
from train_func.errors import Cause, InvalidInput, JobFailed
from train_func.fields import is_number
from train_func.storage import Store, find, open_store
from train_func.text import listed
from train_func.wire.layout import RunKeys, newest_number
from train_func.worker.inputs.cache import machine_cache
from train_func.worker.tasks.protocol import Classifies, worker_half

# Another try without a change would only repeat these; what befell the workers or the cluster is tried again.
FINAL: tuple[Cause, ...] = ("cancelled", "input", "source", "data", "model", "code", "divergence", "memory", "deadline")


def job_of(name: str, generation: int, backend: Backend) -> Job:
    """Returns the handle of a generation of a run, of the newest one for 0; a later one may be training meanwhile."""
    if not generation:
        return attach(name, on=backend)
    store = open_store(backend.store_address())
    return Job(stored_record(store, RunKeys(name, generation)), backend, store)


def check_retry(job: Job, store: Store, began: str) -> None:
    """Raises JobFailed if the job was cancelled, or has failed for good, since the pipeline run ``began``."""
    keys = job.record.keys
    times = [submission_time(store, keys), *(end.ended for end in all_ends(store, keys))]
    if cancelled := find(store, keys.cancelled(newest_number(store.names(keys.submissions)))):
        times.append(json.loads(cancelled.data)["time"])
    if not began or max(times) < began:  # all are of one zone and in ISO format, whose order is that of time
        return
    try:
        state = job.state
        if state == "Cancelled":
            raise JobFailed(f"{job.name} was cancelled", cause="cancelled")
        if state == "Failed":
            job.result()
    except JobFailed as failure:
        if failure.cause in FINAL or not failure.retryable:
            remedy = "run the pipeline again, and it goes on from the newest checkpoint"
            words = f"{failure}\n  not tried again in the pipeline run that began at {began}: {remedy}"
            raise JobFailed(words, cause=failure.cause, retryable=False) from failure


def log_numbers(metrics: Any, values: dict[str, Any]) -> None:
    """Logs the values that are numbers which JSON can hold."""
    for name, value in values.items():
        if is_number(value):
            metrics.log_metric(name, value)


def write_report(job: Job, path: str) -> None:
    """Writes the report of the job to ``path``; if it cannot be made, the reason."""
    try:
        job.report(path, texts=False)  # what a pipeline writes lies in a store
    except Exception as error:  # whatever it is: the model is trained, and worth more than its report
        Path(path).write_text(f"<p>{html.escape(f'{type(error).__name__}: {error}')}</p>")


def confusion_of(job: Job, store: Store) -> tuple[list[str], list[list[int]]]:
    """Returns the classes, and a confusion matrix of the published model on held-out rows, a line for each true class.

    Both are empty if rows do not have one class each. Raises InvalidInput if the data have changed since the training,
    or the model has other classes than the rows; or as ``load``.
    """
    record = job.record
    if record.run.task is None:
        return [], []
    task = worker_half(record.run, store, machine_cache(os.environ))
    if not isinstance(task, Classifies) or not task.has_one_class:
        return [], []
    rows = task.rows()
    if changed := [name for name, sha256 in rows.fingerprints.items() if record.fingerprints.get(name) != sha256]:
        raise InvalidInput(
            f"{', '.join(changed)} of {record.name} has changed since the training, so that its held-out rows are not "
            "known: bring the data back, or submit the run again",
            cause="data",
        )
    numbers = {label: number for number, label in enumerate(rows.labels)}
    matrix = [[0] * len(rows.labels) for _ in rows.labels]
    answers = task.classes(job.load(), rows.held_out)
    if unknown := sorted({*answers} - {*numbers}):
        raise InvalidInput(
            f"the model of {record.name} tells the classes {listed(unknown)}, and its rows have {listed(rows.labels)}: "
            "train the model that session.model() gives, or publish one whose config names the same classes",
            cause="model",
        )
    for truth, answer in zip(rows.held_out["label"], answers, strict=True):
        matrix[truth][numbers[answer]] += 1
    return list(rows.labels), matrix
