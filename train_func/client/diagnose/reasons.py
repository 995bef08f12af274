"""Explains why workers do not start, or end, by a table of the cluster's reasons: each has its cause and a remedy.

The cluster's own message is always told with it.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from train_func.client.status import DELETED, Diagnosis, JobEvent, Pod
from train_func.errors import Cause
from train_func.text import numbered_workers

DENIED = re.compile(r'admission webhook "[^"]+" denied the request|ValidatingAdmissionPolicy .* denied request')
_TRIED_AGAIN = "it is tried again"
_OTHER_IMAGE = "fix image=..., or the nodes' access to its registry; then cancel the job and submit again"
_SECRET = (
    "create it in the job's namespace, or add the key that it lacks: the worker then starts by itself; or cancel the "
    "job and name another: store_secret=..., with keys rootUser and rootPassword"
)
_SECURITY = (
    "what train_func renders satisfies `restricted`: something of this cluster changes its pods, or asks for more; "
    "see the words"
)
_MORE_ROOM = (
    "it starts when a node has room; or cancel the job and ask for less cpu, memory or gpu, or for fewer workers"
)
_OTHER_CLAIM = (
    "it starts when each of its claims is bound to a volume that a node reaches: see `kubectl describe pvc`; or cancel "
    "the job and name another claim: cache=..., inputs={...: 'pvc://...'}"
)
_QUOTA = "it starts when others give back what they use; or ask for less or for fewer workers, or have the quota raised"
_LESS_MEMORY = "cancel the job, and submit again with more memory=..., or, with a task, a lower micro_batch_size"
OTHER_IMAGE = "give an image built by `make image` (image=...) and submit again"
LESS_ON_DISK = (
    "keep less in the working folder (/workspace) and the cache (/cache), or raise disk=..., or have the namespace's "
    "limit for ephemeral-storage raised: cancel the job, then submit again"
)
_GOES_ON = "nothing: it is started again, from its newest checkpoint"
_POLICY = "a policy of this cluster refuses it: do what its words ask for, or have the administrator allow it"


@dataclass(frozen=True)
class Reason:
    """One row of the table; the first that fits counts."""

    names: str
    """The reasons of a pod or an event, separated by blanks."""
    words: str
    """A pattern in the message; empty: any."""
    cause: Cause
    what: str
    """Stands before the cluster's message."""
    remedy: str
    permanent: bool = False
    """Whether only a change can help, once it has lasted."""


_NO_SUCH_OBJECT = r'(?i)secret "[^"]+" not found|couldn\'t find key \S+ in|references non-existent'
_PULL = "InvalidImageName ErrImageNeverPull ErrImagePull ImagePullBackOff ImageInspectError RegistryUnavailable"
_CLAIM = r"(?i)persistent ?volume|volume node affinity"
_UNMADE = "CreateContainerConfigError CreateContainerError"
_MOUNT = "FailedMount FailedAttachVolume FailedCreatePodSandBox"
_UNSET = "container configuration failed"
_REFUSED = "FailedCreatePod"
# The cluster ended a pod on purpose. TaintManagerEviction does not belong here: with that reason an event also tells
# that a pod stays after all.
_PREEMPTED = "Preempting Preempted PreemptionByScheduler"
EVICTED = (
    f"{DELETED} {_PREEMPTED} Evicted EvictionByEvictionAPI DeletionByTaintManager DeletionByPodGC TerminationByKubelet "
    "NodeLost NodeShutdown Terminated Shutdown"
)
_OVER_DISK = r"exceeds the (total )?limit|exceeded its local ephemeral storage limit"
REASONS = (
    Reason(_PULL, "", "image", "cannot pull its image", _OTHER_IMAGE, permanent=True),
    Reason(_UNMADE, "runAsNonRoot|run as root|non-numeric user", "image", _UNSET, _OTHER_IMAGE, permanent=True),
    Reason(f"{_UNMADE} {_MOUNT}", _NO_SUCH_OBJECT, "permission", _UNSET, _SECRET, permanent=True),
    Reason(_UNMADE, "", "cluster", _UNSET, _TRIED_AGAIN),
    Reason(_MOUNT, "", "cluster", "cannot be set up on its node", _TRIED_AGAIN),
    Reason("Pulling", "", "image", "its node loads its image", "it starts when that is done"),
    Reason("Unschedulable", _CLAIM, "scheduling", "no node takes it", _OTHER_CLAIM),
    Reason("Unschedulable", "", "scheduling", "no node takes it", _MORE_ROOM),
    Reason("SchedulingGated", "", "quota", "waits to be let in by its queue", "it starts when its turn comes"),
    Reason(EVICTED, _OVER_DISK, "storage", "was evicted", LESS_ON_DISK),
    Reason(DELETED, "", "preemption", "was deleted", _GOES_ON),
    Reason(_PREEMPTED, "", "preemption", "was preempted", _GOES_ON),
    Reason(EVICTED, "", "preemption", "was evicted", _GOES_ON),
    Reason("StartError", "", "image", "ended at once, its image cannot run the workers' program", OTHER_IMAGE),
    Reason("OOMKilled", "", "memory", "needed more than its memory limit and was killed", _LESS_MEMORY),
    Reason(_REFUSED, "exceeded quota", "quota", "", _QUOTA),
    Reason(_REFUSED, "failed quota", "quota", "", "have the quota changed: it asks for what workers do not name", True),
    Reason(_REFUSED, "violates PodSecurity", "permission", "", _SECURITY, permanent=True),
    Reason(
        _REFUSED,
        "service ?account",
        "permission",
        "",
        "create that account, or name another: service_account=...",
        permanent=True,
    ),
    Reason(
        _REFUSED,
        "PriorityClass",
        "input",
        "",
        "name one of `kubectl get priorityclasses`: priority_class=...",
        permanent=True,
    ),
    Reason(_REFUSED, "usage per", "quota", "", "ask for what the namespace's LimitRange allows", permanent=True),
    Reason(_REFUSED, DENIED.pattern, "permission", "", _POLICY, permanent=True),
    Reason(_REFUSED, "is invalid", "input", "", "fix that option of Cluster(...)", permanent=True),
    Reason(_REFUSED, "", "cluster", "", "the operator tries again; see `kubectl get events`"),
)
_LEAD = re.compile(r'^(?:Error creating: |(?:.*\b)?(?:pods|Pod) "[^"]+" is (?:forbidden: )?)+')


