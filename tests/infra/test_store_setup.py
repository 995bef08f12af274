"""What infra/s3/setup.py makes in a store, on real servers: a bucket, and a key that opens nothing else."""

import dataclasses
import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.s3_servers import IDENTITIES, KINDS, s3_server

SETUP = Path(__file__).parents[2] / "infra/s3/setup.py"
BUCKET = "kubeflow-examples"
NOTHING = f"arn:aws:s3:::{BUCKET}/none"
DENIED = {"Effect": "Deny", "Principal": {"AWS": ["*"]}, "Action": ["s3:GetObject"], "Resource": [NOTHING]}
POLICY = json.dumps({"Version": "2012-10-17", "Statement": [DENIED]})


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with s3_server(request.param, tmp_path_factory.mktemp(request.param), bucket="of-others") as running:
        running.client().put_object(Bucket="of-others", Key="secret", Body=b"secret")
        yield running


def key():
    return secrets.token_hex(8), secrets.token_hex(20)


def set_up(server, jobs):
    variables = {"ENGINE": server.kind, "ENDPOINT": server.endpoint, "BUCKET": BUCKET, "REGION": "us-east-1"}
    variables |= {"ROOT_USER": server.access_key, "ROOT_PASSWORD": server.secret_key}
    variables |= {"JOBS_USER": jobs[0], "JOBS_PASSWORD": jobs[1], "PATH": os.environ["PATH"]}
    command = [sys.executable, SETUP]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def client(server, jobs):
    return dataclasses.replace(server, access_key=jobs[0], secret_key=jobs[1]).client()


def refusal(call):
    with pytest.raises(ClientError) as caught:
        call()
    return caught.value.response["Error"]["Code"]


def test_a_second_time_makes_nothing_and_the_key_of_jobs_opens_its_bucket_alone(server):
    jobs = server.jobs
    set_up(server, jobs)
    client(server, jobs).put_object(Bucket=BUCKET, Key="kept", Body=b"kept")
    assert "made bucket" not in set_up(server, jobs)
    store = client(server, jobs)
    assert store.get_object(Bucket=BUCKET, Key="kept")["Body"].read() == b"kept"
    for call in (
        lambda: store.get_object(Bucket="of-others", Key="secret"),
        lambda: store.put_object(Bucket="of-others", Key="mine", Body=b""),
        lambda: store.list_objects_v2(Bucket="of-others"),
        lambda: store.copy_object(Bucket=BUCKET, Key="copy", CopySource="of-others/secret"),
        lambda: store.create_bucket(Bucket="another"),
        lambda: store.delete_bucket(Bucket=BUCKET),
        lambda: store.get_bucket_policy(Bucket=BUCKET),
        lambda: store.put_bucket_policy(Bucket=BUCKET, Policy=POLICY),
    ):
        assert refusal(call) == "AccessDenied"


@pytest.mark.parametrize("server", ["minio"], indirect=True)  # SeaweedFS reads its keys when it starts
def test_a_key_that_was_exchanged_opens_nothing(server):
    old, new = key(), key()
    set_up(server, old)
    client(server, old).list_objects_v2(Bucket=BUCKET)
    set_up(server, new)
    client(server, new).list_objects_v2(Bucket=BUCKET)
    assert refusal(lambda: client(server, old).list_objects_v2(Bucket=BUCKET)) == "InvalidAccessKeyId"


def test_jobs_of_seaweedfs_may_do_what_jobs_of_the_others_may():
    text = SETUP.read_text()
    of_objects, of_bucket = (
        [f"s3:{action}" for action in re.findall(r"\w+", re.search(rf"^{name} = \((.+)\)$", text, re.M)[1])]
        for name in ("OF_OBJECTS", "OF_BUCKET")
    )
    identities = json.loads(IDENTITIES.read_text())
    (policy,) = identities["policies"]
    assert [(allowed["Action"], allowed["Resource"]) for allowed in policy["document"]["Statement"]] == [
        (of_bucket, f"arn:aws:s3:::{BUCKET}"),
        (of_objects, f"arn:aws:s3:::{BUCKET}/*"),
    ]
    jobs = next(identity for identity in identities["identities"] if identity["name"] == "jobs")
    assert "actions" not in jobs
    assert jobs["policyNames"] == [policy["name"]]
