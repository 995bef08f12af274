"""The preflight asks what it may ask, tells all that is missing at once, and says what it could not look at."""

import json
from pathlib import Path

import pytest
import yaml

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from tests.messages import unnamed
from train_func import InvalidInput, Run
from train_func.client.backend import provisional
from train_func.client.cluster import preflight, rights
from train_func.client.cluster.kubeconfig import connect
from train_func.client.cluster.rights import Right
from train_func.client.diagnose.starting import judge
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.placement import Placement

RECORDED = Path(__file__).parents[1] / "recorded"
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

        def check(api, manifest=MANIFEST, **options):
            server.answer = api
            return preflight.check(connect(), manifest, **options)

        yield check


ALL = ("get", "list", "watch", "create", "delete", "patch")


class WithClaims(Api):
    """Has claims, by their names, with their access modes."""

    def __init__(self, **modes):
        super().__init__(*ALL)
        self.modes = modes

    def __call__(self, asked):
        if "/persistentvolumeclaims/" not in asked.path:
            return super().__call__(asked)
        modes = self.modes.get(asked.path.rpartition("/")[2])
        if modes is None:
            return Answer(404, {"kind": "Status", "reason": "NotFound", "message": "not found", "code": 404})
        return Answer(body={"kind": "PersistentVolumeClaim", "spec": {"accessModes": modes}})


def mounting(workers):
    """The manifest of a run that reads claims, and keeps its cache in another."""
    run = Run(workers=workers, inputs={"a": "pvc://reviews/2026", "b": "pvc://pictures", "c": "pvc://reviews/2025"})
    placement = Placement(image="registry/image:1", cpu=1, cache="shared")
    return PYTORCHJOB.render(provisional(run, "s3://bucket"), placement, ("run.json",))


def test_missing_rights_are_named_together_with_the_role_that_grants_them(checked):
    with pytest.raises(InvalidInput) as caught:
        checked(Api("get", "list", "watch"), also=["image: none is given"])
    assert caught.value.cause == "input"  # of the first fault
    also, missing = caught.value.faults
    assert also.startswith("image: ")
    for group, resource in (("", "configmaps"), ("kubeflow.org", "pytorchjobs")):
        assert rights.worded([Right(group, resource, verb) for verb in ("create", "delete", "patch")]) in missing
    role = yaml.safe_load(missing[missing.index("apiVersion:") :])
    told = {(r["apiGroups"][0], r["resources"][0], verb) for r in role["rules"] for verb in r["verbs"]}
    assert told == {(right.group, right.resource, right.verb) for right in rights.needed(PYTORCHJOB)}
    assert role["metadata"]["namespace"] == "here"


def test_what_may_not_be_looked_at_is_said_once_and_refuses_nothing(checked):
    (note,) = checked(Api(*ALL))
    assert unnamed(note, "quotas", "Secrets") == []
    assert checked(Api(*ALL)) == []


def test_a_job_that_none_of_the_nodes_of_now_could_hold_is_let_pass(checked):
    """Something may add nodes that the account does not see; the scheduler says the rest."""

    class Small(Api):
        def __call__(self, asked):
            if asked.path == "/api/v1/nodes":
                status = {"allocatable": {"cpu": "100m", "memory": "1Mi", "pods": "0"}}
                return Answer(body={"items": [{"metadata": {"name": "small"}, "spec": {}, "status": status}]})
            return super().__call__(asked)

    assert [note for note in checked(Small(*ALL)) if "small" in note] == []


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


@pytest.mark.parametrize("case", ["limit_range", "pod_security", "service_account_missing", "priority_class_missing"])
def test_a_pod_that_the_cluster_would_not_admit_is_tried_first(checked, case):
    class Refusing(Api):
        def __call__(self, asked):
            if asked.method == "POST" and asked.path == "/api/v1/namespaces/here/pods?dryRun=All":
                self.tried = json.loads(asked.body)
                return Answer(403, {"kind": "Status", "message": words, "code": 403})
            return super().__call__(asked)

    events = json.loads((RECORDED / f"{case}.json").read_text())["events"]
    words = next(e["message"] for e in events if "Error creating" in e["message"]).removeprefix("Error creating: ")
    with pytest.raises(InvalidInput) as caught:
        checked(api := Refusing(*ALL))
    (fault,) = caught.value.faults
    assert words.partition("forbidden: ")[2] in fault
    assert caught.value.cause == judge(words, 1).cause
    assert api.tried["spec"]["containers"][0]["image"] == "registry/image:1"


def test_every_claim_that_cannot_be_mounted_is_named_once(checked):
    with pytest.raises(InvalidInput) as caught:
        checked(WithClaims(pictures=["ReadWriteOncePod"]), mounting(workers=2))
    assert caught.value.cause == "input"
    assert sorted(fault.split("'")[1] for fault in caught.value.faults) == ["pictures", "reviews", "shared"]


def test_a_claim_of_one_node_is_told_of_where_there_are_several_workers(checked):
    modes = {"reviews": ["ReadOnlyMany"], "pictures": ["ReadWriteOnce", "ReadOnlyMany"], "shared": ["ReadWriteOnce"]}
    told = [note for note in checked(WithClaims(**modes), mounting(workers=2)) if "claim" in note]
    assert [note.split("'")[1] for note in told] == ["shared"]
    assert [note for note in checked(WithClaims(**modes), mounting(workers=1)) if "ReadWriteOnce" in note] == []
