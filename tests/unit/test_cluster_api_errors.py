"""What the API answers, as recorded, and what a person is told about it."""

import json

import pytest
from kubernetes.client import ApiException

from tests.messages import unnamed
from train_func.client.cluster import api_errors
from train_func.client.cluster.api_errors import Scope
from train_func.client.kinds.pytorchjob import PYTORCHJOB


def answer(status: int, message: str) -> ApiException:
    error = ApiException(status=status, reason="whatever")
    error.body = json.dumps({"kind": "Status", "message": message}) if message != "404 page not found" else message
    return error


ACCESS = Scope("lab", "context 'c' (https://host:6443)", PYTORCHJOB)
WEBHOOK = (
    'Internal error occurred: failed calling webhook "validator.pytorchjob.training-operator.kubeflow.org": failed to '
    'call webhook: Post "https://operator.svc:443/validate": dial tcp 10.96.0.7:443: connection refused'
)
ANSWERS = [
    (
        answer(403, 'pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "lab"'),
        "permission",
        ("list pods in namespace lab of context 'c'", 'User "u" cannot list', "kind: Role"),
    ),
    (
        answer(403, 'pods is forbidden: User "system:anonymous" cannot list resource "pods"'),
        "permission",
        ("no credentials",),
    ),
    (
        answer(403, 'pods "a" is forbidden: exceeded quota: q, requested: cpu=2, used: cpu=0, limited: cpu=1'),
        "quota",
        ("refused", "exceeded quota"),
    ),
    (
        answer(403, 'admission webhook "validator.pytorchjob" denied the request: spec: Required value'),
        "input",
        ("denied the request: spec: Required value",),
    ),
    (answer(403, 'pods "a" is forbidden: violates PodSecurity "restricted:latest"'), "permission", ("PodSecurity",)),
    (answer(401, "Unauthorized"), "permission", ("does not accept the credentials",)),
    (
        answer(404, "404 page not found"),
        "cluster",
        ("Training Operator is not installed", "kubectl apply --server-side"),
    ),
    (answer(404, 'namespaces "lab" not found'), "input", ("has no such namespace",)),
    (answer(409, 'pytorchjobs.kubeflow.org "a" already exists'), "input", ("delete it first",)),
    (
        answer(422, 'PyTorchJob "a" is invalid: spec.replicas: Invalid value'),
        "input",
        ("spec.replicas: Invalid value",),
    ),
    (
        answer(500, WEBHOOK),
        "cluster",
        ("the Training Operator of context", "does not answer", "connection refused", "kubectl -n kubeflow"),
    ),
    (answer(503, "the server is currently unable"), "cluster", ("status 503",)),
]


@pytest.mark.parametrize(("error", "cause", "words"), ANSWERS, ids=lambda case: getattr(case, "status", None))
def test_an_answer_of_the_api_is_told_with_its_cause_and_what_to_do(error, cause, words):
    resource = "pods" if "pods" in api_errors.words_of(error) else "pytorchjobs"
    verb = "list" if resource == "pods" else "create"
    failure = api_errors.failed(error, verb, resource, ACCESS)
    assert failure.cause == cause
    for word in words:
        assert word in str(failure)


POLICIES = [
    (422, "ValidatingAdmissionPolicy 'teams' with binding 'teams' denied request: no team label"),
    (403, 'admission webhook "validation.gatekeeper.sh" denied the request: no team label'),
]


@pytest.mark.parametrize(("status", "words"), POLICIES, ids=["policy", "webhook"])
def test_a_policy_of_the_cluster_is_told_from_a_fault_of_the_job(status, words):
    refused = answer(status, f'pytorchjobs.kubeflow.org "a" is forbidden: {words}')
    failure = api_errors.failed(refused, "create", "pytorchjobs", ACCESS)
    assert failure.cause == "permission"
    assert unnamed(failure, "no team label", "policy of this cluster") == []
