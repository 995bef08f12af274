"""What two manifests of one run were not rendered with alike is told by the option's name and as it was before."""

import json

import pytest

from train_func.client.manifest import provisional, render
from train_func.client.placement import Placement, SecretKey, changed
from train_func.run import Run

BEFORE = {"image": "i:1", "cpu": 2, "namespace": "ml", "store_settings": {"AWS_ENDPOINT_URL_S3": "http://store:9000"}}


def manifest(**options):
    record = provisional(Run(workers=2), "s3://bucket/runs")
    return json.loads(json.dumps(render(record, Placement(**{**BEFORE, **options}), ())))


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({}, []),
        ({"namespace": "other"}, []),
        ({"image": "i:2"}, ["image='i:1'"]),
        ({"cpu": "500m", "memory": "2Gi"}, ["cpu='2'", "memory=None"]),
        ({"gpu": 1}, ["gpu=None"]),
        ({"disk": "1Gi"}, ["disk=None"]),
        ({"store_secret": "mine"}, ["store_secret='myminio'"]),
        ({"store_settings": {"AWS_ENDPOINT_URL_S3": "http://nosuch:9000"}}, ["s3_endpoint='http://store:9000'"]),
        ({"environment": {"MODE": "ok"}}, ["environment['MODE']=None"]),
        ({"queue": "q"}, ["queue=None"]),
        ({"node_selector": {"zone": "a"}, "grace_seconds": 5}, ["node_selector=None", "grace_seconds=30"]),
    ],
)
def test_every_option_that_differs_is_told_and_no_other(now, told):
    assert changed(manifest(), manifest(**now)) == told


def test_a_secret_by_reference_is_told_by_its_name():
    before = manifest(environment={"KEY": SecretKey(secret="mine", key="key")})
    assert changed(before, manifest()) == ["environment['KEY']='of Secret mine'"]
