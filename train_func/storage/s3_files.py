"""Files of any size to and from an S3 server: in parts, gone on with after an interruption, verified as a whole.

The SHA-256 of the whole lies in the object's metadata, because no server can tell it for an object sent in parts.
Parts are sent from here and not by boto3's transfer manager: that knows neither a limit for all tries together
nor that a lost answer may have been a success.
"""

import base64
import contextlib
import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, BinaryIO

from train_func.errors import StorageFailed
from train_func.failpoint import reach
from train_func.storage.disk import CHUNK, disk_faults, open_source, replacing
from train_func.storage.retry import Backoff
from train_func.storage.s3_server import Server

PART = 8 << 20  # bytes; smaller files go in one request
COPIED_PART = 64 << 20  # the same of a copy within the server, which says nothing until it is done
MOST_PARTS = 10_000  # of S3
SENDERS = 4  # threads
SHA256 = "sha256"  # of the whole, in the object's metadata


def checksum(data: bytes) -> str:
    """SHA-256 as S3 wants it."""
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def put_whole(
    server: Server, operation: str, key: str, data: bytes, condition: Mapping[str, str], tries: Backoff
) -> str:
    """Stores ``data`` in one request and returns its version."""
    request = {
        **server.object(key),
        **condition,
        "Body": data,
        "ChecksumSHA256": checksum(data),
        "Metadata": {SHA256: hashlib.sha256(data).hexdigest()},
    }
    reach("object put begun")
    version = str(server.ask(operation, key, lambda client: client.put_object(**request)["ETag"], tries))
    reach("object put")
    return version


def upload(server: Server, key: str, path: Path, sent: Callable[[int], object]) -> str:
    """Stores the file at ``path``, telling ``sent`` of every piece, and returns its SHA-256 (hex)."""
    asked = f"upload of {path} to {key!r} in {server.address}"
    with open_source(path, asked) as source, disk_faults(asked):
        size = path.stat().st_size
        if size <= PART:
            data = source.read()
            put_whole(server, "upload", key, data, {}, server.tries())
            sent(size)
            return hashlib.sha256(data).hexdigest()
        multipart = _Multipart(server, key, path, source, size, sent)
    multipart.send()
    return multipart.sha256


