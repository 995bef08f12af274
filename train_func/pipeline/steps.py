"""What each step of a pipeline does where it runs: with a run's name or JSON, and the artefacts that kfp hands it."""

import base64
import hashlib
import html
import io
import json
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.client.attach import attach
from train_func.client.backend import Backend, provisional
from train_func.client.comparison import Comparison
from train_func.client.identity import stored
from train_func.client.in_place import check_name, check_shortens_no_other
from train_func.client.job import Job
from train_func.client.source import Source
from train_func.client.submit import started
from train_func.errors import InvalidInput
from train_func.events import now
from train_func.fields import brief
from train_func.pipeline.again import check_goes_on
from train_func.pipeline.carrying import backend_of, carried, run_of
from train_func.storage import open_store

if TYPE_CHECKING:
    from kfp import dsl


def prepare(
    run: str,
    where: str,
    options: str,
    dataset: "dsl.Dataset",
    promote_as: str,
    better_in: str,
    greater_is_better: str,
) -> tuple[str, str]:
    """The Run as JSON, with its files where the workers read them, and when that was begun.

    Raises what ``submit`` raises for them, and InvalidInput where its model could not be promoted so.
    """
    began = now()
    if promote_as:
        check_name(promote_as)
    if better_in:
        Comparison.by(better_in, direction_of(greater_is_better))
    asked, backend = run_of(run), backend_of(where, options)
    prepared, facts = carried(asked, backend)
    if promote_as and (asked.task or asked.name):  # of another run the name begins as the function, unknown here, does
        store = open_store(backend.store_address())
        check_shortens_no_other(store, promote_as, provisional(asked, store.address).name)
    if better_in and not facts.held_out_sha256:
        raise InvalidInput(
            f"better_in={brief(better_in)}: the run has no task, so that nothing tells which rows are held out, and "
            'its model can be compared with no other: give it a task, or better_in=""',
            cause="data",
        )
    dataset.metadata.update(facts.about)
    dataset.metadata["summary"] = facts.summary
    dataset.metadata["held_out_sha256"] = facts.held_out_sha256
    dataset.metadata["fingerprints"] = dict(facts.fingerprints)
    print(facts.summary, flush=True)
    return json.dumps(prepared.to_dict()), began


def train(
    run: str,
    source: str,
    where: str,
    options: str,
    metrics: "dsl.Metrics",
    model: "dsl.Model",
    history: "dsl.HTML",
    began: str = "",
) -> tuple[str, int, str, str]:
    """Name and generation of the run, address of its model, SHA-256 of its manifest.

    A job of the run that is there, which another attempt of the step has left, is waited for. Raises what ``submit``
    and ``result`` raise; what ``result`` raises again where ``check_goes_on`` refuses another try.
    """
    backend = backend_of(where, options)
    goes_on = partial(check_goes_on, began=began)
    job = started(Source.from_json(source), run_of(run), backend, before_again=goes_on)
    job.watch()
    log_numbers(metrics, job.result())
    Path(history.path).write_text(picture(job))
    store, keys = open_store(backend.store_address()), job.record.keys
    manifest = store.get(keys.result).data
    address, sha256 = f"{store.address}/{keys.model}", hashlib.sha256(manifest).hexdigest()
    Path(model.path).write_bytes(manifest)
    model.metadata |= {"run": job.name, "address": address, "manifest_sha256": sha256}
    return job.name, job.record.generation, address, sha256


def evaluate(
    name: str,
    where: str,
    options: str,
    metrics: "dsl.Metrics",
    confusion: "dsl.ClassificationMetrics",
    generation: int = 0,
) -> None:
    """Logs the confusion matrix of the published model on the held-out rows, and the share that is right.

    Raises:
        InvalidInput: the rows are not those any more that the run has held out; or as ``load``.
    """
    from train_func.pipeline.confusion import confusion_of

    backend = backend_of(where, options)
    job = job_of(name, generation, backend)
    found = confusion_of(job, open_store(backend.store_address())) if job.record.run.task else None
    if found is None:
        log_numbers(metrics, job.result())
    else:
        log_numbers(metrics, {"rows": found.num_rows, "accuracy": found.accuracy})
        confusion.log_confusion_matrix(list(found.labels), found.matrix)


def promote(
    name: str,
    promote_as: str,
    better_in: str,
    where: str,
    options: str,
    greater_is_better: str = "",
    generation: int = 0,
) -> bool:
    """Whether the model of the run is in place now; raises what ``Job.promote`` raises."""
    job = job_of(name, generation, backend_of(where, options))
    return job.promote(promote_as, better_in=better_in or None, greater_is_better=direction_of(greater_is_better))


def job_of(name: str, generation: int, backend: Backend) -> Job:
    """The handle on that generation of a run, or on the newest one for 0: another may be in training meanwhile."""
    if not generation:
        return attach(name, on=backend)
    store = open_store(backend.store_address())
    return Job(stored(store, name, generation), backend, store)


def direction_of(text: str) -> bool | None:
    """What ``greater_is_better`` of a step says: kfp hands on no truth value that may be missing."""
    told = {"": None, "true": True, "false": False}
    if text.lower() not in told:
        raise InvalidInput(f'greater_is_better={brief(text)}: "true", "false" or "" is expected')
    return told[text.lower()]


def log_numbers(metrics: "dsl.Metrics", found: dict[str, Any]) -> None:
    """Logs what of it is a number that JSON can hold."""
    for name, value in found.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            metrics.log_metric(name, value)


def picture(job: Job) -> str:
    """The history of the job as a page with a picture; where there is none, with the words that say why."""
    drawn = io.BytesIO()
    try:
        job.history().plot()[0].figure.savefig(drawn, format="png")
    except Exception as error:  # whatever it is: the model is trained, and worth more than its picture
        return f"<p>{html.escape(f'{type(error).__name__}: {error}')}</p>"
    return f'<img alt="metrics over steps" src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}">'
