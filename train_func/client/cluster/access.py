"""Access: the API of one cluster, asked by path and answered in plain JSON; how requests are sent is in ``sending``."""

import contextlib
import functools
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from train_func.client.cluster import faults
from train_func.client.cluster.faults import Target
from train_func.client.cluster.timings import Waits
from train_func.storage.retry import begin

CONNECT_SECONDS = 3.0
QUICK_SECONDS = 4.0  # for an answer, where nothing depends on it or a person waits for it
LOOK_SECONDS = 0.2

Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Access(Target):
    """A cluster, the namespace to work in and the kind of its jobs; safe to use from several threads.

    ``get`` and the like raise kubernetes' ApiException, or urllib3's HTTPError; within ``asking`` that is an error of
    this package.
    """

    client: Any = field(compare=False)
    """The ApiClient of the kubernetes package; another one after another login."""

    @functools.cached_property
    def cluster(self) -> Mapping[str, str]:
        """What tells this cluster from others: the uid of its first namespace, where that may be read, and its CA."""
        found: Json | None = None
        with self.asking("get", "namespaces", 403, 404):
            found = self.get("/api/v1/namespaces/kube-system", seconds=self.timings.answer)
        uid = (found or {}).get("metadata", {}).get("uid")
        of_server = str(self.client.configuration.host).encode()
        with contextlib.suppress(OSError, TypeError):  # one with a certificate that everybody trusts names no authority
            of_server = Path(self.client.configuration.ssl_ca_cert).read_bytes()
        ca = hashlib.sha256(b"".join(of_server.split())).hexdigest()  # whatever stands between its lines
        return {"kube-system": str(uid), "ca": ca} if uid else {"ca": ca}

    def core(self, resource: str, name: str = "") -> str:
        """The path of a core resource of the namespace, or of one object."""
        return _joined(f"/api/v1/namespaces/{self.namespace}/{resource}", name)

    def jobs(self, name: str = "") -> str:
        """The path of the jobs of the namespace, or of one."""
        kind = self.kind
        return _joined(f"/apis/{kind.group}/{kind.version}/namespaces/{self.namespace}/{kind.plural}", name)

    def get(self, path: str, *, seconds: float = QUICK_SECONDS, **query: str) -> Json:
        """What is there."""
        return self._call("GET", path, None, seconds, query)

    def post(self, path: str, body: Mapping[str, Any], *, seconds: float = QUICK_SECONDS, **query: str) -> Json:
        """Creates an object, or asks a question that has a body."""
        return self._call("POST", path, body, seconds, query)

    def patch(self, path: str, body: Mapping[str, Any], *, seconds: float = QUICK_SECONDS) -> Json:
        """Merges ``body`` into an object."""
        return self._call("PATCH", path, body, seconds, {}, "application/merge-patch+json")

    def delete(self, path: str, body: Mapping[str, Any], *, seconds: float = QUICK_SECONDS) -> Json:
        """Asks for the end of an object; ``body`` holds options."""
        return self._call("DELETE", path, body, seconds, {})

    @contextlib.contextmanager
    def asking(self, verb: str, resource: str, *expected: int) -> Iterator[list[int]]:
        """What the server refuses within it, and what does not reach the server, raises InvalidInput.

        An answer with an ``expected`` status ends it without an error; what it yields then holds that status.
        """
        met: list[int] = []
        try:
            yield met
        except Exception as error:
            status = faults.status_of(error)
            if status not in expected:
                raise faults.failed(error, verb, resource, self) from None
            met.append(status)

    def find(self, path: str) -> Json | None:
        """The object at ``path``, or None when there is none."""
        try:
            return self.get(path)
        except Exception as error:
            if faults.status_of(error) != 404:
                raise
            return None

    def found(self, resource: str, path: str) -> Json | None:
        """As ``find``, with the errors of ``asking``."""
        with self.asking("get", resource, 404) as met:
            found = self.get(path, seconds=self.timings.answer)
        return None if met else found

    def _call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        seconds: float,
        query: Mapping[str, str],
        content_type: str = "application/json",
    ) -> Json:
        answer, _, _ = self.client.call_api(
            path,
            method,
            query_params=list(query.items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            response_type="object",
            auth_settings=["BearerToken"],
            _request_timeout=(min(seconds, CONNECT_SECONDS), seconds),
        )
        plain: Json = answer
        return plain


class Stream:
    """An answer that comes as long as something happens; it can be ended from another thread."""

    def __init__(self, access: Access, path: str, query: Sequence[tuple[str, str]], *, silence: float) -> None:
        """Sends the request; after ``silence`` seconds without a byte, reading raises an error that faults knows."""
        self._answer: Any = access.client.call_api(
            path,
            "GET",
            query_params=list(query),
            auth_settings=["BearerToken"],
            _preload_content=False,
            _return_http_data_only=True,
            _request_timeout=(CONNECT_SECONDS, silence),
        )
        self.rest = b""
        """After the last line: what came without an end of line."""

    def lines(self) -> Iterator[bytes]:
        """Each line without its end; returns when the server has closed the answer in good order."""
        begun: list[bytes] = []
        try:
            for chunk in self._answer.stream(None, decode_content=False):
                first, *others = chunk.split(b"\n")
                begun.append(first)
                if others:
                    yield b"".join(begun)
                    yield from others[:-1]
                    begun = [others[-1]]
            self.rest = b"".join(begun)
        finally:
            self._answer.close()

    def close(self) -> None:
        """Its reader sees its end at once."""
        with contextlib.suppress(Exception):  # it may have ended by itself this very moment
            self._answer.shutdown()


def run_concurrently(calls: Sequence[Callable[[], T]], seconds: float) -> list[T | Exception]:
    """What each of ``calls`` returned or raised, in their order; TimeoutError for those that were not done in time.

    They run in threads of their own, which are left behind then: a silent name server ends no earlier. Time for which
    a busy server asked to be left alone, and that in which credentials are read, is not counted.
    """
    end = time.monotonic() + seconds
    begun: list[tuple[Future[T], Waits]] = []
    for call in calls:
        waits = Waits()
        begun.append((begin(partial(_counted, call, waits)), waits))
    outcomes: list[T | Exception] = []
    for future, waits in begun:
        outcome = _outcome(future, end, waits)
        outcomes.append(outcome)
    return outcomes


def _counted(call: Callable[[], T], waits: Waits) -> T:
    waits.count()
    return call()


def _outcome(future: "Future[T]", end: float, waits: Waits) -> T | Exception:
    while not future.done() and (left := end + waits.seconds - time.monotonic()) > 0:
        with contextlib.suppress(TimeoutError):
            future.exception(min(left, LOOK_SECONDS))  # what was lent may be taken back meanwhile
    try:
        return future.result(0)
    except Exception as error:
        return error


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if name else path
