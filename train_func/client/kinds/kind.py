"""What the client knows of a kind of job: how it is written, read, and found in a cluster."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from train_func.client.job_spec import JobSpec
from train_func.client.kinds import pod, reading
from train_func.client.placement import Placement
from train_func.client.status import JobEvent, JobStatus, Pod
from train_func.errors import InvalidInput

_NAMED = re.compile(r'(?:Created pod: |\bpods? ")(?P<pod>[^"\s]+)')

Json = Mapping[str, Any]


class Api(Protocol):
    """The API of a cluster, by path, in one namespace."""

    @property
    def namespace(self) -> str: ...

    @property
    def training(self) -> Any:
        """The client of kubeflow-training."""

    def jobs(self, name: str = "") -> str:
        """The path of the jobs of the namespace, or of one."""

    def get(self, path: str, **query: str) -> dict[str, Any]: ...

    def post(self, path: str, body: Json, **query: str) -> dict[str, Any]: ...

    def delete(self, path: str, body: Json) -> dict[str, Any]: ...


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
    replaces_within: float
    """Seconds after which a worker whose pod has ended or is gone is a sign that it does not run."""


class Kind(ABC):
    """A kind of job; its objects hold nothing that changes."""

    name: str
    """The name that manifests and events give it, such as ``PyTorchJob``."""
    group: str
    version: str
    plural: str
    container: str
    """The one in which a worker's program runs."""
    role: str
    """Stands in the names of pods, and of what stands between them and their job: ``job-role-...``."""
    job_label: str
    """The label of a pod that has the name of its job."""
    worker_label: str
    """The label of a pod that has the number of its worker."""
    pod_name: "re.Pattern[str]"
    """Finds the number of the worker in the name of a pod, as ``worker``."""
    pod_made: str
    """Reason of the event that tells that a pod was created."""
    pod_refused: str
    """Reason of the event that tells that the cluster has refused one."""
    is_elastic: bool = False
    """Whether a job goes on with fewer workers."""
    most_attempts: int | None = None
    """How many attempts a job can have; None: as many as its run allows."""
    operator: Operator

    def faults(self, placement: Placement) -> list[str]:
        """Returns faults for the options that jobs of this kind do not have."""
        return []

    def render(self, spec: JobSpec) -> dict[str, Any]:
        """Returns the whole manifest of a job."""
        return {
            "apiVersion": f"{self.group}/{self.version}",
            "kind": self.name,
            "metadata": pod.metadata(spec),
            "spec": self.spec(spec, pod.pod_spec(spec, self.container, self.worker_label)),
        }

    @abstractmethod
    def spec(self, job: JobSpec, pod_spec: dict[str, Any]) -> dict[str, Any]:
        """Returns the spec of the manifest; its pods have ``pod_spec``."""

    @abstractmethod
    def environment(self, job: Json) -> list[Json]:
        """Returns the variables of the workers of a job, from its manifest or from the API."""

    def patch(
        self, *, workers: int | None = None, node_selector: Mapping[str, str] | None = None, suspend: bool | None = None
    ) -> Json:
        """Returns the merge patch that changes a job while it runs, as ``BoundJob.change`` says.

        Raises:
            InvalidInput: jobs of this kind stay as they were created.
        """
        raise InvalidInput(
            f"a {self.name} keeps the workers and the nodes that it was created with; cancel the job, and submit again "
            "with on=Cluster(kind='PyTorchJob')"
        )

    @abstractmethod
    def num_objects(self, num_workers: int) -> Mapping[str, int]:
        """Returns how many objects of each resource a job comes to, by the names that quotas use."""

    def create(self, api: Api, manifest: Json) -> None:
        """Creates a job."""
        api.post(api.jobs(), manifest)

    def read(self, api: Api, name: str) -> dict[str, Any]:
        """Returns the job of that name as the API has it."""
        return api.get(api.jobs(name))

    def delete(self, api: Api, name: str, options: Json) -> None:
        """Asks for the end of a job."""
        api.delete(api.jobs(name), options)

    def pod_selector(self, job_name: str) -> str:
        """The labels that the pods of a job have, and no other pods."""
        return f"{self.job_label}={job_name}"

    def concerns(self, about: str, job_name: str) -> bool:
        """Returns whether an object of that name is the job, one of its pods, or stands between them."""
        return about == job_name or about.startswith(f"{job_name}-{self.role}-")

    @abstractmethod
    def status(self, job: Json) -> JobStatus:
        """Reads the state of a job from the API's JSON."""

    def pod(self, item: Json) -> Pod:
        """Reads one of its pods from the API's JSON."""
        number = item["metadata"].get("labels", {}).get(self.worker_label, 0)
        return reading.pod(item, int(number), self.container)

    def worker_of(self, pod_name: str) -> int:
        """Returns the number of the worker whose pod has that name."""
        match = self.pod_name.search(pod_name)
        return int(match["worker"]) if match else 0

    def understood(self, event: JobEvent) -> JobEvent:
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
