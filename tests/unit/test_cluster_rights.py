"""The rights that are asked for, printed and documented are the same ones."""

from pathlib import Path

import pytest
import yaml

from train_func.client.cluster import rights
from train_func.client.cluster.rights import Right
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


def test_the_rules_are_those_of_the_file_that_is_applied():
    documents = yaml.safe_load_all(RBAC.read_text())
    role = next(document for document in documents if document["kind"] == "Role")
    assert role["metadata"]["name"] == rights.ROLE
    assert flat(role["rules"]) == flat(yaml.safe_load(rights.role("lab"))["rules"])


def test_the_printed_role_is_a_role_of_the_namespace():
    role = yaml.safe_load(rights.role("lab"))
    assert (role["kind"], role["metadata"]) == ("Role", {"name": rights.ROLE, "namespace": "lab"})
    assert rights.role("lab").splitlines()[0] in rights.remedy("lab")


def test_neither_secrets_nor_programs_in_pods_are_asked_for():
    resources = {resource for rule in rights.rules() for resource in rule.resources}
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
