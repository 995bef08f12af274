"""Cluster: runs jobs on a Kubernetes that has an operator for one of the kinds of jobs.

Nothing is kept in the object: everything is in the cluster and in the store, so that another kernel sees the same.
What is not given is taken from the environment, read with each call.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from train_func.client.backend import BoundJob, Input, JobRequest, provisional
from train_func.client.cluster import admission, input_uploads, objects
from train_func.client.cluster.access import Access
from train_func.client.cluster.cluster_job import ClusterJob
from train_func.client.cluster.kubeconfig import connect, is_loopback
from train_func.client.job_spec import SecretKey
from train_func.client.kinds import DEFAULT, KINDS, Kind
from train_func.client.packages.inventory import Inventory, inventory_of
from train_func.client.packages.requirements import requirement_faults
from train_func.client.placement import Placement, image_fault, job_spec
from train_func.errors import InvalidInput, StorageFailed
from train_func.fields import NamedFields, field_names
from train_func.run import Run
from train_func.storage import Store, open_store, scheme_of
from train_func.storage.store import endpoint_fault, without_password
from train_func.text import shown
from train_func.wire.records import RunRecord

CPU, MEMORY = 2, "8Gi"
GRACE_SECONDS = 30
SPOT_GRACE_SECONDS = 15  # GKE gives a node 30 s, and the pods that are not the system's half of them
UNNAMED, UNNAMED_STORE = "unnamed:0", "s3://bucket/prefix"  # where a setting is missing, so that all else can be asked


@dataclass(frozen=True, kw_only=True)
class Cluster(NamedFields):
    """A namespace of a Kubernetes as a backend for jobs; all faults of its options are reported at once.

    Raises:
        InvalidInput: naming every option that cannot work, what it was and what it may be.
    """

    image: str | None = None
    """Image of the workers; default: TRAIN_FUNC_IMAGE."""
    namespace: str | None = None
    """Default: TRAIN_FUNC_NAMESPACE, else that of the kubeconfig's context, or the pod's own."""
    context: str | None = None
    """Context of the kubeconfig; default: its current one, or the cluster of the pod this runs in."""
    store: str | None = None
    """``s3://bucket/prefix``; default: TRAIN_FUNC_STORE."""
    cpu: int | float | str | None = None
    """Cores of each worker: a number, or a quantity such as ``"500m"``; default: TRAIN_FUNC_CPU, else 2."""
    memory: str | None = None
    """Memory of each worker; default: TRAIN_FUNC_MEMORY, else ``8Gi``."""
    gpu: int = 0
    """GPUs of each worker."""
    disk: str = "50Gi"
    """Most that each worker may keep in its cache and its working folder; a worker that keeps more is evicted.

    Larger local files are refused, unless ``cache`` names a claim. A folder of images takes twice its size.
    """
    cache: str | None = None
    """PersistentVolumeClaim in which workers share inputs, models and packages; default: each has a volume.

    Workers on several nodes need one that is ReadWriteMany.
    """
    spot: bool = False
    """Whether workers tolerate and prefer nodes that can be reclaimed."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Sequence[Mapping[str, Any]] = ()
    """Taints that a node may have, as Kubernetes writes them."""
    queue: str | None = None
    """Kueue's local queue; a job in one is neither scaled nor moved."""
    service_account: str | None = None
    """Service account of the workers; a PyTorchJob does not mount its token. Default: that of the namespace."""
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
    """Seconds from SIGTERM to SIGKILL; default: 30, with ``spot`` 15, because some clouds leave a pod no more."""
    kind: str | None = None
    """Kind of the jobs, ``"PyTorchJob"`` or ``"TrainJob"``; default: TRAIN_FUNC_KIND, else PyTorchJob."""

    def __post_init__(self) -> None:
        faults: list[str | None] = []
        try:
            self._placement(UNNAMED, self.namespace)
        except InvalidInput as refusal:
            faults += refusal.faults
        faults += requirement_faults(self.packages)
        faults.append(image_fault(self.image) if self.image is not None else None)
        faults.append(store_fault(self.store) if self.store is not None else None)
        faults.append(reach_fault("s3_endpoint", self.s3_endpoint) if self.s3_endpoint is not None else None)
        if any(faults):
            raise InvalidInput([fault for fault in faults if fault])

    @property
    def found_by(self) -> Mapping[str, Any]:
        """Returns the options that find the jobs, without those that the kubeconfig decides."""
        options = {"context": self.context, "namespace": self._setting("namespace"), "store": self.store}
        if self._kind is not DEFAULT:
            options["kind"] = self._kind.name
        return {name: value for name, value in options.items() if value}

    @property
    def place(self) -> str:
        """Returns the namespace, the kind, and the name of the cluster in the kubeconfig here."""
        access = self._access()
        return f"{self._kind.plural} of namespace {access.namespace} of {access.where}"

    @property
    def identity(self) -> Mapping[str, str]:
        """Returns cluster, namespace and kind; the cluster by an id, because kubeconfigs may name it differently."""
        access = self._access()
        suffix = f"{access.namespace}/{self._kind.plural}"
        return {kind: f"{mark}/{suffix}" for kind, mark in access.cluster.items()}

    def store_address(self) -> str:
        """Returns the address of the store of runs."""
        address = self._setting("store")
        if fault := store_fault(address):
            raise InvalidInput(self._by_setting(fault))
        return str(address)

    def inventory(self) -> Inventory | None:
        """Returns the packages of the image; if they are not known, prints a note and returns None."""
        image = self._setting("image")
        if image_fault(image):
            return None  # which check tells
        inventory = inventory_of(image, os.environ, lambda: open_store(self.store_address()))
        if inventory is None:
            unknown = f"the packages of image {image!r} are not known until its workers have listed them"
            print(shown(f"note: {unknown}; imports are not compared"))
        return inventory

    def check(self, run: Run, *, tells_unknown: bool = False) -> None:
        """Asks the cluster all questions that are possible before anything is created.

        Args:
            run: the run to submit.
            tells_unknown: print the questions that the account may not ask, as ``doctor`` does.

        Raises:
            InvalidInput: with every finding at once.
        """
        faults = self._faults()
        if run.min_workers is not None and not self._kind.is_elastic:
            faults.append(
                f"min_workers={run.min_workers}: a {self._kind.name} has a fixed number of workers; leave it out, or "
                "take Cluster(kind='PyTorchJob')"
            )
        try:
            access = self._access()
            placement = self._placement(self._image_or_unnamed(), access.namespace)
        except InvalidInput as refusal:
            raise InvalidInput([*faults, *refusal.faults], cause="input" if faults else refusal.cause) from None
        spec = job_spec(provisional(run, self._store_or_unnamed()), placement)
        try:
            for note in admission.check(access, spec, also=faults, tells_unknown=tells_unknown):
                print(shown(f"note: {note}"))
        except InvalidInput as refusal:
            raise InvalidInput([self._by_setting(fault) for fault in refusal.faults], cause=refusal.cause) from None

    def client_environment(self) -> dict[str, str | SecretKey]:
        """Returns the variables for a pod that submits runs: image, store and namespace; keys by reference.

        Raises:
            InvalidInput: no image or no store is named, or an option cannot work.
        """
        if faults := self._faults():
            raise InvalidInput(faults)
        image, namespace, store = (self._setting(option) for option in ("image", "namespace", "store"))
        placement = self._placement(image, namespace)
        named = {"IMAGE": image, "NAMESPACE": namespace, "STORE_SECRET": placement.store_secret, "STORE": store}
        named |= {"KIND": self._kind.name}
        plain = {f"TRAIN_FUNC_{name}": value for name, value in named.items() if value}
        return {**plain, **placement.store_settings, **placement.secrets([store])}

    def with_environment(self) -> "Cluster":
        """Returns a copy with the workers' size from the environment here, for a process with another environment."""
        return replace(self, cpu=self._setting("cpu"), memory=self._setting("memory"))

    def adapt(self, run: Run) -> Run:
        """Returns the run with the number of attempts that the kind of job allows."""
        most = self._kind.most_attempts
        return run if most is None or run.max_attempts <= most else replace(run, max_attempts=most)

    def prepare(self, record: RunRecord, inputs: Mapping[str, Input], num_model_bytes: int, store: Store) -> Run:
        """Uploads the run's local files by content; returns the run with their addresses in the store.

        Raises:
            InvalidInput: they do not fit the cache of a worker, or one has changed since it was checked.
        """
        try:
            if self.cache is None:
                input_uploads.check_room(inputs, self.disk)
            return input_uploads.upload_inputs(record.run, inputs, store)
        except StorageFailed:  # an OSError too
            raise
        except OSError as error:
            raise InvalidInput(f"a file changed since it was checked; submit again: {error}", cause="data") from None

    def request(self, record: RunRecord) -> JobRequest:
        """Returns the request for the job of a run on this cluster."""
        if faults := self._faults():
            raise InvalidInput(faults)
        namespace = self._access().namespace
        placement = self._placement(self._image_or_unnamed(), namespace)
        found_by = {**self.found_by, "namespace": namespace}
        options = {"kind": self._kind.name, **placement.options, "s3_endpoint": self._endpoint()[1]}
        spec = job_spec(record, placement)
        return JobRequest(self._kind.render(spec), options, found_by, spec.ranks)

    def submit(self, request: JobRequest) -> BoundJob:
        """Creates the job; a finished one of that name is removed first.

        Raises:
            InvalidInput: the cluster refuses.
            RunsAlready: another client has created it.
        """
        manifest = request.manifest
        objects.create(self._access(), manifest)
        return self.job(manifest["metadata"]["name"])

    def job(self, name: str) -> ClusterJob:
        """Returns the handle of the job; sends no request."""
        return ClusterJob(name, self._access)

    def jobs(self) -> list[BoundJob]:
        """Returns the namespace's jobs that train_func has created, sorted by name."""
        return [self.job(name) for name in objects.names(self._access())]

    def _access(self) -> Access:
        return connect(self.context, self._setting("namespace"), self._kind)

    @property
    def _kind(self) -> Kind:
        name = self._setting("kind", DEFAULT.name)
        if name not in KINDS:
            raise InvalidInput(self._by_setting(f"kind={name!r}: one of {', '.join(KINDS)} is expected"))
        return KINDS[name]

    def _setting(self, option: str, default: Any = None) -> Any:
        """Returns an option; if it is not given, its value from the environment."""
        return getattr(self, option) or os.environ.get(f"TRAIN_FUNC_{option.upper()}") or default

    def _faults(self) -> list[str]:
        """Returns the faults of the options and the environment together."""
        name, endpoint = self._endpoint()
        faults = [store_fault(self._setting("store")), image_fault(self._setting("image"))]
        faults.append(reach_fault(name, endpoint) if endpoint else None)
        return [self._by_setting(fault) for fault in faults if fault]

    def _store_or_unnamed(self) -> str:
        address = self._setting("store")
        return UNNAMED_STORE if store_fault(address) else str(address)

    def _image_or_unnamed(self) -> str:
        image = self._setting("image")
        return UNNAMED if image_fault(image) else str(image)

    def _endpoint(self) -> tuple[str, str | None]:
        """Returns name and value of the setting with the workers' endpoint of the store."""
        if self.s3_endpoint:
            return "s3_endpoint", self.s3_endpoint
        names = ("TRAIN_FUNC_S3_ENDPOINT", *scheme_of(self._store_or_unnamed()).endpoint_variables)
        return next(((name, os.environ[name]) for name in names if os.environ.get(name)), ("s3_endpoint", None))

    def _by_setting(self, fault: str) -> str:
        """Renames the option of a fault to its variable, if the value came from the environment."""
        option, _, rest = fault.partition("=")
        variable = f"TRAIN_FUNC_{option.upper()}"
        return f"{variable}={rest}" if not getattr(self, option, None) and os.environ.get(variable) else fault

    def _placement(self, image: str, namespace: str | None) -> Placement:
        grace_seconds = SPOT_GRACE_SECONDS if self.spot else GRACE_SECONDS
        scheme = scheme_of(self._store_or_unnamed())
        settled: dict[str, Any] = {
            "image": image,
            "namespace": namespace,
            "cpu": self._setting("cpu", CPU) if self.cpu is None else self.cpu,
            "memory": self._setting("memory", MEMORY) if self.memory is None else self.memory,
            "grace_seconds": grace_seconds if self.grace_seconds is None else self.grace_seconds,
            "store_secret": self._setting("store_secret", "myminio"),
            "store_settings": scheme.worker_settings(os.environ, self._endpoint()[1]),
        }
        names = set(field_names(Placement)) - settled.keys()
        try:
            placement = Placement(**settled, **{name: getattr(self, name) for name in names})
        except InvalidInput as refusal:
            raise InvalidInput([self._by_setting(fault) for fault in refusal.faults]) from None
        if faults := self._kind.faults(placement):
            raise InvalidInput(faults)
        return placement


