"""Brings the folder of a task's model to this machine, and refuses one that cannot be loaded."""

from dataclasses import dataclass
from pathlib import Path

from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.locate import LocalFiles, Wanted, locate
from train_func.worker.inputs.model_folder import DESCRIBED, LOADED, ModelUse, is_loaded, judge, sizes_of

BASE = ModelUse("MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "causal language model", "take the one that was trained on", None)
"""Of adapters that were published."""


@dataclass(frozen=True)
class FoundModel:
    """A folder that transformers can load, but for weights that were left on the Hub."""

    folder: Path
    where: str
    fingerprint: str
    num_bytes: int
    """Of the weights that are loaded."""
    notes: tuple[str, ...]
    local: LocalFiles | None = None
    """What it lies in, unless that is a store or the Hub."""
    commit: str | None = None
    """Of the Hub."""


def find_model(
    address: str, revision: str, use: ModelUse, store: Store | None, cache: Path, *, weights: bool = True
) -> FoundModel:
    """The model that a task names in its fields ``model`` and ``model_revision``, brought to this machine.

    Without ``weights`` those of a Hub model are not downloaded.

    Raises:
        InvalidInput: not found, gated, unreachable, or a folder that cannot be loaded, with all that is wrong in it.
        StorageFailed: the store is away or denies.
    """
    wanted = Wanted("model", address, "model", revision)
    place = locate(wanted, store, cache, is_loaded)
    if place is None:
        return _on_hub(wanted, use, weights=weights)
    if revision != "main":
        raise InvalidInput(
            f"model_revision={revision!r}: only a Hub model has revisions, and {place} is none",
            cause="model",
        )
    if not place.is_dir():
        raise wanted.fault("is a file; the folder with config.json, tokenizer and weights is expected")
    sizes = sizes_of(place)
    num_bytes = judge(place, str(place), sizes, use)
    loaded = [name for name in sizes if is_loaded(name)]
    parts = fingerprint.of_each(place, loaded, cache)
    sha256 = fingerprint.of_parts(parts)
    return FoundModel(place, str(place), sha256, num_bytes, (), LocalFiles.found(wanted, place, parts, sha256))


def _on_hub(wanted: Wanted, use: ModelUse, *, weights: bool) -> FoundModel:
    from train_func.worker.inputs.hub import fetch_model  # imports huggingface_hub, which takes time

    fetched = fetch_model(wanted, LOADED if weights else DESCRIBED)
    num_bytes = judge(fetched.folder, str(wanted), fetched.sizes, use)
    return FoundModel(fetched.folder, str(wanted), fetched.commit, num_bytes, fetched.notes, commit=fetched.commit)
