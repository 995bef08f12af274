"""What an error on the way to an S3 server means, and what to do about it."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass

from botocore import exceptions as boto
from urllib3.exceptions import HTTPError, NameResolutionError

from train_func.errors import StorageReason

VARIABLES = (
    "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (workers of a cluster get them from the Secret that store_secret=... "
    "names, keys rootUser and rootPassword)"
)
ENDPOINT = "AWS_ENDPOINT_URL_S3 (for workers of a cluster: s3_endpoint=... or TRAIN_FUNC_S3_ENDPOINT, where you submit)"


@dataclass(frozen=True)
class Fault:
    """One failed try: its kind, whether another try may help, what happened, and what a person can do."""

    reason: StorageReason
    transient: bool
    what: str
    remedy: str
    is_unknown_host: bool = False


class Damaged(Exception):
    """The bytes that arrived are not those that were stored."""


# Everything that a request may end with; whatever else is raised is a mistake of this program.
KNOWN = (boto.BotoCoreError, boto.ClientError, HTTPError, Damaged)

_AWAY = f"See whether the server is up and correct {ENDPOINT}"
_LATER = "The server is overloaded or starting; see its log, and try again later"
_KEYS = f"Correct {VARIABLES}"
_PERMISSION = {
    "get": "s3:GetObject",
    "download": "s3:GetObject",
    "put": "s3:PutObject",
    "copy": "s3:GetObject and s3:PutObject",
    "upload": "s3:PutObject and s3:AbortMultipartUpload",
    "delete": "s3:DeleteObject",
    "list": "s3:ListBucket",
}
_SPACE = "Free space on the server or raise the bucket's quota"
_NAMES = "Choose another key: on this server an object cannot lie below another"
_RESEND = "Something between here and the server changes bytes, or the file was written to while it was sent"
_OTHER_SERVER = (
    "Keep runs on a server that has what S3 has: conditional writes (If-Match, If-None-Match), checksums and multipart "
    "uploads"
)
_REGION = "Set AWS_REGION to the bucket's region"

# Error codes of AWS, MinIO and others: reason, whether another try may help, remedy.
_CODES: dict[str, tuple[StorageReason, bool, str]] = {
    "NoSuchKey": ("absent", False, "list() shows which objects there are"),
    "NoSuchUpload": ("absent", False, "The server has dropped the unfinished upload; upload again"),
    "PreconditionFailed": ("conflict", False, "Another writer was first; read the object again"),
    "ConditionalRequestConflict": ("conflict", True, "Another writer is at it; read the object again"),
    "OperationAborted": ("conflict", True, "Another writer is at it; read the object again"),
    "InvalidAccessKeyId": ("credentials", False, _KEYS),
    "XAdminUserNotFound": ("credentials", False, _KEYS),
    "SignatureDoesNotMatch": ("credentials", False, _KEYS),
    "InvalidToken": ("credentials", False, f"{_KEYS}, and AWS_SESSION_TOKEN"),
    "ExpiredToken": ("credentials", False, f"{_KEYS}, and AWS_SESSION_TOKEN"),
    "RequestTimeTooSkewed": ("credentials", False, "The clock of this machine or of the server is wrong; set it"),
    "NoSuchBucket": ("bucket", False, "Make it (mc mb local/BUCKET) or correct the store's address"),
    "XMinioStorageFull": ("full", False, _SPACE),
    "XMinioAdminBucketQuotaExceeded": ("full", False, _SPACE),
    "QuotaExceeded": ("full", False, _SPACE),
    "EntityTooLarge": ("full", False, "The server takes no object of this size; raise its limit"),
    "BadDigest": ("damaged", True, _RESEND),
    "InvalidDigest": ("damaged", True, _RESEND),
    "InvalidRange": ("damaged", True, "The object was replaced while it was read; read it again"),
    "XAmzContentChecksumMismatch": ("damaged", True, _RESEND),
    "XAmzContentSHA256Mismatch": ("damaged", True, _RESEND),
    "ObjectParentIsFile": ("address", False, _NAMES),
    "ExistingObjectIsDirectory": ("address", False, _NAMES),
    "KeyTooLongError": ("address", False, "Choose a shorter key"),
    "AuthorizationHeaderMalformed": ("address", False, _REGION),
    "PermanentRedirect": ("address", False, _REGION),
    "IllegalLocationConstraintException": ("address", False, _REGION),
    "NotImplemented": ("unsupported", False, _OTHER_SERVER),
    "RequestTimeout": ("unreachable", True, _LATER),
    "SlowDown": ("unreachable", True, _LATER),
}


def read_fault(error: Exception, operation: str, resource: str) -> Fault:
    """The meaning of ``error``, raised by ``operation`` on ``resource`` ("bucket/key")."""
    if isinstance(error, boto.ClientError):
        return _of_answer(error, operation, resource)
    if isinstance(error, (Damaged, boto.FlexibleChecksumError)):
        return Fault("damaged", True, f"damaged bytes: {error}", "Use an earlier one, or store the object again")
    return _of_credentials(error) or _of_settings(error) or _of_network(error)


def _of_answer(error: boto.ClientError, operation: str, resource: str) -> Fault:
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    has_no_code = code in ("", str(status))
    what = f"the server says {status}" if has_no_code else f"the server says {code} ({status})"
    if code in _CODES:
        reason, transient, remedy = _CODES[code]
        return Fault(reason, transient, what, remedy.replace("BUCKET", resource.partition("/")[0]))
    if status == 403:
        grant = f"{_PERMISSION[operation]} on arn:aws:s3:::{resource}"
        return Fault("denied", False, what, f"The key is known but lacks {grant}; add that to its policy")
    if status == 507:
        return Fault("full", False, what, _SPACE)
    if status == 501:
        return Fault("unsupported", False, what, _OTHER_SERVER)
    if status >= 500 or status == 429:
        return Fault("unreachable", True, what, _LATER)
    # Also a 404 without S3's own code: taking that for an absent object would hide a wrong address. Asked for again,
    # because an answer that was cut on the way has lost its code.
    remedy = f"The server does not take this request; is it an S3 server? See {ENDPOINT}"
    return Fault("address", has_no_code, what, remedy)


def _of_credentials(error: Exception) -> Fault | None:
    if isinstance(error, boto.NoCredentialsError):
        return Fault("credentials", False, "no credentials found", f"Set {VARIABLES}")
    if isinstance(error, boto.PartialCredentialsError):
        return Fault("credentials", False, "only one half of the credentials found", f"Set both of {VARIABLES}")
    kinds = (boto.CredentialRetrievalError, boto.ProfileNotFound, boto.ConfigParseError, boto.MetadataRetrievalError)
    if isinstance(error, kinds):
        return Fault("credentials", False, f"the credentials could not be read: {error}", f"Set {VARIABLES}")
    return None


def _of_settings(error: Exception) -> Fault | None:
    if isinstance(error, boto.SSLError):
        remedy = f"https:// or http:// may be the wrong one in {ENDPOINT}; a certificate of your own: AWS_CA_BUNDLE"
        return Fault("address", False, f"no secure connection: {error}", remedy)
    if isinstance(error, (boto.ParamValidationError, boto.InvalidRegionError)):
        return Fault("address", False, str(error), f"Correct {ENDPOINT} or AWS_REGION")
    return None


def _of_network(error: Exception) -> Fault:
    causes = tuple(_causes(error))
    if any(isinstance(cause, (socket.gaierror, NameResolutionError)) for cause in causes):
        what = "no name server knows the server's name"
        return Fault("unreachable", True, what, f"Correct {ENDPOINT}", is_unknown_host=True)
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return Fault("unreachable", True, "connection refused: nothing listens there", _AWAY)
    if isinstance(error, boto.ConnectTimeoutError):
        return Fault("unreachable", True, "no connection in time: nothing answers there", _AWAY)
    if isinstance(error, boto.ReadTimeoutError):
        return Fault("unreachable", True, "connected, but no answer in time", _AWAY)
    if isinstance(error, boto.ProxyConnectionError):
        return Fault("unreachable", True, "the proxy does not answer", "Correct HTTPS_PROXY, HTTP_PROXY and NO_PROXY")
    return Fault("unreachable", True, f"the connection broke ({type(error).__name__})", _AWAY)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and everything it was made from; boto and urllib3 keep that in different places."""
    found: BaseException | None = error
    while found is not None:
        yield found
        inner = getattr(found, "kwargs", {}).get("error") or getattr(found, "reason", None)
        if isinstance(inner, BaseException):
            yield from _causes(inner)
        found = found.__cause__ or found.__context__
