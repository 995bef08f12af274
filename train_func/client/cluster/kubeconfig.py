"""Finds the cluster, by a kubeconfig or from inside a pod, and its proxy."""

import functools
import os
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from train_func.client.cluster.access import Access
from train_func.client.kinds import DEFAULT, Kind
from train_func.errors import InvalidInput

POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_KUBECONFIG = "~/.kube/config"


def connect(context: str | None = None, namespace: str | None = None, kind: Kind = DEFAULT) -> Access:
    """Returns the cluster of a kubeconfig's context, or the one of this pod; sends nothing.

    Args:
        context: a context of the kubeconfig; by default the current one, or in a pod without kubeconfig its cluster.
        namespace: by default that of the context, or of the pod.
        kind: kind of the jobs.

    Raises:
        InvalidInput: no cluster is named, there is no such context, or its proxy cannot be used.
    """
    kubeconfig = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    return _connect(kubeconfig, _written(kubeconfig), context, namespace, kind)


@functools.lru_cache(maxsize=16)
def _connect(
    kubeconfig: str, written: tuple[int, ...], context: str | None, namespace: str | None, kind: Kind
) -> Access:
    """Returns a connection; a new one if the file was ``written`` again, for example by another login."""
    from train_func.client.cluster.api_client import Client

    configuration, where, own_namespace = _load(kubeconfig, context)
    client = Client(configuration, lambda: _load(kubeconfig, context)[0])
    if through := client.rest_client.pool_manager.proxy:
        where += f" through the proxy {through}"
    return Access(namespace=namespace or own_namespace, where=where, kind=kind, client=client)


def in_a_pod() -> bool:
    """Returns whether this runs in a pod without a kubeconfig, so that it knows only its own cluster."""
    return not _written(os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG) and POD_NAMESPACE.exists()


def is_loopback(host: str) -> bool:
    """Returns whether a host name or address means the machine itself."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _written(kubeconfig: str) -> tuple[int, ...]:
    """Returns when its files were last written; empty if there are none."""
    files = (Path(name).expanduser() for name in kubeconfig.split(os.pathsep) if name)
    return tuple(file.stat().st_mtime_ns for file in files if file.is_file())


def _load(kubeconfig: str, context: str | None) -> tuple[Any, str, str]:
    """Returns the configuration of a client, the name of its cluster, and its namespace."""
    import yaml
    from kubernetes import config
    from kubernetes.client import Configuration

    configuration = Configuration()
    if context is None and in_a_pod():
        config.load_incluster_config(client_configuration=configuration)
        _set_proxy(configuration, None, kubeconfig)
        return configuration, f"the cluster of this pod ({configuration.host})", POD_NAMESPACE.read_text().strip()
    try:
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig)
        chosen = next((item for item in contexts if item["name"] == context), None) if context else current
        if chosen is None:
            names = ", ".join(item["name"] for item in contexts) or "none"
            raise InvalidInput(f"context={context!r}: {kubeconfig} has no such context; it has: {names}")
        config.load_kube_config(config_file=kubeconfig, context=chosen["name"], client_configuration=configuration)
        _set_proxy(configuration, chosen["context"]["cluster"], kubeconfig)
    except (config.ConfigException, yaml.YAMLError, OSError) as error:
        raise InvalidInput(
            f"no cluster is named: {error} ({kubeconfig}). Name a "
            "kubeconfig by KUBECONFIG and one of its contexts by Cluster(context=...) (`kubectl config get-contexts` "
            "lists them), or run inside a pod that has a service account's token. Local() trains on this machine"
        ) from None
    where = f"context {chosen['name']!r} ({configuration.host})"
    return configuration, where, chosen["context"].get("namespace") or "default"


def _set_proxy(configuration: Any, cluster: str | None, kubeconfig: str) -> None:
    """Sets the kubeconfig's ``proxy-url``, else HTTPS_PROXY and NO_PROXY, because the client does not read them all."""
    from kubernetes.config.kube_config import KubeConfigMerger
    from urllib3.util import make_headers

    configuration.proxy = None
    server = urlsplit(configuration.host)
    setting = f"{server.scheme.upper()}_PROXY"
    url, exceptions = (os.environ.get(name) or os.environ.get(name.lower(), "") for name in (setting, "NO_PROXY"))
    clusters = KubeConfigMerger(kubeconfig).config["clusters"] if cluster is not None else None
    proxy = clusters.get_with_name(cluster)["cluster"].safe_get("proxy-url") if clusters else None
    if proxy:
        setting, url, exceptions = f"proxy-url of the cluster {cluster!r} in {kubeconfig}", proxy, ""
    elif is_loopback(server.hostname or ""):
        return
    if not url:
        return
    proxy = urlsplit(url if "://" in url else f"http://{url}")
    try:
        usable = proxy.scheme in ("http", "https") and proxy.hostname and proxy.port != 0
    except ValueError:  # of the port
        usable = False
    if not usable:
        raise InvalidInput(
            f"{setting}: {proxy.scheme}://... is not the address of a usable proxy; one with http or https is "
            "expected, such as http://proxy.example:3128; next: give another, or none if none is needed"
        )
    configuration.proxy, configuration.no_proxy = f"{proxy.scheme}://{proxy.netloc.rpartition('@')[2]}", exceptions
    if proxy.username:
        user = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        configuration.proxy_headers = make_headers(proxy_basic_auth=user)


def is_any_named() -> bool:
    """Returns whether a cluster is named: by a kubeconfig, the pod of this process, or an image for it."""
    named = os.environ.get("KUBECONFIG") or os.environ.get("TRAIN_FUNC_IMAGE") or _written(DEFAULT_KUBECONFIG)
    return bool(named) or in_a_pod()
