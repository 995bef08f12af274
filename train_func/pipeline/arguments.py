"""The arguments of a pipeline, made of a function, a Run and a backend, where the function and its files are."""

import json
from collections.abc import Callable

from train_func.client import registry
from train_func.client.backend import Backend
from train_func.client.submit import checked_run, packed
from train_func.errors import SourceRefused
from train_func.pipeline.carrying import carried, options_of
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

    Raises:
        SourceRefused: the function cannot travel, or is too large for a parameter.
        InvalidInput: data, model or options cannot work; every fault at once.
        StorageFailed: the store is away, denies, or is not there.
    """
    backend = registry.given(on)
    asked = checked_run(run)
    source, packages = packed(function, asked, backend)
    prepared, _ = carried(asked, backend)
    made = {"run": json.dumps(prepared.to_dict()), "source": source.to_json()}
    num_bytes = len(json.dumps(made))
    if num_bytes > MAX_BYTES:
        raise SourceRefused(
            f"{source.function} and its Run are {sized(num_bytes)} as parameters of a pipeline, and at most "
            f"{sized(MAX_BYTES)} travel so: install the modules that it uses in the image, or keep its data in a file"
        )
    return {**made, "where": registry.name_of(backend), "options": options_of(backend, packages.given)}
