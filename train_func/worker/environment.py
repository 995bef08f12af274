"""What the pod tells the worker: its environment, read once and checked as a whole, and how long it waits for what."""

import hmac
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from train_func.errors import InvalidInput
from train_func.storage import schemes_of
from train_func.worker.inputs.cache import machine_cache


@dataclass(frozen=True, kw_only=True)
class Timings:
    """The timings of one worker, in seconds; a test passes shorter ones."""

    look: float = 0.1
    """Between two looks at the ranks, at their supervisor's work and at the rendezvous."""
    patience: float = 2.0
    """For the root of a failure to show itself, and for the ranks to end when asked to."""
    late: float = 2.0
    """By which the end of the ranks may be noticed later than it was due."""
    join: float = 600.0
    """For the group to form, where the job does not say; torch's own default."""
    retry: float = 0.3
    """Between two tries to reach worker 0."""
    pause: float = 5.0
    """Before the next attempt in the same pods when two have made no progress; doubled after each further one."""
    longest_pause: float = 30.0
    """The longest of these pauses."""
    tell: float = 15.0
    """Between two lines that say what is waited for."""
    superseded: float = 10.0
    """For a record that another client has put in the place of the job's own to be put back, where that was slower."""
    store: float = 60.0
    """Longest wait for a store that is away, before the training."""
    store_pause: float = 3.0
    """Between two tries."""
    watch: float = 3.0
    """Between two looks whether the job is over, while the group has not formed."""
    record: float = 15.0
    """Longest wait of a worker's end for the store."""
    unformed: float = 3.0
    """The same when no group was formed, and little is to be told."""
    shortest: float = 0.5
    """For each question to the store, even when that time is up."""
    linger: float = 5.0
    """Longest that the host of the rendezvous stays for those who still read the reason."""


