"""What the client knows of a kind of job: how it is written, read, and found in a cluster."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from train_func.client.kinds import pod, reading
from train_func.client.placement import Placement
from train_func.client.status import Event, JobStatus, Pod
from train_func.records import RunRecord

_NAMED = re.compile(r'(?:Created pod: |\bpods? ")(?P<pod>[^"\s]+)')

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Operator:
    """The program of a cluster that executes jobs of one kind."""

    name: str
    look: str
    """Commands that show whether it runs."""
    install: str
    """What installs it."""
    webhook: str
    """Begin of the names of its admission webhooks."""


@dataclass(frozen=True)
class Workers:
    """The workers of a job, as its operator makes them."""

    num: int
    pod: Json
    """The pod of worker 0: its metadata and spec."""

    @property
    def spec(self) -> Json:
        """Of the pod."""
        spec: Json = self.pod["spec"]
        return spec

    @property
    def container(self) -> Json:
        """The one with the worker's program."""
        container: Json = self.spec["containers"][0]
        return container


class Kind(ABC):
    """A kind of job; its objects hold nothing that changes."""

    name: str
    """As manifests and events say it, such as ``PyTorchJob``."""
    group: str
    version: str
    plural: str
    container: str
    """The one in which a worker's program runs."""
    role: str
    """In the names of pods, and of what stands between them and their job: ``job-role-...``."""
    job_label: str
    """Of a pod: the name of its job."""
    worker_label: str
    """Of a pod: the number of its worker."""
    pod_name: "re.Pattern[str]"
    """Finds the number of the worker in the name of a pod, as ``worker``."""
    pod_made: str
    """Reason of the event that tells that a pod was created."""
    pod_refused: str
    """Reason of the event that tells that the cluster has refused one."""
    most_attempts: int | None = None
    """That a job can have; None: as many as its run allows."""
    operator: Operator

    def faults(self, placement: Placement) -> list[str]:
        """The options that jobs of this kind do not have."""
        return []

    def render(self, record: RunRecord, placement: Placement, files: Sequence[str]) -> dict[str, Any]:
        """The whole manifest of a run's job; ``files`` are the names in its ConfigMap."""
        container = pod.worker_container(record, placement, self.container, self.worker_label)
        return {
            "apiVersion": f"{self.group}/{self.version}",
            "kind": self.name,
            "metadata": pod.metadata(record, placement),
            "spec": self.spec(record, placement, pod.pod_spec(record, placement, files, container)),
        }

    @abstractmethod
    def spec(self, record: RunRecord, placement: Placement, pod_spec: dict[str, Any]) -> dict[str, Any]:
        """That of a job, whose pods should have the spec that is given."""

    @abstractmethod
    def workers(self, job: Json) -> Workers:
        """The workers of a job, by its manifest or as the API has it."""

    @abstractmethod
    def num_objects(self, num_workers: int) -> Mapping[str, int]:
        """How many objects of each resource a job comes to, by the names that quotas use."""

    def pod_selector(self, job_name: str) -> str:
        """The labels that the pods of a job have, and no other pods."""
        return f"{self.job_label}={job_name}"

    def concerns(self, about: str, job_name: str) -> bool:
        """Whether an object of that name is the job, one of its pods, or stands between them."""
        return about == job_name or about.startswith(f"{job_name}-{self.role}-")

    @abstractmethod
    def status(self, job: Json) -> JobStatus:
        """Of a job as the API has it."""

    def pod(self, found: Json) -> Pod:
        """One of its pods, as the API has it."""
        number = found["metadata"].get("labels", {}).get(self.worker_label, 0)
        return reading.pod(found, int(number), self.container)

    def worker_of(self, pod_name: str) -> int:
        """The number of the worker whose pod has that name."""
        found = self.pod_name.search(pod_name)
        return int(found["worker"]) if found else 0

    def understood(self, event: Event) -> Event:
        """The event, with the pod that it is about or tells of; the refusal of a pod may name none."""
        kind, _, name = event.object.partition("/")
        if kind == "Pod":
            return replace(event, pod=name, worker=self.worker_of(name))
        if event.reason not in (self.pod_made, self.pod_refused):
            return event
        creation: Literal["made", "refused"] = "made" if event.reason == self.pod_made else "refused"
        if named := _NAMED.search(event.message):
            return replace(event, pod=named["pod"], worker=self.worker_of(named["pod"]), creation=creation)
        return replace(event, creation="refused") if creation == "refused" else event
