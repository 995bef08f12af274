"""An input of a run: found and fingerprinted before the run is submitted, brought to a local path where it is used."""

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
    Wanted,
    check_carried,
    is_in_store,
    locate,
    near,
    stored,
)

LARGEST_COPY = 256 * 2**20  # bytes of an input's files that can be written
_WRITABLE = 0o222
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"  # SHA-256 of no bytes


@dataclass(frozen=True)
class InputVersion:
    """An input as it is now."""

    fingerprint: str
    """SHA-256 of the content, of a file with its ending; the commit of a repository, the address of a claim."""
    local: LocalFiles | None = None
    """What it lies in, unless that is a store, the Hub or a claim."""
    pinned: str | None = None
    """The address of the commit that a repository is at."""
    notes: tuple[str, ...] = ()


def find(name: str, address: str, store: Store | None, cache: Path) -> InputVersion:
    """The input ``name`` of a run; of a store only what it has no SHA-256 of is downloaded, of the Hub nothing.

    Raises:
        InvalidInput: it is not there, or cannot be read or carried; every message begins with the name.
        StorageFailed: the store is away or denies.
    """
    if claim := claim_of(address):
        note = f"{claim} is mounted read-only and not carried; its content is no part of the run's name"
        return InputVersion(str(claim), notes=(f"inputs[{name!r}]: {note}",))
    if repository := repository_of(address):
        return _on_hub(_of_hub(name, repository), repository)
    wanted = _wanted(name, address)
    if is_in_store(address):
        return InputVersion(_in_store(wanted, store, cache))
    path = locate(wanted, store, cache)
    if path is None:
        raise wanted.fault(
            "no such file or folder; a repository of the Hub is written hf://OWNER/NAME or hf://datasets/OWNER/NAME"
        )
    try:
        parts = fingerprint.of_each(path, files_in(path, wanted) if path.is_dir() else [""], cache)
    except OSError as error:
        raise wanted.fault(f"cannot be read: {error}") from None
    sha256 = fingerprint.of_named(parts)
    for part in parts:
        if fault := key_fault(f"{INPUTS}/{sha256}/{path.name}/{part}".rstrip("/")):
            raise wanted.fault(f"{path / part} cannot be carried to a store under its name: {fault}")
    local = LocalFiles.found(wanted, path, parts, sha256)
    return InputVersion(_with_ending(sha256, parts.keys() == {""}, path.name), local)


def bring(
    name: str,
    address: str,
    expected: str,
    store: Store,
    cache: Path,
    claims: Path | None = None,
) -> Path:
    """A file or folder of this machine that holds the input, with the fingerprint that is ``expected``.

    What lies in a store comes to the cache, under its SHA-256, so that all runs share it.

    Args:
        claims: folder in which claims are mounted, each by its name.

    Raises:
        InvalidInput: it is not there, or has another fingerprint.
        StorageFailed: the store or the Hub is away, the store denies, or what it holds is damaged.
    """
    if claim := claim_of(address):
        return _in_claim(_wanted(name, address), claims, claim.name, claim.path)
    if repository := repository_of(address):
        from train_func.worker.inputs.hub import snapshot  # imports huggingface_hub, which takes time

        return snapshot(_of_hub(name, replace(repository, revision=expected)))
    wanted, sha256 = _wanted(name, address), expected.partition(".")[0]
    if not is_in_store(address):
        found = find(name, address, store, cache)
        _check_unchanged(wanted, expected, found.fingerprint)
        path = locate(wanted, store, cache)
        assert path is not None  # else it were not found
        return path

    is_new = False

    def download(part: Path) -> None:
        nonlocal is_new
        is_new = True
        lies = stored(wanted, store)
        sums = lies.download(part)
        check_carried(wanted, lies, sums)
        _check_unchanged(wanted, sha256, fingerprint.of_named(sums))
        for file in sums:
            (part / file).chmod(0o444)

    path = entry(cache, f"inputs/{sha256}", download)
    if not is_new:  # another process has brought it, a pod with another program perhaps
        actual = fingerprint.of_named(fingerprint.of_each(path, files_in(path) if path.is_dir() else [""], cache))
        if actual != sha256:
            raise wanted.fault(
                f"the cache has changed: the SHA-256 of {path} is {actual}; remove it when no job uses it, and submit "
                "again"
            )
    return path


