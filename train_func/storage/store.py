"""What every store can do, which keys it takes, and what its class says before one is opened."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol
from urllib.parse import urlsplit

from train_func.errors import StorageFailed

RESERVED = ".train_func"  # where a folder store keeps its locks and unfinished files
MAX_PART_BYTES = 200  # a file system takes 255
MAX_KEY_BYTES = 800  # S3 takes 1,024 with the store's own prefix


@dataclass(frozen=True)
class Entry:
    """One line of a listing; ``size`` in bytes, ``version`` as in Object where a listing tells it."""

    key: str
    size: int
    version: str = field(default="", compare=False)


@dataclass(frozen=True)
class Object:
    """The bytes under a key, and the version that ``put(if_version=...)`` takes to replace exactly these."""

    data: bytes
    version: str


def ignore(num_bytes: int) -> None:
    """Does nothing, for a caller that needs no progress."""


class Readable(Protocol):
    """What small objects are read from: a store, or what was listed of one."""

    address: str

    def get(self, key: str) -> Object:
        """The object under ``key`` (reason "absent" when there is none)."""

    def names(self, folder: str) -> list[str]:
        """Returns what lies directly in ``folder`` ("" for the store's own), sorted; names of folders end with "/".

        What this costs does not grow with what lies deeper.
        """

    def list(self, prefix: str) -> list[Entry]:
        """All objects whose key begins with ``prefix`` ("" for all), sorted by key."""


class Store(Readable, Protocol):
    """Objects under keys such as ``run/attempts/1/lease.json``; safe to use from several threads.

    Every method raises StorageFailed and nothing else; its ``reason`` tells the kinds of failure apart. A server that
    is away is asked again for some seconds first. ``put`` and ``get`` hold the object in memory and are meant for
    small ones; ``upload`` and ``download`` take files of any size.
    """

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> str:
        """Stores ``data``, whole or not at all, and returns its version.

        With ``if_absent`` only when the key is new, with ``if_version`` only when the object is still that version
        (reason "conflict" otherwise; of several writers at once one wins). Versions are made of the content: an
        object that goes back to earlier bytes has its earlier version again, so a pointer should count.
        A write whose answer was lost has succeeded where the object is found to be its own.
        """

    def upload(
        self, key: str, path: Path, *, sent: Callable[[int], object] = ignore, is_given_away: bool = False
    ) -> str:
        """Stores the file at ``path``; returns the SHA-256 (hex) of its bytes.

        ``is_given_away``: its bytes do not change any more; a store on the same disk then takes it without a copy.
        ``sent`` is told of every piece how many bytes it has, from any thread; of one that is sent again first the same
        number below zero. What it raises before the last piece ends the upload, and the object stays as it was.
        """

    def download(self, key: str, path: Path) -> str:
        """Writes the object to ``path``, which changes only when all of it has arrived; returns its SHA-256 (hex)."""

    def copy(self, source: str, target: str) -> str | None:
        """Makes ``target`` the object that is under ``source`` without sending it here.

        Returns the SHA-256 (hex) of what was copied, as ``checksum`` does; the same is recorded of ``target``.
        """

    def checksum(self, key: str) -> str | None:
        """SHA-256 (hex) of the object, as recorded when it was stored; None when none was recorded."""

    def delete(self, *keys: str) -> None:
        """Removes these objects, in no order; where there is none, nothing happens."""

    def probe(self, prefix: str) -> None:
        """Puts, gets and deletes a small object under ``prefix``; done or failed within 5 seconds.

        Raises StorageFailed, reason "unsupported", where the conditions of ``put`` are not heeded.
        """


def find(store: Readable, key: str) -> Object | None:
    """The object under ``key``; None where there is none."""
    try:
        return store.get(key)
    except StorageFailed as failure:
        if failure.reason != "absent":
            raise
        return None


def put_new(store: "Store", key: str, data: bytes) -> bool:
    """Puts an object if its key is new; returns False where there is one, also of another writer at the moment."""
    try:
        store.put(key, data, if_absent=True)
    except StorageFailed as failure:
        if failure.reason != "conflict":
            raise
        return False
    return True


@dataclass(frozen=True)
class FromSecret:
    """A variable of the workers whose value is this key of the store's Secret."""

    key: str
    optional: bool = False
    """Whether the workers start without it."""
    is_hidden: bool = True
    """Whether no log may show the value; the name of a user is no such value."""


class Scheme:
    """Base of the classes that are registered: what a kind of store says of an address before one is opened.

    Nothing here connects to a server. Methods that take an address raise StorageFailed (reason "address") when no
    store of this kind can have it.
    """

    example: ClassVar[str]
    """An address, for messages."""
    is_shared: ClassVar[bool] = True
    """Whether other machines, such as the nodes of a cluster, reach the same objects."""
    endpoint_variables: ClassVar[tuple[str, ...]] = ()
    """Variables of the environment that name the server; the first that is set counts."""
    own_variables: ClassVar[re.Pattern[str]] = re.compile("(?!)")
    """Variables that a user may not set for the workers, because the store there reads them."""
    secret_variables: ClassVar[Mapping[str, FromSecret]] = {}
    """Variables that the workers take from the store's Secret."""

    @classmethod
    def open(cls, address: str) -> Store:
        raise NotImplementedError

    @classmethod
    def split(cls, address: str) -> tuple[str, str]:
        """Address of the widest store that holds the object or folder at this address, and its key there."""
        raise NotImplementedError

    @classmethod
    def local_path(cls, address: str) -> Path | None:
        """The file or folder of this machine at the address; None where objects have to be downloaded."""
        return None

    @classmethod
    def worker_settings(cls, environ: Mapping[str, str], endpoint: str | None = None) -> dict[str, str]:
        """Variables that the workers need beside ``secret_variables``, from this process's own.

        Args:
            endpoint: where the workers find the server, when that is not where this process finds it.
        """
        return {}

    @classmethod
    def secret_values(cls, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns what this process has for ``secret_variables``; those that it lacks are left out."""
        return {name: environ[name] for name in cls.secret_variables if name in environ}


def check_key(key: str) -> None:
    """Raises StorageFailed (reason "address") unless every store can hold an object under ``key``."""
    if fault := key_fault(key):
        raise StorageFailed(
            f"key {key!r}: {fault}; a key is like 'run/attempts/1/lease.json': names joined by single slashes, "
            f"each at most {MAX_PART_BYTES} bytes, {MAX_KEY_BYTES} together",
            reason="address",
        )


def check_prefix(prefix: str) -> None:
    """Checks a prefix as ``check_key`` checks a key; "" and a slash at the end are allowed."""
    if prefix:
        check_key(prefix.removesuffix("/"))


def folder_prefix(folder: str) -> str:
    """Returns how the keys of what lies in a folder begin; "" is the store's own folder."""
    check_prefix(folder)
    return f"{folder.removesuffix('/')}/" if folder else ""


def key_fault(key: str) -> str | None:
    """Returns what is wrong with a key, or None."""
    parts = key.split("/")
    if key.startswith("/"):
        return "it is absolute"
    if not all(parts):
        return "a name in it is empty"
    if ".." in parts or "." in parts:
        return "'.' and '..' are not allowed"
    if parts[0] == RESERVED:
        return f"{RESERVED!r} is kept for the store itself"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in key):
        return "it holds a control character"
    try:
        lengths = [len(part.encode()) for part in parts]
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    if max(lengths) > MAX_PART_BYTES or sum(lengths) + len(lengths) - 1 > MAX_KEY_BYTES:
        return f"it is too long ({sum(lengths) + len(lengths) - 1} bytes, longest name {max(lengths)})"
    return None


def without_password(address: str) -> str:
    """Hides everything before an ``@`` in the address."""
    return re.sub(r"//[^/]*@", "//***@", address)


def endpoint_fault(name: str, endpoint: str) -> str | None:
    """Returns why no server can be there, or None; ``name`` is the setting that holds the endpoint."""
    parts = urlsplit(endpoint)
    if parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc:
        return None
    return (
        f"{name}={without_password(endpoint)!r}: an address such as http://myminio:9000 is expected, http or https, "
        "without user and password"
    )


def refused(address: str, why: str) -> StorageFailed:
    """Returns the failure of an address that no store can have."""
    return StorageFailed(f"store address {without_password(address)!r}: {why}", reason="address")
