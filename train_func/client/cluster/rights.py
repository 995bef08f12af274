"""What a notebook may do in its namespace: the rules of infra/rbac.yaml, asked for, missed and printed from here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from train_func.client.kinds import KINDS, Kind

ROLE = "train-func-notebook"
FILE = "infra/rbac.yaml"


@dataclass(frozen=True)
class Rule:
    """Verbs on resources of one API group."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    needed: bool = True
    """Whether nothing works without it; the others only let preflight say more."""


_RULES = (
    Rule("", ("configmaps",), ("get", "list", "create", "delete", "patch")),
    Rule("", ("pods",), ("get", "list", "watch")),
    Rule("", ("pods/log",), ("get",)),
    Rule("", ("events",), ("get", "list", "watch")),
    Rule("", ("resourcequotas", "limitranges"), ("get", "list"), needed=False),
    Rule("", ("namespaces",), ("get",), needed=False),
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
    return [
        Right(rule.group, resource, verb)
        for rule in (*_jobs(kind), *_RULES)
        if rule.needed
        for resource in rule.resources
        for verb in rule.verbs
    ]


def rules() -> list[Rule]:
    """All rules, for jobs of all kinds."""
    return [*(rule for kind in KINDS.values() for rule in _jobs(kind)), *_RULES]


def _jobs(kind: Kind) -> tuple[Rule, Rule]:
    verbs = ("get", "list", "watch", "create", "delete", "patch")
    return Rule(kind.group, (kind.plural,), verbs), Rule(kind.group, (f"{kind.plural}/status",), ("get",))


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


def role(namespace: str) -> str:
    """The Role with all rules, as YAML for ``kubectl apply``."""
    lines = [
        "apiVersion: rbac.authorization.k8s.io/v1",
        "kind: Role",
        f"metadata: {{name: {ROLE}, namespace: {namespace}}}",
        "rules:",
    ]
    for rule in rules():
        group = rule.group or '""'
        lines.append(
            f"  - {{apiGroups: [{group}], resources: [{', '.join(rule.resources)}], verbs: [{', '.join(rule.verbs)}]}}"
        )
    return "\n".join(lines)


def remedy(namespace: str) -> str:
    """What the administrator of the namespace has to apply, Role and all."""
    shown = "\n".join(f"      {line}" for line in role(namespace).splitlines())
    return (
        f"have this Role applied and bound to who submits ({FILE} holds it with a ServiceAccount and the binding: "
        f"kubectl apply -n {namespace} -f {FILE}):\n{shown}"
    )
