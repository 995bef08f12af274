"""What the options of Cluster may be: the addresses of a store and of its server."""

from urllib.parse import urlsplit

from train_func.client.cluster.proxy import is_loopback
from train_func.errors import StorageFailed
from train_func.storage import scheme_of
from train_func.storage.store import endpoint_fault, without_password


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
