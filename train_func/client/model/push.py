"""Pushes a fetched model to the Hub as one commit, or none where nothing has changed; the token is never given."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train_func.client.model.fetch import as_fetched, sha256_of
from train_func.errors import Cause, InvalidInput, StorageFailed
from train_func.fields import brief
from train_func.wire.layout import CARD, MODEL_MANIFEST
from train_func.wire.result import Result

if TYPE_CHECKING:
    from huggingface_hub import HfApi

REFUSED, CHANGED = (401, 403), (409, 412)  # HTTP


def check_target(repo: object) -> None:
    """Raises InvalidInput, with all that keeps a push from being tried."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    faults = []
    try:
        validate_repo_id(repo)
    except HFValidationError:
        faults.append(f"push_to_hub({brief(repo)}): 'name' or 'owner/name' is expected")
    cause: Cause = "input" if faults else "permission"
    if get_token() is None:
        faults.append(
            "there is no token of the Hub: HF_TOKEN is not set, and none is stored. Make one with write access, and "
            "run `hf auth login`, or set HF_TOKEN where the notebook server is started; it belongs in no cell"
        )
    if faults:
        raise InvalidInput(faults, cause=cause)


def push(folder: Path, repo: str, title: str, *, private: bool | None) -> tuple[str, list[str]]:
    """Makes what was fetched into ``folder`` the files of the repository; returns its address, and what to say of it.

    Files of a model that was pushed before and that this one lacks go; any other file of the repository stays, and so
    does a README.md that is not the one pushed before. ``title``: of the commit.

    Raises:
        InvalidInput: the repository is public and was to be private, or the Hub does not accept the card.
        StorageFailed: reason "denied", "conflict" when another client has pushed meanwhile, or "unreachable".
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    hub = HfApi()
    with _errors_of(hub, repo):
        address = hub.create_repo(repo, private=private, exist_ok=True)
        info = hub.model_info(address.repo_id)
        if private and not info.private:
            raise InvalidInput(
                f"private=True: {address} is public already, so nothing was pushed; make it private in its settings, "
                "or name another repository"
            )
        there = {file.rfilename for file in info.siblings or ()}
        new, before = list(as_fetched(folder)), _pushed_before(hub, info, there)
        gone = [name for name in before if name not in new]
        card = sha256_of(folder / CARD)
        has_own = CARD in there and (
            sha256_of(Path(hub.hf_hub_download(info.id, CARD, revision=info.sha))) not in (card, before.get(CARD))
        )
        if has_own:
            new, gone = ([name for name in names if name != CARD] for names in (new, gone))
        adds = [CommitOperationAdd(name, folder / name) for name in new]
        deletes = [CommitOperationDelete(name) for name in gone]
        changes = [*adds, *deletes]
        commit = hub.create_commit(address.repo_id, changes, commit_message=title, parent_commit=info.sha)
    notes = [f"its model was in {address} already" if commit.oid == info.sha else f"its model is in {address}"]
    if has_own and card:
        notes.append(
            f"README.md in {address} is none that was pushed, and stays as it is; it may tell of another model. To "
            "have the card of this one there, delete it and push again"
        )
    return str(address), notes


def _pushed_before(hub: "HfApi", info: Any, names: Collection[str]) -> dict[str, str]:
    """The files of the model that is in the repository, with SHA-256, as its manifest lists them."""
    if MODEL_MANIFEST not in names:
        return {}
    path = hub.hf_hub_download(info.id, MODEL_MANIFEST, revision=info.sha)
    try:
        before = Result.read(Path(path).read_bytes(), MODEL_MANIFEST)
    except StorageFailed:  # of another program
        return {}
    return {name: sha256 for name, sha256 in before.files.items() if name in names}


@contextmanager
def _errors_of(hub: "HfApi", repo: str) -> Iterator[None]:
    """Raises what the Hub refuses, in its body, as an error of this package."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    try:
        yield
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        where = f"{repo} on the Hub ({hub.endpoint})"
        if status in REFUSED:
            raise StorageFailed(
                f"{where}: the token may not write there (HTTP {status}); a token with write access to this owner is "
                "expected in HF_TOKEN, or stored by `hf auth login`. Nothing was pushed",
                reason="denied",
            ) from None
        if status in CHANGED:
            raise StorageFailed(
                f"{where} was changed by another client meanwhile; nothing was pushed: push again", reason="conflict"
            ) from None
        raise StorageFailed(
            f"{where} answered HTTP {status}, and nothing was pushed: {str(error).strip()[:300]}; push again",
            reason="unreachable",
        ) from None
    except (HTTPError, OSError, RuntimeError) as error:
        if isinstance(error, StorageFailed):
            raise
        text = (str(error).strip() or type(error).__name__).splitlines()[0][:300]
        raise StorageFailed(
            f"the Hub ({hub.endpoint}) cannot be reached from here, and nothing was pushed: {text}; push again where "
            "it can, or name another with HF_ENDPOINT",
            reason="unreachable",
        ) from None
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"{repo}: the Hub does not accept the model's card: {error}", cause="model") from None
