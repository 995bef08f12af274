"""The functions of the components, whose text kfp puts into the pipeline: each hands all it gets to ``steps``.

They run in the image, where kfp calls them with paths and addresses in place of the artefacts.
"""

from typing import NamedTuple

from kfp import dsl


def prepare(
    run: str,
    dataset: dsl.Output[dsl.Dataset],
    where: str = "Cluster",
    options: str = "{}",
    promote_as: str = "",
    better_in: str = "",
    greater_is_better: str = "",
) -> NamedTuple("Prepared", [("run", str), ("began", str)]):  # type: ignore[valid-type]
    """Checks data, model, store and backend, and brings what lies on this machine to where the workers read it.

    What the run is to be promoted by is checked too, where it is given.

    Args:
        run: the Run, as JSON.
        dataset: what is known of the rows.
        where: the backend of the job, Cluster or Local.
        options: of that backend, as JSON.
        promote_as: as of promote; empty: it is not checked.
        better_in: as of promote; empty: it is not checked.
        greater_is_better: as of promote.

    Returns:
        run: the Run, whose inputs are named by their addresses and commits.
        began: when this step began, for train.
    """
    from train_func.pipeline import steps

    return steps.prepare(run, where, options, dataset, promote_as, better_in, greater_is_better)


def train(
    run: str,
    source: str,
    metrics: dsl.Output[dsl.Metrics],
    model: dsl.Output[dsl.Model],
    history: dsl.Output[dsl.HTML],
    where: str = "Cluster",
    options: str = "{}",
    began: str = "",
) -> NamedTuple(  # type: ignore[valid-type]
    "Trained", [("name", str), ("generation", int), ("address", str), ("manifest_sha256", str)]
):
    """Trains by a job, and attaches to the job that another attempt of this step has started.

    Args:
        run: the Run, as JSON.
        source: the function with all it uses, as train_func.pipeline.arguments packs it.
        metrics: that were published, and the numbers that the function has returned.
        model: the manifest of what was published; its metadata say where that lies in the store.
        history: the metrics over the steps, as a picture.
        where: the backend of the job, Cluster or Local.
        options: of that backend, as JSON.
        began: as prepare has told: a job that was cancelled since then, or has failed for good, is not tried again;
            empty: it is.

    Returns:
        name: of the run.
        generation: of the run, which counts those that were trained again with fresh=True.
        address: of the published model in the store.
        manifest_sha256: of the manifest of that model.
    """
    from train_func.pipeline import steps

    return steps.train(run, source, where, options, metrics, model, history, began)


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
        name: of the run.
        metrics: the number of rows and the share of them that is right, else what was published.
        confusion: how many rows of each class were taken for each.
        where: the backend of the job, Cluster or Local.
        options: of that backend, as JSON.
        generation: of the run, as train has told; 0: the newest.
    """
    from train_func.pipeline import steps

    steps.evaluate(name, where, options, metrics, confusion, generation)


def promote(
    name: str,
    promote_as: str,
    better_in: str = "accuracy",
    where: str = "Cluster",
    options: str = "{}",
    greater_is_better: str = "",
    generation: int = 0,
) -> bool:
    """Puts the model of the run in place where it is better than the one there, on the same held-out rows.

    Args:
        name: of the run.
        promote_as: the name that its model is put in place under.
        better_in: the metric that is compared; empty: put it in place in any case.
        where: the backend of the job, Cluster or Local.
        options: of that backend, as JSON.
        greater_is_better: of that metric, "true" or "false"; empty: as its name tells.
        generation: of the run, as train has told; 0: the newest.

    Returns:
        Whether it is in place now.
    """
    from train_func.pipeline import steps

    return steps.promote(name, promote_as, better_in, where, options, greater_is_better, generation)
