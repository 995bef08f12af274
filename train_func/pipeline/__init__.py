"""Pipelines of Kubeflow Pipelines (kfp): components that prepare, train, evaluate and promote, and their pipeline.

``arguments`` makes their arguments from a function, a Run and a backend; ``compile_pipeline`` writes the YAML
for a server. Importing this loads no kfp; each name is loaded when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_func.pipeline.components import compile_pipeline, evaluate, prepare, promote, train, train_and_promote
    from train_func.pipeline.parameters import arguments

__all__ = ["arguments", "compile_pipeline", "evaluate", "prepare", "promote", "train", "train_and_promote"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"train_func.pipeline has no {name!r}; it offers {', '.join(__all__)}")
    module = "parameters" if name == "arguments" else "components"
    return getattr(importlib.import_module(f"train_func.pipeline.{module}"), name)
