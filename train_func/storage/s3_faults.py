"""The meaning and the remedy of an error of an S3 request, after botocore's own attempts."""

from dataclasses import dataclass

from botocore import exceptions as boto
from s3transfer.exceptions import RetriesExceededError, S3DownloadFailedError
from urllib3.exceptions import HTTPError

from train_func.errors import StorageReason

_ENDPOINT = "AWS_ENDPOINT_URL_S3 (workers of a cluster: s3_endpoint=... or TRAIN_FUNC_S3_ENDPOINT, where you submit)"
_KEYS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, with temporary keys AWS_SESSION_TOKEN too (workers of a cluster "
    "get them from the Secret that store_secret=... names, keys rootUser, rootPassword and sessionToken); see whether "
    "the clock of this machine is right"
)
_REMEDIES: dict[StorageReason, str] = {
    "absent": "list() shows which objects there are",
    "conflict": "Another writer was first; read the object again",
    "credentials": _KEYS,
    "unproven": (
        "See whether the provider of the keys answers (an endpoint of the container or instance, or a profile's "
        f"credential_process). {_KEYS}"
    ),
    "denied": "The key is known but lacks {grant}; add that to its policy",
    "bucket": "Make it (mc mb local/{bucket}) or correct the store's address",
    "full": "Free space on the server or raise the bucket's quota",
    "damaged": "Store the object again, or use an earlier one; a server or a network that changes bytes needs repair",
    "address": (
        f"The server does not accept this request: see whether {_ENDPOINT} names an S3 server, with https:// or "
        "http:// as it listens, and AWS_REGION the bucket's region; a certificate of your own: AWS_CA_BUNDLE"
    ),
    "unreachable": (
        f"See whether the server is up, and its log; correct {_ENDPOINT}, or HTTPS_PROXY, HTTP_PROXY and NO_PROXY"
    ),
    "unsupported": (
        "Keep runs on a server that has what S3 has: conditional writes (If-Match, If-None-Match), checksums and "
        "multipart uploads"
    ),
}
# Error codes of AWS, MinIO and others, where the status says less.
_CODES: dict[StorageReason, str] = {
    "absent": "NoSuchKey NoSuchUpload",
    "conflict": "PreconditionFailed ConditionalRequestConflict",
    "credentials": "InvalidAccessKeyId SignatureDoesNotMatch InvalidToken InvalidTokenId ExpiredToken",
    "unproven": "RequestTimeTooSkewed",
    "denied": "AccessDenied",
    "bucket": "NoSuchBucket",
    "full": "XMinioStorageFull XMinioAdminBucketQuotaExceeded QuotaExceeded",
    "damaged": "BadDigest InvalidRange XAmzContentChecksumMismatch XAmzContentSHA256Mismatch",
    # The server accepts a deletion, and says of single objects that it is busy: an error within a 200.
    "unreachable": "RequestTimeout SlowDown SlowDownRead SlowDownWrite InternalError ServiceUnavailable Busy",
}
_REASONS = {code: reason for reason, codes in _CODES.items() for code in codes.split()}
_STATUSES: dict[int, StorageReason] = {403: "denied", 429: "unreachable", 501: "unsupported", 507: "full"}
_PERMISSIONS = {
    "get": "s3:GetObject",
    "download": "s3:GetObject",
    "put": "s3:PutObject",
    "copy": "s3:GetObject and s3:PutObject",
    "upload": "s3:PutObject and s3:AbortMultipartUpload",
    "delete": "s3:DeleteObject",
    "list": "s3:ListBucket",
}


class Damaged(Exception):
    """The downloaded bytes are not the stored ones."""


# Everything that a request may end with; any other exception is a mistake of this program.
KNOWN = (boto.BotoCoreError, boto.ClientError, HTTPError, Damaged, RetriesExceededError, S3DownloadFailedError)
_OF_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.ProfileNotFound,
    boto.ConfigParseError,
)
_OF_PROVIDER = (boto.CredentialRetrievalError, boto.MetadataRetrievalError)


@dataclass(frozen=True)
class S3Fault:
    """One failure: its kind, its words, and whether the same call may succeed at once."""

    reason: StorageReason
    what: str
    is_repeated: bool = False

    def remedy(self, operation: str, bucket: str, key: str) -> str:
        """Returns the remedy of a failed ``operation``."""
        grant = f"{_PERMISSIONS.get(operation)} on arn:aws:s3:::{bucket}{'' if operation == 'list' else f'/{key}'}"
        return _REMEDIES[self.reason].format(bucket=bucket, grant=grant)


def read_fault(error: Exception) -> S3Fault:
    """Returns the failure for an error of a request."""
    if isinstance(error, RetriesExceededError):  # of s3transfer: the body of an answer broke each time
        error = error.last_exception
    if isinstance(error, boto.ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        has_no_code = code in ("", str(status))
        what = f"the server says {status}" if has_no_code else f"the server says {code} ({status})"
        reason = _REASONS.get(code) or _STATUSES.get(status) or ("unreachable" if status >= 500 else "address")
        # A 404 without S3's own code may come from a wrong address; an answer that was cut on the way lost its code.
        is_cut = reason == "address" and has_no_code
        return S3Fault(reason, what, reason == "damaged" or code == "ConditionalRequestConflict" or is_cut)
    if isinstance(error, (Damaged, boto.FlexibleChecksumError, S3DownloadFailedError)):
        return S3Fault("damaged", f"damaged bytes: {error}", is_repeated=True)
    if isinstance(error, _OF_CREDENTIALS):
        return S3Fault("credentials", str(error))
    if isinstance(error, _OF_PROVIDER):
        return S3Fault("unproven", str(error))
    if isinstance(error, (boto.SSLError, boto.ParamValidationError, boto.InvalidRegionError)):
        return S3Fault("address", str(error))
    cause = getattr(error, "kwargs", {}).get("error") or error
    # botocore repeats a request, and not the reading of its answer.
    is_cut = isinstance(error, (boto.ResponseStreamingError, boto.IncompleteReadError))
    what = str(cause).rpartition("): ")[2]  # behind the name of a connection
    return S3Fault("unreachable", what, is_cut)
