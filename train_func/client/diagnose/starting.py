"""Why workers do not start: the cluster refuses their pods, the pods wait, or the workers do not reach the store."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from train_func import events as events_module
from train_func.client import quantity
from train_func.client.backend import BoundJob
from train_func.client.diagnose.diagnosis import Diagnosis, create_secret, workers
from train_func.client.status import Event, Pod
from train_func.errors import Cause
from train_func.events import WaitsForStore, WorkerStarts
from train_func.text import counted

_LEAD = re.compile(r'^Error creating: |\b(?:pods|Pod) "[^"]+" is (?:forbidden: )?')
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>\S+), requested: (?P<asked>\S+), used: (?P<used>\S+), limited: (?P<hard>\S+)"
)
DENIED = re.compile(r'admission webhook "[^"]+" denied the request|ValidatingAdmissionPolicy .* denied request')
POLICY = "a policy of this cluster refuses it: do what its words ask for, or have the administrator allow it"
_SECURITY = (
    "what train_func renders satisfies `restricted`: something of this cluster changes its pods, or asks for more; "
    "see the words"
)
# Of refusals that only a change can help: words of the cluster, the cause, and the remedy; the first that fits counts.
_REFUSALS: tuple[tuple[str | re.Pattern[str], Cause, str], ...] = (
    ("failed quota", "quota", "have the quota changed: it asks for what workers do not name"),
    ("violates PodSecurity", "permission", _SECURITY),
    ("service ?account", "permission", "create that account, or name another: service_account=..."),
    ("PriorityClass", "input", "name one of `kubectl get priorityclasses`: priority_class=..."),
    ("usage per", "quota", "ask for what the namespace's LimitRange allows"),
    (DENIED, "permission", POLICY),
    ("is invalid", "input", "fix that option of Cluster(...)"),
    ("being terminated", "cluster", "the namespace is being deleted; take another"),
)
_PASSING = ("already exists", "object has been modified", "context deadline exceeded", "etcdserver")


def refusals(pods: Sequence[Pod], events: Iterable[Event], num_workers: int) -> list[Diagnosis]:
    """Why workers have no pod; a refusal is over once the pod exists."""
    there = {pod.worker for pod in pods if not pod.deleted}
    last: dict[int, Event] = {}
    for event in sorted(events, key=lambda event: event.time):
        if event.creation:  # a refusal that names no pod is one of every worker that has none
            last.update(dict.fromkeys([event.worker] if event.pod else range(num_workers), event))
    found: dict[Diagnosis, list[int]] = {}
    for worker, event in last.items():
        if event.creation == "made" or worker in there or any(sign in event.message for sign in _PASSING):
            continue
        found.setdefault(judge(event.message, num_workers), []).append(worker)
    return [
        replace(refusal, message=f"{workers(numbers)} cannot be created: {refusal.message}")
        for refusal, numbers in found.items()
    ]


def judge(words: str, num_workers: int) -> Diagnosis:
    """What the cluster's words mean for a job of ``num_workers`` workers."""
    what = _LEAD.sub("", words.strip()).strip()
    what = _LEAD.sub("", what).strip()
    if found := _QUOTA.search(words):
        return _over_quota(found, num_workers)
    for sign, cause, remedy in _REFUSALS:
        if re.search(sign, words):
            return Diagnosis(cause, what, remedy, permanent=True)
    return Diagnosis("cluster", what, "the operator tries again; see `kubectl get events`")


def _over_quota(found: "re.Match[str]", num_workers: int) -> Diagnosis:
    asked, used, hard = (_amounts(found[kind]) for kind in ("asked", "used", "hard"))

    def exceeds(name: str, times: int, in_use: str) -> bool:
        needed = quantity.parse(asked[name]) * times + quantity.parse(in_use)
        return name in hard and needed > quantity.parse(hard[name])

    short = [name for name in asked if exceeds(name, 1, used.get(name, "0"))]
    never = [name for name in asked if exceeds(name, num_workers, "0")]
    details = "; ".join(
        f"{name}: {asked[name]} asked for each of {counted(num_workers, 'worker')}, "
        f"{used.get(name, '0')} used, {hard[name]} allowed"
        for name in dict.fromkeys([*short, *never])
    )
    what = f"quota {found['name']!r} is exceeded ({details})"
    if never:
        remedy = "ask for less, or for fewer workers, or have the quota raised; all workers have to run at once"
        return Diagnosis("quota", what, remedy, permanent=True)
    return Diagnosis("quota", what, "it starts when others give back what they use, or the quota is raised")


def _amounts(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.rstrip(",").split(","))
    return {name: amount for name, _, amount in pairs}