def link(source: Path, folder: Path, name: str, expected: str) -> Path:
    """The input by its name, and a file's ending, made of links to its files, or of copies of them.

    What a function writes into such a folder stays there, and what it removes there is not removed elsewhere. Files
    of the cache are read-only, and linked. Others, such as the user's own, are copied and made read-only too, unless
    the input has more than ``LARGEST_COPY`` bytes of them.
    """
    target = folder / f"{name}{expected.removeprefix(expected.partition('.')[0])}"
    if target.exists():
        return target
    files = {target / file: source / file for file in files_in(source)} if source.is_dir() else {target: source}
    copied = {own: of for own, of in files.items() if of.stat().st_mode & _WRITABLE}
    if sum(of.stat().st_size for of in copied.values()) > LARGEST_COPY:
        copied = {}
    for own, of in files.items():
        own.parent.mkdir(parents=True, exist_ok=True)
        if own in copied:
            shutil.copyfile(of, own)
            own.chmod(0o444)
        else:
            own.symlink_to(of)
    return target


def files_in(folder: Path, wanted: Wanted | None = None) -> list[str]:
    """All files in a folder, by path in it; with ``wanted`` what cannot be read as a file is refused.

    Raises:
        InvalidInput: there is none, a link in it leads to nothing or back, or something in it is no file.
        OSError: a folder in it cannot be read.
    """
    names = fingerprint.names_in(folder)
    strange = [name for name in names if not (folder / name).is_file()]
    if strange:
        fault = (
            f"{folder / strange[0]} is no file that can be carried: it is no regular file, or a link to nothing or back"
        )
        raise wanted.fault(fault) if wanted else InvalidInput(fault, cause="data")
    if wanted and not names:
        raise wanted.fault("the folder holds no file")
    return names


def _wanted(name: str, address: str) -> Wanted:
    return Wanted(f"inputs[{name!r}]", address, "dataset")


def _of_hub(name: str, repository: Repository) -> Wanted:
    return Wanted(f"inputs[{name!r}]", repository.id, repository.kind, repository.revision)


def _on_hub(wanted: Wanted, repository: Repository) -> InputVersion:
    from train_func.worker.inputs.hub import away, look_up, snapshot

    notes: tuple[str, ...] = ()
    try:
        commit = look_up(wanted).commit
    except HubUnreachable as outage:
        commit, notes = snapshot(wanted, outage).name, (away(wanted, outage),)
    return InputVersion(commit, pinned=repository.at(commit), notes=notes)


def _in_store(wanted: Wanted, store: Store | None, cache: Path) -> str:
    """The fingerprint of what lies in a store, which is that of the same files on this machine."""
    lies = stored(wanted, store)
    sums = {lies.name(item): lies.store.checksum(item.key) if item.size else _EMPTY for item in lies.items}
    known = {name: sha256 for name, sha256 in sums.items() if sha256}
    if len(known) < len(sums):  # another program has put it there
        place = locate(wanted, store, cache)
        assert place is not None
        known = fingerprint.of_each(place, sums, cache)
    return _with_ending(fingerprint.of_named(known), known.keys() == {""}, lies.key)


def _with_ending(sha256: str, is_file: bool, name: str) -> str:
    """Returns the hash with the ending of a file, because that decides how programs read its bytes."""
    return sha256 + ending_of(name.rpartition("/")[2]) if is_file else sha256


def _in_claim(wanted: Wanted, claims: Path | None, claim: str, inside: str) -> Path:
    if claims is None:
        raise wanted.fault("a claim is a volume of a cluster, and this process has none; name a file or folder here")
    path = claims / claim / inside
    if not path.exists():
        names = sorted(found.name for found in (claims / claim).iterdir())
        raise wanted.fault(f"the volume of claim {claim!r} has no {inside!r}; it holds {near(inside, names)}")
    return path


def _check_unchanged(wanted: Wanted, expected: str, found: str) -> None:
    if expected != found:
        raise wanted.fault(
            f"has changed since the run was submitted: its fingerprint was {expected} and is {found}; submit again, as "
            "a new run"
        )
