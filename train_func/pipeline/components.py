"""The components, each a step in the image of this package; their pipeline; and its YAML for a server.

The image is the value of TRAIN_FUNC_IMAGE at the first use of a component; ``set_container_image`` sets another one for
a task.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from kfp import compiler, dsl

from train_func.client.cluster.cluster import Cluster
from train_func.client.job_spec import SecretKey
from train_func.errors import InvalidInput
from train_func.fields import brief
from train_func.pipeline import step_functions
from train_func.storage import scheme_of

IMAGE = os.environ.get("TRAIN_FUNC_IMAGE") or "registry/train-func:1"  # any name will do on this machine


def _component(step: Callable[..., object]) -> Any:
    # Nothing is installed when a step starts: the image has this package and kfp, of the versions tried together.
    return dsl.component(step, base_image=IMAGE, install_kfp_package=False)


prepare = _component(step_functions.prepare)
train = _component(step_functions.train)
evaluate = _component(step_functions.evaluate)
promote = _component(step_functions.promote)


class PipelineOutcome(NamedTuple):
    """The outcome of the pipeline."""

    name: str
    in_place: bool


def _pipeline(on_server: Callable[[Any], Any] = lambda task: task) -> Any:
    """Returns the pipeline; ``on_server`` adds to each task the settings of its pod."""

    def train_and_promote(
        run: str,
        source: str,
        promote_as: str,
        better: str = "accuracy",
        where: str = "Cluster",
        options: str = "{}",
    ) -> PipelineOutcome:
        """Trains a function by a job, and puts its model in place where it is better than the one there.

        Args:
            run: the Run, as JSON; train_func.pipeline.arguments gives it.
            source: the function with all it uses, as the same packs it.
            promote_as: the name that the model is put in place under.
            better: the metric that is compared, behind a minus where a lower value is better; empty: put it in place in
                any case.
            where: the backend of the job, Cluster or Local.
            options: of that backend, as JSON.
        """
        on = {"where": where, "options": options}
        by = {"promote_as": promote_as, "better": better}
        prepared = on_server(prepare(run=run, **on, **by))
        trained = on_server(train(run=prepared.outputs["run"], source=source, began=prepared.outputs["began"], **on))
        trained.set_retry(num_retries=2)  # it attaches to the job that is there
        name = trained.outputs["name"]
        of_run = {"name": name, "generation": trained.outputs["generation"]}
        evaluated = on_server(evaluate(**of_run, **on))
        promoted = on_server(promote(**of_run, **by, **on))
        promoted.after(evaluated)
        # The server takes an artefact of a step for a file in its own bucket; what lies elsewhere is imported.
        imported = dsl.importer(
            artifact_uri=trained.outputs["address"],
            artifact_class=dsl.Model,
            metadata={"run": name, "manifest_sha256": trained.outputs["manifest_sha256"]},
        ).set_display_name("model")
        for task in (prepared, trained, evaluated, promoted, imported):
            task.set_caching_options(False)  # what is done already the store tells, and it may have changed
        return PipelineOutcome(name, promoted.output)

    return dsl.pipeline(train_and_promote)


train_and_promote = _pipeline()


def compile_pipeline(path: str | Path, *, on: Cluster | None = None) -> Path:
    """Writes the pipeline as YAML for a server of Kubeflow Pipelines; returns the file.

    Image, namespace and store are those of ``on`` and of the environment here. An endpoint that is a Service gets its
    namespace, because the steps may run in another one. The YAML names the Secrets with the keys of the store and the
    token of the Hub; the namespace of the steps has to have them.

    Args:
        path: the file, whose name ends in .yaml.
        on: the cluster, ``Cluster()`` by default.

    Raises InvalidInput where no image or no store is named, or an option cannot work.
    """
    cluster: object = Cluster() if on is None else on
    if not isinstance(cluster, Cluster):
        raise InvalidInput(
            f"compile_pipeline(on={brief(on)}): Cluster(...) is expected, because the YAML is for a server; on this "
            "machine call train_and_promote(...)"
        )
    variables = _reachable(cluster.client_environment())
    compiler.Compiler().compile(_pipeline(lambda task: _with_variables(task, variables)), str(path))
    return Path(path)


def _reachable(variables: Mapping[str, str | SecretKey]) -> dict[str, str | SecretKey]:
    """Returns the variables; an endpoint whose host is the bare name of a Service gets the namespace of the jobs."""
    reachable, namespace = dict(variables), variables.get("TRAIN_FUNC_NAMESPACE")
    for name in scheme_of(str(variables["TRAIN_FUNC_STORE"])).endpoint_variables if namespace else ():
        parts = urlsplit(str(variables.get(name, "")))
        if (host := parts.hostname) and not {".", ":"} & set(host):
            reachable[name] = urlunsplit(parts._replace(netloc=parts.netloc.replace(host, f"{host}.{namespace}", 1)))
    return reachable


def _with_variables(task: Any, variables: Mapping[str, str | SecretKey]) -> Any:
    """Returns the task with image and variables of its pod; Secrets by reference, as kfp's extension writes them."""
    task.set_container_image(variables["TRAIN_FUNC_IMAGE"])
    secrets = []
    for name, value in variables.items():
        if isinstance(value, str):
            task.set_env_variable(name, value)
        else:
            secret = {"secretName": value.secret, "optional": value.optional}
            secret["secretNameParameter"] = {"runtimeValue": {"constant": value.secret}}
            secrets.append({**secret, "keyToEnv": [{"secretKey": value.key, "envVar": name}]})
    task.platform_config["kubernetes"] = {"secretAsEnv": secrets}
    return task