# The registry has answered, and another answer is not to be expected.
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|name unknown|does not exist|denied|unauthorized|invalid reference", re.I
)
_NO_SUCH_OBJECT = re.compile(
    r'(?:configmap|secret) "[^"]+" not found|couldn\'t find key \S+ in|references non-existent', re.I
)
_MISSING = re.compile(
    r"""secret "(?P<secret>[^"]+)" not found|couldn't find key (?P<key>\S+) in Secret (?:\S+/)?(?P<of>[^\s/]+)""", re.I
)
_AS_ROOT = re.compile("runAsNonRoot|run as root|non-numeric user")
_PULLING = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable")
_UNPULLABLE = ("InvalidImageName", "ErrImageNeverPull")
_UNMADE = ("CreateContainerConfigError", "CreateContainerError")
PULLS_NOT_FOUND, PULLS_FAILED = 2, 3  # tries after which a pull is given up here; the kubelet makes the third at 40 s
TRIES = 3  # of anything else that the kubelet or the operator tries again
_OTHER_IMAGE = "fix image=..., or the nodes' access to its registry; then job.cancel() and submit again"
_MORE_ROOM = "it starts when a node has room; or job.cancel() and ask for less cpu, memory or gpu, or for fewer workers"
_TRIED_AGAIN = "it is tried again"


def waits(pods: Sequence[Pod], events: Sequence[Event]) -> list[Diagnosis]:
    """Why the newest pods of workers do not start; one diagnosis for all workers that it is the same for."""
    newest = {pod.worker: pod for pod in pods}
    found: dict[Diagnosis, list[int]] = {}
    for worker, pod in newest.items():
        if pod.deleted:
            continue
        if diagnosis := _wait(pod, [event for event in events if event.object == f"Pod/{pod.name}"]):
            found.setdefault(diagnosis, []).append(worker)
    return [replace(wait, message=f"{workers(numbers)}: {wait.message}") for wait, numbers in found.items()]


def _wait(pod: Pod, events: Sequence[Event]) -> Diagnosis | None:
    """What keeps this pod from running; None when it runs, has ended, or only needs more time."""
    if pod.reason in _UNPULLABLE:
        return Diagnosis("image", f"cannot pull its image: {_brief(pod.message)}", _OTHER_IMAGE, permanent=True)
    if pod.reason in _PULLING:
        return _pulling(pod, events)
    if pod.reason in _UNMADE:
        return _unmade(pod.message)
    if pod.reason == "Unschedulable":
        return Diagnosis("scheduling", f"no node takes it: {_brief(pod.message)}", _MORE_ROOM)
    if pod.reason == "SchedulingGated":
        return Diagnosis("quota", f"waits to be let in by its queue: {pod.message}", "it starts when its turn comes")
    if pod.phase == "Pending" and pod.reason in ("", "ContainerCreating", "PodInitializing"):
        return _mounting(events) or _loading(events)
    return None


def _pulling(pod: Pod, events: Sequence[Event]) -> Diagnosis:
    failed = [event for event in events if event.type == "Warning" and event.message.startswith("Failed to pull image")]
    tries = max((event.count for event in failed), default=1)
    enough = PULLS_NOT_FOUND if _NO_SUCH_IMAGE.search(pod.message) else PULLS_FAILED
    what = f"cannot pull its image: {_brief(pod.message)}"
    if tries >= enough:
        return Diagnosis("image", what, _OTHER_IMAGE, permanent=True)
    return Diagnosis("image", what, _TRIED_AGAIN)


def _unmade(message: str) -> Diagnosis:
    what = f"container configuration failed: {_brief(message)}"
    if _AS_ROOT.search(message):
        return Diagnosis("image", what, _OTHER_IMAGE, permanent=True)
    if _NO_SUCH_OBJECT.search(message):
        return Diagnosis("permission", what, _creation(message), permanent=True)
    return Diagnosis("cluster", what, _TRIED_AGAIN)


def _creation(message: str) -> str:
    """How to create the object that is missing."""
    found = _MISSING.search(message)
    if found is None:
        return "create it in the job's namespace: the worker then starts by itself"
    if key := found["key"]:
        return (
            f"the Secret exists and lacks the key {key}: `kubectl edit secret {found['of']}` adds it, and the worker "
            "then starts by itself; or job.cancel() and name another: store_secret=..., keys rootUser and rootPassword"
        )
    make = create_secret(found["secret"], ("rootUser", "rootPassword"))
    return (
        "is the name misspelt? job.cancel() and name another one: store_secret=... Otherwise create it in the job's "
        f"namespace, with the store's keys where it is the store's: {make}; the worker then starts by itself"
    )


