"""Cluster: runs jobs on a Kubernetes that has an operator for one of the kinds of jobs.

Nothing is kept in the object: everything is in the cluster and in the store, so that another kernel sees the same.
What is not given is taken from the environment, read with each call.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from train_func.client.backend import BoundJob, Input, Submission, provisional
from train_func.client.cluster import objects, preflight, uploads
from train_func.client.cluster.access import Access
from train_func.client.cluster.cluster_job import ClusterJob
from train_func.client.cluster.kubeconfig import connect
from train_func.client.cluster.options import endpoint_faults, image_fault, store_faults
from train_func.client.cluster.timings import Timings
from train_func.client.kinds import DEFAULT, KINDS, Kind
from train_func.client.kinds.pod import FILES, config_map
from train_func.client.packages.image_list import inventory_of
from train_func.client.packages.inventory import Inventory
from train_func.client.packages.wheels import requirement_faults
from train_func.client.placement import Placement, SecretKey
from train_func.errors import InvalidInput
from train_func.fields import NamedFields
from train_func.layout import home
from train_func.records import RunRecord
from train_func.run import Run
from train_func.storage import Store, scheme_of
from train_func.storage.s3 import S3Store
from train_func.text import shown

CPU, MEMORY = 2, "8Gi"
GRACE_SECONDS = 30
SPOT_GRACE_SECONDS = 15  # GKE gives a node 30 s, and the pods that are not the system's half of them
_unlisted: set[str] = set()  # images of which it was said that their packages are not known
UNNAMED, UNNAMED_STORE = "unnamed:0", S3Store.example  # where a setting is missing, so that all else can be asked


@dataclass(frozen=True, kw_only=True)
class Cluster(NamedFields):
    """A namespace of a Kubernetes as a backend for jobs; all faults of its options are reported at once.

    Raises:
        InvalidInput: naming every option that cannot work, what it was and what it may be.
    """

    image: str | None = None
    """Of the workers; default: TRAIN_FUNC_IMAGE."""
    namespace: str | None = None
    """Default: TRAIN_FUNC_NAMESPACE, else that of the kubeconfig's context, or the pod's own."""
    context: str | None = None
    """Of the kubeconfig; default: its current one, or the cluster of the pod this runs in."""
    store: str | None = None
    """``s3://bucket/prefix``; default: TRAIN_FUNC_STORE."""
    cpu: int | float | str | None = None
    """Cores of each worker: a number, or a quantity such as ``"500m"``; default: TRAIN_FUNC_CPU, else 2."""
    memory: str | None = None
    """Memory of each worker; default: TRAIN_FUNC_MEMORY, else ``8Gi``."""
    gpu: int = 0
    """GPUs of each worker."""
    disk: str = "50Gi"
    """Most that each worker may keep in its cache, and in its working folder, before it is evicted."""
    cache: str | None = None
    """PersistentVolumeClaim in which workers share inputs and models, each fetched once; default: a volume of each."""
    spot: bool = False
    """Whether workers may run on nodes that can be taken away, and prefer them."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Sequence[Mapping[str, Any]] = ()
    """Taints that a node may have, as Kubernetes writes them."""
    queue: str | None = None
    """Kueue's local queue."""
    service_account: str | None = None
    """Of the workers, which get no token of it; default: the namespace's own."""
    priority_class: str | None = None
    """Name of a PriorityClass."""
    store_secret: str | None = None
    """Secret with the keys rootUser and rootPassword; default: TRAIN_FUNC_STORE_SECRET, else ``myminio``."""
    hub_secret: str = "hf-secrets"
    """Secret with the key HF_TOKEN; the workers start without it."""
    s3_endpoint: str | None = None
    """Where the workers find the store; default: TRAIN_FUNC_S3_ENDPOINT, else AWS_ENDPOINT_URL_S3 as it is here."""
    packages: Sequence[str] = ()
    """Requirements such as ``"scikit-learn==1.9.1"``: what the image lacks travels with the run, as wheels."""
    environment: Mapping[str, str | SecretKey] = field(default_factory=dict)
    """Further variables of the workers: plain values, or Secrets by reference."""
    grace_seconds: int | None = None
    """From SIGTERM to SIGKILL; default: 30, and 15 with ``spot``, because some clouds leave a pod no more."""
    kind: str | None = None
    """Of the jobs, a name out of ``kinds.KINDS``; default: TRAIN_FUNC_KIND, else that of the Training Operator."""
    timings: Timings = field(default=Timings(), repr=False)
    """Limits and pauses of what is asked of the cluster."""

    def __post_init__(self) -> None:
        faults: list[str] = []
        try:
            self._placement(UNNAMED, self.namespace)
        except InvalidInput as found:
            faults += found.faults
        faults += requirement_faults(self.packages)
        faults += [fault] if self.image is not None and (fault := image_fault(self.image)) else []
        faults += store_faults(self.store) if self.store is not None else []
        faults += endpoint_faults("s3_endpoint", self.s3_endpoint) if self.s3_endpoint is not None else []
        if faults:
            raise InvalidInput(faults)

    @property
    def found_by(self) -> Mapping[str, Any]:
        """What leads to the jobs and is not left to the kubeconfig."""
        given = {"context": self.context, "namespace": self._given("namespace"), "store": self.store}
        if self._kind is not DEFAULT:
            given["kind"] = self._kind.name
        return {name: value for name, value in given.items() if value}

    @property
    def place(self) -> str:
        """The namespace and the kind, and how the kubeconfig here calls the cluster."""
        access = self._access()
        return f"{self._kind.plural} of namespace {access.namespace} of {access.where}"

    @property
    def identity(self) -> Mapping[str, str]:
        """The cluster, which may have another name in another kubeconfig; the namespace and the kind in it."""
        access = self._access()
        own = f"{access.namespace}/{self._kind.plural}"
        return {kind: f"{mark}/{own}" for kind, mark in access.cluster.items()}

    def store_address(self) -> str:
        """Address of the store that runs here use."""
        address: str | None = self._given("store")
        if address is None or store_faults(address):
            raise InvalidInput([self._by_setting(fault) for fault in store_faults(address)])
        return address

    def models_folder(self) -> Path:
        """Where fetched models go by default."""
        return home(os.environ) / "models"

    def inventory(self) -> Inventory | None:
        """What the image holds, as it lists it itself; where that cannot be known a note says so, once."""
        image = self._given("image")
        if image_fault(image):
            return None  # which check tells
        found = inventory_of(image, os.environ)
        if found is None and image not in _unlisted:
            _unlisted.add(image)
            print(shown(f"note: which packages image {image!r} has is not known; imports are not compared with them"))
        return found

    def check(self, run: Run) -> None:
        """Asks the cluster everything that can be known before anything is created.

        Raises:
            InvalidInput: with every finding at once.
        """
        faults = self._faults()
        if run.workers > 1 and not scheme_of(address := self._store_or_unnamed()).group_variables():
            faults.append(
                f"store={address!r}: its scheme has no secret_variables, by which {run.workers} workers would know one "
                "another; take workers=1, or another store"
            )
        try:
            access = self._access()
            placement = self._placement(self._image_or_unnamed(), access.namespace)
        except InvalidInput as found:
            raise InvalidInput([*faults, *found.faults], cause="input" if faults else found.cause) from None
        manifest = self._kind.render(provisional(run, self._store_or_unnamed()), placement, FILES)
        try:
            for note in preflight.check(access, manifest, also=faults):
                print(shown(f"note: {note}"))
        except InvalidInput as found:
            raise InvalidInput([self._by_setting(fault) for fault in found.faults], cause=found.cause) from None

    def client_environment(self) -> dict[str, str | SecretKey]:
        """Variables by which a pod that submits runs finds image, store and namespace; keys by reference.

        Raises:
            InvalidInput: no image or no store is named, or an option cannot work.
        """
        if faults := self._faults():
            raise InvalidInput(faults)
        placement = self._placement(self._image_or_unnamed(), self._given("namespace"))
        return placement.client_environment(self._store_or_unnamed(), self._kind.name)

    def settled(self) -> "Cluster":
        """With what the environment here says of the workers' size, for a process that has another environment."""
        return replace(self, cpu=self._given("cpu"), memory=self._given("memory"))

    def adapted(self, run: Run) -> Run:
        """The run with as many attempts as a job of the kind can have."""
        most = self._kind.most_attempts
        return run if most is None or run.max_attempts <= most else replace(run, max_attempts=most)

    def prepare(self, record: RunRecord, inputs: Mapping[str, Input], num_model_bytes: int, store: Store) -> Run:
        """Brings the run's local files to the store, by content; returns the run with their addresses there.

        Raises:
            InvalidInput: they do not fit the cache of a worker, or one has changed since it was checked.
        """
        if self.cache is None:
            uploads.check_room(inputs, self.disk)
        return uploads.upload_inputs(record.run, inputs, store, self.timings)

    def submission(self, record: RunRecord, files: Sequence[str]) -> Submission:
        """The job of a run for this cluster; ``files`` are the names in its ConfigMap."""
        if faults := self._faults():
            raise InvalidInput(faults)
        namespace = self._access().namespace
        placement = self._placement(self._image_or_unnamed(), namespace)
        found_by = {**self.found_by, "namespace": namespace}
        options = {"kind": self._kind.name, **placement.options, "s3_endpoint": self._endpoint()[1]}
        manifest = self._kind.render(record, placement, files)
        return Submission(manifest, options, found_by, placement.ranks, frozenset(os.environ))

    def submit(self, submission: Submission, files: Mapping[str, bytes]) -> BoundJob:
        """Creates the job; a finished one of that name is removed first.

        Raises:
            InvalidInput: the cluster refuses.
            RunsAlready: another client has created it.
        """
        manifest = submission.manifest
        objects.create(self._access(), manifest, config_map(manifest, files))
        return self.job(manifest["metadata"]["name"])

    def job(self, name: str) -> ClusterJob:
        """The job of that name; nothing is asked yet."""
        return ClusterJob(name, self._access)

    def jobs(self) -> list[BoundJob]:
        """Those in the namespace that train_func has made, by name."""
        return [self.job(name) for name in objects.names(self._access())]

    def _access(self) -> Access:
        return connect(self.context, self._given("namespace"), self._kind, self.timings)

    @property
    def _kind(self) -> Kind:
        given = self._given("kind", DEFAULT.name)
        if given not in KINDS:
            raise InvalidInput(self._by_setting(f"kind={given!r}: one of {', '.join(KINDS)} is expected"))
        return KINDS[given]

    def _given(self, option: str, default: Any = None) -> Any:
        """An option, or where it is not given, what the environment says."""
        return getattr(self, option) or os.environ.get(f"TRAIN_FUNC_{option.upper()}") or default

    def _faults(self) -> list[str]:
        """What is missing or cannot work of the options and the environment together."""
        faults = [self._by_setting(fault) for fault in store_faults(self._given("store"))]
        if fault := image_fault(self._given("image")):
            faults.append(self._by_setting(fault))
        name, endpoint = self._endpoint()
        return faults + (endpoint_faults(name, endpoint) if endpoint else [])

    def _store_or_unnamed(self) -> str:
        address = self._given("store")
        return UNNAMED_STORE if address is None or store_faults(address) else address

    def _image_or_unnamed(self) -> str:
        image: str | None = self._given("image")
        return UNNAMED if image is None or image_fault(image) else image

    def _endpoint(self) -> tuple[str, str | None]:
        """Where the workers find the store, and which setting says so."""
        if self.s3_endpoint:
            return "s3_endpoint", self.s3_endpoint
        names = ("TRAIN_FUNC_S3_ENDPOINT", *scheme_of(self._store_or_unnamed()).endpoint_variables)
        return next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("s3_endpoint", None))

    def _by_setting(self, fault: str) -> str:
        """A fault, by the name that its option has in the environment when it was taken from there."""
        option, _, rest = fault.partition("=")
        variable = f"TRAIN_FUNC_{option.upper()}"
        return f"{variable}={rest}" if not getattr(self, option, None) and os.environ.get(variable) else fault

    def _placement(self, image: str, namespace: str | None) -> Placement:
        grace_seconds = SPOT_GRACE_SECONDS if self.spot else GRACE_SECONDS
        try:
            placement = Placement(
                image=image,
                namespace=namespace,
                cpu=self._given("cpu", CPU) if self.cpu is None else self.cpu,
                memory=self._given("memory", MEMORY) if self.memory is None else self.memory,
                gpu=self.gpu,
                disk=self.disk,
                cache=self.cache,
                grace_seconds=grace_seconds if self.grace_seconds is None else self.grace_seconds,
                spot=self.spot,
                node_selector=self.node_selector,
                tolerations=self.tolerations,
                queue=self.queue,
                service_account=self.service_account,
                priority_class=self.priority_class,
                store_secret=self._given("store_secret", "myminio"),
                hub_secret=self.hub_secret,
                store_settings=scheme_of(self._store_or_unnamed()).worker_settings(os.environ, self._endpoint()[1]),
                environment=self.environment,
            )
        except InvalidInput as found:
            raise InvalidInput([self._by_setting(fault) for fault in found.faults]) from None
        if faults := self._kind.faults(placement):
            raise InvalidInput(faults)
        return placement
