"""The front door: define a Run, submit a function, attach to a submission, list and remove runs.

Importing it loads neither torch nor kubernetes; each name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from train_func import version

if TYPE_CHECKING:
    from train_func.client.cluster.cluster import Cluster
    from train_func.client.compare import compare
    from train_func.client.control.remove import remove
    from train_func.client.job import Job, attach
    from train_func.client.job_spec import SecretKey
    from train_func.client.local.local import Local
    from train_func.client.model.promote import withdraw
    from train_func.client.runs import runs
    from train_func.client.submit import submit
    from train_func.errors import InvalidInput, JobFailed, JobNotFound, SourceRefused, StorageFailed, TrainFuncError
    from train_func.run import Run
    from train_func.tasks import CausalLM, ImageClassification, TextClassification, TokenClassification
    from train_func.wire.events import Alert


_HOMES = {
    "run": ["Run"],
    "tasks": ["TextClassification", "TokenClassification", "ImageClassification", "CausalLM"],
    "errors": ["TrainFuncError", "InvalidInput", "SourceRefused", "StorageFailed", "JobFailed", "JobNotFound"],
    "client.submit": ["submit"],
    "client.runs": ["runs"],
    "client.compare": ["compare"],
    "client.control.remove": ["remove"],
    "client.model.promote": ["withdraw"],
    "client.job": ["Job", "attach"],
    "client.job_spec": ["SecretKey"],
    "wire.events": ["Alert"],
}
__version__ = version.VERSION
__all__ = [
    "Alert",
    "CausalLM",
    "Cluster",
    "ImageClassification",
    "InvalidInput",
    "Job",
    "JobFailed",
    "JobNotFound",
    "Local",
    "Run",
    "SecretKey",
    "SourceRefused",
    "StorageFailed",
    "TextClassification",
    "TokenClassification",
    "TrainFuncError",
    "attach",
    "compare",
    "remove",
    "runs",
    "submit",
    "withdraw",
]


def __getattr__(name: str) -> Any:
    home = next((f"train_func.{module}" for module, names in _HOMES.items() if name in names), None)
    if home is None and name[:1].isupper():  # Python asks here also for a module of this package that it has to import
        from train_func.client.backend import BACKENDS

        home = BACKENDS.get(name)
    if home is None:
        raise AttributeError(f"train_func has no {name!r}; it offers {', '.join(__all__)}")
    try:
        return getattr(importlib.import_module(home), name)
    except AttributeError as error:  # which Python would take for a name that is not here
        near = f"{error}. A file beside the program, named like a module that is imported, is taken in its place"
        raise ImportError(f"{home} cannot be imported: {near}", name=home) from error


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
