"""What a namespace's quotas and limit ranges leave of a job."""

import pytest

from train_func.client.cluster import quota
from train_func.client.kinds.kind import Workers
from train_func.client.kinds.pytorchjob import PYTORCHJOB


def asked(workers=2, cpu="2", memory="4Gi", priority=None, gpu=None):
    amounts = {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": gpu} if gpu else {})}
    container = {"name": "pytorch", "resources": {"requests": amounts, "limits": amounts}}
    pod = {"containers": [container], "activeDeadlineSeconds": 60}
    if priority:
        pod["priorityClassName"] = priority
    return Workers(workers, {"metadata": {}, "spec": pod})


def excesses(workers, quotas):
    return quota.excesses(workers, PYTORCHJOB.num_objects(workers.num), quotas)


def a_quota(hard, used=None, **spec):
    return {"metadata": {"name": "team"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        ({"requests.cpu": "3"}, "allows 3 requests.cpu; the job asks for 4"),
        ({"cpu": "3500m"}, "allows 3.5 cpu; the job asks for 4"),
        ({"limits.memory": "7Gi"}, "allows 7Gi limits.memory; the job asks for 8Gi"),
        ({"requests.nvidia.com/gpu": "1"}, "allows 1 requests.nvidia.com/gpu; the job asks for 2"),
        ({"pods": "1"}, "allows 1 pods; the job asks for 2"),
        ({"count/services": "1"}, "allows 1 count/services; the job asks for 2"),
        ({"count/pytorchjobs.kubeflow.org": "0"}, "allows 0 count/pytorchjobs.kubeflow.org; the job asks for 1"),
    ],
)
def test_a_quota_that_never_fits_is_told_with_what_it_allows(hard, words):
    (found,) = excesses(asked(gpu="1"), [a_quota(hard)])
    assert words in found.message
    assert "'team'" in found.message
    assert found.ever


def test_a_quota_that_others_have_used_up_may_fit_later():
    (found,) = excesses(asked(), [a_quota({"requests.cpu": "5"}, {"requests.cpu": "2"})])
    assert not found.ever
    assert "the job asks for 4 and 2 is used now" in found.message


@pytest.mark.parametrize(
    "hard", [{"requests.cpu": "4"}, {"secrets": "0"}, {"requests.storage": "0"}, {"limits.ephemeral-storage": "0"}]
)
def test_a_quota_that_fits_or_counts_something_else_is_no_finding(hard):
    assert excesses(asked(), [a_quota(hard)]) == []


@pytest.mark.parametrize(
    ("spec", "concerned"),
    [
        ({"scopes": ["Terminating"]}, True),
        ({"scopes": ["NotTerminating"]}, False),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopeSelector": {"matchExpressions": [select := {"scopeName": "PriorityClass", "operator": "In"}]}}, False),
        ({"scopeSelector": {"matchExpressions": [{**select, "values": ["low"]}]}}, True),
        ({"scopeSelector": {"matchExpressions": [{**select, "operator": "Exists"}]}}, True),
        ({"scopeSelector": {"matchExpressions": [{**select, "operator": "NotIn", "values": ["low"]}]}}, False),
    ],
)
def test_only_a_quota_whose_scopes_take_the_workers_in_counts(spec, concerned):
    found = excesses(asked(priority="low"), [a_quota({"pods": "1"}, **spec)])
    assert bool(found) is concerned


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ({"type": "Container", "max": {"memory": "2Gi"}}, "each container at most 2Gi memory; a worker asks for 4Gi"),
        ({"type": "Pod", "max": {"cpu": "1"}}, "each pod at most 1 cpu; a worker asks for 2"),
        ({"type": "Container", "min": {"cpu": "4"}}, "each container at least 4 cpu; a worker asks for 2"),
    ],
)
def test_a_worker_outside_a_limit_range_is_told_the_bound(limit, words):
    (told,) = quota.outside(asked(), [{"metadata": {"name": "lim"}, "spec": {"limits": [limit]}}])
    assert words in told


def test_a_worker_inside_a_limit_range_is_no_finding():
    limits = [
        {"type": "Container", "max": {"memory": "4Gi", "ephemeral-storage": "1Gi"}, "default": {"cpu": "1"}},
        {"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}},
    ]
    assert quota.outside(asked(), [{"metadata": {"name": "lim"}, "spec": {"limits": limits}}]) == []
