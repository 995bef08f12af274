"""The substitution table: what processes of one machine cannot have, and what stands in for it.

    image, its entry `python`       this interpreter, its packages, this machine's PATH, proxies, locale
    volume configMap                the folder of the job's files
    volume emptyDir                 a fresh folder of that pod, under a short name for the sake of sockets
    volume emptyDir `cache`         one folder of this machine, shared and kept
    volume emptyDir at /dev/shm     the machine's own shared memory
    HF_HOME                         the submitting person's own, where the check before the job looked as well
    paths below a mount             the same paths below its folder, in env, command, workingDir
    secretKeyRef                    the variable of the same name in the process that submitted
    fieldRef                        the pod's name, uid, labels
    resourceFieldRef                the limit, of CPUs or memory; without one of memory, this machine's
    HOSTNAME                        the pod's name, which does not resolve here
    Service name and port           127.0.0.1 and a port kept free for the job
    GPUs                            CUDA_VISIBLE_DEVICES, dealt over the workers
    CPU limit                       the number of threads, by resourceFieldRef
    memory limit                    a watcher that kills (shim)
    first process of a PID space    SIGTERM only when it has a handler, the rest killed at its end (shim)
    user, security context          the user who submitted
    tolerations                     nothing: the one node is this machine, and its controller dies with it

Everything else of a manifest is taken literally, or has no meaning on one machine.
"""

import os
import re
import socket
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from train_func.client import quantity
from train_func.client.twin.machine import Machine
from train_func.client.twin.record import PodRecord
from train_func.client.twin.spec import Spec
from train_func.storage import schemes

LOOPBACK = "127.0.0.1"
SHARED_MEMORY = "/dev/shm"
CACHE_VOLUME = "cache"
GPU = "nvidia.com/gpu"
# What describes this machine, not the person: credentials in the submitting process go to no container by themselves.
_OF_THE_MACHINE = re.compile(
    r"PATH|LD_LIBRARY_PATH|PYTHONPATH|LANG|LANGUAGE|LC_\w+|TZ|TRAIN_FUNC_HOME|CUDA_\w+|NVIDIA_\w+|HF_ENDPOINT"
    r"|HF_HUB_OFFLINE|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|AWS_CA_BUNDLE"
    r"|(?i:https?_proxy|no_proxy|all_proxy)"
)


class CannotStart(Exception):
    """A container cannot be started; ``reason`` is the kubelet's word for it."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def image_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the image brings along: how to find this interpreter, this package and this machine's surroundings."""
    brought = {name: value for name, value in environment.items() if _OF_THE_MACHINE.fullmatch(name)}
    interpreters = str(Path(sys.executable).parent)
    brought["HF_HOME"] = environment.get("HF_HOME") or str(Path("~/.cache/huggingface").expanduser())
    brought["PATH"] = os.pathsep.join(filter(None, (interpreters, brought.get("PATH", os.defpath))))
    package = str(Path(__file__).parents[3])
    if package not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        brought["PYTHONPATH"] = os.pathsep.join(filter(None, (package, brought.get("PYTHONPATH"))))
    return brought


def interpreter(argv: Sequence[str]) -> list[str]:
    """The command with this interpreter as the image's ``python``."""
    return [sys.executable if argv[0] in ("python", "python3") else argv[0], *argv[1:]]


def volume_folder(volume: Mapping[str, Any], mount_path: str, *, pod: Path, config_maps: Path, cache: Path) -> Path:
    """The folder that stands for a volume; raises CannotStart when a file of its ConfigMap is missing."""
    if "configMap" in volume:
        return _config_map(volume["configMap"], config_maps)
    if mount_path == SHARED_MEMORY:
        return Path(SHARED_MEMORY)
    folder = cache if volume["name"] == CACHE_VOLUME else pod / str(volume["name"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _config_map(source: Mapping[str, Any], config_maps: Path) -> Path:
    folder = config_maps / str(source["name"])
    wanted = [folder, *(folder / str(item["key"]) for item in source.get("items", []))]
    missing = [path for path in wanted if not path.exists()]
    if missing:
        names = ", ".join(str(path.relative_to(config_maps)) for path in missing)
        raise CannotStart("FailedMount", f"the job was created without the ConfigMap files {names}")
    return folder


def rewrite(text: str, mounts: Mapping[str, Path]) -> str:
    """``text`` with every path below a mount replaced by the path below its folder."""
    if not mounts:
        return text
    longest_first = sorted(mounts, key=len, reverse=True)
    paths = "|".join(re.escape(path) for path in longest_first)
    return re.sub(rf"(?<![\w./-])(?:{paths})(?![\w.$-])", lambda found: str(mounts[found[0]]), text)


def secrets(manifest: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Values for the secretKeyRefs of a manifest, by variable, from ``environment`` and from where its stores look."""
    declared = Spec.of(manifest).container["env"]
    wanted = {entry["name"] for entry in declared if "secretKeyRef" in entry.get("valueFrom", {})}
    values = dict(environment)
    for scheme in schemes():
        if wanted & set(scheme.secret_variables):
            values |= scheme.secret_values(environment)
    return {name: values[name] for name in wanted if name in values}


def secret(name: str, reference: Mapping[str, Any], environment: Mapping[str, str]) -> str | None:
    """The value for a secretKeyRef; None when it is optional and not there."""
    if name in environment:
        return environment[name]
    if reference.get("optional"):
        return None
    raise CannotStart(
        "CreateContainerConfigError",
        f"the environment variable {name} is not set in the process that submitted the job; on a cluster it comes "
        f"from Secret {reference['name']}, key {reference['key']}: set it here and submit again",
    )


def field(path: str, spec: Spec, pod: PodRecord) -> str:
    """The value for a fieldRef."""
    if keyed := re.fullmatch(r"metadata\.labels\['([^']+)'\]", path):
        return spec.labels(pod.worker).get(keyed[1], "")
    return {"metadata.name": pod.name, "metadata.uid": pod.uid}[path]


def resource(name: str, container: Mapping[str, Any], machine: Machine) -> str:
    """The value for a resourceFieldRef, rounded up: ``limits.cpu`` or ``limits.memory``."""
    given = container["resources"]["limits"].get(name.removeprefix("limits."))
    return str(machine.memory if given is None else quantity.whole(given))


def devices(worker: int, container: Mapping[str, Any], machine: Machine) -> str:
    """The GPUs of one worker, as CUDA_VISIBLE_DEVICES; none asked for: none visible."""
    count = int(container["resources"]["limits"].get(GPU, 0))
    return ",".join(machine.gpus[worker * count : (worker + 1) * count])


class Services:
    """Loopback ports for the Services of one job, the same for all its pods as long as this object lives."""

    def __init__(self, spec: Spec) -> None:
        names = "|".join(re.escape(spec.pod_name(worker)) for worker in range(spec.num_workers))
        self._address = re.compile(rf"(?<![\w.-])(?P<name>{names})(?:\.[\w.-]+)?:(?P<port>\d+)(?!\d)")
        self._sockets: dict[tuple[str, str], socket.socket] = {}

    def local(self, text: str) -> str:
        """``text`` with every ``<pod name>:<port>`` replaced by its stand-in."""
        return self._address.sub(lambda found: f"{LOOPBACK}:{self._port(found['name'], found['port'])}", text)

    def _port(self, name: str, port: str) -> int:
        """A free port; a bound socket that never listens keeps it from all that do not ask for it by number."""
        kept = self._sockets.get((name, port))
        if kept is None:
            kept = self._sockets[name, port] = socket.socket()
            kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            kept.bind((LOOPBACK, 0))
        return int(kept.getsockname()[1])
