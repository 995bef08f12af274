"""What a namespace's quotas leave of a job."""

import pytest

from tests.messages import unnamed
from train_func.client.cluster import quota
from train_func.client.kinds.kind import Workers
from train_func.client.kinds.pytorchjob import PYTORCHJOB


def asked(workers=2, cpu="2", memory="4Gi", gpu=None):
    amounts = {"cpu": cpu, "memory": memory, **({"nvidia.com/gpu": gpu} if gpu else {})}
    container = {"name": "pytorch", "resources": {"requests": amounts, "limits": amounts}}
    return Workers(workers, {"metadata": {}, "spec": {"containers": [container], "activeDeadlineSeconds": 60}})


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
    assert found.cause == "quota"


def test_a_quota_that_others_have_used_up_may_fit_later():
    (found,) = excesses(asked(), [a_quota({"requests.cpu": "5"}, {"requests.cpu": "2"})])
    assert isinstance(found, str)
    assert unnamed(found, "asks for 4", "2 is used") == []


@pytest.mark.parametrize(
    "hard", [{"requests.cpu": "4"}, {"secrets": "0"}, {"requests.storage": "0"}, {"limits.ephemeral-storage": "0"}]
)
def test_a_quota_that_fits_or_counts_something_else_is_no_finding(hard):
    assert excesses(asked(), [a_quota(hard)]) == []


@pytest.mark.parametrize("spec", [{"scopes": ["Terminating"]}, {"scopeSelector": {"matchExpressions": []}}])
def test_a_quota_that_may_be_meant_for_other_pods_is_no_finding(spec):
    fits_none = a_quota({"pods": "1"})
    assert excesses(asked(), [fits_none])
    fits_none["spec"].update(spec)
    assert excesses(asked(), [fits_none]) == []
