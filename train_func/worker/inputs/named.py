"""Inputs of a run: finds and fingerprints them before submission, and brings them to a local path in a worker."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from train_func.errors import InvalidInput
from train_func.inputs import Repository, claim_of, ending_of, repository_of
from train_func.storage import Store
from train_func.storage.store import key_fault
from train_func.wire.layout import INPUTS
from train_func.worker.inputs import fingerprint
from train_func.worker.inputs.cache import entry
from train_func.worker.inputs.locate import (
    HubUnreachable,
    LocalFiles,
    Reference,
    check_carried,
    copied,
    is_in_store,
    locate,
    near,
    stored,
)

LARGEST_COPY = 256 * 2**20  # bytes of an input's files that can be written
_WRITABLE = 0o222


@dataclass(frozen=True)
class InputVersion:
    """An input as it is now."""

    fingerprint: str
    """SHA-256 of the content, with the ending of a file; the commit of a repository; the address of a claim."""
    local: LocalFiles | None = None
    """Its files on this machine; None if it comes from a store, the Hub or a claim."""
    pinned: str | None = None
    """The address of a repository with its commit."""
    notes: tuple[str, ...] = ()


def find(name: str, address: str, store: Store | None, cache: Path) -> InputVersion:
    """Returns the current version of the input ``name``; downloads only objects of a store without a SHA-256.

    Raises:
        InvalidInput: it does not exist, or cannot be read or uploaded; every message begins with the name.
        StorageFailed: the store is away or denies.
    """
    if claim := claim_of(address):
        note = f"{claim} is mounted read-only and not uploaded; its content is no part of the run's name"
        return InputVersion(str(claim), notes=(f"inputs[{name!r}]: {note}",))
    if repository := repository_of(address):
        return _on_hub(_of_hub(name, repository), repository)
    reference = _reference(name, address)
    if is_in_store(address):
        return InputVersion(_in_store(reference, store, cache))
    path = locate(reference, store, cache)
    if path is None:
        raise reference.fault(
            "no such file or folder; a repository of the Hub is written hf://OWNER/NAME or hf://datasets/OWNER/NAME"
        )
    with reference.reading():
        parts = fingerprint.of_each(path, files_in(path, reference) if path.is_dir() else [""], cache)
    sha256 = fingerprint.of_named(parts)
    for part in parts:
        if fault := key_fault(f"{INPUTS}/{sha256}/{path.name}/{part}".rstrip("/")):
            raise reference.fault(f"{path / part} cannot be uploaded to a store under its name: {fault}")
    local = LocalFiles.of_path(reference, path, parts)
    return InputVersion(_with_ending(sha256, parts.keys() == {""}, path.name), local)


def bring(
    name: str,
    address: str,
    expected: str,
    store: Store,
    cache: Path,
    claims: Path | None = None,
) -> Path:
    """Returns a file or folder of this machine with the input, whose fingerprint is ``expected``.

    An input in a store is downloaded to the cache under its SHA-256, so that all runs share it.

    Args:
        claims: folder in which each claim is mounted under its name.

    Raises:
        InvalidInput: it does not exist, or has another fingerprint.
        StorageFailed: the store or the Hub is away, the store denies, or an object is damaged.
    """
    if claim := claim_of(address):
        return _in_claim(_reference(name, address), claims, claim.name, claim.path)
    if repository := repository_of(address):
        from train_func.worker.inputs.hub import snapshot  # imports huggingface_hub, which takes time

        return snapshot(_of_hub(name, replace(repository, revision=expected)))
    reference, sha256 = _reference(name, address), expected.partition(".")[0]
    if not is_in_store(address):
        version = find(name, address, store, cache)
        _check_unchanged(reference, expected, version.fingerprint)
        path = locate(reference, store, cache)
        assert path is not None  # else it were not found
        return path

    is_new = False

    def download(part: Path) -> None:
        nonlocal is_new
        is_new = True
        lies = stored(reference, store)
        sums = lies.download(part)
        check_carried(reference, lies, sums)
        _check_unchanged(reference, sha256, fingerprint.of_named(sums))
        for file in sums:
            (part / file).chmod(0o444)

    path = entry(cache, f"inputs/{sha256}", download)
    if not is_new:  # another process has brought it, a pod with another program perhaps
        actual = fingerprint.of_named(fingerprint.of_each(path, files_in(path) if path.is_dir() else [""], cache))
        if actual != sha256:
            raise reference.fault(
                f"the cache has changed: the SHA-256 of {path} is {actual}; remove it when no job uses it, and submit "
                "again"
            )
    return path


def link(source: Path, folder: Path, name: str, expected: str) -> Path:
    """Returns the input under its name and its ending in ``folder``, made of links to its files or of copies.

    A function that writes or removes files there changes nothing elsewhere. Files of the cache are read-only, and
    linked. Writable files are copied, and the copies are read-only, unless they have more than ``LARGEST_COPY`` bytes.
    """
    target = folder / f"{name}{expected.removeprefix(expected.partition('.')[0])}"
    if target.exists():
        return target
    files = {target / file: source / file for file in files_in(source)} if source.is_dir() else {target: source}
    copied = {link_path: file_path for link_path, file_path in files.items() if file_path.stat().st_mode & _WRITABLE}
    if sum(file_path.stat().st_size for file_path in copied.values()) > LARGEST_COPY:
        copied = {}
    for link_path, file_path in files.items():
        link_path.parent.mkdir(parents=True, exist_ok=True)
        if link_path in copied:
            shutil.copyfile(file_path, link_path)
            link_path.chmod(0o444)
        else:
            link_path.symlink_to(file_path)
    return target


def files_in(folder: Path, reference: Reference | None = None) -> list[str]:
    """Returns the paths of all files in a folder; with ``reference`` an empty folder is refused.

    Raises:
        InvalidInput: there is no file, a link leads to nothing or back, or an entry is no file.
        OSError: a folder in it cannot be read.
    """
    names = fingerprint.names_in(folder)
    strange = [name for name in names if not (folder / name).is_file()]
    if strange:
        fault = f"{folder / strange[0]} cannot be uploaded: it is no regular file, or a link to nothing or back"
        raise reference.fault(fault) if reference else InvalidInput(fault, cause="data")
    if reference and not names:
        raise reference.fault("the folder holds no file")
    return names


def _reference(name: str, address: str) -> Reference:
    return Reference(f"inputs[{name!r}]", address, "dataset")


def _of_hub(name: str, repository: Repository) -> Reference:
    return Reference(f"inputs[{name!r}]", repository.id, repository.kind, repository.revision)


def _on_hub(reference: Reference, repository: Repository) -> InputVersion:
    from train_func.worker.inputs.hub import away, look_up, snapshot

    notes: tuple[str, ...] = ()
    try:
        commit = look_up(reference).commit
    except HubUnreachable as outage:
        commit, notes = snapshot(reference, outage).name, (away(reference, outage),)
    return InputVersion(commit, pinned=repository.at(commit), notes=notes)


def _in_store(reference: Reference, store: Store | None, cache: Path) -> str:
    """Returns the fingerprint of an input in a store, which equals that of the same files on this machine."""
    lies = stored(reference, store)
    sums = lies.sums()
    if len(sums) < len(lies.items):  # another program has put it there
        sums = fingerprint.of_each(copied(reference, lies, cache), map(lies.name, lies.items), cache)
    return _with_ending(fingerprint.of_named(sums), sums.keys() == {""}, lies.key)


def _with_ending(sha256: str, is_file: bool, name: str) -> str:
    """Returns the hash with the ending of a file, because that decides how programs read its bytes."""
    return sha256 + ending_of(name.rpartition("/")[2]) if is_file else sha256


def _in_claim(reference: Reference, claims: Path | None, claim: str, inside: str) -> Path:
    if claims is None:
        raise reference.fault("a claim is a volume of a cluster, and this process has none; name a file or folder here")
    path = claims / claim / inside
    if not path.exists():
        names = sorted(entry.name for entry in (claims / claim).iterdir())
        raise reference.fault(f"the volume of claim {claim!r} has no {inside!r}; it holds {near(inside, names)}")
    return path


def _check_unchanged(reference: Reference, expected: str, actual: str) -> None:
    if expected != actual:
        raise reference.fault(
            f"has changed since the run was submitted: its fingerprint was {expected} and is {actual}; submit again, "
            "as a new run"
        )
