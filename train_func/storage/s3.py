"""A store under a prefix of a bucket on an S3 server.

boto3 does the work: botocore repeats requests to a busy or absent server, within the limits below, and s3transfer
uploads, downloads and copies large objects in parts. The SHA-256 of a whole object is in its metadata, because no
server knows it for an object sent in parts.
"""

import contextlib
import functools
import hashlib
import os
import random
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from train_func.errors import StorageFailed
from train_func.process.failpoint import reach
from train_func.storage import probe
from train_func.storage.disk import CHUNK, disk_faults, open_source, replacing, state_of
from train_func.storage.store import (
    Entry,
    FromSecret,
    Object,
    Scheme,
    check_key,
    check_prefix,
    endpoint_fault,
    folder_prefix,
    ignore,
    key_fault,
    refused,
)

CONNECT_SECONDS = 2.0
READ_SECONDS = 5.0
ATTEMPTS = 8  # of one request: a server that refuses connections is asked for about 3 s, a silent one for 40 s
REPEATS = 3  # of what arrived damaged or was cut: damaged on the way it comes right, damaged at rest it never does
PART = 8 << 20  # bytes; larger objects go in parts
SENDERS = 4  # threads of one transfer
SHA256, WRITER = "sha256", "writer"  # of the whole object, in its metadata
KEY, SECRET_KEY, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")

T = TypeVar("T")


