"""What a notebook may do in its namespace: the rights of infra/rbac.yaml without which no job runs."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from train_func.client.kinds import Kind

ROLE = "train-func-notebook"

_READ = ("get", "list", "watch")
_RIGHTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("configmaps", ("get", "list", "create", "delete", "patch")),
    ("pods", _READ),
    ("pods/log", ("get",)),
    ("events", _READ),
)


@dataclass(frozen=True)
class Right:
    """One verb on one resource."""

    group: str
    resource: str
    verb: str

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f".{self.group}" if self.group else "")


def needed(kind: Kind) -> list[Right]:
    """All rights without which a job of that kind cannot be submitted and followed."""
    jobs = [Right(kind.group, kind.plural, verb) for verb in (*_READ, "create", "delete", "patch")]
    others = [Right("", resource, verb) for resource, verbs in _RIGHTS for verb in verbs]
    return [*jobs, Right(kind.group, f"{kind.plural}/status", "get"), *others]


def granted(right: Right, reviewed: Iterable[Mapping[str, Any]]) -> bool:
    """Whether the resource rules of a SelfSubjectRulesReview hold ``right``; rules for single names do not count."""
    return any(
        {right.verb, "*"} & set(rule.get("verbs") or ())
        and {right.group, "*"} & set(rule.get("apiGroups") or ())
        and {right.resource, "*", f"*/{right.resource.partition('/')[2]}"} & set(rule.get("resources") or ())
        and not rule.get("resourceNames")
        for rule in reviewed
    )


def worded(missing: Iterable[Right]) -> str:
    """Rights with the verbs of a resource together: ``create, delete configmaps; get pods``."""
    verbs: dict[str, list[str]] = {}
    for right in missing:
        resource = str(right).partition(" ")[2]
        verbs.setdefault(resource, []).append(right.verb)
    return "; ".join(f"{', '.join(found)} {resource}" for resource, found in verbs.items())


def remedy(kind: Kind, namespace: str) -> str:
    """What the administrator of the namespace has to apply: an installed client has no file of it."""
    verbs: dict[tuple[str, str], list[str]] = {}
    for right in needed(kind):
        verbs.setdefault((right.group, right.resource), []).append(right.verb)
    rules = [
        f"- {{apiGroups: [{json.dumps(group)}], resources: [{resource}], verbs: [{', '.join(found)}]}}"
        for (group, resource), found in verbs.items()
    ]
    bind = f"kubectl create rolebinding {ROLE} -n {namespace} --role={ROLE} --user=NAME"
    told = f"have this Role applied with `kubectl apply -f FILE`, and bound to who submits: `{bind}`"
    head = f"apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: {ROLE}, namespace: {namespace}}}"
    return "\n".join([f"{told}:", head, "rules:", *rules])
