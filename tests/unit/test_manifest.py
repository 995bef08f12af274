"""The PyTorchJob of a run: whole, understood by the SDK, and held by golden files.

TRAIN_FUNC_REWRITE_GOLDEN=1 rewrites them.
"""

import json
import os
from pathlib import Path

import pytest
import yaml
from kubeflow.training import ApiClient, KubeflowOrgV1PyTorchJob

from tests.messages import unnamed
from train_func.client.job_spec import SecretKey, parse_quantity, whole_quantity
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.placement import Placement, job_spec
from train_func.errors import InvalidInput
from train_func.run import Run
from train_func.tasks import TextClassification
from train_func.wire.records import RunRecord

GOLDEN = Path(__file__).parents[1] / "golden"


def record(*, store: str = "file:///srv/store", generation: int = 1, **fields: object) -> RunRecord:
    return RunRecord(
        run=Run(task=TextClassification(model="bert-base-cased", dataset="yelp_review_full"), **fields),
        name="bert-base-yelp-0123456789",
        generation=generation,
        store=store,
        function="train_func",
        source_sha256="0" * 64,
    )


S3 = "s3://kubeflow-examples/runs"
CASES = {
    "local_two_workers": (record(), Placement(image="train-func", cpu=1)),
    "s3_store": (
        record(store=S3, generation=2, workers=3),
        Placement(
            image="registry.example/train-func:0.1.0",
            cpu=2,
            memory="8Gi",
            disk="50Gi",
            namespace="alice",
            store_settings={"AWS_ENDPOINT_URL_S3": "http://myminio:9000", "AWS_REGION": "us-east-1"},
        ),
    ),
    "gpu": (record(store=S3, workers=2), Placement(image="train-func:cuda", cpu=8, memory="64Gi", gpu=4)),
    "spot_queue_priority": (
        record(store=S3, max_attempts=5, deadline=7200),
        Placement(
            image="train-func:0.1.0",
            cpu=2,
            memory="8Gi",
            grace_seconds=25,
            queue="research",
            priority_class="low",
            service_account="training",
            store_secret="alice-s3",
            hub_secret="alice-hub",
            environment={
                "WANDB_API_KEY": SecretKey(secret="wandb", key="key", optional=True),
                "NOTE": "costs $(PRICE) and $5",
            },
            spot=True,
            node_selector={"kubernetes.azure.com/scalesetpriority": "spot"},
            tolerations=({"key": "alice", "operator": "Exists", "effect": "NoSchedule"},),
        ),
    ),
    "elastic": (record(store=S3, workers=4, min_workers=1), Placement(image="train-func:0.1.0", cpu=2, memory="8Gi")),
    "claims": (
        record(
            store=S3,
            workers=2,
            inputs={"a": "pvc://reviews/2026", "b": "pvc://pictures", "c": "pvc://reviews/labels.csv"},
        ),
        Placement(image="train-func:0.1.0", cpu=2, disk="50Gi", cache="shared-cache"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_whole_manifest_is_that_of_the_golden_file(name):
    rendered = PYTORCHJOB.render(job_spec(*CASES[name]))
    path = GOLDEN / f"{name}.yaml"
    if os.environ.get("TRAIN_FUNC_REWRITE_GOLDEN") == "1":
        path.write_text(yaml.safe_dump(rendered, sort_keys=False, width=120))
    assert rendered == yaml.safe_load(path.read_text())


class Response:
    def __init__(self, value: object) -> None:
        self.data = json.dumps(value)


def through(kind: type, value: object) -> object:
    """``value`` read and written again by the SDK's models: fields they do not know are lost."""
    client = ApiClient()
    return client.sanitize_for_serialization(client.deserialize(Response(value), kind))


@pytest.mark.parametrize("name", CASES)
def test_the_sdk_knows_every_field(name):
    rendered = PYTORCHJOB.render(job_spec(*CASES[name]))
    assert through(KubeflowOrgV1PyTorchJob, rendered) == rendered


@pytest.mark.parametrize(
    ("text", "number"),
    [("1Gi", 2**30), ("1.5Ki", 1536), ("500M", 500_000_000), ("1e3", 1000), ("12E", 12 * 10**18), ("500m", 1)],
)
def test_quantities_are_those_of_kubernetes(text, number):
    assert whole_quantity(text) == number


@pytest.mark.parametrize("text", ["", "8 Gi", "8GB", "-1Gi", "1e", "Gi", "1KI", "0x10"])
def test_what_is_no_quantity_is_refused(text):
    with pytest.raises(ValueError, match="quantity") as refused:
        parse_quantity(text)
    assert repr(text) in str(refused.value)


def test_a_placement_reports_all_faults_at_once():
    with pytest.raises(InvalidInput) as caught:
        Placement(
            image="i:1",
            cpu=0,
            memory="8GB",
            gpu=-1,
            grace_seconds=True,
            environment={
                "a-b": "x",
                "PET_NNODES": "3",
                "TRAIN_FUNC_WEBHOOK": "https://chat.example/hooks/1",
                "API_KEY": "0123456789abcdef",
            },
        )
    given = "cpu=0", "gpu=-1", "grace_seconds=True", "memory='8GB'"
    variables = (
        "environment['a-b']",
        "environment['PET_NNODES']",
        "environment['TRAIN_FUNC_WEBHOOK']",
        "environment['API_KEY']",
    )
    assert tuple(fault.split(":")[0] for fault in caught.value.faults) == (*given, *variables)
    assert unnamed(caught.value.faults[0], "0.01", 1024, "'500m'") == []
    assert all("SecretKey(secret=..., key=...)" in fault for fault in caught.value.faults[-2:])
