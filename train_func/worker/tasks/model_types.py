"""Which types of model the installed transformers can classify texts with, without importing it.

Importing transformers imports torch, which takes seconds; the table is a literal in its source, and is read as one.
"""

import ast
import functools
import importlib.util
from pathlib import Path

_TABLE = "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES"


def classifies_text(model_type: str) -> bool | None:
    """Whether transformers has a classifier for the type; None when its table cannot be read."""
    table = _classifiers()
    return model_type in table if table else None


@functools.cache
def _classifiers() -> frozenset[str]:
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return frozenset()
    source = Path(spec.origin).parent / "models/auto/modeling_auto.py"
    if not source.is_file():
        return frozenset()
    for node in ast.parse(source.read_bytes()).body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == _TABLE for to in node.targets):
            texts = (pair.elts[0] for pair in ast.walk(node.value) if isinstance(pair, ast.Tuple) and pair.elts)
            return frozenset(
                text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)
            )
    return frozenset()
