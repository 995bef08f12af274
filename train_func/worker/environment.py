"""What the pod tells the worker: its environment, read once and checked as a whole."""

import hmac
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from train_func.errors import InvalidInput
from train_func.storage import schemes_of
from train_func.worker.inputs.cache import machine_cache

GROUP_SECRET = "TRAIN_FUNC_GROUP_SECRET"
WEBHOOK = "TRAIN_FUNC_WEBHOOK"
STATUS_SERVER = "KUBEFLOW_TRAINER_SERVER_URL"
DEFAULT_JOIN_SECONDS = 600.0  # for the group to form, where the job does not say; torch's own default


@dataclass(frozen=True)
class StatusServer:
    """Where the operator of a TrainJob takes how far it is, if its feature TrainJobStatus is on."""

    address: str
    authority: Path
    """File of the certificate that has signed that of the server."""
    token: Path
    """File of the token by which the server knows the pod."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The place and the part of one worker."""

    work_dir: Path
    temporary_dir: Path
    worker: int
    pod: str
    pod_uid: str
    """Identifies this incarnation of the pod; empty where it is not known."""
    num_cpus: int
    grace: float
    """Seconds between SIGTERM and SIGKILL."""
    num_workers: int
    min_workers: int
    """Number of workers with which the group may go on; fewer than ``num_workers`` where it is elastic."""
    num_ranks: int
    """Ranks of this worker."""
    endpoint: str
    """Host and port of worker 0."""
    rendezvous_id: str
    join_timeout: float = DEFAULT_JOIN_SECONDS
    image: str = ""
    """Image of the worker; empty where it has none."""
    cache_dir: Path
    """Folder of the cache, which other pods may share."""
    memory: int | None = None
    """Bytes that its processes may have together; None where that is not limited."""
    claims_dir: Path | None = None
    """Folder in which the claims are mounted that the run reads; None where it reads none."""
    group_key: bytes = field(default=b"", repr=False)
    """What the workers of the submission know and no other program does; empty where there is one worker."""
    store: str
    """Address of the store."""
    submission: str
    """The key of the submission's record in the store."""
    submitted: str = ""
    """The time of the submission."""
    webhook: str = field(default="", repr=False)
    """The address to which alerts are posted; empty where there is none."""
    status_server: StatusServer | None = None
    """None where the operator takes no status."""

    @property
    def job_dir(self) -> Path:
        """Returns the folder in which ranks find the record of the run and the source."""
        return self.work_dir / "job"

    @property
    def run_name(self) -> str:
        """Returns the name of the run, whose folder holds the submission."""
        return self.submission.partition("/")[0]

    @property
    def is_elastic(self) -> bool:
        """Returns whether the group may go on with fewer workers."""
        return self.min_workers < self.num_workers

    @property
    def num_threads(self) -> int:
        """Threads of one rank."""
        return max(1, self.num_cpus // self.num_ranks)


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Raises InvalidInput, naming every variable that is missing or cannot be."""
    faults: list[str] = []

    def text(*names: str) -> str:
        value = next(filter(None, map(environ.get, names)), "")
        if not value:
            faults.append(f"{names[0]} is not set")
        return value

    def whole(low: int, *names: str) -> int:
        value = text(*names) or str(low)
        if value.isdecimal() and int(value) >= low:
            return int(value)
        faults.append(f"{names[0]}={value!r}: a whole number from {low} up is expected")
        return low

    low, _, high = text("PET_NNODES").partition(":")
    is_range = low.isdecimal() and (high or low).isdecimal()
    min_workers, num_workers = (int(low), int(high or low)) if is_range else (0, 0)
    if low and not 1 <= min_workers <= num_workers:
        faults.append(f"PET_NNODES={environ['PET_NNODES']!r}: a number of workers is expected, such as 2:2 or 1:4")
    endpoint = environ.get("PET_RDZV_ENDPOINT", "")
    if not endpoint and (host := environ.get("PET_MASTER_ADDR")):  # an operator without rendezvous names them apart
        endpoint = f"{host}:{environ.get('PET_MASTER_PORT', '')}"
    if not endpoint.rpartition(":")[2].isdecimal():
        faults.append(f"PET_RDZV_ENDPOINT={endpoint!r}: name:port is expected")
    settings = dict(part.strip().partition("=")[::2] for part in environ.get("PET_RDZV_CONF", "").split(","))
    join_timeout = settings.get("join_timeout", f"{DEFAULT_JOIN_SECONDS:.0f}")
    if not join_timeout.isdecimal():
        faults.append(f"PET_RDZV_CONF: join_timeout={join_timeout}: whole seconds are expected")
        join_timeout = "0"
    work_dir, submission = Path(text("TRAIN_FUNC_WORK_DIR")), text("TRAIN_FUNC_SUBMISSION")
    secrets = _secrets(environ)
    if num_workers > 1 and not secrets:
        faults.append(f"{GROUP_SECRET} is not set, and the store has no secret by which workers know one another")
    group_key = hmac.digest("\0".join(secrets).encode(), f"group of workers\0{submission}".encode(), "sha256")
    status_files = [Path(environ.get(f"KUBEFLOW_TRAINER_SERVER_{name}", "")) for name in ("CA_CERT", "TOKEN")]
    environment = Environment(
        work_dir=work_dir,
        temporary_dir=Path(environ.get("TMPDIR") or work_dir / "tmp"),
        worker=whole(0, "TRAIN_FUNC_WORKER", "PET_NODE_RANK"),
        pod=environ.get("TRAIN_FUNC_POD") or socket.gethostname(),
        pod_uid=environ.get("TRAIN_FUNC_POD_UID", ""),
        num_cpus=whole(1, "TRAIN_FUNC_CPUS"),
        grace=float(whole(1, "TRAIN_FUNC_GRACE_SECONDS")),
        num_workers=num_workers,
        min_workers=min_workers,
        num_ranks=whole(1, "PET_NPROC_PER_NODE"),
        endpoint=endpoint,
        rendezvous_id=text("PET_RDZV_ID", "PET_MASTER_ADDR"),  # it has the name of the job
        join_timeout=float(join_timeout),
        image=environ.get("TRAIN_FUNC_IMAGE", ""),
        cache_dir=machine_cache(environ),
        memory=whole(1, "TRAIN_FUNC_MEMORY") if "TRAIN_FUNC_MEMORY" in environ else None,
        claims_dir=Path(claims) if (claims := environ.get("TRAIN_FUNC_CLAIMS_DIR")) else None,
        group_key=group_key if num_workers > 1 else b"",
        store=text("TRAIN_FUNC_STORE"),
        submission=submission,
        submitted=environ.get("TRAIN_FUNC_SUBMITTED", ""),
        webhook=environ.get(WEBHOOK, "").strip(),
        status_server=StatusServer(server, *status_files) if (server := environ.get(STATUS_SERVER)) else None,
    )
    if environment.worker >= num_workers > 0:
        faults.append(f"TRAIN_FUNC_WORKER={environment.worker}: below the {num_workers} workers of PET_NNODES")
    if faults:
        raise InvalidInput([f"{fault}; the manifest of the job sets it" for fault in faults])
    return environment


def _secrets(environ: Mapping[str, str]) -> list[str]:
    """Returns what all workers of a submission know, to make its key from.

    On a cluster these are the keys of the store: a program that knows them can change all of the run anyway. This
    machine makes a secret for each job.
    """
    if secret := environ.get(GROUP_SECRET):
        return [secret]
    schemes = schemes_of([environ.get("TRAIN_FUNC_STORE", "")])
    keys = [item for scheme in schemes for item in sorted(scheme.secret_variables.items())]
    return [environ[name] for name, key in keys if key.is_hidden and not key.optional and environ.get(name)]
