"""What install.sh made is open to those who need it, and to no other account."""

import json

import pytest

from tests.install.store import BUCKET, SECRETS, client, key_of


def test_only_an_admin_reads_secrets_or_runs_programs_in_pods(installed, admin, notebook):
    for verb in ("get", "list", "watch"):
        assert notebook.run("auth", "can-i", verb, "secrets", "--all-namespaces").stdout.strip() == "no"
    for account in ("train-func:notebook", "train-func:default", "kubeflow:default", "train-func-hub:notebook"):
        one = f"--as=system:serviceaccount:{account}"
        for what in (("get", "secret/myminio"), ("list", "secrets"), ("create", "pods/exec"), ("create", "pods")):
            for namespace in ("kubeflow", "train-func"):
                done = admin.run("auth", "can-i", *what, f"--namespace={namespace}", one)
                assert done.stdout.strip() == "no", (account, what, namespace)


def test_no_secret_is_in_an_argument_or_in_what_was_said(installed, admin):
    values = [value for where in SECRETS for value in key_of(admin, *where)]
    told = installed.must("credentials") + installed.said + installed.arguments
    assert len(set(values)) == 4
    assert not [value for value in values if value in told]
    config_maps = json.dumps(admin.json("get", "configmaps", "--all-namespaces"))
    assert not [value for value in values if value in config_maps]


def test_the_key_of_jobs_makes_no_bucket_and_changes_no_policy(installed, admin):
    from botocore.exceptions import ClientError

    store = client(admin, key_of(admin, "train-func", "myminio"))
    nothing = f"arn:aws:s3:::{BUCKET}/none"
    deny = {"Effect": "Deny", "Principal": {"AWS": ["*"]}, "Action": ["s3:GetObject"], "Resource": [nothing]}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    with pytest.raises(ClientError):
        store.create_bucket(Bucket="not-for-jobs")
    with pytest.raises(ClientError):
        store.put_bucket_policy(Bucket=BUCKET, Policy=policy)
    store.list_objects_v2(Bucket=BUCKET)  # so it is not that the key opens nothing
