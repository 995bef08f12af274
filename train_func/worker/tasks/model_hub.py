"""Downloads a model from the Hub into HF_HOME, or takes what lies there when the Hub cannot be reached."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HTTPError, IncompleteSnapshotError, LocalEntryNotFoundError

from train_func.errors import InvalidInput
from train_func.worker.inputs.hub import Listing, Unreachable, look_up, no_answer, page
from train_func.worker.inputs.locate import HubId
from train_func.worker.tasks.model_folder import LOADED, NOT_LOADED, sizes_of


@dataclass(frozen=True)
class FetchedModel:
    """A folder with the files asked for, and the sizes in bytes of all that the commit holds, by name."""

    folder: Path
    commit: str
    sizes: Mapping[str, int]
    notes: tuple[str, ...]


def fetch(wanted: HubId, patterns: Sequence[str]) -> FetchedModel:
    """The files of the repository that match ``patterns``.

    Raises:
        InvalidInput: not found, gated, or neither reachable nor in HF_HOME.
    """
    answer = look_up(wanted)
    if isinstance(answer, Unreachable):
        folder = _cached(wanted, answer)
        note = f"{wanted}: the Hub cannot be reached ({answer.why}); the copy in HF_HOME is used"
        return FetchedModel(folder, folder.name, sizes_of(folder), (note,))
    folder = _downloaded(wanted, answer, patterns)
    return FetchedModel(
        folder, answer.commit, {name: size for name, size in answer.files.items() if "/" not in name}, ()
    )


def _downloaded(wanted: HubId, listing: Listing, patterns: Sequence[str]) -> Path:
    if "config.json" not in listing.files:
        raise InvalidInput(f"{wanted}: no config.json, so no model: {page(wanted)}/tree/main", cause="model")
    try:
        # By its own revision, so that HF_HOME knows which commit a branch was when the Hub is away later.
        folder = Path(_snapshot(wanted, patterns, local_files_only=False))
    except (HTTPError, LocalEntryNotFoundError) as error:
        raise InvalidInput(no_answer(wanted, error).fault(wanted), cause="model") from error
    if folder.name != listing.commit:
        raise InvalidInput(f"{wanted}: changed on the Hub while it was downloaded; start again", cause="model")
    return folder


def _cached(wanted: HubId, answer: Unreachable) -> Path:
    try:
        return Path(_snapshot(wanted, LOADED, local_files_only=True))
    except LocalEntryNotFoundError as error:
        held = "a part of it only" if isinstance(error, IncompleteSnapshotError) else "no copy of it"
        raise InvalidInput(answer.fault(wanted, held), cause="model") from None


def _snapshot(wanted: HubId, patterns: Sequence[str], *, local_files_only: bool) -> str:
    folder: str = snapshot_download(
        wanted.name,
        revision=wanted.revision,
        allow_patterns=list(patterns),
        ignore_patterns=list(NOT_LOADED),
        local_files_only=local_files_only,
    )
    return folder
