"""The pipeline: prepare, train, evaluate, promote where better; to be called on this machine, or compiled to YAML."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from kfp import compiler, dsl

from train_func.client.cluster.cluster import Cluster
from train_func.client.placement import SecretKey
from train_func.errors import InvalidInput
from train_func.fields import brief
from train_func.pipeline import components
from train_func.storage import scheme_of

RETRIES = 2  # of the step that trains: it attaches to the job that is there
Dress = Callable[[Any], Any]  # gives a task what its pod needs


class Outcome(NamedTuple):
    """What the pipeline returns."""

    name: str
    in_place: bool


def _as_it_is(task: Any) -> Any:
    return task


def joined(dress: Dress = _as_it_is) -> Any:
    """The pipeline, each of whose tasks has been dressed."""

    def train_and_promote(
        run: str,
        source: str,
        promote_as: str,
        better_in: str = "accuracy",
        where: str = "Cluster",
        options: str = "{}",
        greater_is_better: str = "",
    ) -> Outcome:
        """Trains a function by a job, and puts its model in place where it is better than the one there.

        Args:
            run: the Run, as JSON; train_func.pipeline.arguments gives it.
            source: the function with all it uses, as the same packs it.
            promote_as: the name that the model is put in place under.
            better_in: the metric that is compared; empty: put it in place in any case.
            where: the backend of the job, Cluster or Local.
            options: of that backend, as JSON.
            greater_is_better: of that metric, "true" or "false"; empty: as its name tells.

        Returns:
            name: of the run.
            in_place: whether its model is in place now.
        """
        on = {"where": where, "options": options}
        by = {"promote_as": promote_as, "better_in": better_in, "greater_is_better": greater_is_better}
        prepared = dress(components.prepare(run=run, **on, **by))
        given, began = prepared.outputs["run"], prepared.outputs["began"]
        trained = dress(components.train(run=given, source=source, began=began, **on))
        trained.set_retry(num_retries=RETRIES)
        name = trained.outputs["name"]
        of_run = {"name": name, "generation": trained.outputs["generation"]}
        evaluated = dress(components.evaluate(**of_run, **on))
        promoted = dress(components.promote(**of_run, **by, **on))
        promoted.after(evaluated)
        # The server takes an artefact of a step for a file in its own bucket; what lies elsewhere is imported.
        imported = dsl.importer(
            artifact_uri=trained.outputs["address"],
            artifact_class=dsl.Model,
            metadata={"run": name, "manifest_sha256": trained.outputs["manifest_sha256"]},
        ).set_display_name("model")
        for task in (prepared, trained, evaluated, promoted, imported):
            task.set_caching_options(False)  # what is done already the store tells, and it may have changed
        return Outcome(name, promoted.output)

    return dsl.pipeline(train_and_promote)


train_and_promote = joined()


def compile_pipeline(path: str | Path, *, on: Cluster | None = None) -> Path:
    """Writes the pipeline as YAML for a server of Kubeflow Pipelines; returns the file.

    Image, namespace and store are those of ``on`` and of the environment here; an endpoint that is a Service of that
    namespace is written with it, because the steps may run in another one. The keys of the store and the Hub's
    token are named by their Secrets, which have to be in the namespace of the steps.

    Args:
        path: of the file, which ends in .yaml.
        on: the cluster, ``Cluster()`` by default.

    Raises:
        InvalidInput: the file cannot be, no image or no store is named, or an option cannot work.
    """
    if fault := _target_fault(Path(path), on):
        raise InvalidInput(fault)
    cluster = Cluster() if on is None else on
    variables = reachable(cluster.client_environment())

    def dress(task: Any) -> Any:
        return with_variables(task.set_container_image(variables["TRAIN_FUNC_IMAGE"]), variables)

    compiler.Compiler().compile(joined(dress), str(path))
    return Path(path)


def _target_fault(path: Path, on: object) -> str | None:
    """Why nothing can be compiled for that backend to that file, which kfp would tell in words of its own."""
    if on is not None and not isinstance(on, Cluster):
        return (
            f"compile_pipeline(on={brief(on)}): Cluster(...) is expected: the YAML is for a server, whose steps run in "
            "pods. On this machine train_and_promote(...) is called as it is"
        )
    if path.suffix not in (".yaml", ".yml") or path.is_dir():
        return f"compile_pipeline({brief(str(path))}): a file whose name ends in .yaml is expected"
    if not path.parent.is_dir():
        return f"compile_pipeline({brief(str(path))}): there is no folder {path.parent}: make it, or name another file"
    return None


def reachable(variables: Mapping[str, str | SecretKey]) -> dict[str, str | SecretKey]:
    """The variables with the namespace of the jobs behind an endpoint whose host is the bare name of a Service."""
    found, namespace = dict(variables), variables.get("TRAIN_FUNC_NAMESPACE")
    for name in scheme_of(str(variables["TRAIN_FUNC_STORE"])).endpoint_variables if namespace else ():
        parts = urlsplit(str(variables.get(name, "")))
        host = parts.hostname or ""
        if host and not {".", ":"} & set(host):
            port = f":{parts.port}" if parts.port else ""
            found[name] = urlunsplit(parts._replace(netloc=f"{host}.{namespace}{port}"))
    return found


def with_variables(task: Any, variables: Mapping[str, str | SecretKey]) -> Any:
    """The task with these variables in its pod: plain ones, and Secrets by reference.

    A Secret is written as the extension of kfp for Kubernetes writes it, which is not needed for that.
    """
    secrets: dict[tuple[str, bool], list[dict[str, str]]] = {}
    for name, value in variables.items():
        if isinstance(value, str):
            task.set_env_variable(name, value)
        else:
            secrets.setdefault((value.secret, value.optional), []).append({"secretKey": value.key, "envVar": name})
    task.platform_config["kubernetes"] = {
        "secretAsEnv": [
            {
                "secretName": secret,
                "secretNameParameter": {"runtimeValue": {"constant": secret}},
                "keyToEnv": keys,
                "optional": is_optional,
            }
            for (secret, is_optional), keys in secrets.items()
        ]
    }
    return task
