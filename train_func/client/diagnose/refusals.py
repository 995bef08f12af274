"""Why the cluster does not admit a worker's pod: quota, pod security, a missing account, a policy."""

import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from train_func.client import quantity
from train_func.client.diagnose.diagnosis import Diagnosis, workers
from train_func.client.status import Event, Pod
from train_func.counted import counted

_LEAD = re.compile(r'^Error creating: |\b(?:pods|Pod) "[^"]+" is (?:forbidden: )?')
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>\S+), requested: (?P<asked>\S+), used: (?P<used>\S+), limited: (?P<hard>\S+)"
)
DENIED = re.compile(r'admission webhook "[^"]+" denied the request|ValidatingAdmissionPolicy .* denied request')
POLICY = "a policy of this cluster refuses it: do what its words ask for, or have the administrator allow it"
_PASSING = ("already exists", "object has been modified", "context deadline exceeded", "etcdserver")


def refusals(pods: Sequence[Pod], events: Iterable[Event], num_workers: int) -> list[Diagnosis]:
    """Why workers have no pod; refusals of pods that exist by now are past."""
    there = {pod.worker for pod in pods if not pod.deleted}
    last: dict[int, Event] = {}
    for event in sorted(events, key=lambda event: event.time):
        if event.creation:
            last[event.worker] = event
    found: dict[Diagnosis, list[int]] = {}
    for worker, event in last.items():
        if event.creation == "made" or worker in there or any(sign in event.message for sign in _PASSING):
            continue
        found.setdefault(judge(event.message, num_workers), []).append(worker)
    return [
        Diagnosis(told.cause, f"{workers(numbers)} cannot be created: {told.message}", told.remedy, told.permanent)
        for told, numbers in found.items()
    ]


def judge(words: str, num_workers: int) -> Diagnosis:
    """What the cluster's words mean for a job of so many workers."""
    what = _LEAD.sub("", words.strip()).strip()
    what = _LEAD.sub("", what).strip()
    if found := _QUOTA.search(words):
        return _over_quota(found, num_workers)
    if "failed quota" in words:
        return Diagnosis("quota", what, "have the quota changed: it asks for what workers do not name", permanent=True)
    if "violates PodSecurity" in words:
        return Diagnosis("permission", what, _SECURITY, permanent=True)
    if "service account" in words or "serviceaccount" in words:
        return Diagnosis(
            "permission", what, "create that account, or name another: service_account=...", permanent=True
        )
    if "PriorityClass" in words:
        todo = "name one of `kubectl get priorityclasses`: priority_class=..."
        return Diagnosis("input", what, todo, permanent=True)
    if "usage per" in words:
        return Diagnosis("quota", what, "ask for what the namespace's LimitRange allows", permanent=True)
    if DENIED.search(words):
        return Diagnosis("permission", what, POLICY, permanent=True)
    if "is invalid" in words:
        return Diagnosis("input", what, "fix that option of Cluster(...)", permanent=True)
    if "being terminated" in words:
        return Diagnosis("cluster", what, "the namespace is being deleted; take another", permanent=True)
    return Diagnosis("cluster", what, "the operator goes on trying; see `kubectl get events`")


_SECURITY = (
    "what train_func renders satisfies `restricted`: something of this cluster changes its pods, or asks for more; "
    "see the words"
)


def over(asked: Mapping[str, Decimal], used: Mapping[str, Decimal], hard: Mapping[str, Decimal]) -> list[str]:
    """The resources of which more is asked for than is left."""
    return [name for name, amount in asked.items() if used.get(name, Decimal(0)) + amount > hard.get(name, amount)]


def _over_quota(found: "re.Match[str]", num_workers: int) -> Diagnosis:
    asked, used, hard = (_amounts(found[kind]) for kind in ("asked", "used", "hard"))
    names = over(asked, used, hard)
    all_of_them = {name: amount * num_workers for name, amount in asked.items()}
    never = over(all_of_them, {}, hard)
    told = "; ".join(
        f"{name}: {_raw(found['asked'], name)} asked for each of {counted(num_workers, 'worker')}, "
        f"{_raw(found['used'], name)} used, {_raw(found['hard'], name)} allowed"
        for name in dict.fromkeys([*names, *never])
    )
    what = f"quota {found['name']!r} is exceeded ({told})"
    if never:
        todo = "ask for less, or for fewer workers, or have the quota raised; all workers have to run at once"
        return Diagnosis("quota", what, todo, permanent=True)
    return Diagnosis("quota", what, "it starts when others give back what they use, or the quota is raised")


def _amounts(text: str) -> dict[str, Decimal]:
    pairs = (pair.partition("=") for pair in text.rstrip(",").split(","))
    return {name: quantity.parse(value) for name, _, value in pairs}


def _raw(text: str, name: str) -> str:
    return next(value for key, _, value in (pair.partition("=") for pair in text.rstrip(",").split(",")) if key == name)
