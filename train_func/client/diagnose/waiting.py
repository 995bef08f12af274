"""Why a worker's pod does not start: its image, its node, what it wants to be given."""

import re
from collections.abc import Iterable, Sequence

from train_func.client.diagnose.diagnosis import Diagnosis
from train_func.client.diagnose.remedies import create_secret
from train_func.client.status import Event, Pod

# The registry has answered, and another answer is not to be expected.
_NO_SUCH_IMAGE = re.compile(
    r"not found|manifest unknown|name unknown|does not exist|denied|unauthorized|no such host|invalid reference", re.I
)
_NO_SUCH_OBJECT = re.compile(
    r'(?:configmap|secret) "[^"]+" not found|couldn\'t find key \S+ in|references non-existent', re.I
)
_AS_ROOT = re.compile("runAsNonRoot|run as root|non-numeric user")
PULLING = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable")
UNPULLABLE = ("InvalidImageName", "ErrImageNeverPull")
UNMADE = ("CreateContainerConfigError", "CreateContainerError")
PULLS_NOT_FOUND, PULLS_FAILED = 2, 3  # tries after which a pull is given up here; the kubelet makes the third at 40 s
TRIES = 3  # of anything else that the kubelet or the operator tries again


def waiting(pod: Pod, events: Iterable[Event]) -> Diagnosis | None:
    """What keeps this pod from running; None when it runs, has ended, or merely takes its time."""
    all_own = [event for event in events if event.object == f"Pod/{pod.name}"]
    own = [event for event in all_own if event.type == "Warning"]
    if pod.reason in UNPULLABLE:
        return Diagnosis("image", f"cannot pull its image: {_brief(pod.message)}", _OTHER_IMAGE, permanent=True)
    if pod.reason in PULLING:
        return _pulling(pod, own)
    if pod.reason in UNMADE:
        return _unmade(pod.message)
    if pod.reason == "Unschedulable":
        return Diagnosis("scheduling", f"no node takes it: {_brief(pod.message)}", _MORE_ROOM)
    if pod.reason == "SchedulingGated":
        return Diagnosis("quota", f"waits to be let in by its queue: {pod.message}", "it starts when its turn comes")
    if pod.phase == "Pending" and pod.reason in ("", "ContainerCreating", "PodInitializing"):
        return _mounting(own) or _loading(all_own)
    return None


_OTHER_IMAGE = "fix image=..., or the nodes' access to its registry; then job.cancel() and submit again"
_MORE_ROOM = "it starts when a node has room; or job.cancel() and ask for less cpu, memory or gpu, or for fewer workers"
_GIVE_IT = "create it in the job's namespace: the worker then starts by itself"
_MISSING = re.compile(
    r"""secret "(?P<secret>[^"]+)" not found|couldn't find key (?P<key>\S+) in Secret (?:\S+/)?(?P<of>[^\s/]+)""", re.I
)


def _pulling(pod: Pod, events: Sequence[Event]) -> Diagnosis:
    tries = max((event.count for event in events if event.message.startswith("Failed to pull image")), default=1)
    enough = PULLS_NOT_FOUND if _NO_SUCH_IMAGE.search(pod.message) else PULLS_FAILED
    what = f"cannot pull its image: {_brief(pod.message)}"
    if tries >= enough:
        return Diagnosis("image", what, _OTHER_IMAGE, permanent=True)
    return Diagnosis("image", what, "it is tried again")


def _unmade(message: str) -> Diagnosis:
    what = f"container configuration failed: {_brief(message)}"
    if _AS_ROOT.search(message):
        return Diagnosis("image", what, _OTHER_IMAGE, permanent=True)
    if _NO_SUCH_OBJECT.search(message):
        return Diagnosis("permission", what, _give(message), permanent=True)
    return Diagnosis("cluster", what, "it is tried again")


def _give(message: str) -> str:
    """How to make what is missing."""
    found = _MISSING.search(message)
    if found is None:
        return _GIVE_IT
    if key := found["key"]:
        return (
            f"the Secret is there and lacks the key {key}: `kubectl edit secret {found['of']}` adds it, and the worker "
            "then starts by itself; or job.cancel() and name another: store_secret=..., keys rootUser and rootPassword"
        )
    make = create_secret(found["secret"], ("rootUser", "rootPassword"))
    return (
        "is the name misspelt? job.cancel() and name another one: store_secret=... Otherwise make it in the job's "
        f"namespace, with the store's keys where it is the store's: {make}; the worker then starts by itself"
    )


def _mounting(events: Sequence[Event]) -> Diagnosis | None:
    """What the events of a pod without a container say; the first failed mounts are often only too early."""
    last = max(events, key=lambda event: event.time, default=None)
    if last is None:
        return None
    if last.reason == "FailedMount" and _NO_SUCH_OBJECT.search(last.message):
        what = f"container configuration failed: {_brief(last.message)}"
        return Diagnosis("permission", what, _give(last.message), permanent=last.count >= TRIES)
    if last.reason in ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox") and last.count >= TRIES:
        return Diagnosis("cluster", f"cannot be set up on its node: {_brief(last.message)}", "it is tried again")
    return None


def _loading(events: Sequence[Event]) -> Diagnosis | None:
    """A node that has the image already says so instead."""
    last = max(events, key=lambda event: event.time, default=None)
    if last is None or last.reason != "Pulling":
        return None
    return Diagnosis(
        "image", f"its node is {last.message[:1].lower()}{last.message[1:]}", "it starts when that is done"
    )


def _brief(message: str) -> str:
    """Without the layers of programs that only repeat what the last of them says."""
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
