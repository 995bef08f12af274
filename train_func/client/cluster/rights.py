"""What a notebook may do in its namespace: the rights of infra/rbac.yaml without which no job runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from train_func.client.kinds import Kind

FILE = "infra/rbac.yaml"


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


def remedy(namespace: str) -> str:
    """What the administrator of the namespace has to apply."""
    return f"have {FILE} of train_func applied and bound to who submits: kubectl apply -n {namespace} -f {FILE}"
