"""What is the same in jobs of all kinds: the pod of a worker, labels, and the ConfigMap with the files of the run."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from train_func.client.expansion import escape
from train_func.client.placement import Placement, SecretKey
from train_func.inputs import claims_of
from train_func.records import RunRecord
from train_func.storage import schemes_of

JOB_DIR = "/etc/train-func"
WORK_DIR = "/workspace"
CACHE_DIR = "/cache"
CLAIMS_DIR = "/claims"
SHM_DIR = "/dev/shm"
TERMINATION_FILE = "/dev/termination-log"
COMMAND = ("python", "-u", "-m", "train_func.worker", "run")
USER = 1000
JOIN_SECONDS = 900  # pods start at different times: images are pulled, nodes are added
TTL_SECONDS = 24 * 3600
GPU = "nvidia.com/gpu"
FILES = ("run.json", "cells.json", "source.py")  # in a ConfigMap; a large source.py stays in the store
RUN_LABEL = "train-func/run"
GENERATION_LABEL = "train-func/generation"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"

# How clouds mark nodes that they may take away. Tolerated and preferred, not selected: where there is none, or none
# left, the job runs on another node rather than never; a node selector can ask for more.
SPOT_TAINTS = (
    {"key": "kubernetes.azure.com/scalesetpriority", "operator": "Equal", "value": "spot", "effect": "NoSchedule"},
    {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
)
SPOT_NODES = (
    ("kubernetes.azure.com/scalesetpriority", "spot"),
    ("cloud.google.com/gke-spot", "true"),
    ("eks.amazonaws.com/capacityType", "SPOT"),
    ("karpenter.sh/capacity-type", "spot"),
)
# For how long a worker waits for a node that does not answer; Kubernetes' own default is 300 s.
LOST_NODE_SECONDS = 30
LOST_NODE_TAINTS = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Json = dict[str, Any]


def config_map(job: Mapping[str, Any], files: Mapping[str, bytes]) -> Json:
    """The ConfigMap with the files of a rendered job; text travels as text, anything else as base64."""
    given = job["metadata"]
    labels = {name: value for name, value in given["labels"].items() if name in (RUN_LABEL, GENERATION_LABEL)}
    text: dict[str, str] = {}
    binary: dict[str, str] = {}
    for name, content in files.items():
        try:
            text[name] = content.decode("utf-8")
        except UnicodeDecodeError:
            binary[name] = base64.b64encode(content).decode("ascii")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**given, "labels": labels},
        "immutable": True,
        **({"data": text} if text else {}),
        **({"binaryData": binary} if binary else {}),
    }


def labels(record: RunRecord) -> dict[str, str]:
    """By which its objects are told from those of other runs."""
    return {RUN_LABEL: record.name, GENERATION_LABEL: str(record.generation)}


def metadata(record: RunRecord, placement: Placement) -> Json:
    """Name, namespace and labels of the job."""
    where = {"namespace": placement.namespace} if placement.namespace else {}
    queue = {QUEUE_LABEL: placement.queue} if placement.queue else {}
    return {"name": record.job_name, **where, "labels": {**labels(record), **queue}}


def pod_spec(record: RunRecord, placement: Placement, files: Sequence[str], container: Json) -> Json:
    """The spec of a worker's pod, whose one container is given; ``files`` are the names in its ConfigMap."""
    spec: Json = {
        "terminationGracePeriodSeconds": placement.grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }
    if placement.node_selector:
        spec["nodeSelector"] = dict(placement.node_selector)
    if placement.spot:
        spec["affinity"] = {"nodeAffinity": {PREFERRED: [_preferred(*label) for label in SPOT_NODES]}}
    spec["tolerations"] = _tolerations(placement)
    if placement.priority_class:
        spec["priorityClassName"] = placement.priority_class
    if placement.service_account:
        spec["serviceAccountName"] = placement.service_account
    spec["volumes"] = _volumes(record, placement, files)
    spec["containers"] = [container]
    return spec


def _tolerations(placement: Placement) -> list[Json]:
    """Those of the user, who decides about the taints that they name."""
    own = {found.get("key") for found in placement.tolerations if found.get("effect") in (None, "NoExecute")}
    lost_nodes = (
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in LOST_NODE_TAINTS
        if key not in own
    )
    given = [*placement.tolerations, *(SPOT_TAINTS if placement.spot else ()), *lost_nodes]
    return [dict(toleration) for toleration in given]


