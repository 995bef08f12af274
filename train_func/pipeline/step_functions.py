"""The steps of the pipeline: functions whose text kfp puts into the YAML, and calls with artefacts to be filled.

A step runs in the image of this package, without the other names of this module: it imports what it uses.
"""

from typing import NamedTuple

from kfp import dsl


def prepare(
    run: str,
    dataset: dsl.Output[dsl.Dataset],
    where: str = "Cluster",
    options: str = "{}",
    promote_as: str = "",
    better: str = "",
) -> NamedTuple("Prepared", [("run", str), ("began", str)]):  # type: ignore[valid-type]
    """Checks data, model, store and backend, and uploads the files of this machine where the workers cannot read them.

    What the run is to be promoted by is checked too, where it is given.

    Args:
        dataset: what is known of the rows.
        where: the backend of the job, Cluster or Local.
        options: of that backend, as JSON.
        promote_as: as of promote; empty: it is not checked.
        better: as of promote; empty: it is not checked.

    Returns:
        run: the Run, whose inputs are named by their addresses and commits.
        began: when this step began, for train.
    """
    import json

    from train_func.pipeline import parameters
    from train_func.wire.events import now

    began, asked = now(), parameters.run_of(run)
    parameters.check_promotion(asked, promote_as, better)
    prepared, facts = parameters.prepare_run(asked, parameters.backend_of(where, options))
    dataset.metadata |= {**facts.about, "summary": facts.summary, "held_out_sha256": facts.held_out_sha256}
    dataset.metadata["fingerprints"] = dict(facts.fingerprints)
    print(facts.summary, flush=True)
    return json.dumps(prepared.to_dict()), began


def train(
    run: str,
    source: str,
    metrics: dsl.Output[dsl.Metrics],
    model: dsl.Output[dsl.Model],
    report: dsl.Output[dsl.HTML],
    where: str = "Cluster",
    options: str = "{}",
    began: str = "",
) -> NamedTuple(  # type: ignore[valid-type]
    "Trained", [("name", str), ("generation", int), ("address", str), ("manifest_sha256", str)]
):
    """Trains by a job, and attaches to the job that another attempt of this step has started.

    Args:
        source: the function with all it uses, as train_func.pipeline.arguments packs it.
        metrics: that were published, and the numbers that the function has returned.
        model: the manifest of what was published; its metadata say where that lies in the store.
        report: one page about the run, as ``Job.report`` writes it.
        began: as of prepare: a job that was cancelled or has failed for good since then is not tried again.

    Returns:
        generation: of the run, which counts those that were trained again with fresh=True.
        address: of the published model in the store.
        manifest_sha256: of the manifest of that model.
    """
    import hashlib
    from pathlib import Path

    from train_func.client.source import Source
    from train_func.client.submit import Request
    from train_func.pipeline import jobs, parameters

    backend = parameters.backend_of(where, options)
    request = Request.check(Source.from_json(source), parameters.run_of(run), backend)
    jobs.check_retry(request.job, request.store, began)
    job = request.submit()
    job.watch()
    jobs.log_numbers(metrics, job.result())
    jobs.write_report(job, report.path)
    store, keys = request.store, job.record.keys
    manifest = store.get(keys.result).data
    address, sha256 = f"{store.address}/{keys.model}", hashlib.sha256(manifest).hexdigest()
    Path(model.path).write_bytes(manifest)
    model.metadata.update(run=job.name, address=address, manifest_sha256=sha256)
    return job.name, job.record.generation, address, sha256


def evaluate(
    name: str,
    metrics: dsl.Output[dsl.Metrics],
    confusion: dsl.Output[dsl.ClassificationMetrics],
    where: str = "Cluster",
    options: str = "{}",
    generation: int = 0,
) -> None:
    """Asks the published model for the class of every held-out row; of a task without classes, takes what it published.

    Args:
        metrics: the number of rows and the share of them that is right, else what was published.
        confusion: how many rows of each class were taken for each.
        generation: of the run, as train has told; 0: the newest.
    """
    from train_func.pipeline import jobs, parameters
    from train_func.storage import open_store

    backend = parameters.backend_of(where, options)
    job = jobs.job_of(name, generation, backend)
    labels, matrix = jobs.confusion_of(job, open_store(backend.store_address()))
    if labels:
        num_rows, num_right = sum(map(sum, matrix)), sum(row[number] for number, row in enumerate(matrix))
        jobs.log_numbers(metrics, {"rows": num_rows, "accuracy": num_right / num_rows})
        confusion.log_confusion_matrix(labels, matrix)
    else:
        jobs.log_numbers(metrics, job.result())


def promote(
    name: str,
    promote_as: str,
    better: str = "accuracy",
    where: str = "Cluster",
    options: str = "{}",
    generation: int = 0,
) -> bool:
    """Puts the model of the run in place where it is better than the one there, on the same held-out rows.

    Args:
        promote_as: the name that the model is put in place under.
        better: the metric that is compared, behind a minus where a lower value is better; empty: put it in place in any
            case.
        generation: of the run, as train has told; 0: the newest.

    Returns:
        Whether it is in place now.
    """
    from train_func.pipeline import jobs, parameters

    job = jobs.job_of(name, generation, parameters.backend_of(where, options))
    return job.promote(promote_as, better=better or None)