def look_up(reason: str, message: str) -> Diagnosis | None:
    """Looks up what a reason and its message mean; None for one that is not in the table."""
    for row in REASONS:
        if reason in row.names.split() and re.search(row.words, message):
            words = _LEAD.sub("", " ".join(message.split()))
            return Diagnosis(row.cause, ": ".join(filter(None, (row.what, words))), row.remedy, row.permanent)
    return None


def judge(words: str) -> Diagnosis:
    """Returns what it means when the cluster refuses a pod with these words."""
    refusal = look_up(_REFUSED, words)
    assert refusal is not None  # the last row fits any words
    return refusal


def refusals(pods: Sequence[Pod], events: Iterable[JobEvent], num_workers: int) -> list[Diagnosis]:
    """Returns why workers have no pod; a refusal is over once the pod exists."""
    present = {pod.worker for pod in pods if not pod.deleted}
    last: dict[int, JobEvent] = {}
    for event in sorted(events, key=lambda event: event.time):
        if event.creation:  # a refusal that names no pod is one of every worker that has none
            last.update(dict.fromkeys([event.worker] if event.pod else range(num_workers), event))
    refused = {
        worker: judge(event.message)
        for worker, event in last.items()
        if event.creation == "refused" and worker not in present
    }
    return _together(refused, " cannot be created")


def waits(pods: Sequence[Pod], events: Sequence[JobEvent]) -> list[Diagnosis]:
    """Returns why the newest pods of workers do not start.

    A pod that runs, has ended, or only needs more time is none of them.
    """
    hindered = {}
    for worker, pod in {pod.worker: pod for pod in pods}.items():
        reason, message = pod.reason, pod.message
        if pod.phase == "Pending" and pod.reason in ("", "ContainerCreating", "PodInitializing"):
            of_pod = [event for event in events if event.object == f"Pod/{pod.name}"]
            newest = max(of_pod, key=lambda event: event.time, default=None)
            reason, message = (newest.reason, newest.message) if newest else ("", "")
        wait = look_up(reason, message)
        if wait and pod.phase == "Pending" and not pod.deleted:
            hindered[worker] = wait
    return _together(hindered)


def _together(hindered: Mapping[int, Diagnosis], what: str = "") -> list[Diagnosis]:
    """One diagnosis for all workers that it is the same for."""
    numbers: dict[Diagnosis, list[int]] = {}
    for worker, diagnosis in hindered.items():
        numbers.setdefault(diagnosis, []).append(worker)
    return [
        replace(diagnosis, message=f"{numbered_workers(those)}{what}: {diagnosis.message}")
        for diagnosis, those in numbers.items()
    ]


def dead_nodes(pods: Iterable[Pod], now: datetime) -> list[Diagnosis]:
    """Nodes that do not answer: their pods stay, and the operator starts no new worker while the old pod is there."""
    silent: dict[str, list[Pod]] = {}
    for pod in pods:
        if pod.unheard_since:
            silent.setdefault(pod.node, []).append(pod)
    return [
        Diagnosis(
            "cluster",
            f"{numbered_workers([pod.worker for pod in lost])}: node {node} does not answer, silent for "
            f"{max((now - (pod.unheard_since or now)).total_seconds() for pod in lost):.0f} s",
            "nothing, if the node comes back; else, once its machine is known to be off, an administrator of the "
            f"cluster runs `kubectl taint nodes {node} node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`, or "
            f"an account that may delete pods runs, for each of its pods, `kubectl -n {lost[0].namespace} delete pod "
            f"{lost[0].name} --grace-period=0 --force`",
        )
        for node, lost in silent.items()
    ]