class S3Store(Scheme):
    """A store in a bucket; versions are ETags. The first request connects, and all threads share the client."""

    example = "s3://bucket/prefix"
    endpoint_variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    own_variables = re.compile("AWS_.*")
    secret_variables: ClassVar = {
        KEY: FromSecret("rootUser", is_hidden=False),
        SECRET_KEY: FromSecret("rootPassword"),
        TOKEN: FromSecret("sessionToken", optional=True),
    }

    def __init__(
        self, bucket: str, prefix: str, *, endpoint: str | None, region: str | None, attempts: int | None = None
    ) -> None:
        self.address = f"s3://{bucket}/{prefix}".removesuffix("/")
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._endpoint, self._region, self._attempts = endpoint, region, attempts or ATTEMPTS
        self._connecting = threading.Lock()

    @classmethod
    def open(cls, address: str) -> "S3Store":
        """See Scheme; reads endpoint and region from the environment now, credentials with the first request."""
        return cls(*bucket_of(address), endpoint=_endpoint(), region=_region(os.environ))

    @classmethod
    def split(cls, address: str) -> tuple[str, str]:
        """See Scheme; the widest store is the bucket."""
        bucket, key = bucket_of(address)
        return f"s3://{bucket}", key

    @classmethod
    def worker_settings(cls, environ: Mapping[str, str], endpoint: str | None = None) -> dict[str, str]:
        """See Scheme; returns endpoint and region."""
        here = next((environ[name] for name in cls.endpoint_variables if environ.get(name)), None)
        settings = {"AWS_ENDPOINT_URL_S3": endpoint or here, "AWS_REGION": _region(environ)}
        return {name: value for name, value in settings.items() if value}

    @classmethod
    def secret_values(cls, environ: Mapping[str, str]) -> dict[str, str]:
        """See Scheme; without a key in the environment it asks boto3, which reads files, profiles and services."""
        if KEY in environ:
            return super().secret_values(environ)
        import boto3  # slow to import, and seldom needed

        credentials = boto3.Session().get_credentials()
        if credentials is None:
            return {}
        keys = credentials.get_frozen_credentials()
        values = {KEY: keys.access_key, SECRET_KEY: keys.secret_key, TOKEN: keys.token}
        return {name: value for name, value in values.items() if value}

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> str:
        """See Store; the version is the ETag."""
        check_key(key)
        # The server verifies the checksum; by the writer a put knows its own success, whose answer was lost.
        metadata = {SHA256: hashlib.sha256(data).hexdigest(), WRITER: secrets.token_hex(8)}
        request = {**self._object(key), "Body": data, "Metadata": metadata, "ChecksumAlgorithm": "SHA256"}
        request |= {"IfNoneMatch": "*"} if if_absent else {}
        request |= {"IfMatch": if_version} if if_version is not None else {}
        reach("object put begun")
        try:
            version = str(self._ask("put", key, lambda client: client.put_object(**request)["ETag"]))
        except StorageFailed as failure:
            if failure.reason == "conflict":
                with contextlib.suppress(StorageFailed):  # gone again, or not to be read
                    head = self._ask("get", key, lambda client: self._first_byte(client, key))
                    if head["Metadata"].get(WRITER) == metadata[WRITER]:
                        return str(head["ETag"])
            if failure.reason == "absent" and if_version is not None:
                raise StorageFailed(f"{failure}; version {if_version} was to be replaced", reason="conflict") from None
            raise
        reach("object put")
        return version

    def get(self, key: str) -> Object:
        check_key(key)

        def get_object(client: Any) -> Object:
            answer = client.get_object(**self._object(key))
            with _body_read():
                data = answer["Body"].read()
            _verify(_recorded(answer), hashlib.sha256(data).hexdigest())
            return Object(data, str(answer["ETag"]))

        return self._ask("get", key, get_object)

    def upload(
        self, key: str, path: Path, *, sent: Callable[[int], object] = ignore, is_given_away: bool = False
    ) -> str:
        """See Store; uploads more than 8 MiB in parts. The server verifies the SHA-256 of each request."""
        check_key(key)
        message = f"upload of {path} to {key!r} in {self.address}"
        with disk_faults(message):
            with open_source(path, message) as source:
                status = os.fstat(source.fileno())
                if status.st_size <= PART:
                    self.put(key, data := source.read())
                    sent(len(data))
                    return hashlib.sha256(data).hexdigest()
                sha256 = hashlib.file_digest(source, "sha256").hexdigest()

            def send(num_bytes: int) -> None:
                sent(num_bytes)
                reach("part sent")

            options = {"Metadata": {SHA256: sha256}, "ChecksumAlgorithm": "SHA256"}
            reach("upload begun")
            self._ask("upload", key, lambda client: self._send(client, "upload", str(path), key, options, sent=send))
            reach("upload completed")
            # Each part was read by the file's name; what is recorded of other bytes would be believed from now on.
            if not path.exists() or state_of(path.stat()) != state_of(status):
                self.delete(key)
                raise StorageFailed(f"{message}: the file changed during its upload; try again", reason="damaged")
            return sha256

    def download(self, key: str, path: Path) -> str:
        """See Store; requests a part again if its connection breaks, and verifies the whole object."""
        check_key(key)
        with replacing(path, f"download of {key!r} from {self.address} to {path}") as file:

            def receive(client: Any) -> str:
                file.seek(0)
                file.truncate()
                answer = client.get_object(**self._object(key))
                if answer["ContentLength"] <= PART or _recorded(answer) is None:
                    with _body_read():  # botocore verifies one whole answer by the server's own checksum
                        shutil.copyfileobj(answer["Body"], file, CHUNK)
                else:
                    answer["Body"].close()
                    with _manager(client) as manager:
                        manager.download(self._bucket, self._prefix + key, file).result()
                file.flush()
                file.seek(0)
                sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
                _verify(_recorded(answer), sha256)
                return sha256

            return self._ask("download", key, receive)

    def copy(self, source: str, target: str) -> str | None:
        """See Store; copies in parts, so that no request takes long."""
        check_key(target)
        reach("copy begun")
        sha256 = self.checksum(source)
        options = {"MetadataDirective": "REPLACE", "Metadata": {SHA256: sha256}} if sha256 else {}
        self._ask("copy", source, lambda client: self._send(client, "copy", self._object(source), target, options))
        reach("object copied")
        return sha256

    def checksum(self, key: str) -> str | None:
        check_key(key)
        return self._ask("get", key, lambda client: _recorded(self._first_byte(client, key)))

    def names(self, folder: str) -> list[str]:
        """See Store; the server leaves out deeper keys."""
        prefix = folder_prefix(folder)
        pages = self._pages(prefix, Delimiter="/")
        keys = [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", ())]
        keys += [item["Key"] for page in pages for item in page.get("Contents", ())]
        return sorted({key.removeprefix(self._prefix + prefix) for key in keys} - {""})

    def list(self, prefix: str) -> list[Entry]:
        check_prefix(prefix)
        entries = (
            Entry(item["Key"].removeprefix(self._prefix), int(item["Size"]), str(item["ETag"]))
            for page in self._pages(prefix)
            for item in page.get("Contents", ())
            if not item["Key"].endswith("/")
        )
        return sorted(entries, key=lambda entry: entry.key)

    def delete(self, *keys: str) -> None:
        """See Store; deletes a thousand objects per request."""
        for key in keys:
            check_key(key)
        for first in range(0, len(keys), 1000):
            batch = keys[first : first + 1000]
            self._ask("delete", batch[0], functools.partial(self._delete_batch, batch))

    def probe(self, prefix: str) -> None:
        """See Store; makes two attempts, so that a fault of the server is reported in time."""
        place = self._bucket, self._prefix.removesuffix("/")
        hurried = S3Store(*place, endpoint=self._endpoint, region=self._region, attempts=2)
        hurried._ask("probe", prefix, lambda client: None)  # a busy machine loads boto3 for seconds
        probe.probe(hurried, prefix)

    def _object(self, key: str) -> dict[str, str]:
        return {"Bucket": self._bucket, "Key": self._prefix + key}

    def _ask(self, operation: str, key: str, call: Callable[[Any], T]) -> T:
        """Returns ``call(client)``; raises StorageFailed if botocore's own attempts have failed."""
        started = time.monotonic()
        for left in reversed(range(REPEATS)):
            try:
                with self._connecting:
                    client = self._connected
                return call(client)
            except Exception as error:
                from train_func.storage.s3_faults import KNOWN, read_fault

                if not isinstance(error, KNOWN):
                    raise
                fault = read_fault(error)
                if fault.is_repeated and left:
                    continue
                what = f"{self.address}, server {self._endpoint or 'of Amazon S3'}: {fault.what}"
                tried = f" (tried for {time.monotonic() - started:.1f} s)" if fault.reason == "unreachable" else ""
                raise StorageFailed(
                    f"{operation} of {key!r} in {what}{tried}. "
                    f"{fault.remedy(operation, self._bucket, self._prefix + key)}",
                    reason=fault.reason,
                ) from None  # its traceback would bury the words
        raise AssertionError("the loop returns or raises")

    @functools.cached_property
    def _connected(self) -> Any:
        import boto3  # 0.4 s: only a process that talks to a server pays for it
        from botocore.config import Config
        from botocore.retries import standard

        # A training has seeded the generator of the process: botocore's pauses must not draw from it.
        if not isinstance(standard.ExponentialBackoff, functools.partial):
            chance = random.SystemRandom().random
            standard.ExponentialBackoff = functools.partial(standard.ExponentialBackoff, random=chance)
        session = boto3.session.Session()
        return session.client(
            "s3",
            endpoint_url=self._endpoint,
            region_name=self._region or session.region_name or "us-east-1",
            config=Config(
                connect_timeout=CONNECT_SECONDS,
                read_timeout=READ_SECONDS,
                retries={"mode": "standard", "total_max_attempts": self._attempts},
                s3={"addressing_style": "path" if self._endpoint else "auto"},
                request_checksum_calculation="when_required",  # every upload asks for SHA-256 itself
                max_pool_connections=16,
            ),
        )

    def _send(
        self,
        client: Any,
        kind: Literal["upload", "copy"],
        source: Any,
        key: str,
        options: Mapping[str, Any],
        *,
        sent: Callable[[int], object] = ignore,
    ) -> None:
        """Makes the object under ``key``; ends if ``sent`` raises. A failure leaves no parts on the server."""
        from s3transfer.subscribers import BaseSubscriber

        failures = list[BaseException]()

        class Progress(BaseSubscriber):
            def on_progress(self, future: Any, bytes_transferred: int, **kwargs: Any) -> None:
                try:
                    sent(bytes_transferred)
                except BaseException as failure:
                    failures.append(failure)
                    future.cancel()

        with _manager(client) as manager:
            transfer = getattr(manager, kind)(source, self._bucket, self._prefix + key, options, [Progress()])
            try:
                transfer.result()
            except client.exceptions.NoSuchUpload:  # it is complete, where the first answer to its end was lost
                if _recorded(self._first_byte(client, key)) != options.get("Metadata", {}).get(SHA256, "none"):
                    raise
            except BaseException:
                if failures:
                    raise failures[0] from None
                raise

    def _first_byte(self, client: Any, key: str) -> Any:
        """Returns the metadata of an object by GET, because a failed HEAD has no reason."""
        try:
            answer = client.get_object(**self._object(key), Range="bytes=0-0")
        except client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] != "InvalidRange":  # the object is empty
                raise
            answer = client.get_object(**self._object(key))
        answer["Body"].close()
        return answer

    def _pages(self, prefix: str, **options: str) -> Sequence[Any]:
        request = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, **options}
        return self._ask("list", prefix, lambda client: [*client.get_paginator("list_objects_v2").paginate(**request)])

    def _delete_batch(self, keys: Sequence[str], client: Any) -> None:
        if len(keys) == 1:
            client.delete_object(**self._object(keys[0]))
            return
        objects = [{"Key": self._prefix + key} for key in keys]
        answer = client.delete_objects(Bucket=self._bucket, Delete={"Objects": objects, "Quiet": True})
        for error in answer.get("Errors", ()):
            response = {"Error": error, "ResponseMetadata": answer["ResponseMetadata"]}
            raise client.exceptions.ClientError(response, "DeleteObjects")


