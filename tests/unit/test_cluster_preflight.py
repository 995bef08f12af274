"""The preflight asks what it may ask, tells all that is missing at once, and says what it could not look at."""

import json

import pytest

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from train_func import InvalidInput, Run
from train_func.client.backend import provisional
from train_func.client.cluster import preflight
from train_func.client.cluster.kubeconfig import connect
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.placement import Placement

PLACEMENT = Placement(image="registry/image:1", cpu=1)
MANIFEST = PYTORCHJOB.render(provisional(Run(), "s3://bucket"), PLACEMENT, ("run.json",))
SERVED = {"groups": [{"name": "kubeflow.org", "versions": [{"version": "v1"}]}]}


class Api:
    """Serves PyTorchJobs; of the rights that are asked for one by one it grants those to the verbs in ``granted``."""

    def __init__(self, *granted):
        self.granted = granted

    def __call__(self, asked):
        if asked.path == "/apis":
            return Answer(body=SERVED)
        if asked.path == "/apis/kubeflow.org/v1":
            return Answer(body={"resources": [{"name": "pytorchjobs"}]})
        if asked.path.endswith("/selfsubjectrulesreviews"):
            return Answer(201, {"status": {"resourceRules": []}})
        if asked.path.endswith("/selfsubjectaccessreviews"):
            right = json.loads(asked.body)["spec"]["resourceAttributes"]
            return Answer(201, {"status": {"allowed": right["verb"] in self.granted}})
        return Answer(403, {"kind": "Status", "message": "user cannot list resource here", "code": 403})


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """What the preflight says to the answers of an API."""
    monkeypatch.setattr(preflight, "_told", set())
    with running(server := ApiServer()):
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))

        def check(api, **options):
            server.answer = api
            return preflight.check(connect(), MANIFEST, **options)

        yield check


ALL = ("get", "list", "watch", "create", "delete", "patch")


def test_missing_rights_are_named_together_with_the_role_that_grants_them(checked):
    with pytest.raises(InvalidInput) as caught:
        checked(Api("get", "list", "watch"), also=["image: none is given"])
    assert caught.value.cause == "input"  # of the first fault
    assert "create, delete, patch configmaps" in str(caught.value)
    assert "create, delete, patch pytorchjobs.kubeflow.org" in str(caught.value)
    assert "kind: Role" in str(caught.value)
    assert "image: none is given" in str(caught.value)


def test_what_may_not_be_looked_at_is_said_once_and_refuses_nothing(checked):
    (note,) = checked(Api(*ALL))
    assert all(unknown in note for unknown in ("its quotas", "its limit ranges", "whether a node could hold a worker"))
    assert checked(Api(*ALL)) == []


def test_what_several_checks_find_is_told_by_the_one_that_tells_it_best(checked):
    class Full(Api):
        def __call__(self, asked):
            quota = {"hard": {"pods": "0"}, "used": {"pods": "0"}}
            if asked.path.endswith("/resourcequotas"):
                item = {"metadata": {"name": "small"}, "spec": {"hard": quota["hard"]}, "status": quota}
                return Answer(body={"items": [item]})
            if asked.method == "POST" and "/pytorchjobs" in asked.path:
                return Answer(403, {"kind": "Status", "message": "exceeded quota: small", "code": 403})
            return super().__call__(asked)

    with pytest.raises(InvalidInput) as caught:
        checked(Full(*ALL))
    assert (caught.value.cause, len(caught.value.faults)) == ("quota", 1)
