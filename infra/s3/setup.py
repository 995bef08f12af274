"""Makes the bucket and the key of jobs in a store that has just been started, and tries both; safe to run again."""

import json
import os
import secrets
import time
from typing import Any, NoReturn
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

ENGINE, ENDPOINT, BUCKET = os.environ["ENGINE"], os.environ["ENDPOINT"], os.environ["BUCKET"]
REGION = os.environ["REGION"]
ROOT = os.environ["ROOT_USER"], os.environ["ROOT_PASSWORD"]
JOBS = os.environ["JOBS_USER"], os.environ["JOBS_PASSWORD"]
REFUSED_SECONDS = 30  # a store that is just starting may not know its keys yet
REFUSALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403")
OF_OBJECTS = ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload", "ListMultipartUploadParts")
OF_BUCKET = ("ListBucket", "ListBucketMultipartUploads", "GetBucketLocation")


def end(what: str, remedy: str) -> NoReturn:
    raise SystemExit(f"{ENGINE} at {ENDPOINT}: {what.rstrip('.')}. Next: {remedy}")


def client(key: tuple[str, str]) -> Any:
    """Of the store, as the holder of that key."""
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, connect_timeout=5, read_timeout=20)
    return boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name=REGION,
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        config=config,
    )


def code_of(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else type(error).__name__


def bucket_is_there(store: Any) -> bool:
    try:
        store.list_objects_v2(Bucket=BUCKET, MaxKeys=1)
    except ClientError as error:
        if code_of(error) != "NoSuchBucket":
            raise
        return False
    return True


def wait_for_store() -> bool:
    """Until it answers the root key, however late; install.sh has the limit. Returns whether the bucket is there."""
    started, told = time.monotonic(), ""
    while True:
        try:
            return bucket_is_there(client(ROOT))  # a new one: its name may have led to another address at first
        except (BotoCoreError, ClientError) as error:
            waited, last = time.monotonic() - started, error
        if code_of(last) in REFUSALS and waited > REFUSED_SECONDS:
            remedy = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" if ENGINE == "external" else "restart its pod"
            end(f"bucket {BUCKET} is refused to the key that was given: {last}", f"{remedy}, then install again")
        if str(last) != told:
            print(f"waiting: {last}")
        told = str(last)
        time.sleep(2)


def make_bucket(store: Any) -> None:
    """In the region that is named, as AWS expects it."""
    elsewhere = {} if REGION == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": REGION}}
    try:
        store.create_bucket(Bucket=BUCKET, **elsewhere)
    except ClientError as error:
        end(f"bucket {BUCKET} cannot be made: {error}", "make it yourself, or give a key that may; then install again")
    print(f"made bucket {BUCKET}")


def policy(**principal: Any) -> dict[str, Any]:
    """Everything that a run does in the bucket, and no more."""
    of_bucket = {"Action": [f"s3:{action}" for action in OF_BUCKET], "Resource": f"arn:aws:s3:::{BUCKET}"}
    of_objects = {"Action": [f"s3:{action}" for action in OF_OBJECTS], "Resource": f"arn:aws:s3:::{BUCKET}/*"}
    statements = [{"Effect": "Allow", **principal, **statement} for statement in (of_bucket, of_objects)]
    return {"Version": "2012-10-17", "Statement": statements}


def allow_jobs_in_minio() -> None:
    """The one user with that policy; earlier ones are forgotten, so that an exchanged key opens nothing."""
    from minio.credentials import StaticProvider
    from minio.minioadmin import MinioAdmin

    address = urlsplit(ENDPOINT)
    admin = MinioAdmin(endpoint=address.netloc, credentials=StaticProvider(*ROOT), secure=address.scheme == "https")
    admin.user_add(*JOBS)
    admin.policy_add(BUCKET, policy=policy())
    admin.policy_set(BUCKET, user=JOBS[0])
    for name, user in json.loads(admin.user_list()).items():
        if name != JOBS[0] and user.get("policyName") == BUCKET:
            admin.user_remove(name)


def try_out(store: Any) -> None:
    """Writes, reads and removes an object with the key of jobs."""
    key, data = f"probes/{secrets.token_hex(8)}", b"probe"
    try:
        store.put_object(Bucket=BUCKET, Key=key, Body=data)
        found = store.get_object(Bucket=BUCKET, Key=key)["Body"].read()
        store.delete_object(Bucket=BUCKET, Key=key)
    except (BotoCoreError, ClientError) as error:
        end(f"the key of jobs cannot work in {BUCKET}: {error}", "allow it to read, write and delete objects there")
    if found != data:
        end(f"an object of {BUCKET} came back changed", "look for a proxy in between")
    print(f"the key of jobs writes, reads and removes in {BUCKET}")


def main() -> None:
    if not wait_for_store():
        make_bucket(client(ROOT))
    if ENGINE == "minio":
        allow_jobs_in_minio()
    try_out(client(JOBS))


main()
