"""A store under a prefix of a bucket on an S3 server; this file alone reads the environment."""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from train_func.errors import StorageFailed
from train_func.storage import retry
from train_func.storage.s3_files import copy, download, put_whole, recorded, stored_checksum, upload, verify
from train_func.storage.s3_server import LIMIT_SECONDS, Server
from train_func.storage.store import (
    Entry,
    FromSecret,
    Object,
    Scheme,
    check_key,
    check_prefix,
    endpoint_fault,
    find,
    folder_prefix,
    ignore,
    key_fault,
    refused,
)

PROBE_TRY_SECONDS = 1.5  # with one connect time-out more it knows why before the probe's limit
KEY, SECRET_KEY, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class S3Store(Scheme):
    """Objects of a bucket; versions are ETags."""

    example = "s3://bucket/prefix"
    endpoint_variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    own_variables = re.compile("AWS_.*")
    secret_variables: ClassVar = {
        KEY: FromSecret("rootUser", is_hidden=False),
        SECRET_KEY: FromSecret("rootPassword"),
        TOKEN: FromSecret("sessionToken", optional=True),
    }

    def __init__(self, server: Server) -> None:
        self.address = server.address
        self._server = server

    @classmethod
    def open(cls, address: str) -> "S3Store":
        """See Scheme; takes endpoint and region from the environment now, the credentials with the first request."""
        return cls(Server(*bucket_of(address), endpoint=_endpoint(), region=_region(os.environ)))

    @classmethod
    def split(cls, address: str) -> tuple[str, str]:
        """See Scheme; the widest store is the bucket."""
        bucket, key = bucket_of(address)
        return f"s3://{bucket}", key

    @classmethod
    def worker_settings(cls, environ: Mapping[str, str], endpoint: str | None = None) -> dict[str, str]:
        """See Scheme: endpoint and region."""
        here = next((environ[name] for name in cls.endpoint_variables if environ.get(name)), None)
        given = {"AWS_ENDPOINT_URL_S3": endpoint or here, "AWS_REGION": _region(environ)}
        return {name: value for name, value in given.items() if value}

    @classmethod
    def secret_values(cls, environ: Mapping[str, str]) -> dict[str, str]:
        """See Scheme; without a key in the environment, where boto3 looks: files, profiles and services."""
        if KEY in environ:
            return super().secret_values(environ)
        import boto3  # slow to import, and seldom needed

        credentials = boto3.Session().get_credentials()
        if credentials is None:
            return {}
        keys = credentials.get_frozen_credentials()
        found = {KEY: keys.access_key, SECRET_KEY: keys.secret_key, TOKEN: keys.token}
        return {name: value for name, value in found.items() if value}

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_version: str | None = None) -> str:
        """See Store; the version is the ETag."""
        check_key(key)
        condition = {"IfNoneMatch": "*"} if if_absent else {}
        condition |= {"IfMatch": if_version} if if_version is not None else {}
        tries = self._server.tries()
        try:
            return put_whole(self._server, "put", key, data, condition, tries)
        except StorageFailed as failed:
            # An earlier try whose answer was lost may have been this put's own success.
            if failed.reason == "conflict" and tries.num > 1 and (found := find(self, key)) and found.data == data:
                return found.version
            if failed.reason == "absent" and if_version is not None:
                raise StorageFailed(f"{failed}; version {if_version} was to be replaced", reason="conflict") from failed
            raise

    def upload(
        self, key: str, path: Path, *, sent: Callable[[int], object] = ignore, is_given_away: bool = False
    ) -> str:
        """See Store; above 8 MiB in parts."""
        check_key(key)
        return upload(self._server, key, path, sent)

    def get(self, key: str) -> Object:
        check_key(key)
        return self._server.ask("get", key, lambda client: self._whole(client, key))

    def download(self, key: str, path: Path) -> str:
        """See Store; goes on where a broken connection ended."""
        check_key(key)
        return download(self._server, key, path)

    def copy(self, source: str, target: str, size: int) -> str | None:
        """See Store; above 64 MiB in parts, so that no request takes long."""
        check_key(source)
        check_key(target)
        return copy(self._server, source, target, size)

    def names(self, folder: str) -> list[str]:
        """See Store; the server leaves out what lies deeper."""
        prefix = folder_prefix(folder)
        start = len(self._server.prefix + prefix)
        found: set[str] = set()
        for page in self._pages(prefix, Delimiter="/"):
            found |= {item["Prefix"][start:] for item in page.get("CommonPrefixes", ())}
            found |= {item["Key"][start:] for item in page.get("Contents", ())}
        return sorted(found - {""})  # an object that stands for the folder itself

    def checksum(self, key: str) -> str | None:
        check_key(key)
        return stored_checksum(self._server, key, "get")

    def list(self, prefix: str) -> list[Entry]:
        check_prefix(prefix)
        items = [item for page in self._pages(prefix) for item in page.get("Contents", ())]
        root = self._server.prefix
        found = (
            Entry(item["Key"].removeprefix(root), int(item["Size"]), str(item["ETag"]))
            for item in items
            if not item["Key"].endswith("/")
        )
        return sorted(found, key=lambda entry: entry.key)

    def delete(self, key: str) -> None:
        check_key(key)
        self._server.ask("delete", key, lambda client: client.delete_object(**self._server.object(key)))

    def probe(self, prefix: str) -> None:
        with contextlib.suppress(Exception):  # the probe meets it again, and has words for it
            # First, because boto3 takes seconds on a busy machine, and the server is not silent then.
            retry.call_with_timeout(LIMIT_SECONDS, self._server.client)
        retry.probe(S3Store(self._server.hurried(PROBE_TRY_SECONDS)), prefix, self._server.place)

    def _pages(self, prefix: str, **options: str) -> Iterator[dict[str, Any]]:
        request = {"Bucket": self._server.bucket, "Prefix": self._server.prefix + prefix, **options}
        while True:
            page = self._server.ask("list", prefix, lambda client: client.list_objects_v2(**request))
            yield page
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]

    def _whole(self, client: Any, key: str) -> Object:
        answer = client.get_object(**self._server.object(key))
        data = answer["Body"].read()
        verify(recorded(answer), hashlib.sha256(data).hexdigest())
        return Object(data, str(answer["ETag"]))


