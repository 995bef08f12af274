"""Asks the Hugging Face Hub what it holds under an id, downloads models from it, and says why one cannot be had."""

from collections.abc import Sequence
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

ANSWER_SECONDS = 10.0  # for one answer


@dataclass(frozen=True)
class Listing:
    """A commit, and the size in bytes of each file in it."""

    commit: str
    files: dict[str, int]


def look_up(wanted: Wanted) -> Listing:
    """Returns what the Hub says of a repository; waits at most ``ANSWER_SECONDS`` for it.

    Raises:
        InvalidInput: no such repository or revision, gated, or the token is refused; each told apart.
        HubUnreachable: it gives no answer.
    """
    hub = HfApi()
    try:
        info = hub.repo_info(
            wanted.address, repo_type=wanted.kind, revision=wanted.revision, timeout=ANSWER_SECONDS, files_metadata=True
        )
        if info.gated:  # such a repository shows its listing to all accounts, and its files to some
            hub.auth_check(wanted.address, repo_type=wanted.kind)
    except (HTTPError, OSError, HFValidationError) as error:
        raise _no_answer(wanted, error) from error
    return Listing(str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or ()})


def unreachable(wanted: Wanted, why: str, copy: str = "no copy of it") -> HubUnreachable:
    """The outage of a Hub of whose repository this machine holds ``copy``."""
    return HubUnreachable(
        f"{wanted}: no file or folder of that name is here, the Hub ({constants.ENDPOINT}) cannot be reached from here "
        f"({why}), and HF_HOME ({constants.HF_HOME}) holds {copy}; without the Hub work a local file or folder, "
        "package://NAME/FOLDER, a store address (file:///..., s3://...), or what was downloaded into HF_HOME before",
        why,
        wanted,
    )


def away(wanted: Wanted, outage: HubUnreachable, copy: str = "the copy") -> str:
    """The note that ``copy`` in HF_HOME is used in place of what the Hub has."""
    return f"{wanted}: the Hub cannot be reached ({outage.why}); {copy} in HF_HOME is used"


def _page(wanted: Wanted) -> str:
    """Returns where a person looks at the repository."""
    return f"{constants.ENDPOINT}/{'datasets/' if wanted.kind == 'dataset' else ''}{wanted.address}"


def _no_answer(wanted: Wanted, error: Exception) -> InvalidInput | HubUnreachable:
    """Returns what is raised for an error of asking the Hub: a refusal, or an outage."""
    has_token = get_token() is not None
    match error:
        case HFValidationError():
            fault = f"{wanted}: no such file or folder here, and no Hub id, which is like 'name' or 'owner/name'"
        case GatedRepoError() if has_token:
            fault = f"{wanted} is gated: the token lacks access; ask for it at {_page(wanted)} with the token's account"
        case GatedRepoError():
            fault = f"{wanted} is gated and no token is set: accept its terms at {_page(wanted)} and give HF_TOKEN"
        case RevisionNotFoundError():
            fault = (
                f"{wanted}: the Hub holds it without that revision; a branch, tag or commit is expected, "
                f"{_page(wanted)}/tree/main lists them"
            )
        case RepositoryNotFoundError():
            token = "the token lacks access" if has_token else "no HF_TOKEN is set"
            fault = (
                f"{wanted}: not found: the Hub ({constants.ENDPOINT}) has none of that name, or it is private and "
                f"{token}; check the spelling ('name' or 'owner/name'); no file or folder of that name is here either"
            )
        case HfHubHTTPError() if error.response is not None and error.response.status_code in (401, 403):
            fault = f"{wanted}: the Hub refuses the token HF_TOKEN ({_reason(error)}); make a new one with read access"
        case _:
            return unreachable(wanted, _reason(error))
    return InvalidInput(fault, cause=wanted.cause)


def _reason(error: Exception) -> str:
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:120]}" if text else type(error).__name__


def snapshot(
    wanted: Wanted,
    outage: HubUnreachable | None = None,
    *,
    allow: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
) -> Path:
    """The folder in HF_HOME with the files of a repository; its name is the commit.

    Args:
        outage: why the Hub is not asked; what was downloaded before is used.
        allow: patterns of the names of files; None for all of them.
        ignore: patterns of those that are left out.

    Raises:
        InvalidInput: not found, or gated.
        HubUnreachable: the Hub gives no answer, or HF_HOME lacks a file.
    """
    try:
        # By its own revision, so that HF_HOME knows which commit a branch was when the Hub is away later.
        folder = snapshot_download(
            wanted.address,
            repo_type=wanted.kind,
            revision=wanted.revision,
            allow_patterns=allow and [*allow],
            ignore_patterns=ignore and [*ignore],
            local_files_only=outage is not None,
        )
    except (HTTPError, LocalEntryNotFoundError) as error:
        if outage is None:
            raise _no_answer(wanted, error) from error
        copy = "a part of it only" if isinstance(error, IncompleteSnapshotError) else "no copy of it"
        raise unreachable(wanted, outage.why, copy) from None
    return Path(folder)
