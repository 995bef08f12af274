"""What the options of Cluster may be: the image, and the addresses of a store and of its server."""

import re
from urllib.parse import urlsplit

from train_func.client.cluster.proxy import is_loopback
from train_func.errors import StorageFailed
from train_func.storage import scheme_of
from train_func.storage.store import endpoint_fault, without_password

# As registries and nodes read it; what stands before the first slash is a registry only with a dot or a port.
_HOST = r"(?=[^/]*[.:])(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d+)?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?P<tag>:\w[\w.-]{{0,127}})?(?P<digest>@sha256:[0-9a-f]{{64}})?", re.ASCII
)


def image_fault(image: object) -> str | None:
    """Why no node could pull ``image``, or would pull now one and now another; None when it is sane."""
    if image is None:
        return "image: none is given; give Cluster(image='registry/name:tag') or set TRAIN_FUNC_IMAGE"
    found = _IMAGE.fullmatch(str(image))
    if found and (found["tag"] or found["digest"]):
        return None
    why = "it has no tag, so that every node may pull another one; " if found else ""
    scheme = f", without {image.partition('://')[0]}://" if isinstance(image, str) and "://" in image else ""
    return (
        f"image={image!r}: {why}'registry/name:tag' or 'registry/name@sha256:...' is expected{scheme}: a name of small "
        "letters, the tag of at most 128 letters, digits, '.', '_' and '-', the digest of 64 hexadecimal digits"
    )


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
    if malformed := endpoint_fault(name, str(endpoint)):
        return [malformed]
    host = urlsplit(endpoint).hostname or ""
    if is_loopback(host) or host == "0.0.0.0":
        fault = (
            f"{name}={endpoint!r}: in a pod that is the pod itself, not this machine; give the server's name inside "
            "the cluster, as Cluster(s3_endpoint='http://myminio:9000') or TRAIN_FUNC_S3_ENDPOINT; "
            "this process goes on using AWS_ENDPOINT_URL_S3"
        )
        return [fault]
    return []
