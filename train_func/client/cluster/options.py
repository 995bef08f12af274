"""What the options of Cluster may be: the image, and the addresses of a store and of its server."""

import re
from urllib.parse import urlsplit

from train_func.errors import StorageFailed
from train_func.storage import scheme_of
from train_func.storage.store import without_password

LOOPBACK = ("localhost", "127.", "::1", "0.0.0.0")
_DOMAIN = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d+)?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(rf"(?:(?P<domain>{_DOMAIN})/)?{_PART}(?:/{_PART})*")
_TAG = re.compile(r"\w[\w.-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
WANTED = "'registry/name:tag' or 'registry/name@sha256:...' is expected"


def store_faults(address: str | None) -> list[str]:
    """Why pods could not keep a run there; empty when they could."""
    wanted = "give Cluster(store='s3://bucket/prefix') or set TRAIN_FUNC_STORE"
    if not address:
        return [f"store: none is given, and pods and this process need one that both reach; {wanted}"]
    try:
        scheme = scheme_of(address)
        scheme.split(address)
    except StorageFailed as error:
        return [f"store: {error}"]
    if scheme.is_shared:
        return []
    fault = (
        f"store={without_password(address)!r}: the pods of a cluster do not see this machine's folders; a store that "
        f"both reach is expected, such as an S3 server: {wanted}, and AWS_ENDPOINT_URL_S3 when it is not Amazon's"
    )
    return [fault]


def endpoint_faults(name: str, endpoint: str) -> list[str]:
    """Why pods could not find a server there; ``name`` is the setting that says so."""
    parts = urlsplit(str(endpoint))
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        shown = without_password(str(endpoint))
        return [f"{name}={shown!r}: an address such as http://myminio:9000 is expected, without user and password"]
    if parts.hostname.startswith(LOOPBACK):
        fault = (
            f"{name}={endpoint!r}: in a pod that is the pod itself, not this machine; give the server's name inside "
            "the cluster, as Cluster(s3_endpoint='http://myminio:9000') or TRAIN_FUNC_S3_ENDPOINT; "
            "this process goes on using AWS_ENDPOINT_URL_S3"
        )
        return [fault]
    return []


def image_fault(image: str) -> str | None:
    """Why no node could pull ``image`` under that name, or would pull now one and now another; None when it is sane."""
    given = f"image={image!r}"
    if "://" in image:
        return f"{given}: {WANTED}, without {image.partition('://')[0]}://"
    rest, _, digest = image.partition("@")
    if digest and not _DIGEST.fullmatch(digest):
        return f"{given}: the digest {digest!r} is none: sha256: and 64 hexadecimal digits are expected"
    name, colon, tag = rest.rpartition(":")
    if not colon or "/" in tag:  # that colon stands before the registry's port
        name, colon, tag = rest, "", ""
    if colon and not _TAG.fullmatch(tag):
        return f"{given}: the tag {tag!r} is none: letters, digits, '.', '_' and '-' are expected, at most 128"
    if not _NAME.fullmatch(name):
        capital = ": its name has to be of small letters" if name != name.lower() else ""
        return f"{given}: no image can be called so{capital}; {WANTED}"
    if not tag and not digest:
        return f"{given}: it has no tag, so that every node may pull another one; {WANTED}"
    return None
