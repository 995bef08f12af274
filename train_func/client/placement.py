"""Placement: where and on what hardware the workers of a run execute, valid once it exists; it makes the JobSpec."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from train_func.client.job_spec import (
    COMMAND,
    GENERATION_LABEL,
    RUN_LABEL,
    JobSpec,
    OfWorker,
    SecretKey,
    Value,
    parse_quantity,
)
from train_func.errors import InvalidInput
from train_func.fields import field_names, whole_fault
from train_func.inputs import claims_of
from train_func.secret import secret_under
from train_func.storage import schemes, schemes_of
from train_func.wire.records import RunRecord

LEAST_CPU, MOST_CPU = Decimal("0.01"), 1024
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# As registries and nodes read it; what stands before the first slash is a registry only with a dot or a port.
_HOST = r"(?=[^/]*[.:])(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::\d+)?"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?P<tag>:\w[\w.-]{{0,127}})?(?P<digest>@sha256:[0-9a-f]{{64}})?", re.ASCII
)
# Set by the manifest or by the operator; Kubernetes lets the last duplicate win, so a second value would be lost.
_RESERVED = re.compile(
    r"TRAIN_FUNC_(?!WEBHOOK$).*|PET_.*|PYTHONUNBUFFERED|PYTHONHASHSEED|HOME|USER|TMPDIR|HF_HOME|HF_TOKEN"
)


@dataclass(frozen=True, kw_only=True)
class Placement:
    """All faults are reported at once, but for those that the API server finds in a dry run of the job.

    Raises:
        InvalidInput: naming every field that cannot work, what it was and what it may be.
    """

    image: str
    cpu: int | float | str
    """Cores of each worker; parts of one too, as 0.5 or "500m"."""
    memory: str | None = None
    """Memory of each worker, a Kubernetes quantity; None: no limit."""
    disk: str | None = None
    """Most that a worker may keep in each of its cache and its working folder; None: no limit."""
    cache: str | None = None
    """PersistentVolumeClaim that all workers keep their cache in; None: a volume of each."""
    gpu: int = 0
    """GPUs of each worker; as many ranks run in it, or one without any."""
    grace_seconds: int = 30
    """Seconds from SIGTERM to SIGKILL."""
    namespace: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Mapping[str, Any]] = ()
    spot: bool = False
    """Whether nodes that can be taken away are tolerated and preferred."""
    queue: str | None = None
    """Kueue's local queue."""
    priority_class: str | None = None
    service_account: str | None = None
    store_secret: str = "myminio"
    """Secret with the store's keys."""
    hub_secret: str = "hf-secrets"
    """Secret with the key HF_TOKEN; the workers start without it."""
    store_settings: Mapping[str, str] = field(default_factory=dict)
    """Variables that lead the workers to the store, beside its Secret's."""
    environment: Mapping[str, str | SecretKey] = field(default_factory=dict)
    """Further variables: plain values, or Secrets by reference."""

    def __post_init__(self) -> None:
        amounts = {name: getattr(self, name) for name in ("memory", "disk")}
        faults = [
            cpu_fault(self.cpu),
            whole_fault("gpu", self.gpu, 0),
            whole_fault("grace_seconds", self.grace_seconds, 1),
            *(memory_fault(value, name) for name, value in amounts.items() if value is not None),
            *environment_faults(self.environment),
        ]
        if refusals := [fault for fault in faults if fault]:
            raise InvalidInput(refusals)

    @property
    def ranks(self) -> int:
        """Training processes of each worker."""
        return max(1, self.gpu)

    @property
    def options(self) -> dict[str, Any]:
        """What the options of the backend came to, as plain JSON values; a variable is an option of its own."""
        apart = ("namespace", "store_settings", "environment")
        options = {name: getattr(self, name) for name in field_names(Placement) if name not in apart}
        options |= {
            "cpu": str(self.cpu),
            "node_selector": dict(self.node_selector),
            "tolerations": [dict(toleration) for toleration in self.tolerations],
        }
        for name, value in self.environment.items():
            options[f"environment[{name!r}]"] = value if isinstance(value, str) else f"of Secret {value.secret}"
        return options

    def secrets(self, addresses: Iterable[str]) -> dict[str, SecretKey]:
        """Variables whose values are keys of Secrets: those of the stores at these addresses, and the Hub's token."""
        store_keys = {
            name: SecretKey(secret=self.store_secret, key=key.key, optional=key.optional)
            for scheme in schemes_of(addresses)
            for name, key in scheme.secret_variables.items()
        }
        return {**store_keys, "HF_TOKEN": SecretKey(secret=self.hub_secret, key="HF_TOKEN", optional=True)}


def image_fault(image: object) -> str | None:
    """Returns why no node could pull ``image``, or why nodes could pull different ones; None if it has no fault."""
    if image is None:
        return "image: none is given; give Cluster(image='registry/name:tag') or set TRAIN_FUNC_IMAGE"
    match = _IMAGE.fullmatch(str(image))
    if match and (match["tag"] or match["digest"]):
        return None
    why = "it has no tag, so that every node may pull another one; " if match else ""
    scheme = f", without {image.partition('://')[0]}://" if isinstance(image, str) and "://" in image else ""
    return (
        f"image={image!r}: {why}'registry/name:tag' or 'registry/name@sha256:...' is expected{scheme}: a name of small "
        "letters, the tag of at most 128 letters, digits, '.', '_' and '-', the digest of 64 hexadecimal digits"
    )


