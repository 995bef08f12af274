"""Makes the bucket and the key of jobs in a store that has just been started, and tries both; safe to run again."""

import json
import os
import secrets
import time
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

ENGINE, ENDPOINT, BUCKET = os.environ["ENGINE"], os.environ["ENDPOINT"], os.environ["BUCKET"]
ROOT = os.environ["ROOT_USER"], os.environ["ROOT_PASSWORD"]
JOBS = os.environ["JOBS_USER"], os.environ["JOBS_PASSWORD"]
START_SECONDS = 180


def client(key: tuple[str, str]) -> Any:
    """Of the store, for whoever has that key."""
    config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}, connect_timeout=5, read_timeout=20)
    return boto3.client(
        "s3",
        endpoint_url=ENDPOINT,
        region_name=os.environ.get("AWS_REGION", "us-east-1"),
        aws_access_key_id=key[0],
        aws_secret_access_key=key[1],
        config=config,
    )


def wait_for(store: Any) -> None:
    """Until it answers whoever has the root key."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            store.list_buckets()
        except (BotoCoreError, ClientError) as error:
            if time.monotonic() > end:
                raise SystemExit(f"{ENDPOINT} does not answer within {START_SECONDS} s: {error}") from error
            print(f"waiting for {ENDPOINT}: {error}")
            time.sleep(2)
        else:
            return


def make_bucket(store: Any) -> None:
    """The bucket, when there is none."""
    if BUCKET in (bucket["Name"] for bucket in store.list_buckets()["Buckets"]):
        print(f"bucket {BUCKET} is there")
        return
    store.create_bucket(Bucket=BUCKET)
    print(f"made bucket {BUCKET}")


def allow_jobs_in_minio() -> None:
    """A user that may do everything in the bucket and nothing outside of it."""
    from minio.credentials import StaticProvider
    from minio.minioadmin import MinioAdmin

    address = urlsplit(ENDPOINT)
    admin = MinioAdmin(endpoint=address.netloc, credentials=StaticProvider(*ROOT), secure=address.scheme == "https")
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["s3:*"], "Resource": [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]}
        ],
    }
    admin.user_add(*JOBS)
    admin.policy_add(BUCKET, policy=policy)
    admin.policy_set(BUCKET, user=JOBS[0])
    print(f"the key of jobs opens {BUCKET}")


def try_out(store: Any) -> None:
    """Writes, reads and removes an object with the key of jobs."""
    key, data = f"probes/{secrets.token_hex(8)}", json.dumps({"probe": True}).encode()
    store.put_object(Bucket=BUCKET, Key=key, Body=data)
    assert store.get_object(Bucket=BUCKET, Key=key)["Body"].read() == data
    store.delete_object(Bucket=BUCKET, Key=key)
    print("the key of jobs writes, reads and removes")


def refuse_elsewhere(store: Any) -> None:
    """The key of jobs must not open anything else."""
    name = f"{BUCKET}-not-for-jobs"
    try:
        store.create_bucket(Bucket=name)
    except ClientError as error:
        print(f"the key of jobs makes no bucket: {error.response['Error']['Code']}")
        return
    store.delete_bucket(Bucket=name)
    raise SystemExit("the key of jobs could make another bucket: it is not confined to its own")


def main() -> None:
    root = client(ROOT)
    wait_for(root)
    make_bucket(root)
    if ENGINE == "minio":
        allow_jobs_in_minio()
    jobs = client(JOBS)
    try_out(jobs)
    if ENGINE != "external":
        refuse_elsewhere(jobs)


main()
