"""The interface of every store, the rules of its keys, and the interface of its class, the scheme."""

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
    """One entry of a listing; ``size`` in bytes; ``version`` as in Object, if listings have it."""

    key: str
    size: int
    version: str = field(default="", compare=False)


@dataclass(frozen=True)
class Object:
    """The bytes under a key, and the version that ``put(if_version=...)`` takes to replace exactly these."""

    data: bytes
    version: str


def ignore(num_bytes: int) -> None:
    """Does nothing; the default of a caller without progress."""


class Readable(Protocol):
    """A source of small objects: a store, or objects that were listed from one."""

    address: str

    def get(self, key: str) -> Object:
        """Returns the object under ``key``; reason "absent" if there is none."""

    def names(self, folder: str) -> list[str]:
        """Returns the names directly in ``folder`` ("" for the store's own), sorted; names of folders end with "/".

        The cost does not grow with deeper objects.
        """

    def list(self, prefix: str) -> list[Entry]:
        """Returns all objects whose key begins with ``prefix`` ("" for all), sorted by key."""


class Store(Readable, Protocol):
    """Objects under keys such as ``run/attempts/1/lease.json``; safe to use from several threads.

    Every method raises StorageFailed and nothing else; its ``reason`` is the kind of failure. Requests to a server that
    is away are repeated for some seconds first. ``put`` and ``get`` hold the object in memory and are meant for
    small ones; ``upload`` and ``download`` take files of any size.
    """

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> str:
        """Stores ``data``, whole or not at all, and returns its version.

        With ``if_absent`` it stores only under a new key, with ``if_version`` only if the object still has that version
        (reason "conflict" otherwise; one of several writers at once wins). A version depends on the content: an
        object with earlier bytes has its earlier version again, so a pointer should have a counter.
        A write whose answer was lost counts as done if the object has its bytes.
        """

    def upload(
        self, key: str, path: Path, *, sent: Callable[[int], object] = ignore, is_given_away: bool = False
    ) -> str:
        """Stores the file at ``path``; returns the SHA-256 (hex) of its bytes.

        ``is_given_away``: its bytes do not change any more, so a store on the same disk takes it without a copy.
        ``sent`` is called with the number of bytes of every piece, from any thread; before a piece is sent again,
        with that number below zero. Its error before the last piece ends the upload without a change of the object.
        """

    def download(self, key: str, path: Path) -> str:
        """Writes the object to ``path``, once all of it has arrived; returns its SHA-256 (hex)."""

    def copy(self, source: str, target: str) -> str | None:
        """Copies the object under ``source`` to ``target`` within the store.

        Returns its SHA-256 (hex) as ``checksum`` does; the copy has the same recorded.
        """

    def checksum(self, key: str) -> str | None:
        """Returns the SHA-256 (hex) that was recorded with the object; None if there is none."""

    def delete(self, *keys: str) -> None:
        """Removes these objects, in no order; ignores absent ones."""

    def probe(self, prefix: str) -> None:
        """Puts, gets and deletes a small object under ``prefix``; done or failed within 5 seconds.

        Raises StorageFailed, reason "unsupported", if the store does not obey the conditions of ``put``.
        """


def find(store: Readable, key: str) -> Object | None:
    """Returns the object under ``key``; None if there is none."""
    try:
        return store.get(key)
    except StorageFailed as failure:
        if failure.reason != "absent":
            raise
        return None


def put_new(store: "Store", key: str, data: bytes) -> bool:
    """Puts an object if its key is new; returns False if there is one, or another writer puts one at that moment."""
    try:
        store.put(key, data, if_absent=True)
    except StorageFailed as failure:
        if failure.reason != "conflict":
            raise
        return False
    return True


@dataclass(frozen=True)
class FromSecret:
    """A variable of the workers with a key of the store's Secret as its value."""

    key: str
    optional: bool = False
    """Whether the workers start without it."""
    is_hidden: bool = True
    """Whether logs must not show the value; a user name is not hidden."""


class Scheme:
    """Base of the registered classes: facts of a kind of store and its addresses, before a store is opened.

    Nothing here connects to a server. Methods that take an address raise StorageFailed (reason "address") if no store
    of this kind can have it.
    """

    example: ClassVar[str]
    """An example of an address, for messages."""
    is_shared: ClassVar[bool] = True
    """Whether other machines, such as the nodes of a cluster, reach the same objects."""
    endpoint_variables: ClassVar[tuple[str, ...]] = ()
    """Variables of the environment that name the server; the first one that is set counts."""
    own_variables: ClassVar[re.Pattern[str]] = re.compile("(?!)")
    """Variables that a user may not set for the workers, because their store reads them."""
    secret_variables: ClassVar[Mapping[str, FromSecret]] = {}
    """Variables that the workers take from the store's Secret."""

    @classmethod
    def open(cls, address: str) -> Store:
        raise NotImplementedError

    @classmethod
    def split(cls, address: str) -> tuple[str, str]:
        """Returns the address of the widest store that holds the object or folder, and its key there."""
        raise NotImplementedError

    @classmethod
    def local_path(cls, address: str) -> Path | None:
        """Returns the file or folder of this machine at the address; None if objects have to be downloaded."""
        return None

    @classmethod
    def worker_settings(cls, environ: Mapping[str, str], endpoint: str | None = None) -> dict[str, str]:
        """Returns the variables that the workers need besides ``secret_variables``, from those of this process.

        Args:
            endpoint: the server's address for the workers, if it is not that for this process.
        """
        return {}

    @classmethod
    def secret_values(cls, environ: Mapping[str, str]) -> dict[str, str]:
        """Returns the values that this process has for ``secret_variables``."""
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
    """Returns the prefix of all keys in a folder; "" is the store's own folder."""
    check_prefix(folder)
    return f"{folder.removesuffix('/')}/" if folder else ""


def key_fault(key: str) -> str | None:
    """Returns the fault of a key, or None."""
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
    """Returns why no server can be at the endpoint, or None; ``name``: the setting that holds it."""
    parts = urlsplit(endpoint)
    if parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc:
        return None
    return (
        f"{name}={without_password(endpoint)!r}: an address such as http://myminio:9000 is expected, http or https, "
        "without user and password"
    )


def refused(address: str, why: str) -> StorageFailed:
    """Returns the error of an address that no store can have."""
    return StorageFailed(f"store address {without_password(address)!r}: {why}", reason="address")
