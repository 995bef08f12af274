"""What a pipeline carries between its steps as text: a Run, and the backend of its job with its options."""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from train_func.client import registry
from train_func.client.backend import Backend, provisional
from train_func.client.cluster.cluster import Cluster
from train_func.client.cluster.kubeconfig import in_a_pod
from train_func.client.identity import placed
from train_func.client.packages.inventory import normalised
from train_func.client.placement import SecretKey
from train_func.client.preflight import Facts
from train_func.client.submit import checked
from train_func.errors import InvalidInput
from train_func.fields import brief
from train_func.run import Run

_SECRET = {"secret", "key", "optional"}


def run_of(text: str) -> Run:
    """The Run in a step's parameter; raises InvalidInput."""
    try:
        plain = json.loads(text)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        raise InvalidInput(f"run={brief(text)}: a Run as JSON is expected, as json.dumps(run.to_dict()) gives it")
    return Run.from_dict(plain)


def options_of(backend: Backend, versions: Mapping[str, str] | None = None) -> str:
    """The options of a backend that are not its defaults, as JSON; Secrets are named, never read.

    What the environment here says of the workers' size is written down: a step has another environment.

    Args:
        backend: of the job.
        versions: of the packages that travel, by name: a later step gets these, whatever is the newest then.

    Raises:
        InvalidInput: an option is no plain value.
    """
    settled = backend.settled() if isinstance(backend, Cluster) else backend
    given: dict[str, Any] = {}
    for own in fields(backend):  # type: ignore[arg-type]  # every backend of this package is a dataclass
        value = getattr(settled, own.name)
        if own.name == "timings" or value in (None, own.default) or value in ({}, (), []):
            continue
        given[own.name] = _plain(value)
    if versions and "packages" in given:
        given["packages"] = [_pinned(text, versions) for text in given["packages"]]
    try:
        return json.dumps(given)
    except TypeError as error:
        raise InvalidInput(f"{backend!r}: a pipeline carries the options of a backend as JSON: {error}") from None


def backend_of(where: str, options: str) -> Backend:
    """The backend that a step's parameters name; raises InvalidInput."""
    if where not in registry.BACKENDS:
        raise InvalidInput(f"where={brief(where)}: one of {', '.join(registry.BACKENDS)} is expected")
    try:
        plain = json.loads(options)
    except ValueError:
        plain = None
    if not isinstance(plain, dict):
        raise InvalidInput(f'options={brief(options)}: a JSON object is expected, such as {{"gpu": 1}}')
    if in_a_pod():
        plain.pop("context", None)  # of the kubeconfig of the machine where the pipeline was called
    return registry.make(where, {name: _of_plain(value) for name, value in plain.items()})


def carried(run: Run, backend: Backend) -> tuple[Run, Facts]:
    """The run with its local files where the workers of the backend read them, and what the check has learnt.

    Raises:
        InvalidInput: something of the run or the backend cannot work; every fault at once.
        StorageFailed: the store is away, denies, or is full.
    """
    run = backend.adapted(run)
    store, facts = checked(backend, run)
    run = placed(run, facts.fingerprints)
    record = provisional(run, store.address)
    try:
        run = backend.prepare(record, facts.inputs, facts.num_model_bytes, store)
    except InvalidInput as refused:
        if refused.cause != "scheduling":  # whether there is room is asked again when the job starts
            raise
    return run.with_inputs(facts.commits), facts


def _pinned(text: str, versions: Mapping[str, str]) -> str:
    """The requirement in the version that it has come to; one that names a file by its address stays."""
    requirement = Requirement(text)
    if (version := versions.get(normalised(requirement.name))) and not requirement.url:
        requirement.specifier = SpecifierSet(f"=={version}")
    return str(requirement)


def _plain(value: Any) -> Any:
    if isinstance(value, SecretKey):
        return {"secret": value.secret, "key": value.key, "optional": value.optional}
    if isinstance(value, Mapping):
        return {name: _plain(own) for name, own in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _of_plain(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return SecretKey(**value) if set(value) == _SECRET else {name: _of_plain(own) for name, own in value.items()}
