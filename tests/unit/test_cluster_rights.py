"""The rights that are asked for are those of the file that is applied."""

from pathlib import Path

import pytest
import yaml

from train_func.client.cluster import rights
from train_func.client.cluster.rights import Right
from train_func.client.kinds import KINDS
from train_func.client.kinds.pytorchjob import PYTORCHJOB
from train_func.client.kinds.trainjob import TRAINJOB

RBAC = Path(__file__).parents[2] / "infra" / "rbac.yaml"


def flat(rules) -> set[tuple[str, str, str]]:
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


# What preflight asks where it may, to say more, and what a diagnosis tells the user to look at.
BESIDE = {
    ("", resource, verb)
    for resource, verbs in {
        "resourcequotas": ("get", "list"),
        "limitranges": ("get", "list"),
        "namespaces": ("get",),
        "persistentvolumeclaims": ("get",),
    }.items()
    for verb in verbs
}


def test_the_file_that_is_applied_holds_what_is_needed_and_little_more():
    documents = yaml.safe_load_all(RBAC.read_text())
    role = next(document for document in documents if document["kind"] == "Role")
    needed = {(right.group, right.resource, right.verb) for kind in KINDS.values() for right in rights.needed(kind)}
    assert flat(role["rules"]) == needed | BESIDE


def test_neither_secrets_nor_programs_in_pods_are_asked_for():
    resources = {right.resource for kind in KINDS.values() for right in rights.needed(kind)}
    assert not resources & {"secrets", "pods/exec", "roles", "rolebindings"}


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}, True),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"]}, True),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["*/log"]}, True),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}, False),
        ({"verbs": ["list"], "apiGroups": [""], "resources": ["pods/log"]}, False),
        ({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["pods/log"]}, False),
        ({"verbs": ["get"], "apiGroups": [""], "resources": ["pods/log"], "resourceNames": ["one"]}, False),
        ({"verbs": ["get"], "nonResourceURLs": ["/version"]}, False),
    ],
)
def test_a_right_is_held_only_by_a_rule_for_its_verb_group_and_resource(rule, holds):
    assert rights.granted(Right("", "pods/log", "get"), [rule]) is holds


def test_missing_rights_are_worded_per_resource():
    missing = [Right("kubeflow.org", "pytorchjobs", "create"), Right("", "pods", "get"), Right("", "pods", "list")]
    assert rights.worded(missing) == "create pytorchjobs.kubeflow.org; get, list pods"


def test_a_job_of_one_kind_needs_no_rights_for_jobs_of_another():
    assert {right.group for right in rights.needed(PYTORCHJOB)} == {"", "kubeflow.org"}
    assert {right.group for right in rights.needed(TRAINJOB)} == {"", "trainer.kubeflow.org"}
