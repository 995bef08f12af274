"""The preflight asks what it may ask, tells all that is missing at once, and says what it could not look at."""

import json
from pathlib import Path

import pytest
import yaml

from tests.api_servers import Answer, ApiServer, running, write_kubeconfig
from tests.messages import unnamed
from train_func import InvalidInput, Run
from train_func.client.backend import provisional
from train_func.client.cluster import admission, api_errors
from train_func.client.cluster.kubeconfig import connect
from train_func.client.diagnose.reasons import judge
from train_func.client.kinds import KINDS
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.placement import Placement, job_spec

RECORDED = Path(__file__).parents[1] / "recorded"
TWO_WORKERS = job_spec(
    provisional(Run(workers=2), "s3://bucket"), Placement(image="registry/image:1", cpu=2, memory="4Gi", gpu=1)
)
ONE_WORKER = job_spec(provisional(Run(), "s3://bucket"), Placement(image="registry/image:1", cpu=1))
RBAC = yaml.safe_load_all((Path(__file__).parents[2] / "infra" / "rbac.yaml").read_text())
FORBIDDEN = 'user "me" cannot get resource "things" here'
ALL = ("get", "list", "create", "delete")


class Api:
    """Takes the job; of the rights it grants those to the verbs in ``granted``; the rest may not be looked at."""

    def __init__(self, *granted, **answers):
        self.granted = granted
        self.answers = answers
        """By the last part of a path: of a list, what is in it; a text refuses."""

    def __call__(self, asked):
        path, _, query = asked.path.partition("?")
        name = path.rpartition("/")[2]
        if name in self.answers:
            answer = self.answers[name]
            return refusal(answer) if isinstance(answer, str) else Answer(body=answer)
        if name == "selfsubjectaccessreviews":
            right = json.loads(asked.body)["spec"]["resourceAttributes"]
            return Answer(201, {"status": {"allowed": right["verb"] in self.granted}})
        if path.endswith("/pytorchjobs") and query == "dryRun=All":
            return Answer(201, json.loads(asked.body))
        return refusal(FORBIDDEN)


def refusal(message, status=403):
    return Answer(status, {"kind": "Status", "message": message, "code": status})


@pytest.fixture
def checked(tmp_path, monkeypatch):
    """What the preflight says to the answers of an API."""
    with running(server := ApiServer()):
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", {"server": server.url})))

        def check(api, spec=ONE_WORKER, **options):
            server.answer = api
            return admission.check(connect(), spec, **options)

        yield check


def flat(rules):
    return {(r["apiGroups"][0], name, verb) for r in rules for name in r["resources"] for verb in r["verbs"]}


def test_missing_rights_are_named_together_with_the_role_that_grants_them(checked):
    with pytest.raises(InvalidInput) as caught:
        checked(Api("get", "list"), also=["image: none is given"])
    assert caught.value.cause == "input"  # of the first fault
    also, missing = caught.value.faults
    assert also.startswith("image: ")
    assert "you may not create, delete pytorchjobs.kubeflow.org;" in missing
    role = yaml.safe_load(missing[missing.index("apiVersion:") :])
    needed = {(*of, verb) for of, verbs in api_errors.rights(PYTORCHJOB).items() for verb in verbs}
    assert flat(role["rules"]) == needed
    assert role["metadata"]["namespace"] == "here"


def test_the_role_that_is_installed_holds_what_is_needed_and_leads_to_no_secret():
    rules = flat(next(document for document in RBAC if document["kind"] == "Role")["rules"])
    needed = {(*of, verb) for kind in KINDS.values() for of, verbs in api_errors.rights(kind).items() for verb in verbs}
    assert needed < rules
    assert not {name for _, name, _ in rules} & {"secrets", "pods/exec", "roles", "rolebindings"}
    assert not {verb for _, name, verb in rules if name == "pods"} & {"create", "patch", "delete"}


def test_what_may_not_be_looked_at_is_said_where_it_is_asked_for_and_refuses_nothing(checked):
    (note,) = checked(Api(*ALL))
    assert unnamed(note, "quotas", "Secrets") == []
    assert checked(Api(*ALL), tells_unknown=False) == []


def test_a_namespace_that_is_not_there_is_all_that_is_asked_about(checked):
    class Empty(Api):
        def __call__(self, asked):
            return refusal('namespaces "here" not found', 404)

    with pytest.raises(InvalidInput) as caught:
        checked(Empty())
    (fault,) = caught.value.faults
    assert fault.startswith("namespace='here'")


def test_an_operator_of_another_kind_is_named(checked):
    class Other(Api):
        def __call__(self, asked):
            if "/pytorchjobs" in asked.path:
                return Answer(404, b"404 page not found")
            return super().__call__(asked)

    groups = {"groups": [{"name": "trainer.kubeflow.org", "versions": [{"version": "v1alpha1"}]}]}
    with pytest.raises(InvalidInput) as caught:
        checked(Other(*ALL, apis=groups))
    assert caught.value.cause == "cluster"
    assert unnamed(caught.value, "Training Operator is not installed", "Cluster(kind='TrainJob')") == []


