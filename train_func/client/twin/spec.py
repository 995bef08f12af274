"""What the controller needs to know of a PyTorchJob, with the operator's defaults."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

JobManifest = Mapping[str, Any]
DEFAULT_PORT = 23456
PORT_NAME = "pytorchjob-port"
CONTAINER = "pytorch"


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A PyTorchJob of Workers only."""

    name: str
    namespace: str
    num_workers: int
    restart_policy: str
    """Always, OnFailure, Never or ExitCode."""
    ranks_per_worker: str | None
    """None: the elastic policy's own number stands instead."""
    elastic: Mapping[str, Any] | None
    backoff_limit: int | None
    deadline: int | None
    """Seconds."""
    time_to_live: int | None
    """Seconds from the end of the job to its removal."""
    suspended: bool
    clean_pod_policy: str
    """None, Running or All."""
    template: Mapping[str, Any]

    @classmethod
    def of(cls, manifest: JobManifest) -> Self:
        """The spec of an admitted manifest."""
        spec = manifest["spec"]
        worker = spec["pytorchReplicaSpecs"]["Worker"]
        policy = spec.get("runPolicy", {})
        num_workers = worker.get("replicas", 1)
        return cls(
            name=manifest["metadata"]["name"],
            namespace=manifest["metadata"].get("namespace", "default"),
            num_workers=num_workers,
            restart_policy=worker.get("restartPolicy", "OnFailure"),
            ranks_per_worker=spec.get("nprocPerNode", _default_ranks(spec.get("elasticPolicy"))),
            elastic=_elastic(spec.get("elasticPolicy"), num_workers),
            backoff_limit=policy.get("backoffLimit"),
            deadline=policy.get("activeDeadlineSeconds"),
            time_to_live=policy.get("ttlSecondsAfterFinished"),
            suspended=policy.get("suspend") is True,
            clean_pod_policy=policy.get("cleanPodPolicy", "None"),
            template=worker["template"],
        )

    @property
    def pod(self) -> Mapping[str, Any]:
        """The pod's spec."""
        found: Mapping[str, Any] = self.template["spec"]
        return found

    @property
    def container(self) -> Mapping[str, Any]:
        """The one container of the pod."""
        found: Mapping[str, Any] = self.pod["containers"][0]
        return found

    def pod_name(self, worker: int) -> str:
        """Name of a worker's pod, and of the Service that finds it."""
        return f"{self.name}-worker-{worker}"

    def labels(self, worker: int) -> dict[str, str]:
        """Labels of a worker's pod: the template's, then the operator's."""
        return {
            **self.template.get("metadata", {}).get("labels", {}),
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            "training.kubeflow.org/job-name": self.name,
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": str(worker),
            # Without a Master, the first worker has its role.
            **({"training.kubeflow.org/job-role": "master"} if worker == 0 else {}),
        }

    def operator_environment(self) -> dict[str, str]:
        """What the operator appends to the container's environment; without a Master no RANK, no WORLD_SIZE."""
        added = {"PYTHONUNBUFFERED": "1"}
        if self.ranks_per_worker is not None:
            added["PET_NPROC_PER_NODE"] = self.ranks_per_worker
        if self.elastic is None:
            return {**added, "PET_NNODES": str(self.num_workers)}
        elastic = self.elastic
        host, port = elastic.get("rdzvHost", self.pod_name(0)), elastic.get("rdzvPort", self._port())
        added["PET_RDZV_ENDPOINT"] = f"{host}:{port}"
        added["PET_RDZV_BACKEND"] = elastic.get("rdzvBackend", "c10d")
        added["PET_NNODES"] = f"{elastic['minReplicas']}:{elastic['maxReplicas']}"
        given = {"PET_MAX_RESTARTS": "maxRestarts", "PET_NPROC_PER_NODE": "nProcPerNode", "PET_RDZV_ID": "rdzvId"}
        added |= {name: str(elastic[key]) for name, key in given.items() if key in elastic}
        if elastic.get("rdzvConf"):
            added["PET_RDZV_CONF"] = ",".join(f"{pair['key']}={pair['value']}" for pair in elastic["rdzvConf"])
        if elastic.get("standalone"):
            added["PET_STANDALONE"] = ""
        return added

    def _port(self) -> int:
        named = (port["containerPort"] for port in self.container.get("ports", []) if port.get("name") == PORT_NAME)
        return next(named, DEFAULT_PORT)


def _default_ranks(elastic: Mapping[str, Any] | None) -> str | None:
    return None if elastic is not None and "nProcPerNode" in elastic else "auto"


def _elastic(policy: Mapping[str, Any] | None, num_workers: int) -> Mapping[str, Any] | None:
    """A missing bound is the other one; both missing: the number of workers."""
    if policy is None:
        return None
    least = policy.get("minReplicas", policy.get("maxReplicas", num_workers))
    return {**policy, "minReplicas": least, "maxReplicas": policy.get("maxReplicas", least)}
