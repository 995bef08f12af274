"""What a notebook's account can do, by trying: enough for jobs, and neither Secrets nor programs in pods nor rights."""

import json
import re

import pytest

from tests.cluster.kubectl import Kubectl

ALLOWED = {
    "pytorchjobs.kubeflow.org": ("get", "list", "watch", "create", "delete", "patch"),
    "trainjobs.trainer.kubeflow.org": ("get", "list", "watch", "create", "delete", "patch"),
    "pods": ("get", "list", "watch"),
    "pods/log": ("get",),
    "events": ("list",),
    "resourcequotas": ("list",),
    "persistentvolumeclaims": ("get",),
}
# What every authenticated user of the cluster may ask: about itself.
OF_EVERYBODY = {"selfsubjectaccessreviews", "selfsubjectrulesreviews", "selfsubjectreviews"}


def rules(user: Kubectl) -> list[dict]:
    """What the API server itself says that ``user`` may do in its namespace."""
    question = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": user.namespace},
    }
    answer = user("create", "--validate=false", "--filename=-", "--output=json", given=json.dumps(question))
    return json.loads(answer)["status"]["resourceRules"]


def test_the_account_may_do_what_jobs_need_and_nothing_else(notebook):
    granted = {
        (resource, verb)
        for rule in rules(notebook)
        for group in rule["apiGroups"]
        for name in rule["resources"]
        for resource in [re.sub("^(pytorchjobs|trainjobs)", rf"\1.{group}", name)]
        for verb in rule["verbs"]
        if name.split(".")[0] not in OF_EVERYBODY
    }
    wanted = {(resource, verb) for resource, verbs in ALLOWED.items() for verb in verbs} | {("namespaces", "get")}
    assert granted == wanted


@pytest.mark.parametrize(
    "attempt",
    [
        ("get", "secret", "myminio"),
        ("exec", "deployment/myminio", "--", "env"),
        ("create", "rolebinding", "all", "--clusterrole=admin", "--serviceaccount=default:default"),
        ("get", "namespaces"),
        ("get", "namespace", "default"),
        ("get", "nodes"),
        ("get", "pytorchjobs", "--all-namespaces"),
        ("get", "pods", "--namespace=kube-system"),
        ("get", "pytorchjobs", "--namespace=default"),
    ],
    ids=" ".join,
)
def test_what_it_must_not_do_is_forbidden(notebook, attempt):
    done = notebook.run(*attempt)
    assert done.returncode != 0
    assert "forbidden" in done.stderr.lower(), done.stderr


def test_a_training_pod_has_no_token_and_is_anonymous_to_the_api(inside_a_worker):
    assert inside_a_worker["tokens"] == []
    assert inside_a_worker["answer_of_the_api"] in (401, 403)
