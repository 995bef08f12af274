"""Options that a run is submitted with another time, and differ, are told by name and as they were before."""

import json
from dataclasses import asdict

import pytest

from train_func.client.placement import Placement, SecretKey
from train_func.client.submission import SubmissionRecord

BEFORE = {"image": "i:1", "cpu": 2, "namespace": "ml", "store_settings": {"AWS_ENDPOINT_URL_S3": "http://store:9000"}}


def submitted(**options):
    """The record of a submission with these options, as it comes back from the store."""
    placement = Placement(**{**BEFORE, **options})
    kept = SubmissionRecord(
        backend="Cluster", place="namespace ml", identity={}, found_by={}, options=placement.options
    )
    return SubmissionRecord(**json.loads(json.dumps(asdict(kept))))


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({}, []),
        ({"cpu": "2"}, []),
        ({"namespace": "other"}, []),
        ({"image": "i:2"}, ["image='i:1'"]),
        ({"cpu": "500m", "memory": "2Gi"}, ["cpu='2'", "memory=None"]),
        ({"gpu": 1}, ["gpu=0"]),
        ({"spot": True}, ["spot=False"]),
        ({"disk": "1Gi"}, ["disk=None"]),
        ({"store_secret": "mine"}, ["store_secret='myminio'"]),
        ({"environment": {"MODE": "ok"}}, ["environment['MODE']=None"]),
        ({"queue": "q"}, ["queue=None"]),
        ({"node_selector": {"zone": "a"}, "grace_seconds": 5}, ["grace_seconds=30", "node_selector={}"]),
    ],
)
def test_every_option_that_differs_is_told_and_no_other(now, told):
    assert submitted().differing(Placement(**{**BEFORE, **now}).options) == told


def test_a_secret_by_reference_is_told_by_its_name():
    before = submitted(environment={"KEY": SecretKey(secret="mine", key="key")})
    assert before.differing(Placement(**BEFORE).options) == ["environment['KEY']='of Secret mine'"]