def quota(hard, used=None, **spec):
    return {"metadata": {"name": "team"}, "spec": {"hard": hard, **spec}, "status": {"hard": hard, "used": used or {}}}


def on_quotas(*quotas):
    return Api(*ALL, resourcequotas={"items": list(quotas)})


@pytest.mark.parametrize(
    ("hard", "words"),
    [
        ({"requests.cpu": "3"}, "allows 3 requests.cpu; the job asks for 2 x 2:"),
        ({"cpu": "3500m"}, "allows 3500m cpu; the job asks for 2 x 2:"),
        ({"limits.memory": "7Gi"}, "allows 7Gi limits.memory; the job asks for 2 x 4Gi:"),
        ({"requests.nvidia.com/gpu": "1"}, "allows 1 requests.nvidia.com/gpu; the job asks for 2 x 1:"),
        ({"pods": "1"}, "allows 1 pods; the job asks for 2:"),
        ({"count/services": "1"}, "allows 1 count/services; the job asks for 2:"),
        ({"count/pytorchjobs.kubeflow.org": "0"}, "allows 0 count/pytorchjobs.kubeflow.org; the job asks for 1:"),
    ],
)
def test_a_quota_that_never_holds_the_job_is_told_with_what_it_allows(checked, hard, words):
    with pytest.raises(InvalidInput) as caught:
        checked(on_quotas(quota(hard)), TWO_WORKERS)
    (fault,) = caught.value.faults
    assert caught.value.cause == "quota"
    assert unnamed(fault, "'team'", words) == []


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (quota({"requests.cpu": "5"}, {"requests.cpu": "2"}), ["asks for 2 x 2", "2 is used now"]),
        (quota({"requests.cpu": "4"}), []),
        (quota({"secrets": "0", "requests.storage": "0", "limits.ephemeral-storage": "0"}), []),
        (quota({"pods": "1"}, scopes=["Terminating"]), []),
        (quota({"pods": "1"}, scopeSelector={"matchExpressions": []}), []),
    ],
)
def test_a_quota_refuses_no_job_that_it_could_hold_one_day(checked, found, words):
    told = [note for note in checked(on_quotas(found), TWO_WORKERS) if "quota '" in note]
    assert len(told) == bool(words)
    assert unnamed(str(told), *words) == []


def test_a_quota_that_the_job_itself_is_refused_for_is_told_once(checked):
    api = on_quotas(quota({"pods": "0"}))
    api.answers["pytorchjobs"] = "exceeded quota: team, requested: pods=1, used: pods=0, limited: pods=0"
    with pytest.raises(InvalidInput) as caught:
        checked(api)
    assert (caught.value.cause, len(caught.value.faults)) == ("quota", 1)


@pytest.mark.parametrize("case", ["limit_range", "pod_security", "service_account_missing", "priority_class_missing"])
def test_a_pod_that_the_cluster_would_not_admit_is_tried_first(checked, case):
    events = json.loads((RECORDED / f"{case}.json").read_text())["events"]
    words = next(e["message"] for e in events if "Error creating" in e["message"]).removeprefix("Error creating: ")
    with pytest.raises(InvalidInput) as caught:
        checked(Api(*ALL, pods=words))
    (fault,) = caught.value.faults
    assert words.partition("forbidden: ")[2] in fault
    assert caught.value.cause == judge(words).cause


def test_a_pod_that_may_be_admitted_later_refuses_nothing(checked):
    (note, *_) = checked(Api(*ALL, pods='pods "a" is forbidden: the node group grows'))
    assert "the node group grows" in note


def claim(*modes):
    return {"kind": "PersistentVolumeClaim", "spec": {"accessModes": list(modes)}}


def mounting(workers):
    """The job of a run that reads claims, and keeps its cache in another."""
    run = Run(workers=workers, inputs={"a": "pvc://reviews/2026", "b": "pvc://pictures", "c": "pvc://reviews/2025"})
    placement = Placement(image="registry/image:1", cpu=1, cache="shared")
    return job_spec(provisional(run, "s3://bucket"), placement)


def test_every_claim_that_cannot_be_mounted_is_named_once(checked):
    class WithoutOthers(Api):
        def __call__(self, asked):
            is_other = "/persistentvolumeclaims/" in asked.path and not asked.path.endswith("pictures")
            return refusal("not found", 404) if is_other else super().__call__(asked)

    with pytest.raises(InvalidInput) as caught:
        checked(WithoutOthers(*ALL, pictures=claim("ReadWriteOncePod")), mounting(workers=2))
    assert caught.value.cause == "input"
    assert sorted(fault.split("'")[1] for fault in caught.value.faults) == ["pictures", "reviews", "shared"]


def test_a_claim_of_one_node_is_told_of_where_there_are_several_workers(checked):
    held = {"reviews": ["ReadOnlyMany"], "pictures": ["ReadWriteOnce", "ReadOnlyMany"], "shared": ["ReadWriteOnce"]}
    api = Api(*ALL, **{name: claim(*modes) for name, modes in held.items()})
    told = [note for note in checked(api, mounting(workers=2)) if "claim" in note]
    assert [note.split("'")[1] for note in told] == ["shared"]
    assert [note for note in checked(api, mounting(workers=1)) if "ReadWriteOnce" in note] == []