class _Multipart:
    """One upload in parts; leaves nothing on the server when it fails, as far as that can still be reached."""

    def __init__(
        self, server: Server, key: str, path: Path, source: BinaryIO, size: int, sent: Callable[[int], object]
    ) -> None:
        """Reads ``source``, the file at ``path`` with ``size`` bytes, once: what is sent later has to be the same."""
        self._part_size = max(PART, -(-size // MOST_PARTS))
        whole, self._parts = hashlib.sha256(), list[str]()  # the checksums of the parts
        while part := source.read(self._part_size):
            whole.update(part)
            self._parts.append(checksum(part))
        self.sha256 = whole.hexdigest()
        self._server = server
        self._sent = sent
        self._key = key
        self._path = path
        self._upload: dict[str, str] = {}

    def send(self) -> None:
        server, key = self._server, self._key
        begin = {**server.object(key), "ChecksumAlgorithm": "SHA256", "Metadata": {SHA256: self.sha256}}
        answer = server.ask("upload", key, lambda client: client.create_multipart_upload(**begin))
        self._upload = {**server.object(key), "UploadId": answer["UploadId"]}
        reach("upload begun")
        try:
            self._complete(self._send_parts())
        except BaseException:
            abort(server, key, self._upload)
            raise

    def _send_parts(self) -> list[dict[str, Any]]:
        pool = ThreadPoolExecutor(SENDERS)
        try:
            sending = [pool.submit(self._send_part, index) for index in range(len(self._parts))]
            wait(sending, return_when=FIRST_EXCEPTION)
        finally:
            pool.shutdown(cancel_futures=True)
        failures = [fault for part in sending if not part.cancelled() and (fault := part.exception())]
        if failures:
            # A full server may drop the whole upload: what it says of the other parts is only that it is gone.
            raise min(failures, key=lambda fault: getattr(fault, "reason", "") == "absent")
        return [part.result() for part in sending]

    def _send_part(self, index: int) -> dict[str, Any]:
        asked = f"upload of {self._path} to {self._key!r} in {self._server.address}"
        with disk_faults(asked), self._path.open("rb") as source:
            source.seek(index * self._part_size)
            data = source.read(self._part_size)
        part = {"PartNumber": index + 1, "ChecksumSHA256": self._parts[index]}
        request = {**self._upload, **part, "Body": data}
        reach("part begun")
        tag = self._server.persist("upload", self._key, lambda client: client.upload_part(**request)["ETag"])
        reach("part sent")
        self._sent(len(data))
        return {**part, "ETag": tag}

    def _complete(self, parts: list[dict[str, Any]]) -> None:
        request = {**self._upload, "MultipartUpload": {"Parts": parts}}
        reach("parts sent")
        try:
            self._server.ask("upload", self._key, lambda client: client.complete_multipart_upload(**request))
        except StorageFailed as failed:
            # The answer to an earlier try was lost: then the upload is gone because it is complete.
            if failed.reason != "absent" or stored_checksum(self._server, self._key, "upload") != self.sha256:
                raise
        reach("upload completed")


def copy(server: Server, source: str, target: str, size: int) -> str | None:
    """Has the server copy one version of an object of ``size`` bytes; returns the SHA-256 that is recorded of it."""
    look = {**server.object(source), **({"Range": "bytes=0-0"} if size else {})}
    there = server.ask("copy", source, lambda client: client.get_object(**look))
    one_version = {"CopySource": server.object(source), "CopySourceIfMatch": there["ETag"]}
    sha256 = recorded(there)
    reach("copy begun")
    if size <= COPIED_PART:
        request = {**server.object(target), **one_version}
        server.ask("copy", source, lambda client: client.copy_object(**request))
    else:
        _copy_in_parts(server, source, target, size, one_version, sha256)
    reach("object copied")
    return sha256


def _copy_in_parts(
    server: Server, source: str, target: str, size: int, one_version: Mapping[str, Any], sha256: str | None
) -> None:
    part_size = max(COPIED_PART, -(-size // MOST_PARTS))
    begin = {**server.object(target), "Metadata": {SHA256: sha256} if sha256 else {}}
    answer = server.ask("copy", target, lambda client: client.create_multipart_upload(**begin))
    upload = {**server.object(target), "UploadId": answer["UploadId"]}

    def copy_part(first: int) -> dict[str, Any]:
        part = {"PartNumber": first // part_size + 1}
        last = min(first + part_size, size) - 1
        request = {**upload, **part, **one_version, "CopySourceRange": f"bytes={first}-{last}"}
        copied = server.persist("copy", source, lambda client: client.upload_part_copy(**request))
        reach("part copied")
        return {**part, "ETag": copied["CopyPartResult"]["ETag"]}

    try:
        with ThreadPoolExecutor(SENDERS) as pool:
            whole = {**upload, "MultipartUpload": {"Parts": list(pool.map(copy_part, range(0, size, part_size)))}}
        server.ask("copy", target, lambda client: client.complete_multipart_upload(**whole))
    except StorageFailed as failed:
        # The answer to an earlier try was lost: then the upload is gone because it is complete.
        if failed.reason != "absent" or stored_checksum(server, target, "copy") != sha256:
            abort(server, target, upload)
            raise
    except BaseException:
        abort(server, target, upload)
        raise


def abort(server: Server, key: str, upload: Mapping[str, str]) -> None:
    """Drops an unfinished upload in parts, as far as the server can still be reached."""
    hurried = server.hurried(0)
    with contextlib.suppress(StorageFailed):  # the server drops unfinished uploads itself after a day
        hurried.ask("upload", key, lambda client: client.abort_multipart_upload(**upload))


def stored_checksum(server: Server, key: str, operation: str) -> str | None:
    """The SHA-256 (hex) that was stored beside an object that is not empty."""
    first_byte = {**server.object(key), "Range": "bytes=0-0"}  # an answer to HEAD would say no reason
    return recorded(server.ask(operation, key, lambda client: client.get_object(**first_byte)))


def recorded(answer: Mapping[str, Any]) -> str | None:
    """The SHA-256 (hex) that was stored beside an object, None when another program stored it."""
    found = answer.get("Metadata", {}).get(SHA256)
    return str(found) if found else None


def download(server: Server, key: str, path: Path) -> str:
    """Writes the object to ``path`` once all of it has arrived and is right; returns its SHA-256 (hex)."""
    with replacing(path, f"download of {key!r} from {server.address} to {path}") as file:
        return _Download(server, key, file).receive()


class _Download:
    """One object on its way into ``file``. Only a standstill is bounded: whatever moves may take its time."""

    def __init__(self, server: Server, key: str, file: BinaryIO) -> None:
        self._server = server
        self._key = key
        self._file = file
        self._furthest = 0
        self._forget()

    def receive(self) -> str:
        tries = self._server.tries()
        while True:
            try:
                self._go_on()
                return self._digest.hexdigest()
            except Exception as error:
                if self._num_bytes > self._furthest:
                    self._furthest = self._num_bytes
                    tries = self._server.tries()
                fault = self._server.again_or_fail("download", self._key, error, tries)
                # Without our own record only the server's checksum over one whole answer proves anything.
                if fault.reason == "damaged" or self._sha256 is None:
                    self._forget()

    def _forget(self) -> None:
        self._num_bytes = 0
        self._digest = hashlib.sha256()
        self._version: str | None = None
        self._sha256: str | None = None
        self._file.seek(0)
        self._file.truncate()

    def _go_on(self) -> None:
        from train_func.storage.s3_faults import Damaged

        rest = {"Range": f"bytes={self._num_bytes}-"} if self._num_bytes else {}
        answer = self._server.client().get_object(**self._server.object(self._key), **rest)
        if self._version not in (None, answer["ETag"]):
            raise Damaged("the object was replaced while it was read")
        self._version, self._sha256 = answer["ETag"], recorded(answer)
        while chunk := answer["Body"].read(CHUNK):
            self._file.write(chunk)
            reach("chunk received")
            self._digest.update(chunk)
            self._num_bytes += len(chunk)
        verify(self._sha256, self._digest.hexdigest())


def verify(wanted: str | None, found: str) -> None:
    """Raises Damaged when there is a record of the SHA-256 and it differs."""
    from train_func.storage.s3_faults import Damaged

    if wanted not in (None, found):
        raise Damaged(f"SHA-256 {found} arrived, {wanted} was stored")
