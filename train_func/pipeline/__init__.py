"""Pipelines of Kubeflow Pipelines (kfp): components that prepare, train, evaluate and promote, and one that joins them.

``arguments`` makes what they are called with of a function, a Run and a backend; ``compile_pipeline`` writes the YAML
for a server. Importing this loads no kfp; each name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_func.pipeline.arguments import arguments
    from train_func.pipeline.components import evaluate, prepare, promote, train
    from train_func.pipeline.joined import compile_pipeline, train_and_promote

_HOMES = {
    "arguments": "train_func.pipeline.arguments",
    "prepare": "train_func.pipeline.components",
    "train": "train_func.pipeline.components",
    "evaluate": "train_func.pipeline.components",
    "promote": "train_func.pipeline.components",
    "train_and_promote": "train_func.pipeline.joined",
    "compile_pipeline": "train_func.pipeline.joined",
}
__all__ = ["arguments", "compile_pipeline", "evaluate", "prepare", "promote", "train", "train_and_promote"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"train_func.pipeline has no {name!r}; it offers {', '.join(__all__)}")
    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found  # for `arguments` the import has left the module of that name here
    return found