GROUP_SECRET = "TRAIN_FUNC_GROUP_SECRET"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """The place and the part of one worker."""

    job_dir: Path
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
    num_ranks: int
    """Of this worker."""
    endpoint: str
    rendezvous_id: str
    rendezvous: Mapping[str, str]
    cache_dir: Path
    """Which other pods may share."""
    memory: int | None = None
    """Bytes that its processes may have together; None where that is not limited."""
    claims_dir: Path | None = None
    """In which the claims are mounted that the run reads; None where it reads none."""
    group_key: bytes = field(default=b"", repr=False)
    """What the workers of the submission know and no other program does; empty where there is one worker."""
    submission: bytes = field(default=b"", repr=False)
    """The record of the run from which the key was made."""
    timings: Timings = field(default=Timings())

    @property
    def is_superseded(self) -> bool:
        """Whether the job folder has the record of another submission by now, and other workers another key."""
        return bool(self.submission) and _submission(self.job_dir) not in (b"", self.submission)

    @property
    def num_threads(self) -> int:
        """Threads of one rank."""
        return max(1, self.num_cpus // self.num_ranks)


def read_environment(environ: Mapping[str, str]) -> Environment:
    """Raises InvalidInput, naming every variable that is missing or cannot be."""
    read = _Reader(environ)
    work_dir = Path(read.text("TRAIN_FUNC_WORK_DIR"))
    num_workers = _num_workers(read)
    job_dir = Path(read.text("TRAIN_FUNC_JOB_DIR"))
    submission = _submission(job_dir)
    environment = Environment(
        job_dir=job_dir,
        work_dir=work_dir,
        temporary_dir=Path(environ.get("TMPDIR") or work_dir / "tmp"),
        worker=read.whole("TRAIN_FUNC_WORKER", low=0, otherwise="PET_NODE_RANK"),
        pod=environ.get("TRAIN_FUNC_POD") or socket.gethostname(),
        pod_uid=environ.get("TRAIN_FUNC_POD_UID", ""),
        num_cpus=read.whole("TRAIN_FUNC_CPUS", low=1),
        grace=float(read.whole("TRAIN_FUNC_GRACE_SECONDS", low=1)),
        num_workers=num_workers,
        num_ranks=read.whole("PET_NPROC_PER_NODE", low=1),
        endpoint=_endpoint(read),
        rendezvous_id=read.text("PET_RDZV_ID", otherwise="PET_MASTER_ADDR"),  # it has the name of the job
        rendezvous=_rendezvous(read),
        cache_dir=machine_cache(environ),
        memory=read.whole("TRAIN_FUNC_MEMORY", low=1) if "TRAIN_FUNC_MEMORY" in environ else None,
        claims_dir=Path(claims) if (claims := environ.get("TRAIN_FUNC_CLAIMS_DIR")) else None,
        group_key=_group_key(environ, read, submission) if num_workers > 1 else b"",
        submission=submission,
    )
    if environment.worker >= num_workers > 0:
        read.faults.append(f"TRAIN_FUNC_WORKER={environment.worker}: below the {num_workers} workers of PET_NNODES")
    if read.faults:
        raise InvalidInput([f"{fault}; the manifest of the job sets it" for fault in read.faults])
    return environment


class _Reader:
    """Takes variables one by one and remembers every fault."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.faults: list[str] = []

    def text(self, name: str, otherwise: str = "") -> str:
        value = self._environ.get(name) or self._environ.get(otherwise, "")
        if not value:
            self.faults.append(f"{name} is not set")
        return value

    def whole(self, name: str, *, low: int, otherwise: str = "") -> int:
        value = self._environ.get(name) or self._environ.get(otherwise, "")
        if value.isdecimal() and int(value) >= low:
            return int(value)
        self.faults.append(f"{name}={value!r}: a whole number from {low} up is expected")
        return low

    def optional(self, name: str, default: str) -> str:
        return self._environ.get(name) or default


def _num_workers(read: _Reader) -> int:
    value = read.text("PET_NNODES")
    low, _, high = value.partition(":")
    if low.isdecimal() and int(low) >= 1 and high in ("", low):
        return int(low)
    if value:
        read.faults.append(f"PET_NNODES={value!r}: a fixed number of workers is expected, such as 2:2")
    return 0


def _group_key(environ: Mapping[str, str], read: _Reader, submission: bytes) -> bytes:
    """The key of one submission, made from a secret of all its workers.

    On a cluster these are the keys of the store: a program that knows them can change all of the run anyway. This
    machine makes a secret for each job.
    """
    own = environ.get(GROUP_SECRET)
    shared = [own] if own else _secrets_of_store(environ)
    if not shared:
        read.faults.append(f"{GROUP_SECRET} is not set, and the store has no secret by which workers know one another")
    return hmac.digest("\0".join(shared).encode(), b"group of workers\0" + submission, "sha256")


def _submission(job_dir: Path) -> bytes:
    try:
        return (job_dir / "run.json").read_bytes()
    except OSError:  # which is said where it is read as a record
        return b""


def _secrets_of_store(environ: Mapping[str, str]) -> list[str]:
    found = schemes_of([environ.get("TRAIN_FUNC_STORE", "")])
    return [environ[name] for scheme in found for name in scheme.group_variables() if environ.get(name)]


def _endpoint(read: _Reader) -> str:
    """Where the workers meet: an operator without rendezvous names the host and the port of worker 0 apart."""
    host, port = read.optional("PET_MASTER_ADDR", ""), read.optional("PET_MASTER_PORT", "")
    value = read.optional("PET_RDZV_ENDPOINT", "") or (f"{host}:{port}" if host else read.text("PET_RDZV_ENDPOINT"))
    if value and not value.rpartition(":")[2].isdecimal():
        read.faults.append(f"PET_RDZV_ENDPOINT={value!r}: name:port is expected")
    return value


def _rendezvous(read: _Reader) -> dict[str, str]:
    if read.optional("PET_MAX_RESTARTS", "0") != "0":
        read.faults.append(
            "PET_MAX_RESTARTS: 0 is expected, because the operator restarts the pods, each a new attempt"
        )
    backend = read.optional("PET_RDZV_BACKEND", "c10d")
    if backend != "c10d":
        read.faults.append(f"PET_RDZV_BACKEND={backend!r}: c10d is expected")
    settings: dict[str, str] = {}
    for part in filter(None, read.optional("PET_RDZV_CONF", "").split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            read.faults.append(f"PET_RDZV_CONF: {part!r} is no name=value")
        elif name.strip().endswith("_timeout") and not value.strip().isdecimal():
            read.faults.append(f"PET_RDZV_CONF: {part!r}: whole seconds are expected")
        settings[name.strip()] = value.strip()
    return settings
