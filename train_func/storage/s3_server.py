"""One bucket of an S3 server: every request bounded in time, tried again where that helps, its failure explained."""

import copy
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self, TypeVar

from train_func.errors import StorageFailed
from train_func.storage.retry import Backoff, call_with_timeout

if TYPE_CHECKING:
    from train_func.storage.s3_faults import Fault

CONNECT_SECONDS = 2.0
READ_SECONDS = 8.0
TRY_SECONDS = 15.0  # no try begins later; with the last one's time-outs everything ends inside a 30 s eviction
LIMIT_SECONDS = 25.0  # for what no time-out covers, such as a silent name server
DAMAGED_TRIES = 3  # what was damaged or cut on the way comes right when asked for again; damaged at rest it never does
CONNECTIONS = 16

T = TypeVar("T")


class Server:
    """The bucket and how to talk to it; the connection is made with the first request, and shared by all threads."""

    def __init__(self, bucket: str, prefix: str, *, endpoint: str | None, region: str | None) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.address = f"s3://{bucket}/{prefix}".removesuffix("/")
        self._endpoint = endpoint
        self._region = region
        self._try_seconds = TRY_SECONDS
        self._client: Any = None
        self._connecting = threading.Lock()

    def hurried(self, try_seconds: float) -> Self:
        """The same server for a caller that cannot wait long."""
        other = copy.copy(self)
        other._try_seconds = try_seconds
        return other

    def tries(self) -> Backoff:
        """For one operation."""
        return Backoff(self._try_seconds)

    def object(self, key: str) -> dict[str, str]:
        """How a request names the object under ``key``."""
        return {"Bucket": self.bucket, "Key": self.prefix + key}

    @property
    def place(self) -> str:
        """Where the server is, for messages."""
        return f"server {self._client.meta.endpoint_url if self._client else self._endpoint or 'of Amazon S3'}"

    def ask(self, operation: str, key: str, call: Callable[[Any], T], tries: Backoff | None = None) -> T:
        """``call(client)``'s answer, in at most LIMIT_SECONDS; ``tries`` counts how often it was asked.

        Raises StorageFailed.
        """
        try:
            return call_with_timeout(LIMIT_SECONDS, lambda: self.persist(operation, key, call, tries))
        except TimeoutError:
            raise StorageFailed(
                f"{operation} of {key!r} in {self.address} ({self.place}): no answer in {LIMIT_SECONDS:.0f} s; "
                "see whether the server is up and whether this machine's name server answers",
                reason="unreachable",
                fault=f"{self.address}, {self.place}: no answer",
            ) from None

    def persist(self, operation: str, key: str, call: Callable[[Any], T], tries: Backoff | None = None) -> T:
        """As ``ask``, without its limit on the last try: for requests that carry much."""
        tries = tries or self.tries()
        while True:
            try:
                return call(self.client())
            except Exception as error:
                self.again_or_fail(operation, key, error, tries)

    def again_or_fail(self, operation: str, key: str, error: Exception, tries: Backoff) -> "Fault":
        """Pauses and returns the fault when another try may help; raises StorageFailed when not."""
        from train_func.storage.s3_faults import KNOWN, read_fault

        if not isinstance(error, KNOWN):
            raise error
        resource = self.bucket if operation == "list" else f"{self.bucket}/{self.prefix}{key}"
        fault = read_fault(error, operation, resource)
        tries.num_damaged += fault.reason in ("damaged", "address")
        hopeless = not fault.transient or tries.num_damaged >= DAMAGED_TRIES
        if hopeless or not tries.again():
            raise self._failed(operation, key, fault, tries) from None  # its traceback would bury the words
        return fault

    def client(self) -> Any:
        """The boto3 client; made once."""
        with self._connecting:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def _connect(self) -> Any:
        import boto3  # 0.4 s: only a process that talks to a server pays for it
        from botocore.config import Config

        session = boto3.session.Session()
        return session.client(
            "s3",
            endpoint_url=self._endpoint,
            region_name=self._region or session.region_name or "us-east-1",
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"total_max_attempts": 1, "mode": "standard"},  # Backoff does it, within a known time
                s3={"addressing_style": "path" if self._endpoint else "auto"},
                request_checksum_calculation="when_required",  # every put brings its own SHA-256
                max_pool_connections=CONNECTIONS,
            ),
        )

    def _failed(self, operation: str, key: str, fault: "Fault", tries: Backoff) -> StorageFailed:
        asked = f"{operation} of {key!r}" if key else operation
        tried = f" (tried {tries.num} times in {tries.spent:.1f} s)" if tries.num > 1 else ""
        what = f"{self.address}, {self.place}: {fault.what}"
        return StorageFailed(
            f"{asked} in {what}{tried}. {fault.remedy}",
            reason=fault.reason,
            fault=what,
            is_unknown_host=fault.is_unknown_host,
        )