def bucket_of(address: str) -> tuple[str, str]:
    """Bucket and prefix ("" or ``a/b``) of an address."""
    bucket, _, prefix = address.removeprefix("s3://").partition("/")
    if "@" in bucket:
        raise refused(
            address,
            "no user, key or password belongs into an address; give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "in the environment (in a cluster: by a Secret)",
        )
    if not bucket:
        raise refused(address, "the bucket is missing: s3://bucket or s3://bucket/prefix")
    if not _BUCKET.fullmatch(bucket):
        raise refused(
            address,
            f"{bucket!r} is no bucket name: 3 to 63 small letters, digits, dots and hyphens; "
            "the server's host and port belong into AWS_ENDPOINT_URL_S3",
        )
    prefix = prefix.strip("/")
    if fault := (key_fault(prefix) if prefix else None) or ("it holds '?' or '#'" if set("?#") & set(prefix) else None):
        raise refused(address, f"the prefix {prefix!r} cannot be: {fault}")
    return bucket, prefix


def _region(environ: Mapping[str, str]) -> str | None:
    return environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")


def _endpoint() -> str | None:
    """The server's address; None for Amazon S3 itself, or what a profile of the user's says."""
    name = next((name for name in S3Store.endpoint_variables if os.environ.get(name)), None)
    if name is None:
        return None
    if fault := endpoint_fault(name, os.environ[name]):
        raise StorageFailed(fault, reason="address")
    return os.environ[name]
