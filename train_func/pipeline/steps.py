"""What each step of a pipeline does where it runs: with a run's name or JSON, and the artefacts that kfp hands it."""

import base64
import hashlib
import html
import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.client.attach import attach
from train_func.client.job import Job
from train_func.client.source import Source
from train_func.client.submit import submit
from train_func.errors import InvalidInput, JobNotFound
from train_func.pipeline.carrying import backend_of, carried, run_of
from train_func.storage import open_store

if TYPE_CHECKING:
    from kfp import dsl


def prepare(run: str, where: str, options: str, dataset: "dsl.Dataset") -> str:
    """The Run as JSON, with its files where the workers read them; raises what ``submit`` raises for them."""
    prepared, facts = carried(run_of(run), backend_of(where, options))
    dataset.metadata.update(facts.about)
    dataset.metadata["summary"] = facts.summary
    dataset.metadata["held_out_sha256"] = facts.held_out_sha256
    dataset.metadata["fingerprints"] = dict(facts.fingerprints)
    print(facts.summary, flush=True)
    return json.dumps(prepared.to_dict())


def train(
    run: str,
    source: str,
    where: str,
    options: str,
    metrics: "dsl.Metrics",
    model: "dsl.Model",
    history: "dsl.HTML",
) -> tuple[str, str, str]:
    """Name of the run, address of its model, SHA-256 of its manifest; raises what ``submit`` and ``result`` raise.

    A job of the run that is there, which another attempt of the step has left, is waited for.
    """
    backend = backend_of(where, options)
    job = submit(Source.from_json(source), run_of(run), on=backend)
    job.watch()
    log_numbers(metrics, job.result())
    Path(history.path).write_text(picture(job))
    store, keys = open_store(backend.store_address()), job.record.keys
    manifest = store.get(keys.result).data
    address, sha256 = f"{store.address}/{keys.model}", hashlib.sha256(manifest).hexdigest()
    Path(model.path).write_bytes(manifest)
    model.metadata |= {"run": job.name, "address": address, "manifest_sha256": sha256}
    return job.name, address, sha256


def evaluate(
    name: str, where: str, options: str, metrics: "dsl.Metrics", confusion: "dsl.ClassificationMetrics"
) -> None:
    """Logs the confusion matrix of the published model on the held-out rows, and the share that is right.

    Raises:
        InvalidInput: the rows are not those any more that the run has held out; or as ``load``.
    """
    from train_func.pipeline.confusion import confusion_of

    backend = backend_of(where, options)
    job = attach(name, on=backend)
    found = confusion_of(job, open_store(backend.store_address())) if job.record.run.task else None
    if found is None:
        log_numbers(metrics, job.result())
    else:
        log_numbers(metrics, {"rows": found.num_rows, "accuracy": found.accuracy})
        confusion.log_confusion_matrix(list(found.labels), found.matrix)


def promote(name: str, promote_as: str, better_in: str, where: str, options: str) -> bool:
    """Whether the model of the run is in place now; raises what ``Job.promote`` raises."""
    return attach(name, on=backend_of(where, options)).promote(promote_as, better_in=better_in or None)


def log_numbers(metrics: "dsl.Metrics", found: dict[str, Any]) -> None:
    """Logs what of it is a number that JSON can hold."""
    for name, value in found.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            metrics.log_metric(name, value)


def picture(job: Job) -> str:
    """The history of the job as a page with a picture; where there is none, with the words that say why."""
    try:
        axes = job.history().plot()
    except (InvalidInput, JobNotFound) as error:
        return f"<p>{html.escape(str(error))}</p>"
    drawn = io.BytesIO()
    axes[0].figure.savefig(drawn, format="png")
    return f'<img alt="metrics over steps" src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}">'