def cpu_fault(value: object) -> str | None:
    """Returns what is wrong with an amount of cores."""
    number = str(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else ""
    try:
        # "500M" are 500 million cores: a suffix other than m is meant for memory, or for m.
        if not number.endswith(("k", "M", "G", "T", "P", "E", "i")) and LEAST_CPU <= parse_quantity(number) <= MOST_CPU:
            return None
    except ValueError:
        pass
    wanted = f"cores are expected, at least {LEAST_CPU} and at most {MOST_CPU}"
    return f"cpu={value!r}: {wanted}: a number such as 2 or 0.5, or a quantity such as '500m'"


def memory_fault(value: object, name: str = "memory") -> str | None:
    """Returns what is wrong with an amount of memory or disk."""
    try:
        enough = isinstance(value, str) and parse_quantity(value) >= 2**20
    except ValueError:
        enough = False
    return None if enough else f"{name}={value!r}: a Kubernetes quantity of at least 1Mi is expected, such as '8Gi'"


def environment_faults(environment: object) -> list[str]:
    """Returns what is wrong with further variables of the workers."""
    if not isinstance(environment, Mapping):
        return [f"environment={environment!r}: a dict of variables is expected"]
    faults = []
    for name, value in environment.items():
        option = f"environment[{name!r}]"
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            faults.append(f"{option}: a name of letters, digits and _ is expected")
        elif any(pattern.fullmatch(name) for pattern in (_RESERVED, *(scheme.own_variables for scheme in schemes()))):
            faults.append(f"{option}: set by train_func or by the operator itself; choose another name")
        elif isinstance(value, SecretKey):
            continue
        elif not isinstance(value, str):
            faults.append(f"{option}={value!r}: a text is expected, or SecretKey(secret=..., key=...)")
        elif secret := secret_under(name, value):
            faults.append(f"{option}: holds {secret}; give SecretKey(secret=..., key=...) instead")
    return faults


def job_spec(record: RunRecord, placement: Placement) -> JobSpec:
    """The job of a run at a place."""
    return JobSpec(
        name=record.job_name,
        labels={RUN_LABEL: record.name, GENERATION_LABEL: str(record.generation)},
        namespace=placement.namespace,
        image=placement.image,
        workers=record.run.workers,
        min_workers=record.run.min_workers or record.run.workers,
        ranks=placement.ranks,
        command=COMMAND,
        environment=_environment(record, placement),
        cpu=str(placement.cpu),
        memory=placement.memory,
        disk=placement.disk,
        gpu=placement.gpu,
        cache=placement.cache,
        claims=tuple(claims_of(record.run.inputs)),
        grace_seconds=placement.grace_seconds,
        deadline=record.run.deadline,
        max_attempts=record.run.max_attempts,
        spot=placement.spot,
        node_selector=dict(placement.node_selector),
        tolerations=tuple(dict(toleration) for toleration in placement.tolerations),
        priority_class=placement.priority_class,
        service_account=placement.service_account,
        queue=placement.queue,
    )


def _environment(record: RunRecord, placement: Placement) -> dict[str, Value]:
    """Returns what every worker gets, by name; nothing in a value is expanded."""
    addresses = [record.store, *record.run.inputs.values()]
    secrets = placement.secrets(addresses)
    keys = {name: key for scheme in schemes_of(addresses) for name, key in scheme.secret_variables.items()}
    user_secrets = [name for name, value in placement.environment.items() if isinstance(value, SecretKey)]
    hidden = [name for name in (*secrets, *user_secrets) if name not in keys or keys[name].is_hidden]
    return {
        "TRAIN_FUNC_SUBMISSION": record.keys.submission(record.submission),
        "TRAIN_FUNC_SUBMITTED": record.submitted,
        "TRAIN_FUNC_WORK_DIR": OfWorker("work"),
        "TRAIN_FUNC_CACHE_DIR": OfWorker("cache"),
        "TRAIN_FUNC_TERMINATION_FILE": OfWorker("termination"),
        "TRAIN_FUNC_STORE": record.store,
        "TRAIN_FUNC_IMAGE": placement.image,
        "TRAIN_FUNC_GRACE_SECONDS": str(placement.grace_seconds),
        "PYTHONHASHSEED": "0",  # so that a set has the same order in all workers, and in every attempt
        "HOME": OfWorker("work"),
        "USER": "train-func",  # the user's number has no name in most images, and torch asks for one
        "TMPDIR": OfWorker("tmp"),
        "HF_HOME": OfWorker("hub"),
        **({"TRAIN_FUNC_CLAIMS_DIR": OfWorker("claims")} if claims_of(record.run.inputs) else {}),
        "TRAIN_FUNC_WORKER": OfWorker("number"),
        "TRAIN_FUNC_POD": OfWorker("pod"),
        "TRAIN_FUNC_POD_UID": OfWorker("uid"),
        "TRAIN_FUNC_CPUS": OfWorker("cpus"),
        "TRAIN_FUNC_MEMORY": OfWorker("memory"),  # that of the node where there is no limit
        **placement.store_settings,
        **secrets,
        **placement.environment,
        "TRAIN_FUNC_SECRETS": " ".join(hidden),  # whose values the worker shows nowhere
    }