def store_fault(address: str | None) -> str | None:
    """Returns why pods cannot keep a run in the store; None if they can."""
    remedy = "give Cluster(store='s3://bucket/prefix') or set TRAIN_FUNC_STORE"
    if not address:
        return f"store: none is given, and pods and this process need one that both reach; {remedy}"
    try:
        scheme = scheme_of(address)
        scheme.split(address)
    except StorageFailed as error:
        return f"store: {error}"
    if scheme.is_shared:
        return None
    return (
        f"store={without_password(address)!r}: the pods of a cluster do not see this machine's folders; a store that "
        f"both reach is expected, such as an S3 server: {remedy}, and AWS_ENDPOINT_URL_S3 when it is not Amazon's"
    )


def reach_fault(name: str, endpoint: str) -> str | None:
    """Returns why pods cannot reach a server at the endpoint, or None; ``name``: the setting that holds it."""
    host = urlsplit(str(endpoint)).hostname or ""
    if not is_loopback(host) and host != "0.0.0.0":
        return endpoint_fault(name, str(endpoint))
    return (
        f"{name}={without_password(endpoint)!r}: in a pod that is the pod itself, not this machine; give the server's "
        "name inside the cluster, as Cluster(s3_endpoint='http://myminio:9000') or TRAIN_FUNC_S3_ENDPOINT; "
        "this process goes on using AWS_ENDPOINT_URL_S3"
    )
