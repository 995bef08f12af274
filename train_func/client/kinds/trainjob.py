"""TrainJob: trainer.kubeflow.org/v1alpha1 of Kubeflow Trainer 2.3, far enough for one attempt without restarts.

Its pods are made by the runtime ``torch-distributed``, a JobSet, and by what the job patches there. Three things cannot
be patched. Containers restart in place, so that a run has one attempt and every further start of a container ends at
once. The token of the service account is mounted unless that account says otherwise. There is no priority class.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from train_func.client.job_spec import JOIN_SECONDS, JobSpec
from train_func.client.kinds import reading
from train_func.client.kinds.kind import Json, Kind, Operator
from train_func.client.placement import Placement
from train_func.client.status import DELETED, Condition, JobStatus, Pod
from train_func.wire.exits import STOPPED

RUNTIME = "torch-distributed"
NODE = "node"  # the replicated job of the runtime, and its container
MANAGER = "train-func/client"  # owner of the patches
_NOT_PATCHED = ("automountServiceAccountToken", "enableServiceLinks", "priorityClassName", "containers")


class TrainJob(Kind):
    """See the module."""

    name = "TrainJob"
    group = "trainer.kubeflow.org"
    version = "v1alpha1"
    plural = "trainjobs"
    container = role = NODE
    job_label = "jobset.sigs.k8s.io/jobset-name"  # the JobSet is named like the job
    worker_label = "batch.kubernetes.io/job-completion-index"
    pod_name = re.compile(rf"-{NODE}-0-(?P<worker>\d+)")
    pod_made, pod_refused = "SuccessfulCreate", "FailedCreate"
    most_attempts = 1
    operator = Operator(
        name="Kubeflow Trainer",
        look="kubectl -n kubeflow-system get pods; kubectl -n kubeflow-system logs "
        "deploy/kubeflow-trainer-controller-manager",
        install="version 2.3: helm install kubeflow-trainer oci://ghcr.io/kubeflow/charts/kubeflow-trainer --version "
        "2.3.0 --namespace kubeflow-system --create-namespace --set runtimes.defaultEnabled=true",
        webhook="validator.trainjob",
        replaces_within=660.0,  # the Kubernetes Job controller waits for up to 10 minutes after failed pods
    )

    def faults(self, placement: Placement) -> list[str]:
        """A runtime alone says the priority of its pods."""
        if placement.priority_class is None:
            return []
        option = f"priority_class={placement.priority_class!r}"
        return [f"{option}: a TrainJob cannot set it; leave it out, or take Cluster(kind='PyTorchJob')"]

    def spec(self, job: JobSpec, pod_spec: dict[str, Any]) -> dict[str, Any]:
        """The spec names the runtime, and what is patched there."""
        (container,) = pod_spec["containers"]
        patched = {name: value for name, value in pod_spec.items() if name not in _NOT_PATCHED}
        patched["containers"] = [{name: container[name] for name in ("name", "volumeMounts", "securityContext")}]
        template = {"metadata": {"labels": dict(job.labels)}, "spec": patched}
        replicated = {"name": NODE, "template": {"spec": {"template": template}}}
        # Its operator has no variable for how long the workers wait for one another.
        variables = [*container["env"], {"name": "PET_RDZV_CONF", "value": f"join_timeout={JOIN_SECONDS}"}]
        return {
            "runtimeRef": {"name": RUNTIME},
            "activeDeadlineSeconds": job.deadline,
            "trainer": {
                "numNodes": job.workers,
                "numProcPerNode": job.ranks,  # unset it would be the number of cores
                "image": container["image"],
                "command": container["command"],
                "env": variables,
                "resourcesPerNode": container["resources"],
            },
            "runtimePatches": [
                {
                    "manager": MANAGER,
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [replicated]}}},
                }
            ],
        }

    def environment(self, job: Json) -> list[Json]:
        """The variables are the trainer's."""
        return list(job["spec"]["trainer"]["env"])

    def pod(self, item: Json) -> Pod:
        """No event tells how a pod ends: its deletion is the news. A container that has ended starts again in it."""
        pod = super().pod(item)
        if pod.deleted and pod.exit_code in (None, STOPPED) and pod.reason in ("", "Error"):
            return replace(pod, reason=DELETED, message=f"pod {pod.name}")
        return replace(pod, ended=None) if pod.phase == "Running" and not pod.deleted else pod

    def num_objects(self, num_workers: int) -> Mapping[str, int]:
        """A job comes to one JobSet with one Job and one Service."""
        names = (f"{self.plural}.{self.group}", "jobsets.jobset.x-k8s.io", "jobs.batch", "services")
        return {"pods": num_workers, **dict.fromkeys(names, 1)}

    def status(self, job: Json) -> JobStatus:
        """Complete is Succeeded; it runs as soon as all its pods do, which the counts of its Jobs tell."""
        status = job.get("status") or {}
        read = [reading.condition(condition) for condition in status.get("conditions") or ()]
        conditions = [replace(each, type="Succeeded") if each.type == "Complete" else each for each in read]
        started = [count for count in status.get("jobsStatus") or () if count["name"] == NODE and count.get("ready")]
        if started and not any(c.type in ("Succeeded", "Failed") and c.status == "True" for c in conditions):
            conditions.append(Condition("Running", "True", "JobsReady", "all pods of the job run"))
        failed = next((c for c in conditions if (c.type, c.status) == ("Failed", "True")), None)
        late = failed is not None and failed.reason == "DeadlineExceeded"
        return reading.job_status(job, conditions, is_over_deadline=late)


TRAINJOB = TrainJob()
