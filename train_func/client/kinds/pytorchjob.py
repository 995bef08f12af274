"""PyTorchJob: kubeflow.org/v1 of the Training Operator 1.9.

One shape: Workers only, elastic; with a fixed size, unless the run has ``min_workers``. Without a Master the operator
adds no init container, which a namespace of pod security level restricted would reject.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from train_func.client.job_spec import JOIN_SECONDS, TTL_SECONDS, JobSpec
from train_func.client.kinds import reading
from train_func.client.kinds.kind import Api, Json, Kind, Operator
from train_func.client.status import ContainerEnd, JobEvent, JobStatus

_DEADLINE = "longer than specified deadline"  # in the message of the condition; its reason does not tell
# The operator's copy of a termination message, when a container has ended with something else than 0.
_ENDED = re.compile(
    r"Error pod (?P<pod>\S+) container \S+ exitCode: (?P<code>\d+) terminated message: (?P<message>.*)", re.DOTALL
)


class PyTorchJob(Kind):
    """See the module."""

    name = "PyTorchJob"
    group = "kubeflow.org"
    version = "v1"
    plural = "pytorchjobs"
    is_elastic = True
    container = "pytorch"  # the name the operator asks for
    role = "worker"
    job_label = "training.kubeflow.org/job-name"
    worker_label = "training.kubeflow.org/replica-index"
    pod_name = re.compile(r"-(?P<worker>\d+)$")
    pod_made, pod_refused = "SuccessfulCreatePod", "FailedCreatePod"
    operator = Operator(
        name="Training Operator",
        look="kubectl -n kubeflow get pods; kubectl -n kubeflow logs deploy/training-operator",
        install="version 1.9: kubectl apply --server-side -k "
        '"https://github.com/kubeflow/trainer.git/manifests/overlays/standalone?ref=4445c12aa62e4345b0c2c6ac9b215a70eca46ed7"',
        webhook="validator.pytorchjob",
        replaces_within=20.0,  # it takes a second or two
    )

    def spec(self, job: JobSpec, pod_spec: dict[str, Any]) -> dict[str, Any]:
        """The spec has Workers only."""
        # The operator looks at the job's own deadline only when a pod changes, and then leaves running pods alone
        # (cleanPodPolicy None); the pod's deadline is that change, and ends the pod.
        deadline = {"activeDeadlineSeconds": job.deadline}
        return {
            "nprocPerNode": str(job.ranks),
            "elasticPolicy": {
                "minReplicas": job.min_workers,
                "maxReplicas": job.workers,
                "rdzvBackend": "c10d",
                "rdzvId": job.name,
                "rdzvConf": [{"key": "join_timeout", "value": str(JOIN_SECONDS)}],
                "maxRestarts": 0,  # restarts are the operator's: a lost worker is a new pod and a new attempt
            },
            "runPolicy": {
                "cleanPodPolicy": "None",
                # Restarts by exit code are not counted by the operator; 0 alone would end the job at the first.
                "backoffLimit": job.max_attempts,
                **deadline,
                "ttlSecondsAfterFinished": TTL_SECONDS,
            },
            "pytorchReplicaSpecs": {
                "Worker": {
                    "replicas": job.workers,
                    "restartPolicy": "ExitCode",
                    "template": {
                        "metadata": {"labels": {**job.labels, "sidecar.istio.io/inject": "false"}},
                        "spec": {**deadline, **pod_spec},
                    },
                }
            },
        }

    def environment(self, job: Json) -> list[Json]:
        """The variables stand in the template of its pods."""
        template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
        return list(template["spec"]["containers"][0]["env"])

    def patch(
        self, *, workers: int | None = None, node_selector: Mapping[str, str] | None = None, suspend: bool | None = None
    ) -> Json:
        """The operator deletes the pods from the number of workers on, and makes those that lack by the template."""
        worker: dict[str, Any] = {}
        if workers is not None:
            worker["replicas"] = workers
        if node_selector:
            worker["template"] = {"spec": {"nodeSelector": dict(node_selector)}}
        spec: dict[str, Any] = {}
        if worker:
            spec["pytorchReplicaSpecs"] = {"Worker": worker}
        if suspend is not None:
            spec["runPolicy"] = {"suspend": suspend}
        return {"spec": spec}

    def create(self, api: Api, manifest: Json) -> None:
        """Creates the job by kubeflow-training's client, as all that is done with a PyTorchJob."""
        from kubeflow.training import KubeflowOrgV1PyTorchJob
        from kubernetes.client import V1ObjectMeta

        kind, metadata, spec = manifest["kind"], V1ObjectMeta(**manifest["metadata"]), manifest["spec"]
        job = KubeflowOrgV1PyTorchJob(api_version=manifest["apiVersion"], kind=kind, metadata=metadata, spec=spec)
        api.training.create_job(job)

    def read(self, api: Api, name: str) -> dict[str, Any]:
        """Reads the job without ``get_job``, whose models hold only what they know of an object."""
        get = api.training.custom_api.get_namespaced_custom_object
        job: dict[str, Any] = get(self.group, self.version, api.namespace, self.plural, name)
        return job

    def delete(self, api: Api, name: str, options: Json) -> None:
        api.training.delete_job(name, delete_options=options)

    def num_objects(self, num_workers: int) -> Mapping[str, int]:
        """The operator makes a headless Service for every worker."""
        return {"pods": num_workers, "services": num_workers, f"{self.plural}.{self.group}": 1}

    def status(self, job: Json) -> JobStatus:
        """Its conditions are the words of this package."""
        conditions = [reading.condition(condition) for condition in (job.get("status") or {}).get("conditions") or ()]
        late = any(c.type == "Failed" and c.status == "True" and _DEADLINE in c.message for c in conditions)
        worker = ((job.get("spec") or {}).get("pytorchReplicaSpecs") or {}).get("Worker") or {}
        return replace(reading.job_status(job, conditions, is_over_deadline=late), workers=worker.get("replicas"))

    def understood(self, event: JobEvent) -> JobEvent:
        """The operator tells of pods in events about the job."""
        if ended := _ENDED.match(event.message):
            end = ContainerEnd(int(ended["code"]), ended["message"])
            return replace(event, pod=ended["pod"], worker=self.worker_of(ended["pod"]), end=end)
        return super().understood(event)


PYTORCHJOB = PyTorchJob()
