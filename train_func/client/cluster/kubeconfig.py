"""Which cluster is meant: from a kubeconfig, or from inside a pod.

The kubernetes client is imported with the first connection, because that takes a second.
"""

import functools
import os
from pathlib import Path
from typing import Any

from train_func.client.cluster import credentials, proxy
from train_func.client.cluster.access import Access
from train_func.client.cluster.proxy import Proxy
from train_func.client.cluster.sending import Sender
from train_func.client.cluster.timings import Timings
from train_func.client.kinds import DEFAULT, Kind
from train_func.errors import InvalidInput

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
CONNECTIONS = 32  # kept open: watches, followed logs, and the requests between them
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_KUBECONFIG = "~/.kube/config"


def connect(
    context: str | None = None, namespace: str | None = None, kind: Kind = DEFAULT, timings: Timings | None = None
) -> Access:
    """The cluster of a kubeconfig's context, or the one this pod runs in; nothing is sent yet.

    Args:
        context: one of the kubeconfig's; by default the current one, or inside a pod, without a kubeconfig, its own.
        namespace: by default the context's, or the pod's own.
        kind: of the jobs.
        timings: limits and pauses.

    Raises:
        InvalidInput: no cluster is named, there is no such context, or its credential plugin takes too long.
    """
    kubeconfig = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    proxies = tuple((name, value) for name, value in sorted(os.environ.items()) if name.upper() in PROXIES)
    return _connect(kubeconfig, _written(kubeconfig), proxies, context, namespace, kind, timings or Timings())


@functools.lru_cache(maxsize=16)
def _connect(
    kubeconfig: str,
    written: tuple[int, ...],
    proxies: tuple[tuple[str, str], ...],
    context: str | None,
    namespace: str | None,
    kind: Kind,
    timings: Timings,
) -> Access:
    """``written``: after another login, or with another context, nothing of what was read before counts."""
    from kubernetes import client

    read = credentials.first((kubeconfig, written, context), lambda fresh: _load(fresh, kubeconfig, context), timings)
    if read is None:
        raise InvalidInput(_slow(kubeconfig, context, timings), cause="permission")
    configuration, (where, found, through) = read
    through = through or proxy.from_environment(configuration.host, dict(proxies))
    if through:
        where += f" through the proxy {through.url}"
        _lead(configuration, through)
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.retries = False  # urllib3 would write a warning about each
    renewed = credentials.Credentials(configuration, lambda fresh: _load(fresh, kubeconfig, context), timings)
    api = client.ApiClient(configuration)
    api.request = Sender(api, renewed, where, timings)
    return Access(namespace=namespace or found, where=where, kind=kind, timings=timings, client=api)


def _lead(configuration: Any, through: Proxy) -> None:
    """Has the client use the proxy, and no rules of its own about when not to."""
    from urllib3.util import make_headers

    configuration.proxy, configuration.no_proxy = through.url, ""
    configuration.proxy_headers = make_headers(proxy_basic_auth=through.user) if through.user else None


def _written(kubeconfig: str) -> tuple[int, ...]:
    """When its files were last written; empty when there are none."""
    files = (Path(name).expanduser() for name in kubeconfig.split(os.pathsep) if name)
    return tuple(file.stat().st_mtime_ns for file in files if file.is_file())


def in_a_pod() -> bool:
    """Whether this runs in a pod, without a kubeconfig: then its own cluster is the only one it knows."""
    return _is_own_cluster(os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG)


def _is_own_cluster(kubeconfig: str) -> bool:
    return not _written(kubeconfig) and POD_NAMESPACE.exists()


def _load(configuration: Any, kubeconfig: str, context: str | None) -> tuple[str, str, Proxy | None]:
    """Fills ``configuration``; returns which cluster that is, its namespace, and the proxy that is named for it."""
    import yaml
    from kubernetes import config

    if context is None and _is_own_cluster(kubeconfig):
        config.load_incluster_config(client_configuration=configuration)
        return f"the cluster of this pod ({configuration.host})", POD_NAMESPACE.read_text().strip(), None
    try:
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig)
        chosen = next((found for found in contexts if found["name"] == context), None) if context else current
        if chosen is None:
            names = ", ".join(found["name"] for found in contexts) or "none"
            raise InvalidInput(f"context={context!r}: {kubeconfig} has no such context; it has: {names}")
        config.load_kube_config(config_file=kubeconfig, context=chosen["name"], client_configuration=configuration)
        through = _proxy_url(kubeconfig, chosen["context"]["cluster"])
    except (config.ConfigException, yaml.YAMLError, OSError) as error:
        raise InvalidInput(
            f"no cluster is named: {_why(error)} ({kubeconfig}). Name a kubeconfig by KUBECONFIG and one of its "
            "contexts by Cluster(context=...) (`kubectl config get-contexts` lists them), or run inside a pod that has "
            "a service account's token. Local() trains on this machine"
        ) from None
    where = f"context {chosen['name']!r} ({configuration.host})"
    return where, chosen["context"].get("namespace") or "default", through


def _slow(kubeconfig: str, context: str | None, timings: Timings) -> str:
    named = f"context {context!r}" if context else "the current context"
    return (
        f"the credentials of {named} of {kubeconfig} could not be read within {timings.credentials:.0f} s; a "
        "credential plugin may wait for a login. Run `kubectl get pods` with that context in a terminal, log in where "
        "it asks, and try again"
    )


def _proxy_url(kubeconfig: str, cluster: str) -> Proxy | None:
    """The proxy that a kubeconfig names for a cluster, which the client does not read."""
    from kubernetes.config.kube_config import KubeConfigMerger

    found = KubeConfigMerger(kubeconfig).config["clusters"].get_with_name(cluster)["cluster"]
    url = found.safe_get("proxy-url")
    setting = f"proxy-url of the cluster {cluster!r} in {kubeconfig}"
    return proxy.parse(url, setting, "give another proxy-url, or none where no proxy is needed") if url else None


def _why(error: Exception) -> str:
    """The words of the client, which tell of an unset context by an empty name."""
    return "no context is the current one" if "object with name  in" in str(error) else str(error)
