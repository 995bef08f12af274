"""Finds names in ``lora_layers`` that no layer of a model has, from the names of its weights, before it is loaded."""

import functools
import importlib.util
import json
from pathlib import Path

from safetensors import safe_open

from train_func.counted import listed
from train_func.worker.inputs.model_folder import CONFIG, INDEX, WHOLE

WEIGHT = ".weight"
OUTPUTS = ("lm_head", "embed_out", "output_layer")  # may share their weights with the embeddings, and have none saved


def layer_faults(layers: tuple[str, ...], folder: Path, where: str) -> list[str]:
    """The fault of names that the weights in a model's folder do not have; none where these are not known.

    They are not known of a model on the Hub whose weights are one file, and not of a type whose layers transformers
    calls other than its files do; the worker, which has the model, refuses such names then.
    """
    weights = _weights(folder)
    if not layers or not weights or _is_renamed(folder):
        return []
    found = {name.removesuffix(WEIGHT).rpartition(".")[2] for name in weights if name.endswith(WEIGHT)}
    unknown = [name for name in layers if name.rpartition(".")[2] not in {*found, *OUTPUTS}]
    return [unknown_layers(layers, unknown, where, f"it has weights of {', '.join(sorted(found))}")] if unknown else []


def unknown_layers(layers: tuple[str, ...], unknown: list[str], where: str, known: str) -> str:
    """The message that a model has no ``unknown`` ones of ``layers``; ``known``: which ones it has."""
    return (
        f"lora_layers={layers!r}: {where} has no layers called {listed(unknown, show=repr)}; {known}; name linear ones "
        "of these in lora_layers, or leave it out for all but the last"
    )


def _weights(folder: Path) -> set[str]:
    if (folder / WHOLE).is_file():
        with safe_open(folder / WHOLE, framework="numpy") as opened:
            return set(opened.keys())
    index = folder / INDEX
    return set(json.loads(index.read_bytes()).get("weight_map", {})) if index.is_file() else set()


def _is_renamed(folder: Path) -> bool:
    """Whether transformers may rename this type's weights when it loads them; also where its table is not there."""
    kind = json.loads((folder / CONFIG).read_bytes()).get("model_type")
    return f'"{kind}"' in _renaming() or not _renaming()


@functools.cache
def _renaming() -> str:
    spec = importlib.util.find_spec("transformers")
    source = Path(spec.origin).parent / "conversion_mapping.py" if spec and spec.origin else None
    return source.read_text() if source and source.is_file() else ""
