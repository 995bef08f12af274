"""The parameters of a pipeline's steps, as text: a Run, a packed function, the backend of the job with its options."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from train_func.client.backend import (
    BACKENDS,
    Backend,
    backend_or_default,
    make_backend,
    name_of_backend,
    provisional,
)
from train_func.client.cluster.cluster import Cluster
from train_func.client.cluster.kubeconfig import in_a_pod
from train_func.client.job_spec import SecretKey
from train_func.client.model.promote import Metric, check_name
from train_func.client.packages.inventory import normalise
from train_func.client.preflight import Facts, check_inputs, pack_function, with_absolute_paths
from train_func.client.submit import check_run
from train_func.errors import InvalidInput, SourceRefused
from train_func.fields import brief
from train_func.run import Run, replace_inputs
from train_func.text import sized

MAX_BYTES = 112_000  # a step gets all it is given as one JSON argument of a program, of which Linux takes 131,072 bytes


def arguments(function: Callable[..., object], run: Run | None = None, *, on: Backend | None = None) -> dict[str, str]:
    """Returns the parameters ``run``, ``source``, ``where`` and ``options`` of the pipeline and its components.

    Function, data, model and backend are checked as ``submit`` checks them. For a cluster the files of this machine
    are uploaded to the store, where the steps find them.

    Args:
        function: as for ``submit``.
        run: what you ask for; by default one worker, without parameters.
        on: the backend of the job, ``Local()`` by default.

    Raises what ``submit`` raises, and SourceRefused where the function and its Run are too large for parameters.
    """
    backend, run = backend_or_default(on), check_run(run)
    source, packages = pack_function(function, run, backend)
    prepared, _ = prepare_run(run, backend)
    texts = {"run": json.dumps(prepared.to_dict()), "source": source.to_json()}
    if (num_bytes := len(json.dumps(texts))) > MAX_BYTES:
        raise SourceRefused(
            f"{source.function} and its Run are {sized(num_bytes)} as parameters of a pipeline, and at most "
            f"{sized(MAX_BYTES)} travel so: install the modules that it uses in the image, or keep its data in a file"
        )
    options = options_of(backend, packages.versions if packages else None)
    return {**texts, "where": name_of_backend(backend), "options": options}


def prepare_run(run: Run, backend: Backend) -> tuple[Run, Facts]:
    """Returns the run with its files where the workers read them, and their facts; raises what ``submit`` raises."""
    run = backend.adapt(run)
    store, facts = check_inputs(backend, run)
    run = with_absolute_paths(run, facts.fingerprints)
    try:
        run = backend.prepare(provisional(run, store.address), facts.inputs, facts.num_model_bytes, store)
    except InvalidInput as refused:
        if refused.cause != "scheduling":  # the job may be there already, and takes the room itself
            raise
    return replace_inputs(run, facts.commits), facts


def run_of(text: str) -> Run:
    """Returns the Run of a step's parameter; raises InvalidInput."""
    return Run.from_dict(_object("run", text))


def options_of(backend: Backend, versions: Mapping[str, str] | None = None) -> str:
    """Returns the options of a backend that are not its defaults, as JSON; Secrets are named, never read.

    The workers' size from the environment here is included, because a step has another environment. Packages get their
    resolved ``versions``, by name, so that a later step gets the same.
    """
    full_backend = backend.with_environment() if isinstance(backend, Cluster) else backend
    options: dict[str, Any] = {}
    for option in fields(backend):  # type: ignore[arg-type]  # every backend of this package is a dataclass
        value = getattr(full_backend, option.name)
        if value not in (None, option.default, {}, (), []):
            options[option.name] = value
    if versions and "packages" in options:
        options["packages"] = [_pinned(text, versions) for text in options["packages"]]
    return json.dumps(options, default=asdict)  # of a SecretKey


def backend_of(where: str, options: str) -> Backend:
    """Returns the backend of a step's parameters; raises InvalidInput."""
    if where not in BACKENDS:
        raise InvalidInput(f"where={brief(where)}: one of {', '.join(BACKENDS)} is expected")
    values = _object("options", options)
    if in_a_pod():
        values.pop("context", None)  # of the kubeconfig of the machine where the pipeline was called
    if isinstance(variables := values.get("environment"), dict):
        secrets = {name: SecretKey(**value) for name, value in variables.items() if isinstance(value, dict)}
        values["environment"] = {**variables, **secrets}
    return make_backend(where, values)


def check_promotion(run: Run, promote_as: str, better: str) -> None:
    """Raises InvalidInput if no model of the run could be promoted in that way."""
    if promote_as:
        check_name(promote_as)
    if better:
        Metric.of(better)
    if better and not run.task:
        raise InvalidInput(
            f"better={brief(better)}: a run without a task holds no rows out on which models can be compared; "
            'give it a task, or better=""',
            cause="data",
        )


def _object(parameter: str, text: str) -> dict[str, Any]:
    try:
        plain = json.loads(text)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        raise InvalidInput(f"{parameter}={brief(text)}: a JSON object is expected, as arguments(...) gives it")
    return plain


def _pinned(text: str, versions: Mapping[str, str]) -> str:
    """Returns the requirement in its resolved version; one that names a file by its address is unchanged."""
    requirement = Requirement(text)
    if (version := versions.get(normalise(requirement.name))) and not requirement.url:
        requirement.specifier = SpecifierSet(f"=={version}")
    return str(requirement)
