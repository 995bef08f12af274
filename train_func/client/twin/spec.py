"""What the controller needs to know of a PyTorchJob that train_func has rendered."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

JobManifest = Mapping[str, Any]
PORT = 23456  # the operator's, for the rendezvous


@dataclass(frozen=True, kw_only=True)
class Spec:
    """An elastic PyTorchJob of Workers only, that are restarted by exit code."""

    name: str
    namespace: str
    num_workers: int
    ranks_per_worker: str
    elastic: Mapping[str, Any]
    deadline: int
    """Seconds."""
    time_to_live: int
    """Seconds from the end of the job to its removal."""
    template: Mapping[str, Any]

    @classmethod
    def of(cls, manifest: JobManifest) -> Self:
        """The spec of a manifest."""
        spec = manifest["spec"]
        worker = spec["pytorchReplicaSpecs"]["Worker"]
        return cls(
            name=manifest["metadata"]["name"],
            namespace=manifest["metadata"].get("namespace", "default"),
            num_workers=worker["replicas"],
            ranks_per_worker=spec["nprocPerNode"],
            elastic=spec["elasticPolicy"],
            deadline=spec["runPolicy"]["activeDeadlineSeconds"],
            time_to_live=spec["runPolicy"]["ttlSecondsAfterFinished"],
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
            **self.template["metadata"]["labels"],
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            "training.kubeflow.org/job-name": self.name,
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": str(worker),
            # Without a Master, the first worker has its role.
            **({"training.kubeflow.org/job-role": "master"} if worker == 0 else {}),
        }

    def operator_environment(self) -> dict[str, str]:
        """What the operator appends to the container's environment; without a Master no RANK, no WORLD_SIZE."""
        elastic = self.elastic
        return {
            "PYTHONUNBUFFERED": "1",
            "PET_NPROC_PER_NODE": self.ranks_per_worker,
            "PET_RDZV_ENDPOINT": f"{self.pod_name(0)}:{PORT}",
            "PET_RDZV_BACKEND": elastic["rdzvBackend"],
            "PET_NNODES": f"{elastic['minReplicas']}:{elastic['maxReplicas']}",
            "PET_MAX_RESTARTS": str(elastic["maxRestarts"]),
            "PET_RDZV_ID": elastic["rdzvId"],
            "PET_RDZV_CONF": ",".join(f"{pair['key']}={pair['value']}" for pair in elastic["rdzvConf"]),
        }
