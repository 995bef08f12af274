"""What the twin can execute: everything that a manifest says and that nothing stands in for is refused here."""

import re
from collections.abc import Mapping
from typing import Any

from train_func.client import quantity
from train_func.client.twin.machine import Machine
from train_func.client.twin.spec import CONTAINER, Spec
from train_func.client.twin.substitutes import GPU
from train_func.counted import counted

JOB_NAME = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
NAME_RULE = "a DNS label is expected: a-z, 0-9 and -, at most 63 characters, a letter first"
# Fields that are executed, stood in for, or without a meaning on one machine.
_RUN_POLICY = {"cleanPodPolicy", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished", "suspend"}
_SPEC = {"elasticPolicy", "nprocPerNode", "pytorchReplicaSpecs", "runPolicy"}
_ELASTIC = {
    *("maxReplicas", "maxRestarts", "minReplicas", "nProcPerNode", "rdzvBackend", "rdzvConf", "rdzvHost", "rdzvId"),
    *("rdzvPort", "standalone"),
}
_POD = {
    *("activeDeadlineSeconds", "automountServiceAccountToken", "containers", "enableServiceLinks", "nodeSelector"),
    *("priorityClassName", "securityContext", "serviceAccountName", "terminationGracePeriodSeconds", "tolerations"),
    "volumes",
}
_CONTAINER = {
    *("args", "command", "env", "image", "imagePullPolicy", "name", "ports", "resources", "securityContext"),
    *("terminationMessagePath", "terminationMessagePolicy", "volumeMounts", "workingDir"),
}
_VOLUMES = {"configMap", "emptyDir"}
_MOUNT = {"name", "mountPath", "readOnly"}
_RESTART = ("Always", "OnFailure", "Never", "ExitCode")


def faults(manifest: Mapping[str, Any]) -> list[str]:
    """Why this machine's twin cannot execute the manifest; empty when it can."""
    name = manifest.get("metadata", {}).get("name", "")
    found = []
    if not JOB_NAME.fullmatch(name):
        found.append(f"metadata.name={name!r}: {NAME_RULE}")
    kind = (manifest.get("apiVersion"), manifest.get("kind"))
    replicas = manifest.get("spec", {}).get("pytorchReplicaSpecs", {})
    if kind != ("kubeflow.org/v1", "PyTorchJob") or set(replicas) != {"Worker"}:
        return [*found, "the twin executes a PyTorchJob of kubeflow.org/v1 with Workers only, no Master"]
    containers = replicas["Worker"]["template"]["spec"].get("containers", [])
    has_command = any(container.get("command") or container.get("args") for container in containers)
    if len(containers) != 1 or containers[0].get("name") != CONTAINER or not has_command:
        return [*found, f"the twin executes pods of one container, named {CONTAINER}, with a command"]
    return [*found, *_unknown_fields(manifest["spec"], replicas["Worker"])]


def _unknown_fields(spec: Mapping[str, Any], worker: Mapping[str, Any]) -> list[str]:
    pod = worker["template"]["spec"]
    container = pod["containers"][0]
    found = [
        *_unknown("the spec", spec, _SPEC),
        *_unknown("elasticPolicy", spec.get("elasticPolicy", {}), _ELASTIC),
        *_unknown("runPolicy", spec.get("runPolicy", {}), _RUN_POLICY),
        *_unknown("the pod's spec", pod, _POD),
        *_unknown("the container", container, _CONTAINER),
    ]
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    for name, volume in volumes.items():
        found += _unknown(f"volume {name}", volume, {"name", *_VOLUMES})
        if any(item["key"] != item["path"] for item in volume.get("configMap", {}).get("items", [])):
            found.append(f"volume {name}: the twin cannot rename files of a ConfigMap")
    for mount in container.get("volumeMounts", []):
        found += _unknown(f"mount {mount['mountPath']}", mount, _MOUNT)
        if mount["name"] not in volumes:
            found.append(f"mount {mount['mountPath']}: there is no volume {mount['name']!r}")
    found += _refused_by_a_cluster(spec, container)
    if worker.get("restartPolicy", "OnFailure") not in _RESTART:
        found.append(f"restartPolicy={worker['restartPolicy']!r}: one of {', '.join(_RESTART)} is expected")
    return found


def _refused_by_a_cluster(spec: Mapping[str, Any], container: Mapping[str, Any]) -> list[str]:
    """What its API server or the operator's webhook would not take either."""
    names = [entry["name"] for entry in container.get("env", [])]
    twice = sorted({name for name in names if names.count(name) > 1})
    found = [f"the container's env: {', '.join(twice)} more than once"] if twice else []
    if "nprocPerNode" in spec and "nProcPerNode" in spec.get("elasticPolicy", {}):
        found.append("elasticPolicy.nProcPerNode must not be used with nprocPerNode")
    return found


def _unknown(where: str, given: Mapping[str, Any], known: set[str]) -> list[str]:
    unknown = sorted(set(given) - known)
    if not unknown:
        return []
    return [f"{where}: the twin has no stand-in for {', '.join(unknown)}; it knows {', '.join(sorted(known))}"]


def capacity_faults(manifest: Mapping[str, Any], machine: Machine) -> list[str]:
    """What an admitted job asks for beyond what this machine has."""
    spec = Spec.of(manifest)
    limits = spec.container.get("resources", {}).get("limits", {})
    found = []
    cores = quantity.whole(str(limits.get("cpu", 1)))
    if cores > machine.cores:
        found.append(f"each worker asks for {cores} cores; this machine has {machine.cores}: ask for less cpu")
    memory = quantity.whole(str(limits.get("memory", 0)))
    if memory * spec.num_workers > machine.memory:
        found.append(
            f"{counted(spec.num_workers, 'worker')} with {quantity.readable(memory)} of memory each: "
            f"{quantity.readable(memory * spec.num_workers)} together; this machine has "
            f"{quantity.readable(machine.memory)}, {quantity.readable(machine.memory_free)} of it free: "
            "ask for less memory or for fewer workers"
        )
    gpus = int(limits.get(GPU, 0))
    if gpus * spec.num_workers > len(machine.gpus):
        found.append(
            f"{counted(spec.num_workers, 'worker')} with {counted(gpus, 'GPU')} each; this machine has "
            f"{len(machine.gpus)}: ask for fewer, or leave gpu out"
        )
    return found
