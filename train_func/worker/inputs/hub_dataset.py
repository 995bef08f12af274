"""Loads what the `datasets` library keeps: repositories of the Hub, its own cache of them, and saved folders.

Kept apart because importing `datasets` takes seconds, which local files do not need.
"""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import DatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetsError
from datasets.packaged_modules.cache.cache import Cache
from huggingface_hub import constants
from huggingface_hub.errors import HTTPError

from train_func.errors import InvalidInput
from train_func.worker.inputs.hub import away, full_disk_in, look_up, outage_in, unreachable
from train_func.worker.inputs.locate import HubUnreachable, Reference


def read_hub(reference: Reference, subset: str | None) -> tuple[str, dict[str, pa.Table], tuple[str, ...]]:
    """Returns commit, tables by split, and notes; reads the cache in HF_HOME if the Hub cannot be reached.

    Raises:
        InvalidInput: not found, gated, no such revision or subset, or unreadable.
        HubUnreachable: it is neither reachable nor in HF_HOME.
    """
    notes: tuple[str, ...] = ()
    try:
        look_up(reference)
        loaded = _downloaded(reference, subset)
    except HubUnreachable as outage:
        loaded, chosen = _cached(reference, subset, outage)
        notes = (away(reference, outage, f"the copy of {chosen!r}"),)
    if not isinstance(loaded, DatasetDict):
        raise InvalidInput(f"{reference}: cannot be loaded as tables", cause="data")
    # `datasets` names the folder of the prepared files after the commit.
    file = next(file["filename"] for split in loaded.values() for file in split.cache_files)
    return Path(file).parent.name, _tables(loaded), notes


def read_saved(folder: Path) -> dict[str, pa.Table]:
    """Returns the tables by split of a folder that ``save_to_disk`` wrote; a single Dataset is the split "all"."""
    try:
        loaded = load_from_disk(str(folder))
        return _tables(loaded if isinstance(loaded, DatasetDict) else DatasetDict(all=loaded))
    except (pa.ArrowInvalid, ValueError, KeyError, OSError) as error:
        if full := full_disk_in(error):
            raise full from error
        raise InvalidInput(
            f"{folder}: is no whole saved data set ({type(error).__name__}: {error}); save it again with save_to_disk",
            cause="data",
        ) from None


def _tables(splits: DatasetDict) -> dict[str, pa.Table]:
    """Returns memory-mapped tables with the features in the schema; a saved data set has no row selection to apply."""
    return {
        name: split.data.table.replace_schema_metadata(split.features.arrow_schema.metadata)
        for name, split in splits.items()
    }


def _downloaded(reference: Reference, subset: str | None) -> Any:
    try:
        return load_dataset(reference.address, subset, revision=reference.revision)
    except (DatasetsError, HTTPError, ValueError, RuntimeError, OSError) as error:
        raise _unloadable(reference, subset, error) from error


def _cached(reference: Reference, subset: str | None, outage: HubUnreachable) -> tuple[Any, str]:
    """Returns the data set that an earlier load left in HF_HOME, and its subset; another revision is refused."""
    known: str | None = reference.revision
    if len(reference.revision) != 40:  # a branch or tag: the commit that it had when the Hub was last asked
        note = Path(
            constants.HF_HUB_CACHE, f"datasets--{reference.address.replace('/', '--')}", "refs", reference.revision
        )
        known = note.read_text().strip() if note.is_file() else None
    copy_of = partial(Cache, repo_id=reference.address, dataset_name=reference.address.split("/")[-1])
    try:
        builder = copy_of(config_name=subset, version="auto", hash="auto")  # the copy that was made last
        if known and Path(builder.cache_dir).with_name(known).is_dir():
            builder = copy_of(config_name=builder.config.name, version=str(builder.config.version), hash=known)
        loaded = builder.as_dataset()
    except (ValueError, OSError, DatasetsError) as error:
        subsets = re.search(r"Available configs in the cache: (.+)|configurations in the cache: (.+)", str(error))
        copy = (
            f"only its subsets {subsets[1] or subsets[2]}, name one of them in subset=" if subsets else "no copy of it"
        )
        raise unreachable(reference, outage.why, copy) from None
    if known != builder.hash and not (known is None and reference.revision == "main"):
        raise unreachable(reference, outage.why, f"only commit {builder.hash} of it")
    return loaded, str(builder.config.name)


def _unloadable(reference: Reference, subset: str | None, error: Exception) -> Exception:
    if reason := full_disk_in(error) or outage_in(reference, error):
        return reason
    text = str(error).strip()
    if "Config name is missing" in text or "BuilderConfig" in text:
        subsets = text[text.find("[") : text.find("]") + 1] or text
        what = f"has no subset {subset!r}" if subset else "has several subsets"
        return InvalidInput(f"{reference} {what}; give subset= one of {subsets}", cause="data")
    return InvalidInput(f"{reference}: cannot be loaded: {type(error).__name__}: {text[:500]}", cause="data")
