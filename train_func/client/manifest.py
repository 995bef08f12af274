"""Renders the PyTorchJob of a run, and the ConfigMap that carries its files: pure functions, nothing is created.

One shape: Workers only, elastic with a fixed size. Without a Master the operator adds no init container, which a
namespace of pod security level restricted would reject.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

from train_func.client.expansion import escape
from train_func.client.placement import Placement, SecretKey
from train_func.records import RunRecord
from train_func.run import Run, name_of
from train_func.storage import scheme_of

JOB_DIR = "/etc/train-func"
WORK_DIR = "/workspace"
CACHE_DIR = "/cache"
SHM_DIR = "/dev/shm"
TERMINATION_FILE = "/dev/termination-log"
CONTAINER = "pytorch"  # the name the operator asks for
COMMAND = ("python", "-u", "-m", "train_func.worker", "run")
USER = 1000
JOIN_SECONDS = 900  # pods start at different times: images are pulled, nodes are added
TTL_SECONDS = 24 * 3600
GPU = "nvidia.com/gpu"
FILES = ("run.json", "cells.json", "source.py")  # in a ConfigMap; a large source.py stays in the store
RUN_LABEL = "train-func/run"
GENERATION_LABEL = "train-func/generation"

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
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"

Json = dict[str, Any]


def render(record: RunRecord, placement: Placement, files: Sequence[str]) -> Json:
    """The whole PyTorchJob (kubeflow.org/v1) of ``record``; ``files`` are the names in its ConfigMap."""
    queue = {"kueue.x-k8s.io/queue-name": placement.queue} if placement.queue else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": _metadata(record, placement.namespace, queue),
        "spec": {
            "nprocPerNode": str(placement.ranks),
            "elasticPolicy": _elastic_policy(record),
            "runPolicy": {
                "cleanPodPolicy": "None",
                # Restarts by exit code are not counted by the operator; 0 alone would end the job at the first.
                "backoffLimit": record.run.max_attempts,
                "activeDeadlineSeconds": record.run.deadline,
                "ttlSecondsAfterFinished": TTL_SECONDS,
            },
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": record.run.workers,
                    "restartPolicy": "ExitCode",
                    "template": {
                        "metadata": {"labels": {**_labels(record), "sidecar.istio.io/inject": "false"}},
                        "spec": _pod(record, placement, files),
                    },
                }
            },
        },
    }


def provisional(run: Run, store: str) -> RunRecord:
    """A record for a run that has no name yet, to judge by its manifest whether a backend could execute it."""
    name = name_of(run, function="run", source_sha256="", fingerprints={})
    return RunRecord(run=run, name=name, generation=1, store=store, function="run", source_sha256="")


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


def _labels(record: RunRecord) -> dict[str, str]:
    return {RUN_LABEL: record.name, GENERATION_LABEL: str(record.generation)}


def _metadata(record: RunRecord, namespace: str | None, labels: Mapping[str, str]) -> Json:
    where = {"namespace": namespace} if namespace else {}
    return {"name": record.job_name, **where, "labels": {**_labels(record), **labels}}


def _elastic_policy(record: RunRecord) -> Json:
    return {
        "minReplicas": record.run.workers,
        "maxReplicas": record.run.workers,
        "rdzvBackend": "c10d",
        "rdzvId": record.job_name,
        "rdzvConf": [{"key": "join_timeout", "value": str(JOIN_SECONDS)}],
        "maxRestarts": 0,  # restarts are the operator's: a lost worker is a new pod and a new attempt
    }


def _pod(record: RunRecord, placement: Placement, files: Sequence[str]) -> Json:
    spec: Json = {
        # The operator looks at the job's own deadline only when a pod changes, and then leaves running pods alone
        # (cleanPodPolicy None); the pod's deadline is that change, and ends the pod.
        "activeDeadlineSeconds": record.run.deadline,
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
    if tolerations := [*placement.tolerations, *(SPOT_TAINTS if placement.spot else ())]:
        spec["tolerations"] = [dict(toleration) for toleration in tolerations]
    if placement.priority_class:
        spec["priorityClassName"] = placement.priority_class
    if placement.service_account:
        spec["serviceAccountName"] = placement.service_account
    spec["volumes"] = _volumes(record, placement, files)
    spec["containers"] = [_container(record, placement)]
    return spec


def _preferred(label: str, value: str) -> Json:
    return {"weight": 100, "preference": {"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]}}


def _volumes(record: RunRecord, placement: Placement, files: Sequence[str]) -> list[Json]:
    items = [{"key": name, "path": name} for name in sorted(files)]
    disk, memory = ({"sizeLimit": limit} if limit else {} for limit in (placement.disk, placement.memory))
    return [
        {"name": "job", "configMap": {"name": record.job_name, "defaultMode": 0o444, "items": items}},
        {"name": "work", "emptyDir": dict(disk)},
        {"name": "cache", "emptyDir": dict(disk)},
        # Without it /dev/shm has 64 MiB, and data loaders and NCCL die of a bus error. What lies there counts as the
        # worker's memory.
        {"name": "shm", "emptyDir": {"medium": "Memory", **memory}},
    ]


def _container(record: RunRecord, placement: Placement) -> Json:
    resources = _resources(placement)
    return {
        "name": CONTAINER,
        "image": placement.image,
        "command": list(COMMAND),
        "workingDir": WORK_DIR,
        "terminationMessagePath": TERMINATION_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": _environment(record, placement),
        "resources": {"requests": resources, "limits": dict(resources)},
        "volumeMounts": [
            {"name": "job", "mountPath": JOB_DIR, "readOnly": True},
            {"name": "work", "mountPath": WORK_DIR},
            {"name": "cache", "mountPath": CACHE_DIR},
            {"name": "shm", "mountPath": SHM_DIR},
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


def _environment(record: RunRecord, placement: Placement) -> list[Json]:
    plain = {
        "TRAIN_FUNC_JOB_DIR": JOB_DIR,
        "TRAIN_FUNC_WORK_DIR": WORK_DIR,
        "TRAIN_FUNC_CACHE_DIR": CACHE_DIR,
        "TRAIN_FUNC_TERMINATION_FILE": TERMINATION_FILE,
        "TRAIN_FUNC_STORE": record.store,
        "TRAIN_FUNC_GRACE_SECONDS": str(placement.grace_seconds),
        "HOME": WORK_DIR,
        "USER": "train-func",  # the user's number has no name in most images, and torch asks for one
        "TMPDIR": f"{WORK_DIR}/tmp",
        "HF_HOME": f"{CACHE_DIR}/hf",
    }
    return [
        *(_variable(name, value) for name, value in plain.items()),
        _reference("TRAIN_FUNC_WORKER", "fieldRef", _field("metadata.labels['training.kubeflow.org/replica-index']")),
        _reference("TRAIN_FUNC_POD", "fieldRef", _field("metadata.name")),
        _reference("TRAIN_FUNC_POD_UID", "fieldRef", _field("metadata.uid")),
        _reference(
            "TRAIN_FUNC_CPUS",
            "resourceFieldRef",
            {"containerName": CONTAINER, "resource": "limits.cpu", "divisor": "1"},
        ),
        *_store_environment(record.store, placement),
        _variable("HF_TOKEN", SecretKey(secret=placement.hub_secret, key="HF_TOKEN", optional=True)),
        *(_variable(name, value) for name, value in placement.environment.items()),
    ]


def _store_environment(address: str, placement: Placement) -> list[Json]:
    of_secret = {
        name: SecretKey(secret=placement.store_secret, key=found.key, optional=found.optional)
        for name, found in scheme_of(address).secret_variables.items()
    }
    plain = placement.store_settings
    return [*(_variable(*item) for item in plain.items()), *(_variable(*item) for item in of_secret.items())]


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
