"""Options that a run is submitted with another time, and differ, are known by their names."""

import pytest

from train_func.client.backend import provisional
from train_func.client.job_spec import SecretKey
from train_func.client.placement import Placement
from train_func.client.stored_run import Submission
from train_func.client.submit import changed
from train_func.run import Run

BEFORE = {"image": "i:1", "cpu": 2, "namespace": "ml", "store_settings": {"AWS_ENDPOINT_URL_S3": "http://store:9000"}}


def submitted(**options):
    """The options of a submission, as they come back from the store."""
    placement = Placement(**{**BEFORE, **options})
    where = {"backend": "Cluster", "place": "namespace ml", "identity": {}, "found_by": {}, "cells": {}, "manifest": {}}
    kept = Submission(run=provisional(Run(), "s3://b"), options=placement.options, **where)
    return Submission.from_json(kept.to_json()).options


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({}, []),
        ({"cpu": "2"}, []),
        ({"namespace": "other"}, []),
        ({"image": "i:2"}, ["image"]),
        ({"cpu": "500m", "memory": "2Gi"}, ["cpu", "memory"]),
        ({"gpu": 1}, ["gpu"]),
        ({"spot": True}, ["spot"]),
        ({"disk": "1Gi"}, ["disk"]),
        ({"store_secret": "mine"}, ["store_secret"]),
        ({"environment": {"MODE": "ok"}}, ["environment['MODE']"]),
        ({"queue": "q"}, ["queue"]),
        ({"node_selector": {"zone": "a"}, "grace_seconds": 5}, ["grace_seconds", "node_selector"]),
    ],
)
def test_every_option_that_differs_is_told_and_no_other(now, told):
    assert changed(submitted(), Placement(**{**BEFORE, **now}).options) == told


def test_a_secret_by_reference_is_shown_by_its_name():
    options = submitted(environment={"KEY": SecretKey(secret="mine", key="key")})
    assert changed(options, Placement(**BEFORE).options) == ["environment['KEY']"]
    assert options["environment['KEY']"] == "of Secret mine"
