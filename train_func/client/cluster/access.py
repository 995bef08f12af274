"""Access to one cluster, from a kubeconfig or from inside a pod; how requests are sent is said in ``sending``.

The kubernetes client is imported with the first connection, because that takes a second.
"""

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_func.client.cluster import credentials, faults, proxy
from train_func.client.cluster.proxy import Proxy
from train_func.client.cluster.sending import Sender
from train_func.errors import InvalidInput

PROXIES = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
CONNECTIONS = 32  # kept open: watches, followed logs, and the requests between them
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
DEFAULT_KUBECONFIG = "~/.kube/config"

Json = dict[str, Any]


@dataclass(frozen=True)
class Access:
    """The APIs of one cluster, and the namespace to work in; safe to use from several threads."""

    namespace: str
    where: str
    """Which cluster it is, for messages."""
    client: Any
    """The ApiClient under all of them."""
    core: Any
    custom: Any

    @functools.cached_property
    def training(self) -> Any:
        """The TrainingClient of kubeflow-training, over the same connections."""
        from kubeflow.training import TrainingClient

        training = TrainingClient(client_configuration=self.client.configuration, namespace=self.namespace)
        training.custom_api, training.core_api = self.custom, self.core  # its own would wait without a limit
        return training

    def ask(self, verb: str, resource: str, call: Callable[[], Any]) -> Any:
        """The answer to ``call()``; what the server refuses and what does not reach it raises InvalidInput.

        An answer with the status 404 or 409 is left to whoever asked: it raises kubernetes' ApiException.
        """
        try:
            return call()
        except Exception as error:
            if faults.status_of(error) in (404, 409) or not faults.known(error):
                raise
            raise faults.failed(error, verb, resource, self) from None

    def read(self, verb: str, resource: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Json:
        """As ``ask``, for a method of ``core``: the answer as plain JSON, spared the client's slow models."""
        answer = self.ask(verb, resource, lambda: call(*arguments, **options, _preload_content=False))
        plain: Json = json.loads(answer.data)
        return plain


def connect(context: str | None = None, namespace: str | None = None) -> Access:
    """The cluster of a kubeconfig's context, or the one this pod runs in; nothing is sent yet.

    Args:
        context: one of the kubeconfig's; by default the current one, or inside a pod, without a kubeconfig, its own.
        namespace: by default the context's, or the pod's own.

    Raises:
        InvalidInput: no cluster is named, there is no such context, or its credential plugin takes too long.
    """
    kubeconfig = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    proxies = tuple((name, value) for name, value in sorted(os.environ.items()) if name.upper() in PROXIES)
    return _connect(kubeconfig, _written(kubeconfig), proxies, context, namespace)


@functools.lru_cache(maxsize=16)
def _connect(
    kubeconfig: str,
    written: tuple[int, ...],
    proxies: tuple[tuple[str, str], ...],
    context: str | None,
    namespace: str | None,
) -> Access:
    """``written``: whoever logs in again, or takes another context, is not held to what was read before."""
    from kubernetes import client

    read = credentials.first((kubeconfig, written, context), lambda fresh: _load(fresh, kubeconfig, context))
    if read is None:
        raise InvalidInput(_slow(kubeconfig, context), cause="permission")
    configuration, (where, found, through) = read
    through = through or proxy.from_environment(configuration.host, dict(proxies))
    if through:
        where += f" through the proxy {through.url}"
        _lead(configuration, through)
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.retries = False  # urllib3 would write a warning about each, where nobody asked for one
    renewed = credentials.Credentials(configuration, lambda fresh: _load(fresh, kubeconfig, context))
    api = client.ApiClient(configuration)
    api.request = Sender(api, renewed, where)
    return Access(
        namespace=namespace or found,
        where=where,
        client=api,
        core=client.CoreV1Api(api),
        custom=client.CustomObjectsApi(api),
    )


def _lead(configuration: Any, through: Proxy) -> None:
    """Has the client use the proxy, and no rules of its own about when not to."""
    from urllib3.util import make_headers

    configuration.proxy, configuration.no_proxy = through.url, ""
    configuration.proxy_headers = make_headers(proxy_basic_auth=through.user) if through.user else None


def _written(kubeconfig: str) -> tuple[int, ...]:
    """When its files were last written; empty when there are none."""
    files = (Path(name).expanduser() for name in kubeconfig.split(os.pathsep) if name)
    return tuple(file.stat().st_mtime_ns for file in files if file.is_file())


def _load(configuration: Any, kubeconfig: str, context: str | None) -> tuple[str, str, Proxy | None]:
    """Fills ``configuration``; returns which cluster that is, its namespace, and the proxy that is named for it."""
    import yaml
    from kubernetes import config

    if context is None and not _written(kubeconfig) and POD_NAMESPACE.exists():
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


def _slow(kubeconfig: str, context: str | None) -> str:
    """Which credentials take too long to be read, and what to do."""
    from kubernetes import config
    from kubernetes.config.kube_config import KubeConfigMerger

    seconds = f"within {credentials.READ_SECONDS:.0f} s"
    if not _written(kubeconfig):
        return f"the token of this pod's service account could not be read {seconds}; try again"
    contexts, current = config.list_kube_config_contexts(config_file=kubeconfig)
    chosen = next((found for found in contexts if found["name"] == context), current)
    users = KubeConfigMerger(kubeconfig).config.safe_get("users") or ()
    user: Any = next((found["user"] for found in users if found["name"] == chosen["context"].get("user")), None) or {}
    plugged = f"the credential plugin {user['exec']['command']!r}" if "exec" in user else ""
    who = plugged or "whatever gives its credentials"
    return (
        f"context {chosen['name']!r} of {kubeconfig}: {who} did not answer {seconds}; it may wait for a login. Run "
        "`kubectl get pods` with that context in a terminal, log in where it asks for that, and try again"
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
