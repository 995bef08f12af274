"""What a pipeline hands to its steps as text: a Run, a packed function, the backend of the job with its options."""

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
from train_func.run import Run
from train_func.text import sized

MAX_BYTES = 112_000  # a step gets all it is given as one JSON argument of a program, of which Linux takes 131,072 bytes


def arguments(function: Callable[..., object], run: Run | None = None, *, on: Backend | None = None) -> dict[str, str]:
    """The parameters ``run``, ``source``, ``where`` and ``options`` of the pipeline and of its components.

    Function, data, model and backend are checked as ``submit`` checks them. For a cluster the files of this machine
    are carried to the store, where the steps find them.

    Args:
        function: as for ``submit``.
        run: what is asked for; by default one worker, without parameters.
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
    """The run with its files where the workers read them, and what is known of them; raises what ``submit`` raises."""
    run = backend.adapt(run)
    store, facts = check_inputs(backend, run)
    run = with_absolute_paths(run, facts.fingerprints)
    try:
        run = backend.prepare(provisional(run, store.address), facts.inputs, facts.num_model_bytes, store)
    except InvalidInput as refused:
        if refused.cause != "scheduling":  # the job may be there already, and takes the room itself
            raise
    return run.with_inputs(facts.commits), facts


def run_of(text: str) -> Run:
    """The Run in a step's parameter; raises InvalidInput."""
    return Run.from_dict(_object("run", text))


def options_of(backend: Backend, versions: Mapping[str, str] | None = None) -> str:
    """The options of a backend that are not its defaults, as JSON; Secrets are named, never read.

    What the environment here says of the workers' size is written down: a step has another environment. Packages are
    written in the ``versions`` that they have come to, by name: a later step gets these, whatever is the newest then.
    """
    settled = backend.settled() if isinstance(backend, Cluster) else backend
    given: dict[str, Any] = {}
    for option in fields(backend):  # type: ignore[arg-type]  # every backend of this package is a dataclass
        value = getattr(settled, option.name)
        if value not in (None, option.default, {}, (), []):
            given[option.name] = value
    if versions and "packages" in given:
        given["packages"] = [_pinned(text, versions) for text in given["packages"]]
    return json.dumps(given, default=asdict)  # of a SecretKey


def backend_of(where: str, options: str) -> Backend:
    """The backend that a step's parameters name; raises InvalidInput."""
    if where not in BACKENDS:
        raise InvalidInput(f"where={brief(where)}: one of {', '.join(BACKENDS)} is expected")
    given = _object("options", options)
    if in_a_pod():
        given.pop("context", None)  # of the kubeconfig of the machine where the pipeline was called
    if isinstance(variables := given.get("environment"), dict):
        secrets = {name: SecretKey(**value) for name, value in variables.items() if isinstance(value, dict)}
        given["environment"] = {**variables, **secrets}
    return make_backend(where, given)


def check_promotion(run: Run, promote_as: str, better: str) -> None:
    """Raises InvalidInput where no model of the run could be promoted so."""
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
    """The requirement in the version that it has come to; one that names a file by its address stays."""
    requirement = Requirement(text)
    if (version := versions.get(normalise(requirement.name))) and not requirement.url:
        requirement.specifier = SpecifierSet(f"=={version}")
    return str(requirement)
