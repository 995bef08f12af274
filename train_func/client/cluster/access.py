"""Access: the API of one cluster, with paths as questions and plain JSON as answers; ``api_client`` sends them."""

import contextlib
import functools
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train_func.client.cluster import api_errors
from train_func.client.cluster.api_errors import Scope

Json = dict[str, Any]
EXECUTE_SECONDS = 15.0  # for a command in a pod


@dataclass(frozen=True)
class Access(Scope):
    """A cluster, the namespace to work in and the kind of its jobs; safe to use from several threads.

    ``get`` and the like raise kubernetes' ApiException, or urllib3's HTTPError; within ``asking`` that is an error of
    this package.
    """

    client: Any = field(compare=False)
    """Returns the ApiClient of the kubernetes package; a new one after another login."""
    seconds: float | None = None
    """Longest wait for an answer; None: the client's default."""

    @functools.cached_property
    def cluster(self) -> Mapping[str, str]:
        """Returns the identity of this cluster: the uid of its kube-system namespace, if it can be read, and its CA."""
        namespace: Json | None = None
        with self.asking("get", "namespaces", 403, 404):
            namespace = self.get("/api/v1/namespaces/kube-system")
        uid = (namespace or {}).get("metadata", {}).get("uid")
        of_server = str(self.client.configuration.host).encode()
        with contextlib.suppress(OSError, TypeError):  # one with a certificate that everybody trusts names no authority
            of_server = Path(self.client.configuration.ssl_ca_cert).read_bytes()
        ca = hashlib.sha256(b"".join(of_server.split())).hexdigest()  # whatever stands between its lines
        return {"kube-system": str(uid), "ca": ca} if uid else {"ca": ca}

    @functools.cached_property
    def training(self) -> Any:
        """Returns the client of kubeflow-training on this connection; the first use imports it."""
        from kubeflow.training import TrainingClient

        training = TrainingClient(client_configuration=self.client.configuration, namespace=self.namespace)
        training.custom_api.api_client = self.client
        return training

    def core(self, resource: str, name: str = "") -> str:
        """Returns the path of a core resource of the namespace, or of one object."""
        return f"/api/v1/namespaces/{self.namespace}/{resource}/{name}".rstrip("/")

    def jobs(self, name: str = "") -> str:
        """Returns the path of the jobs of the namespace, or of one."""
        kind = self.kind
        path = f"/apis/{kind.group}/{kind.version}/namespaces/{self.namespace}/{kind.plural}/{name}"
        return path.rstrip("/")

    def get(self, path: str, **query: str) -> Json:
        """Returns the JSON at ``path``."""
        answer: Json = self._call("GET", path, None, query)
        return answer

    def text(self, path: str, **query: str) -> bytes:
        """Returns the bytes at ``path``, such as the log of a pod."""
        return bytes(self._call("GET", path, None, query, is_json=False).data)

    def post(self, path: str, body: Mapping[str, Any], **query: str) -> Json:
        """Creates an object, or sends a question with a body."""
        answer: Json = self._call("POST", path, body, query)
        return answer

    def patch(self, path: str, body: Mapping[str, Any]) -> Json:
        """Changes the fields of an object to those of ``body``."""
        answer: Json = self._call("PATCH", path, body, {}, content_type="application/merge-patch+json")
        return answer

    def execute(self, pod: str, *command: str) -> tuple[bool, str]:
        """Executes a command in the workers' container of a pod; returns whether it ended with 0, and its output."""
        from kubernetes.client import ApiClient, CoreV1Api
        from kubernetes.stream import stream

        # Of a client of its own, whose requests ``stream`` replaces, because what answers is a socket.
        call = CoreV1Api(ApiClient(self.client.configuration)).connect_get_namespaced_pod_exec
        options = {"stdout": True, "stderr": True, "stdin": False, "tty": False, "_preload_content": False}
        container = self.kind.container
        with self.asking("create", "pods/exec"):
            socket = stream(call, pod, self.namespace, container=container, command=[*command], **options)
            socket.run_forever(timeout=EXECUTE_SECONDS)
        written = socket.read_channel(1), socket.read_channel(2)
        code = None
        with contextlib.suppress(TypeError, KeyError, ValueError):  # closed without the exit code of a command
            code = socket.returncode
        socket.close()
        return code == 0, "".join(written).strip() or ("no exit code came" if code is None else "")

    def delete(self, path: str, body: Mapping[str, Any]) -> Json:
        """Asks for the end of an object; ``body`` holds options."""
        answer: Json = self._call("DELETE", path, body, {})
        return answer

    @contextlib.contextmanager
    def asking(self, verb: str, resource: str, *expected: int) -> Iterator[list[int]]:
        """Raises InvalidInput for requests in the block that the server refuses, or that do not reach it.

        An answer with an ``expected`` status ends the block without an error; the yielded list then holds it.
        """
        met: list[int] = []
        try:
            yield met
        except Exception as raised:
            # That of kubeflow-training tells of every error in a text of its own.
            error = raised.__context__ if type(raised) is RuntimeError and raised.__context__ else raised
            status = api_errors.status_of(error)
            if status not in expected:
                raise api_errors.failed(error, verb, resource, self) from None
            met.append(status)

    def find(self, path: str) -> Json | None:
        """Returns the object at ``path``, or None if there is none."""
        try:
            return self.get(path)
        except Exception as error:
            if api_errors.status_of(error) != 404:
                raise
            return None

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        query: Mapping[str, str],
        *,
        is_json: bool = True,
        content_type: str = "application/json",
    ) -> Any:
        return self.client.call_api(
            path,
            method,
            query_params=list(query.items()),
            header_params={"Accept": "application/json, */*", "Content-Type": content_type},
            body=body,
            response_type="object",
            auth_settings=["BearerToken"],
            _preload_content=is_json,
            _return_http_data_only=True,
            _request_timeout=self.seconds,
        )
