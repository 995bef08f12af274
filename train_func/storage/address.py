"""Which addresses and keys a store accepts, and what is said about those it does not."""

import re
from pathlib import Path
from urllib.parse import unquote

from train_func.errors import StorageFailed

RESERVED = ".train_func"  # where a folder store keeps its locks and unfinished files
MAX_PART_BYTES = 200  # a file system takes 255
MAX_KEY_BYTES = 800  # S3 takes 1,024 with the store's own prefix
_ALLOWED = "allowed are file:///absolute/folder and s3://bucket/prefix"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def scheme_of(address: str) -> str:
    """ "file" or "s3"; raises StorageFailed (reason "address") for everything else."""
    if not isinstance(address, str):
        raise _refused(repr(address), f"a store's address is a text; {_ALLOWED}")
    scheme, separator, _ = address.partition("://")
    if separator and scheme in ("file", "s3"):
        return scheme
    if not separator and not address.startswith("s3:"):
        raise _refused(address, f"{_ALLOWED}; for this folder write {_as_file(address)!r}")
    raise _refused(address, f"{_ALLOWED}, in small letters")


def folder_of(address: str) -> Path:
    """The absolute folder of a ``file://`` address (percent signs decoded, as ``Path.as_uri`` writes them)."""
    given = unquote(address.removeprefix("file://"))
    if not given.startswith("/"):
        raise _refused(address, f"the folder must be absolute, with three slashes: {_as_file(given)!r}")
    parts = [part for part in given.split("/") if part]
    if ".." in parts or "." in parts or "\0" in given:
        raise _refused(address, "write the folder without '.', '..' and NUL")
    if not parts:
        raise _refused(address, "the root of the file system cannot be a store; name a folder in it")
    return Path("/", *parts)


def bucket_of(address: str) -> tuple[str, str]:
    """Bucket and prefix ("" or ``a/b``) of an ``s3://`` address."""
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    if "@" in bucket:
        raise _refused(
            address,
            "no user, key or password belongs into an address; give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "in the environment (in a cluster: by a Secret)",
        )
    if not bucket:
        raise _refused(address, "the bucket is missing: s3://bucket or s3://bucket/prefix")
    if not _BUCKET.fullmatch(bucket):
        raise _refused(
            address,
            f"{bucket!r} is no bucket name: 3 to 63 small letters, digits, dots and hyphens; "
            "the server's host and port belong into AWS_ENDPOINT_URL_S3",
        )
    prefix = prefix.strip("/")
    if fault := (key_fault(prefix) if prefix else None) or ("it holds '?' or '#'" if set("?#") & set(prefix) else None):
        raise _refused(address, f"the prefix {prefix!r} cannot be: {fault}")
    return bucket, prefix


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


def _refused(address: str, why: str) -> StorageFailed:
    return StorageFailed(f"store address {without_password(address)!r}: {why}", reason="address")


def _as_file(path: str) -> str:
    return Path(path or ".").expanduser().absolute().as_uri()
