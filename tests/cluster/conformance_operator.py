"""The real operator as a stage: what it does is told by two plain watches, which miss no state however short."""

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes
from kubernetes.client import ApiException
from urllib3.exceptions import HTTPError

from tests.cluster.conformance import Json, Record, SeenPod
from train_func.client.job_spec import JobSpec
from train_func.client.kinds.pytorchjob import PYTORCHJOB

JOBS = ("kubeflow.org", "v1")
PLURAL = "pytorchjobs"
JOB_LABEL = "training.kubeflow.org/job-name"
WORKER_LABEL = "training.kubeflow.org/replica-index"
WATCH_SECONDS = 300


class OperatorStage:
    """Jobs in one namespace of a cluster with the Training Operator.

    ``user`` is who submits, ``admin`` who deletes pods and looks for what is left: kubeconfigs.
    """

    def __init__(self, user: Path, admin: Path, namespace: str, pace: float = 3.0) -> None:
        self.pace = pace
        self.timeout = 150.0
        self.namespace = namespace
        api = kubernetes.config.new_client_from_config(str(user))
        self.core = kubernetes.client.CoreV1Api(api)
        self.custom = kubernetes.client.CustomObjectsApi(api)
        self.admin = kubernetes.client.CoreV1Api(kubernetes.config.new_client_from_config(str(admin)))
        self._records: dict[str, Record] = {}
        self._closed = threading.Event()
        self._follow(self.custom.list_namespaced_custom_object, self._job, *JOBS, namespace, PLURAL)
        self._follow(self.core.list_namespaced_pod, self._pod, namespace)

    def close(self) -> None:
        self._closed.set()

    def create(self, job: str, spec: JobSpec) -> Record:
        manifest = PYTORCHJOB.render(spec)
        (container,) = manifest["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
        container["resources"]["requests"] |= {"cpu": "10m"}  # many are played side by side
        record = self._records[job] = Record()
        self.custom.create_namespaced_custom_object(*JOBS, self.namespace, PLURAL, manifest)
        return record

    def delete_pod(self, job: str, pod: SeenPod) -> None:
        self.admin.delete_namespaced_pod(pod.name, self.namespace)

    def text(self, job: str, pod: SeenPod) -> str:
        try:
            # Decoded by hand: the client takes a line of JSON for an object, and gives it back as Python writes it.
            log = self.core.read_namespaced_pod_log(pod.name, self.namespace, _preload_content=False)
            return bytes(log.data).decode(errors="replace")
        except ApiException as failure:
            if failure.status in (400, 404):
                return ""
            raise

    def as_on_a_cluster(self, job: str, pod: SeenPod, value: str) -> str:
        return value.replace(pod.uid, "UID")

    def delete(self, job: str) -> None:
        foreground = kubernetes.client.V1DeleteOptions(propagation_policy="Foreground")
        with contextlib.suppress(ApiException):  # it may be gone already
            self.custom.delete_namespaced_custom_object(*JOBS, self.namespace, PLURAL, job, body=foreground)
        record = self._records[job]
        record.until(lambda: record.gone and all(pod.deleted for pod in record.pods.values()), f"end of {job}", 60)

    def left(self, job: str) -> list[str]:
        found = [
            *self._pods_of(job),
            *self.admin.list_namespaced_service(self.namespace, label_selector=f"{JOB_LABEL}={job}").items,
        ]
        return [thing.metadata.name for thing in found]

    def _pods_of(self, job: str) -> list[Any]:
        return list(self.core.list_namespaced_pod(self.namespace, label_selector=f"{JOB_LABEL}={job}").items)

    def _job(self, change: str, found: Json) -> None:
        record = self._records.get(found["metadata"]["name"])
        if record is None:
            return
        record.tell_conditions(found.get("status", {}).get("conditions", []))
        if change == "DELETED":
            with record.news():
                record.gone = True

    def _pod(self, change: str, found: Any) -> None:
        pod = kubernetes.client.ApiClient().sanitize_for_serialization(found)
        labels = pod["metadata"].get("labels", {})
        record = self._records.get(labels.get(JOB_LABEL, ""))
        if record is not None:
            record.tell_pod(_seen(pod, int(labels[WORKER_LABEL]), deleted=change == "DELETED"))

    def _follow(self, listing: Callable[..., Any], tell: Callable[[str, Any], None], *where: str) -> None:
        threading.Thread(target=self._watch, args=(listing, tell, where), daemon=True).start()

    def _watch(self, listing: Callable[..., Any], tell: Callable[[str, Any], None], where: tuple[str, ...]) -> None:
        """Goes on where it was when the connection ends."""
        watch = kubernetes.watch.Watch()
        while not self._closed.is_set():
            known = {"resource_version": watch.resource_version} if watch.resource_version else {}
            with contextlib.suppress(HTTPError):
                for event in watch.stream(listing, *where, timeout_seconds=WATCH_SECONDS, **known):
                    tell(event["type"], event["object"])
                    if self._closed.is_set():
                        return


def _seen(pod: Json, worker: int, *, deleted: bool) -> SeenPod:
    status = pod["status"]
    container = next(iter(status.get("containerStatuses", [])), {})
    ended = container.get("state", {}).get("terminated", {})
    return SeenPod(
        uid=pod["metadata"]["uid"],
        worker=worker,
        name=pod["metadata"]["name"],
        phase=status["phase"],
        exit_code=ended.get("exitCode"),
        reason=status.get("reason") or ended.get("reason", ""),
        restarts=container.get("restartCount", 0),
        deleted=deleted,
    )
