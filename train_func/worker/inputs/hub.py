"""Asks the Hugging Face Hub what it holds under an id, downloads models from it, and says why one cannot be had."""

import errno
import re
import traceback
from collections.abc import Iterator, Sequence
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
from train_func.wire.exits import NO_SPACE
from train_func.worker.inputs.locate import HubUnreachable, Reference

ANSWER_SECONDS = 10.0  # for one answer
_OF_DISK = {*NO_SPACE, errno.EACCES, errno.EPERM, errno.EROFS}
_OS_ERROR = re.compile(r"\(os error (\d+)\)")  # how hf_xet tells an errno


@dataclass(frozen=True)
class Listing:
    """A commit, and the size in bytes of each file in it."""

    commit: str
    files: dict[str, int]


def look_up(reference: Reference) -> Listing:
    """Returns the listing of a repository of the Hub; waits at most ``ANSWER_SECONDS`` for it.

    Raises:
        InvalidInput: no such repository or revision, gated, or the token is refused; each has its own message.
        HubUnreachable: the Hub does not answer.
    """
    hub = HfApi()
    try:
        info = hub.repo_info(
            reference.address,
            repo_type=reference.kind,
            revision=reference.revision,
            timeout=ANSWER_SECONDS,
            files_metadata=True,
        )
        if info.gated:  # such a repository shows its listing to all accounts, and its files to some
            hub.auth_check(reference.address, repo_type=reference.kind)
    except (HTTPError, OSError, HFValidationError) as error:
        raise _no_answer(reference, error) from error
    return Listing(str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or ()})


def unreachable(reference: Reference, why: str, copy: str = "no copy of it") -> HubUnreachable:
    """Returns the error that the Hub is away; ``copy`` says what HF_HOME holds of the repository."""
    return HubUnreachable(
        f"{reference}: no file or folder of that name is here, the Hub ({constants.ENDPOINT}) cannot be reached from "
        f"here ({why}), and HF_HOME ({constants.HF_HOME}) holds {copy}; without the Hub, give a local file or "
        "folder, package://NAME/FOLDER or a store address (file:///..., s3://...), or download it into HF_HOME first",
        why,
        reference,
    )


def away(reference: Reference, outage: HubUnreachable, copy: str = "the copy") -> str:
    """Returns the note that ``copy`` in HF_HOME is used instead of the Hub."""
    return f"{reference}: the Hub cannot be reached ({outage.why}); {copy} in HF_HOME is used"


def _page(reference: Reference) -> str:
    """Returns the address of the repository's page."""
    return f"{constants.ENDPOINT}/{'datasets/' if reference.kind == 'dataset' else ''}{reference.address}"


def _no_answer(reference: Reference, error: BaseException) -> InvalidInput | HubUnreachable:
    """Returns the exception for an error of a request to the Hub: a refusal, or an outage."""
    has_token = get_token() is not None
    match error:
        case HFValidationError():
            fault = f"{reference}: no such file or folder is here, and it is no Hub id, such as 'name' or 'owner/name'"
        case GatedRepoError() if has_token:
            page = _page(reference)
            fault = f"{reference} is gated: the token lacks access; ask for it at {page} with the token's account"
        case GatedRepoError():
            fault = (
                f"{reference} is gated and no token is set: accept its terms at {_page(reference)} and give HF_TOKEN"
            )
        case RevisionNotFoundError():
            fault = (
                f"{reference}: the Hub has no such revision of it; a branch, tag or commit is expected, "
                f"{_page(reference)}/tree/main lists them"
            )
        case RepositoryNotFoundError():
            token = "the token lacks access" if has_token else "no HF_TOKEN is set"
            fault = (
                f"{reference}: not found: the Hub ({constants.ENDPOINT}) has none of that name, or it is private and "
                f"{token}; check the spelling ('name' or 'owner/name'); no file or folder of that name is here either"
            )
        case LocalEntryNotFoundError() if error.__cause__ is not None:  # HF_HOME lacks it too
            return _no_answer(reference, error.__cause__)
        case HfHubHTTPError() if error.response is not None and error.response.status_code in (401, 403):
            fault = (
                f"{reference}: the Hub refuses the token HF_TOKEN ({_reason(error)}); make a new one with read access"
            )
        case _:
            return unreachable(reference, _reason(error))
    return InvalidInput(fault, cause=reference.cause)


def _reason(error: BaseException) -> str:
    if isinstance(error, HfHubHTTPError) and error.response is not None:
        return f"HTTP {error.response.status_code}"
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:120]}" if text else type(error).__name__


def outage_in(reference: Reference, error: BaseException) -> HubUnreachable | None:
    """Returns the outage of the Hub that an error of a download followed from; None if it has another reason."""
    # What the disk refuses while the library tries again counts, and not why it tried again.
    decisive = (cause for cause in causes(error) if _errno(cause) in _OF_DISK or _is_outage(cause))
    cause = next(decisive, None)
    return unreachable(reference, _reason(cause)) if cause and _errno(cause) not in _OF_DISK else None


def full_disk_in(error: BaseException) -> OSError | None:
    """Returns an error of its own, with errno, of the full disk that an error followed from; None if of none."""
    full = ((number, cause) for cause in causes(error) if (number := _errno(cause)) in NO_SPACE)
    return next((OSError(number, str(cause)) for number, cause in full), None)


def _errno(error: BaseException) -> int | None:
    if not isinstance(error, (OSError, RuntimeError)):
        return None
    told = _OS_ERROR.search(str(error))
    return getattr(error, "errno", None) or (int(told[1]) if told else None)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and those that it followed from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_outage(error: BaseException) -> bool:
    if isinstance(error, HTTPError) and (response := getattr(error, "response", None)) is not None:
        return bool(response.status_code == 429 or response.status_code >= 500)
    if isinstance(error, (HTTPError, ConnectionError, TimeoutError)):
        return True
    # A file that arrived cut short, or an error of hf_xet; other libraries raise the same types for faulty files.
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_of_hub = bool(frames) and frames[-1].f_globals.get("__name__", "").startswith("huggingface_hub.")
    return is_of_hub and type(error) in (OSError, RuntimeError) and getattr(error, "errno", None) is None


def snapshot(
    reference: Reference,
    outage: HubUnreachable | None = None,
    *,
    allow: Sequence[str] | None = None,
    ignore: Sequence[str] | None = None,
) -> Path:
    """Returns the folder in HF_HOME with the files of a repository; its name is the commit.

    Args:
        outage: why the Hub is not asked; what was downloaded before is used.
        allow: patterns of the names of files to download; None: all files.
        ignore: patterns of the names of files to leave out.

    Raises:
        InvalidInput: not found, or gated.
        HubUnreachable: the Hub gives no answer, also in the middle of a download, or HF_HOME lacks a file.
    """
    try:
        # By its own revision, so that HF_HOME knows which commit a branch was when the Hub is away later.
        folder = snapshot_download(
            reference.address,
            repo_type=reference.kind,
            revision=reference.revision,
            allow_patterns=allow and [*allow],
            ignore_patterns=ignore and [*ignore],
            local_files_only=outage is not None,
        )
    except (HTTPError, LocalEntryNotFoundError) as error:
        if outage is None:
            raise _no_answer(reference, error) from error
        copy = "a part of it only" if isinstance(error, IncompleteSnapshotError) else "no copy of it"
        raise unreachable(reference, outage.why, copy) from None
    except (OSError, RuntimeError) as error:
        if reason := full_disk_in(error) or outage_in(reference, error):
            raise reason from error
        raise
    return Path(folder)
