"""Stores, which hold runs: one small interface; each kind is registered by the scheme of its addresses.

A new scheme is a subclass of ``Scheme`` that opens a ``Store``, and one line: in ``_BUILT_IN`` here, or in the
``pyproject.toml`` of an installed package, ``az = "my_package.azure:AzureStore"`` under
``[project.entry-points."train_func.stores"]``. That package has to be in the image of the workers too.
"""

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import cast

from train_func.storage.store import Entry, FromSecret, Object, Readable, Scheme, Store, find, put_new, refused

__all__ = [
    "Entry",
    "FromSecret",
    "Object",
    "Readable",
    "Scheme",
    "Store",
    "find",
    "is_address",
    "open_store",
    "put_new",
    "scheme_of",
    "schemes",
    "schemes_of",
]

ENTRY_POINTS = "train_func.stores"
_BUILT_IN = {
    "file": "train_func.storage.folder:FolderStore",
    "s3": "train_func.storage.s3:S3Store",
}


def open_store(address: str) -> Store:
    """Returns the store at ``file:///abs/folder``, ``s3://bucket/prefix`` or an address of another registered scheme.

    The call is cheap: nothing is sent to a server yet.

    Raises:
        StorageFailed: ``reason`` "address" if it is no such address, "bucket" if the parent of the store's folder does
            not exist, "denied" if that cannot be read, "unreachable" if it does not answer.
    """
    return scheme_of(address).open(address)


def scheme_of(address: str) -> type[Scheme]:
    """Returns the class of the store at ``address``; raises StorageFailed (reason "address") if no scheme matches."""
    if not isinstance(address, str):
        raise refused(repr(address), f"a store's address is a text; {_allowed()}")
    name, separator, _ = address.partition("://")
    if separator and (target := _target(name)):
        return _load(target)
    if not separator and not is_address(address):
        path = Path(address or ".").expanduser().absolute()
        raise refused(address, f"{_allowed()}; for this folder write {path.as_uri()!r}")
    raise refused(address, f"{_allowed()}, in small letters")


def schemes() -> list[type[Scheme]]:
    """Returns the classes of all registered stores."""
    return [_load(target) for target in {**_installed(), **_BUILT_IN}.values()]


def schemes_of(addresses: Iterable[str]) -> list[type[Scheme]]:
    """Returns the classes of the stores of the addresses, each once."""
    names = dict.fromkeys(address.partition("://")[0] for address in addresses if "://" in address)
    return [_load(target) for target in map(_target, names) if target]


def is_address(text: str) -> bool:
    """Returns whether ``text`` begins like an address, of a registered scheme or of another."""
    scheme, colon, rest = text.partition(":")
    return bool(colon) and (rest.startswith("//") or _target(scheme) is not None)


def _target(scheme: str) -> str | None:
    return _BUILT_IN.get(scheme) or _installed().get(scheme)


def _installed() -> dict[str, str]:
    """Returns the entry points that the packages of this Python register, by scheme."""
    from importlib.metadata import entry_points  # not needed for the schemes of this package

    return {entry.name: entry.value for entry in entry_points(group=ENTRY_POINTS)}


def _load(target: str) -> type[Scheme]:
    module, _, name = target.partition(":")
    return cast("type[Scheme]", getattr(importlib.import_module(module), name))


def _allowed() -> str:
    return f"allowed are {' and '.join(scheme.example for scheme in schemes())}"
