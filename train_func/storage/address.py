"""Which keys every store accepts, and how an address or a key that is none is refused."""

import re

from train_func.errors import StorageFailed

RESERVED = ".train_func"  # where a folder store keeps its locks and unfinished files
MAX_PART_BYTES = 200  # a file system takes 255
MAX_KEY_BYTES = 800  # S3 takes 1,024 with the store's own prefix


def check_key(key: str) -> None:
    """Raises StorageFailed (reason "address") unless every store can hold an object under ``key``."""
    if fault := key_fault(key):
        raise StorageFailed(
            f"key {key!r}: {fault}; a key is like 'run/attempts/1/lease.json': names joined by single slashes, "
            f"each at most {MAX_PART_BYTES} bytes, {MAX_KEY_BYTES} together",
            reason="address",
        )


def check_prefix(prefix: str) -> None:
    """As ``check_key``, but "" and a slash at the end are allowed."""
    if prefix:
        check_key(prefix.removesuffix("/"))


def folder_prefix(folder: str) -> str:
    """How the keys of what lies in a folder begin; "" is the store's own folder."""
    check_prefix(folder)
    return f"{folder.removesuffix('/')}/" if folder else ""


def key_fault(key: str) -> str | None:
    """What is wrong with a key, or None."""
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
    """The address with everything before an ``@`` hidden."""
    return re.sub(r"//[^/]*@", "//***@", address)


def refused(address: str, why: str) -> StorageFailed:
    """The failure of an address that no store can have."""
    return StorageFailed(f"store address {without_password(address)!r}: {why}", reason="address")
