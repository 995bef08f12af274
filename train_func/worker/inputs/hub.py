"""Asks the Hugging Face Hub what it holds under an id, downloads models from it, and says why one cannot be had."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import HfApi, constants, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    IncompleteSnapshotError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from train_func.errors import InvalidInput
from train_func.worker.inputs.locate import HubUnreachable, Wanted
from train_func.worker.inputs.model_folder import LOADED, NOT_LOADED, sizes_of

SECONDS = 10.0  # for one answer


@dataclass(frozen=True)
class Listing:
    """A commit, and the size in bytes of each file in it."""

    commit: str
    files: dict[str, int]


@dataclass(frozen=True)
class FetchedModel:
    """A folder with the files asked for, and the sizes in bytes of all that the commit holds, by name."""

    folder: Path
    commit: str
    sizes: Mapping[str, int]
    notes: tuple[str, ...]


def look_up(wanted: Wanted) -> Listing:
    """What the Hub says of a repository; waits at most ``SECONDS`` for it.

    Raises:
        InvalidInput: no such repository or revision, gated, or the token is refused; each told apart.
        HubUnreachable: it gives no answer.
    """
    hub = HfApi()
    try:
        info = hub.repo_info(
            wanted.address, repo_type=wanted.kind, revision=wanted.revision, timeout=SECONDS, files_metadata=True
        )
        if info.gated:  # such a repository shows its listing to all accounts, and its files to some
            hub.auth_check(wanted.address, repo_type=wanted.kind)
    except (HTTPError, OSError, HFValidationError) as error:
        raise no_answer(wanted, error) from error
    return Listing(str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or ()})


def no_answer(wanted: Wanted, error: Exception) -> InvalidInput | HubUnreachable:
    """What is raised for an error of asking the Hub: a refusal, or an outage."""
    fault = refusal(wanted, error)
    return InvalidInput(fault, cause=wanted.cause) if fault else unreachable(wanted, _reason(error))


def unreachable(wanted: Wanted, why: str, held: str = "no copy of it") -> HubUnreachable:
    """The outage of a Hub of whose repository this machine holds ``held``."""
    return HubUnreachable(
        f"{wanted}: no file or folder of that name is here, the Hub ({constants.ENDPOINT}) cannot be reached from here "
        f"({why}), and HF_HOME ({constants.HF_HOME}) holds {held}; without the Hub work a local file or folder, "
        "package://NAME/FOLDER, a store address (file:///..., s3://...), or what was downloaded into HF_HOME before",
        why,
        wanted,
    )


def away(wanted: Wanted, outage: HubUnreachable, copy: str = "the copy") -> str:
    """The note that ``copy`` in HF_HOME is used in place of what the Hub has."""
    return f"{wanted}: the Hub cannot be reached ({outage.why}); {copy} in HF_HOME is used"


def page(wanted: Wanted) -> str:
    """Where a person looks at the repository."""
    return f"{constants.ENDPOINT}/{'datasets/' if wanted.kind == 'dataset' else ''}{wanted.address}"


def refusal(wanted: Wanted, error: Exception) -> str | None:
    """What the Hub refused; None when it gave no answer of use."""
    has_token = get_token() is not None
    match error:
        case HFValidationError():
            return f"{wanted}: no such file or folder here, and no Hub id, which is like 'name' or 'owner/name'"
        case GatedRepoError() if has_token:
            return f"{wanted} is gated: the token lacks access; ask for it at {page(wanted)} with the token's account"
        case GatedRepoError():
            return f"{wanted} is gated and no token is set: accept its terms at {page(wanted)} and give HF_TOKEN"
        case RevisionNotFoundError():
            return (
                f"{wanted}: the Hub holds it without that revision; a branch, tag or commit is expected, "
                f"{page(wanted)}/tree/main lists them"
            )
        case RepositoryNotFoundError():
            token = "the token lacks access" if has_token else "no HF_TOKEN is set"
            return (
                f"{wanted}: not found: the Hub ({constants.ENDPOINT}) has none of that name, or it is private and "
                f"{token}; check the spelling ('name' or 'owner/name'); no file or folder of that name is here either"
            )
        case HfHubHTTPError() if error.response is not None and error.response.status_code in (401, 403):
            return f"{wanted}: the Hub refuses the token HF_TOKEN ({_reason(error)}); make a new one with read access"
    return None


def _reason(error: Exception) -> str:
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:120]}" if text else type(error).__name__


def fetch_model(wanted: Wanted, patterns: Sequence[str]) -> FetchedModel:
    """The files of the repository that match ``patterns``.

    Raises:
        InvalidInput: not found, or gated.
        HubUnreachable: it is neither reachable nor in HF_HOME.
    """
    try:
        listing = look_up(wanted)
    except HubUnreachable as outage:
        folder = _cached(wanted, outage)
        return FetchedModel(folder, folder.name, sizes_of(folder), (away(wanted, outage),))
    sizes = {name: size for name, size in listing.files.items() if "/" not in name}
    return FetchedModel(_downloaded(wanted, listing, patterns), listing.commit, sizes, ())


def _downloaded(wanted: Wanted, listing: Listing, patterns: Sequence[str]) -> Path:
    if "config.json" not in listing.files:
        raise InvalidInput(f"{wanted}: no config.json, so no model: {page(wanted)}/tree/main", cause="model")
    try:
        # By its own revision, so that HF_HOME knows which commit a branch was when the Hub is away later.
        folder = Path(_snapshot(wanted, patterns, local_files_only=False))
    except (HTTPError, LocalEntryNotFoundError) as error:
        raise no_answer(wanted, error) from error
    if folder.name != listing.commit:
        raise InvalidInput(f"{wanted}: changed on the Hub while it was downloaded; start again", cause="model")
    return folder


def _cached(wanted: Wanted, outage: HubUnreachable) -> Path:
    try:
        return Path(_snapshot(wanted, LOADED, local_files_only=True))
    except LocalEntryNotFoundError as error:
        held = "a part of it only" if isinstance(error, IncompleteSnapshotError) else "no copy of it"
        raise unreachable(wanted, outage.why, held) from None


def _snapshot(wanted: Wanted, patterns: Sequence[str], *, local_files_only: bool) -> str:
    folder: str = snapshot_download(
        wanted.address,
        revision=wanted.revision,
        allow_patterns=list(patterns),
        ignore_patterns=list(NOT_LOADED),
        local_files_only=local_files_only,
    )
    return folder


def fetch_repository(wanted: Wanted, *, local_files_only: bool = False) -> Path:
    """The folder of all files of a repository, in HF_HOME; its name is the commit.

    Raises:
        InvalidInput, HubUnreachable: as ``fetch_model``.
    """
    try:
        folder = snapshot_download(
            wanted.address, repo_type=wanted.kind, revision=wanted.revision, local_files_only=local_files_only
        )
    except (HTTPError, LocalEntryNotFoundError) as error:
        raise no_answer(wanted, error) from error
    return Path(folder)