def _manager(client: Any) -> Any:
    from s3transfer.manager import TransferConfig, TransferManager

    config = TransferConfig(
        multipart_threshold=PART + 1,
        multipart_chunksize=PART,
        max_request_concurrency=SENDERS,
        num_download_attempts=REPEATS,
    )
    return TransferManager(client, config)


@contextlib.contextmanager
def _body_read() -> Iterator[None]:
    """Counts a timeout in the block as a broken answer, because botocore repeats only requests without an answer."""
    from botocore.exceptions import ReadTimeoutError, ResponseStreamingError

    try:
        yield
    except ReadTimeoutError as error:
        raise ResponseStreamingError(error=error) from error


def _recorded(answer: Mapping[str, Any]) -> str | None:
    """Returns the SHA-256 (hex) in an object's metadata; None if another program stored the object."""
    sha256 = answer.get("Metadata", {}).get(SHA256)
    return str(sha256) if sha256 else None


def _verify(recorded: str | None, arrived: str) -> None:
    from train_func.storage.s3_faults import Damaged

    if recorded not in (None, arrived):
        raise Damaged(f"SHA-256 {arrived} arrived, {recorded} was stored")


def bucket_of(address: str) -> tuple[str, str]:
    """Returns bucket and prefix ("" or ``a/b``) of an address."""
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise refused(
            address,
            "s3://bucket/prefix is expected, the bucket with 3 to 63 small letters, digits, dots and hyphens. The "
            "server's host and port belong into AWS_ENDPOINT_URL_S3, user and password into AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY (in a cluster: a Secret)",
        )
    prefix = prefix.strip("/")
    if fault := (key_fault(prefix) if prefix else None) or ("it holds '?' or '#'" if set("?#") & set(prefix) else None):
        raise refused(address, f"the prefix {prefix!r} is not allowed: {fault}")
    return bucket, prefix


def _region(environ: Mapping[str, str]) -> str | None:
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")


def _endpoint() -> str | None:
    """Returns the server's address; None for Amazon S3 itself, or for the endpoint of the user's profile."""
    name = next((name for name in S3Store.endpoint_variables if os.environ.get(name)), None)
    if name is None:
        return None
    if fault := endpoint_fault(name, os.environ[name]):
        raise StorageFailed(fault, reason="address")
    return os.environ[name]
