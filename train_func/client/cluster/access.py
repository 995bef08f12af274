"""Access to one cluster, from a kubeconfig or from inside a pod; every request is bounded in time.

The kubernetes client is imported with the first connection, because that takes a second.
"""

import functools
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train_func.client.cluster import faults
from train_func.errors import InvalidInput

SECONDS = (3.0, 10.0)  # to connect, and between two packets of an answer
TWICE = ("GET", "DELETE")  # once more where the server had closed a kept connection; a POST is never sent twice
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
        InvalidInput: no cluster is named, or there is no such context.
    """
    kubeconfig = os.environ.get("KUBECONFIG") or DEFAULT_KUBECONFIG
    return _connect(kubeconfig, _written(kubeconfig), context, namespace)


@functools.lru_cache(maxsize=16)
def _connect(kubeconfig: str, written: tuple[int, ...], context: str | None, namespace: str | None) -> Access:
    """``written``: whoever logs in again, or takes another context, is not held to what was read before."""
    from kubernetes import client

    configuration = client.Configuration()
    where, found = _load(configuration, kubeconfig, context)
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.retries = False  # urllib3 would write a warning about each, where nobody asked for one
    api = _Bounded.of(configuration)
    return Access(
        namespace=namespace or found,
        where=where,
        client=api,
        core=client.CoreV1Api(api),
        custom=client.CustomObjectsApi(api),
    )


class _Bounded:
    """Makes an ApiClient whose requests have a time limit; the client's own wait for ever."""

    @staticmethod
    def of(configuration: Any) -> Any:
        from kubernetes import client
        from urllib3.exceptions import ProtocolError

        api = client.ApiClient(configuration)
        unbounded = api.request

        def request(method: str, *arguments: Any, _request_timeout: Any = None, **options: Any) -> Any:
            limits = _request_timeout or SECONDS
            try:
                return unbounded(method, *arguments, _request_timeout=limits, **options)
            except ProtocolError:
                if method not in TWICE:
                    raise
                return unbounded(method, *arguments, _request_timeout=limits, **options)

        api.request = request
        return api


def _written(kubeconfig: str) -> tuple[int, ...]:
    """When its files were last written; empty when there are none."""
    files = (Path(name).expanduser() for name in kubeconfig.split(os.pathsep) if name)
    return tuple(file.stat().st_mtime_ns for file in files if file.is_file())


def _load(configuration: Any, kubeconfig: str, context: str | None) -> tuple[str, str]:
    """Fills ``configuration``; returns which cluster that is, and its namespace."""
    import yaml
    from kubernetes import config

    if context is None and not _written(kubeconfig) and POD_NAMESPACE.exists():
        config.load_incluster_config(client_configuration=configuration)
        return f"the cluster of this pod ({configuration.host})", POD_NAMESPACE.read_text().strip()
    try:
        contexts, current = config.list_kube_config_contexts(config_file=kubeconfig)
        chosen = next((found for found in contexts if found["name"] == context), None) if context else current
        if chosen is None:
            names = ", ".join(found["name"] for found in contexts) or "none"
            raise InvalidInput(f"context={context!r}: {kubeconfig} has no such context; it has: {names}")
        config.load_kube_config(config_file=kubeconfig, context=chosen["name"], client_configuration=configuration)
    except (config.ConfigException, yaml.YAMLError, OSError) as error:
        raise InvalidInput(
            f"no cluster is named: {_why(error)} ({kubeconfig}). Name a kubeconfig by KUBECONFIG and one of its "
            "contexts by Cluster(context=...) (`kubectl config get-contexts` lists them), or run inside a pod that has "
            "a service account's token. Local() trains on this machine"
        ) from None
    return f"context {chosen['name']!r} ({configuration.host})", chosen["context"].get("namespace") or "default"


def _why(error: Exception) -> str:
    """The words of the client, which tell of an unset context by an empty name."""
    return "no context is the current one" if "object with name  in" in str(error) else str(error)
