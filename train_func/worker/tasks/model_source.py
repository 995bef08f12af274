"""Brings a model's folder to this machine, from wherever the task names it, and refuses one that cannot be loaded."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import TextClassification
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.locate import HubId, LocalFiles, Wanted, locate
from train_func.worker.tasks.model_folder import DESCRIBED, LOADED, ModelFacts, is_loaded, judge, sizes_of


@dataclass(frozen=True)
class FoundModel:
    """A folder that transformers can load, but for weights that were left on the Hub."""

    folder: Path
    where: str
    fingerprint: str
    facts: ModelFacts
    notes: tuple[str, ...]
    local: LocalFiles | None = None
    """What it lies in, unless that is a store or the Hub."""
    commit: str | None = None
    """Of the Hub."""


def find_model(task: TextClassification, store: Store | None, cache: Path, *, weights: bool = True) -> FoundModel:
    """The folder of the task's model; without ``weights`` those of a Hub model are not downloaded.

    Raises:
        InvalidInput: not found, gated, unreachable, or a folder that cannot be loaded, with all that is wrong in it.
        StorageFailed: the store is away or denies.
    """
    wanted = Wanted("model", task.model, "model", task.model_revision)
    place = locate(wanted, store, cache, is_loaded)
    if isinstance(place, HubId):
        return _on_hub(place, task.max_length, weights=weights)
    if task.model_revision != "main":
        raise InvalidInput(
            f"model_revision={task.model_revision!r}: only a Hub model has revisions, and {place} is none",
            cause="model",
        )
    if not place.is_dir():
        raise wanted.fault("is a file; the folder with config.json, tokenizer and weights is expected")
    sizes = sizes_of(place)
    facts = _judged(place, str(place), sizes, task.max_length)
    loaded = [name for name in sizes if is_loaded(name)]
    parts = fingerprint.of_each(place, loaded, cache)
    sha256 = fingerprint.of_parts(parts)
    return FoundModel(place, str(place), sha256, facts, (), LocalFiles.found(wanted, place, parts, sha256))


def _on_hub(wanted: HubId, max_length: int, *, weights: bool) -> FoundModel:
    from train_func.worker.tasks.model_hub import fetch

    fetched = fetch(wanted, LOADED if weights else DESCRIBED)
    facts = _judged(fetched.folder, str(wanted), fetched.sizes, max_length)
    return FoundModel(fetched.folder, str(wanted), fetched.commit, facts, fetched.notes, commit=fetched.commit)


def _judged(folder: Path, where: str, sizes: Mapping[str, int], max_length: int) -> ModelFacts:
    faults, facts = judge(folder, where, sizes, max_length)
    if faults:
        raise InvalidInput(faults, cause="model")
    return facts