def _preferred(label: str, value: str) -> Json:
    return {"weight": 100, "preference": {"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]}}


def _volumes(record: RunRecord, placement: Placement, files: Sequence[str]) -> list[Json]:
    items = [{"key": name, "path": name} for name in sorted(files)]
    disk, memory = ({"sizeLimit": limit} if limit else {} for limit in (placement.disk, placement.memory))
    cache = {"persistentVolumeClaim": {"claimName": placement.cache}} if placement.cache else {"emptyDir": dict(disk)}
    return [
        {"name": "job", "configMap": {"name": record.job_name, "defaultMode": 0o444, "items": items}},
        {"name": "work", "emptyDir": dict(disk)},
        {"name": "cache", **cache},
        # Without it /dev/shm has 64 MiB, and data loaders and NCCL die of a bus error. What lies there counts as the
        # worker's memory.
        {"name": "shm", "emptyDir": {"medium": "Memory", **memory}},
        *(
            {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
            for name, claim in _claims(record)
        ),
    ]


def _claims(record: RunRecord) -> list[tuple[str, str]]:
    """The names of the volumes that inputs lie in, and of their claims."""
    return [(f"claim-{number}", claim) for number, claim in enumerate(claims_of(record.run.inputs))]


def worker_container(record: RunRecord, placement: Placement, name: str, number_label: str) -> Json:
    """The container of a worker.

    Args:
        record: of its run.
        placement: where and on what hardware it runs.
        name: that its operator asks for.
        number_label: of the pod, in which its operator writes the worker's number.
    """
    resources = _resources(placement)
    return {
        "name": name,
        "image": placement.image,
        "command": list(COMMAND),
        "workingDir": WORK_DIR,
        "terminationMessagePath": TERMINATION_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": _environment(record, placement, name, number_label),
        "resources": {"requests": resources, "limits": dict(resources)},
        "volumeMounts": [
            {"name": "job", "mountPath": JOB_DIR, "readOnly": True},
            {"name": "work", "mountPath": WORK_DIR},
            {"name": "cache", "mountPath": CACHE_DIR},
            {"name": "shm", "mountPath": SHM_DIR},
            *(
                {"name": name, "mountPath": f"{CLAIMS_DIR}/{claim}", "readOnly": True}
                for name, claim in _claims(record)
            ),
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _resources(placement: Placement) -> dict[str, str]:
    resources = {"cpu": str(placement.cpu)}
    if placement.memory:
        resources["memory"] = placement.memory
    if placement.gpu:
        resources[GPU] = str(placement.gpu)
    return resources


def _environment(record: RunRecord, placement: Placement, container: str, number_label: str) -> list[Json]:
    plain = {
        "TRAIN_FUNC_JOB_DIR": JOB_DIR,
        "TRAIN_FUNC_WORK_DIR": WORK_DIR,
        "TRAIN_FUNC_CACHE_DIR": CACHE_DIR,
        "TRAIN_FUNC_TERMINATION_FILE": TERMINATION_FILE,
        "TRAIN_FUNC_STORE": record.store,
        "TRAIN_FUNC_GRACE_SECONDS": str(placement.grace_seconds),
        "PYTHONHASHSEED": "0",  # so that a set has the same order in all workers, and in every attempt
        "HOME": WORK_DIR,
        "USER": "train-func",  # the user's number has no name in most images, and torch asks for one
        "TMPDIR": f"{WORK_DIR}/tmp",
        "HF_HOME": f"{CACHE_DIR}/hf",
        **({"TRAIN_FUNC_CLAIMS_DIR": CLAIMS_DIR} if _claims(record) else {}),
    }
    found = {
        name: of
        for scheme in schemes_of([record.store, *record.run.inputs.values()])
        for name, of in scheme.secret_variables.items()
    }
    references = {
        **{n: SecretKey(secret=placement.store_secret, key=of.key, optional=of.optional) for n, of in found.items()},
        "HF_TOKEN": SecretKey(secret=placement.hub_secret, key="HF_TOKEN", optional=True),
    }
    given = [name for name, value in placement.environment.items() if isinstance(value, SecretKey)]
    hidden = [name for name in [*references, *given] if name not in found or found[name].is_hidden]
    return [
        *(_variable(*item) for item in plain.items()),
        _reference("TRAIN_FUNC_WORKER", "fieldRef", _field(f"metadata.labels['{number_label}']")),
        _reference("TRAIN_FUNC_POD", "fieldRef", _field("metadata.name")),
        _reference("TRAIN_FUNC_POD_UID", "fieldRef", _field("metadata.uid")),
        _reference(
            "TRAIN_FUNC_CPUS",
            "resourceFieldRef",
            {"containerName": container, "resource": "limits.cpu", "divisor": "1"},
        ),
        _reference(
            "TRAIN_FUNC_MEMORY",  # that of the node where there is no limit
            "resourceFieldRef",
            {"containerName": container, "resource": "limits.memory", "divisor": "1"},
        ),
        *(_variable(*item) for item in placement.store_settings.items()),
        *(_variable(*item) for item in references.items()),
        *(_variable(*item) for item in placement.environment.items()),
        _variable("TRAIN_FUNC_SECRETS", " ".join(hidden)),  # whose values the worker shows nowhere
    ]


def _variable(name: str, value: str | SecretKey) -> Json:
    if isinstance(value, str):
        return {"name": name, "value": escape(value)}
    reference: Json = {"name": value.secret, "key": value.key}
    if value.optional:
        reference["optional"] = True
    return _reference(name, "secretKeyRef", reference)


def _reference(name: str, kind: str, reference: Json) -> Json:
    return {"name": name, "valueFrom": {kind: reference}}


def _field(path: str) -> Json:
    return {"apiVersion": "v1", "fieldPath": path}