def _mounting(events: Sequence[Event]) -> Diagnosis | None:
    """What the warnings of a pod without a container say; the first failed mounts are often only too early."""
    last = max((event for event in events if event.type == "Warning"), key=lambda event: event.time, default=None)
    if last is None:
        return None
    if last.reason == "FailedMount" and _NO_SUCH_OBJECT.search(last.message):
        what = f"container configuration failed: {_brief(last.message)}"
        return Diagnosis("permission", what, _creation(last.message), permanent=last.count >= TRIES)
    if last.reason in ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox") and last.count >= TRIES:
        return Diagnosis("cluster", f"cannot be set up on its node: {_brief(last.message)}", _TRIED_AGAIN)
    return None


def _loading(events: Sequence[Event]) -> Diagnosis | None:
    """A node that has the image already reports no ``Pulling``."""
    last = max(events, key=lambda event: event.time, default=None)
    if last is None or last.reason != "Pulling":
        return None
    what = f"its node is {last.message[:1].lower()}{last.message[1:]}"
    return Diagnosis("image", what, "it starts when that is done")


def _brief(message: str) -> str:
    """The message without the layers of programs that only repeat what the last of them says."""
    text = " ".join(message.split())
    text = re.sub(r"^Back-off pulling image \"[^\"]*\": (?:ErrImagePull: )?", "", text)
    text = re.sub(r"rpc error: code = \w+ desc = ", "", text)
    text = re.sub(
        r"failed to pull and unpack image \"(?P<image>[^\"]+)\": failed to resolve reference \"[^\"]+\": ",
        r"\g<image>: ",
        text,
    )
    text = re.sub(r"^(?P<image>\S+): (?P=image): ", r"\g<image>: ", text)
    return re.sub(r"\. no new claims to deallocate, preemption: .*$|\. preemption: .*$", "", text)


ASK_SECONDS = 4.0  # between two looks at the last lines
MOST_ASKED = 4  # workers: what keeps one from the store nearly always keeps all
MOST_TIMES = 20  # for each pod: the time that a worker waits for its store at its start, and some more
UNKNOWN_HOST_SECONDS = 15.0  # a name server that has just started answers before
ENDS = 2  # pods of a worker that ended waiting for the store, each after a minute; more only repeat that
_STORE_ADDRESS = (
    "make that address reachable for the workers: they then go on by themselves; to use another one: job.cancel(), "
    "then s3_endpoint=... of Cluster(...) or TRAIN_FUNC_S3_ENDPOINT"
)


class StoreWaits:
    """Which workers of a job wait for the store; only their logs say that at once. ``now``: a clock in seconds."""

    def __init__(self, job: BoundJob, now: Callable[[], float]) -> None:
        self._job = job
        self._now = now
        self._asked: float | None = None
        self._times: dict[str, int] = {}
        self._waits: dict[str, WaitsForStore | None] = {}  # by pod's uid
        self._since: dict[str, float] = {}  # by fault, while it lasts

    def look(self, pods: Sequence[Pod], num_ended: Mapping[int, int]) -> list[Diagnosis]:
        """The waits of the newest pods; one diagnosis for all workers with the same fault.

        Args:
            num_ended: pods of each worker that ended before an attempt began because they did not reach the store.
        """
        running = [pod for pod in pods if pod.phase == "Running" and not pod.deleted and pod.ended is None]
        starting = [pod for pod in running if self._times.get(pod.uid, 0) < MOST_TIMES][:MOST_ASKED]
        if starting and (self._asked is None or self._now() - self._asked >= ASK_SECONDS):
            self._asked = self._now()
            self._ask(starting)
        found: dict[tuple[str, bool], list[int]] = {}
        for pod in running:
            if wait := self._waits.get(pod.uid):
                found.setdefault((wait.fault, wait.is_unknown_host), []).append(pod.worker)
        self._since = {fault: self._since.get(fault, self._now()) for fault, _ in found}
        return [self._diagnosis(*fault, numbers, num_ended) for fault, numbers in found.items()]

    def _diagnosis(
        self, fault: str, is_unknown_host: bool, numbers: list[int], num_ended: Mapping[int, int]
    ) -> Diagnosis:
        what = f"{workers(numbers)} wait{'s' * (len(numbers) == 1)} for the store: {fault}"
        unknown = is_unknown_host and self._now() - self._since[fault] >= UNKNOWN_HOST_SECONDS
        repeated = max(num_ended.get(number, 0) for number in numbers) >= ENDS
        return Diagnosis("storage", what, _STORE_ADDRESS, permanent=unknown or repeated)

    def _ask(self, pods: Sequence[Pod]) -> None:
        lines = self._job.last_lines(pods)
        for pod in pods:
            line = lines.get(pod.uid, "")
            event = events_module.parse(line)
            self._waits[pod.uid] = event if isinstance(event, WaitsForStore) and not event.purpose else None
            is_past = line and not isinstance(event, (WaitsForStore, WorkerStarts))
            self._times[pod.uid] = MOST_TIMES if is_past else self._times.get(pod.uid, 0) + 1
