"""A scheme that an installed package registers is a store like the others, and says itself what its workers need."""

import pytest

from tests import shelf_store
from train_func.client.backend import provisional
from train_func.client.cluster.cluster import store_fault
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.local.worker import secret_values
from train_func.client.placement import Placement, job_spec
from train_func.errors import InvalidInput, StorageFailed
from train_func.run import Run
from train_func.storage import open_store, scheme_of

ADDRESSES = {"file": "file:///srv/store", "s3": "s3://bucket/runs", "shelf": "shelf://upper/runs"}


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    shelf_store.install(tmp_path, monkeypatch)
    return open_store(ADDRESSES["shelf"])


def spec_of(address, **options):
    return job_spec(provisional(Run(workers=2), address), Placement(**options))


def rendered(address, **options):
    return PYTORCHJOB.render(spec_of(address, **options))


def variables(job):
    container = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_a_scheme_that_is_not_registered_is_refused_with_those_that_are(shelf):
    with pytest.raises(StorageFailed) as caught:
        open_store("attic://upper/runs")
    assert caught.value.reason == "address"
    for example in ("file:///absolute/folder", "s3://bucket/prefix", "shelf://name/prefix"):
        assert example in str(caught.value)


@pytest.mark.parametrize(("scheme", "is_shared"), [("file", False), ("s3", True), ("shelf", True)])
def test_pods_use_a_store_that_says_other_machines_reach_it(shelf, scheme, is_shared):
    assert (store_fault(ADDRESSES[scheme]) is None) is is_shared


@pytest.mark.parametrize("scheme", ADDRESSES)
def test_workers_get_what_the_store_says_and_nothing_of_another(shelf, scheme):
    settings = scheme_of(ADDRESSES[scheme]).worker_settings(
        {"SHELF_ROOT": "/shelves", "AWS_ENDPOINT_URL": "http://minio:9000", "AWS_DEFAULT_REGION": "r"}
    )
    found = variables(rendered(ADDRESSES[scheme], image="i", cpu=1, store_secret="mine", store_settings=settings))
    own = {name: value for name, value in found.items() if name.startswith(("AWS_", "SHELF_"))}
    of_secret = {name: {"secretKeyRef": {"name": "mine", "key": key}} for name, key in KEYS[scheme].items()}
    if scheme == "s3":
        of_secret["AWS_SESSION_TOKEN"]["secretKeyRef"]["optional"] = True
    assert own == PLAIN[scheme] | of_secret


PLAIN = {
    "file": {},
    "s3": {"AWS_ENDPOINT_URL_S3": "http://minio:9000", "AWS_REGION": "r"},
    "shelf": {"SHELF_ROOT": "/shelves"},
}
KEYS = {
    "file": {},
    "s3": {
        "AWS_ACCESS_KEY_ID": "rootUser",
        "AWS_SECRET_ACCESS_KEY": "rootPassword",
        "AWS_SESSION_TOKEN": "sessionToken",
    },
    "shelf": {"SHELF_KEY": "shelfKey"},
}


def test_the_endpoint_of_the_workers_wins_over_that_of_this_process():
    found = scheme_of("s3://bucket").worker_settings({"AWS_ENDPOINT_URL_S3": "http://here:9000"}, "http://there:9000")
    assert found == {"AWS_ENDPOINT_URL_S3": "http://there:9000"}


def test_a_variable_that_a_store_reads_is_not_the_users_to_set(shelf):
    with pytest.raises(InvalidInput) as caught:
        Placement(image="i", cpu=1, environment={"SHELF_ROOT": "/", "AWS_PROFILE": "p", "OTHER": "x"})
    assert [fault.partition(":")[0] for fault in caught.value.faults] == [
        "environment['SHELF_ROOT']",
        "environment['AWS_PROFILE']",
    ]


@pytest.mark.parametrize("scheme", ADDRESSES)
def test_this_machine_takes_for_the_stores_secret_what_this_process_has(shelf, scheme):
    here = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "SHELF_KEY": "open", "HOME": "/root"}
    found = secret_values(spec_of(ADDRESSES[scheme], image="i", cpu=1), here)
    assert found == {name: here[name] for name in KEYS[scheme] if name in here}
