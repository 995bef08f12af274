"""What is the same in jobs of all kinds: labels, and the pod of a worker, rendered from the JobSpec."""

from typing import Any

from train_func.client.job_spec import JobSpec, OfWorker, SecretKey, Value

WORK_DIR = "/workspace"
CACHE_DIR = "/cache"
CLAIMS_DIR = "/claims"
SHM_DIR = "/dev/shm"
TERMINATION_FILE = "/dev/termination-log"
USER = 1000
GPU = "nvidia.com/gpu"
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

PATHS = {
    "work": WORK_DIR,
    "cache": CACHE_DIR,
    "claims": CLAIMS_DIR,
    "tmp": f"{WORK_DIR}/tmp",
    "hub": f"{CACHE_DIR}/hf",
    "termination": TERMINATION_FILE,
}

Json = dict[str, Any]


def metadata(spec: JobSpec) -> Json:
    """Returns name, namespace and labels of the job."""
    namespace = {"namespace": spec.namespace} if spec.namespace else {}
    queue = {QUEUE_LABEL: spec.queue} if spec.queue else {}
    return {"name": spec.name, **namespace, "labels": {**spec.labels, **queue}}


def pod_spec(spec: JobSpec, container_name: str, number_label: str) -> Json:
    """Returns the spec of a worker's pod.

    Args:
        spec: of the job.
        container_name: that its operator asks for.
        number_label: of the pod, in which its operator writes the worker's number.
    """
    pod: Json = {
        "terminationGracePeriodSeconds": spec.grace_seconds,
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
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if spec.spot:
        preferred = [
            {
                "weight": 100,
                "preference": {"matchExpressions": [{"key": label, "operator": "In", "values": [value]}]},
            }
            for label, value in SPOT_NODES
        ]
        pod["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    # The user decides about the taints that they name.
    named = {each.get("key") for each in spec.tolerations if each.get("effect") in (None, "NoExecute")}
    lost_nodes = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_NODE_SECONDS}
        for key in LOST_NODE_TAINTS
        if key not in named
    ]
    pod["tolerations"] = [dict(each) for each in (*spec.tolerations, *(SPOT_TAINTS if spec.spot else ()), *lost_nodes)]
    if spec.priority_class:
        pod["priorityClassName"] = spec.priority_class
    if spec.service_account:
        pod["serviceAccountName"] = spec.service_account
    volumes = _volumes(spec)
    pod["volumes"] = [volume for volume, _ in volumes]
    container = {
        "name": container_name,
        "image": spec.image,
        "command": list(spec.command),
        "workingDir": WORK_DIR,
        "terminationMessagePath": TERMINATION_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "env": [
            {"name": name, **_value(value, container_name, number_label)} for name, value in spec.environment.items()
        ],
        "resources": {"requests": resources(spec), "limits": resources(spec)},
        "volumeMounts": [mount for _, mount in volumes],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod["containers"] = [container]
    return pod


def resources(spec: JobSpec) -> dict[str, str]:
    """Returns what each worker requests, and gets at most."""
    memory = {"memory": spec.memory} if spec.memory else {}
    gpu = {GPU: str(spec.gpu)} if spec.gpu else {}
    return {"cpu": spec.cpu, **memory, **gpu}


def _volumes(spec: JobSpec) -> list[tuple[Json, Json]]:
    """Returns each volume of the pod, and where its container mounts it."""
    disk, memory = ({"sizeLimit": limit} if limit else {} for limit in (spec.disk, spec.memory))
    cache = {"persistentVolumeClaim": {"claimName": spec.cache}} if spec.cache else {"emptyDir": dict(disk)}
    # Without shm /dev/shm has 64 MiB, and data loaders and NCCL die of a bus error. What lies there counts as the
    # worker's memory.
    volumes: list[tuple[str, Json, str]] = [
        ("work", {"emptyDir": dict(disk)}, WORK_DIR),
        ("cache", cache, CACHE_DIR),
        ("shm", {"emptyDir": {"medium": "Memory", **memory}}, SHM_DIR),
    ]
    claims = [
        (
            {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}},
            {"name": f"claim-{number}", "mountPath": f"{CLAIMS_DIR}/{claim}", "readOnly": True},
        )
        for number, claim in enumerate(spec.claims)
    ]
    return [({"name": name, **source}, {"name": name, "mountPath": path}) for name, source, path in volumes] + claims


def _value(value: Value, container_name: str, number_label: str) -> Json:
    """Returns the entry of a variable, without its name."""
    match value:
        case str():
            return {"value": value.replace("$", "$$")}  # Kubernetes expands $(NAME), and makes "$$" one "$"
        case SecretKey():
            optional = {"optional": True} if value.optional else {}
            return {"valueFrom": {"secretKeyRef": {"name": value.secret, "key": value.key, **optional}}}
        case OfWorker(fact) if fact in PATHS:
            return {"value": PATHS[fact]}
        case OfWorker("cpus" | "memory" as fact):
            resource = {"cpus": "limits.cpu", "memory": "limits.memory"}[fact]
            return {
                "valueFrom": {
                    "resourceFieldRef": {"containerName": container_name, "resource": resource, "divisor": "1"}
                }
            }
        case OfWorker(fact):
            fields = {"number": f"metadata.labels['{number_label}']", "pod": "metadata.name", "uid": "metadata.uid"}
            return {"valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": fields[fact]}}}
