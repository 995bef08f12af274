"""Run: what you ask for, as it crosses the wire from the notebook to the workers, and what its name is made of.

A Run that exists is valid. Where it executes, and on what hardware, belongs to Local(...) and Cluster(...).
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from train_func.errors import InvalidInput
from train_func.fields import (
    Judge,
    NamedFields,
    brief,
    field_faults,
    field_names,
    is_number,
    parameter_faults,
    text_fault,
    whole,
)
from train_func.inputs import is_named, named_inputs, with_addresses
from train_func.plain import plain
from train_func.tasks import TASKS, Task
from train_func.text import nearest

RESULT_VERSION = 5  # part of every name: raise it when the same Run would train to other numbers
RECORD_KEY = "train_func"  # beside the fields of a Run in what a function is called with
# Characters of a name before its hash. The hash, "-g999" of a generation and "-node-0-999-abcde" of a pod make 63, the
# most that Kubernetes allows.
READABLE_LENGTH = 28
DERIVED_LENGTH, WORD_LENGTH = 24, 12  # of a name that was not given, and of each of its words: part of what a run is
HASH_LENGTH = 12
# Fields that decide no result of a task.
NOT_IN_NAME = (
    "workers",
    "min_workers",
    "micro_batch_size",
    "max_attempts",
    "deadline",
    "checkpoint_every",
    "hang_after",
)
_READABLE = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")


def _learning_rate_fault(name: str, value: object) -> str | None:
    if is_number(value) and 0 < value <= 1:
        return None
    allowed = "a number above 0 and at most 1 is expected (fine-tuning usually takes 1e-5 to 1e-4)"
    return f"{name}={brief(value)}: {allowed}"


def _seconds(least: float) -> Judge:
    def fault(name: str, value: object) -> str | None:
        if is_number(value) and least <= value <= 1e9:
            return None
        return f"{name}={brief(value)}: seconds from {least} up are expected"

    return fault


def _name_fault(field: str, name: object) -> str | None:
    expected = f"at most {READABLE_LENGTH} small letters, digits and hyphens are expected, a letter first"
    if fault := text_fault(field, name, expected):
        return fault
    if len(str(name)) <= READABLE_LENGTH and _READABLE.fullmatch(str(name)):
        return None
    close = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).lstrip("-0123456789")[:READABLE_LENGTH].rstrip("-")
    return f"{field}={brief(name)}: {expected}, such as {close or 'reviews'!r}"


@dataclass(frozen=True, kw_only=True)
class Run(NamedFields):
    """A training that you ask for. All faults, also those of its task, are reported at once.

    Without a task the function is your own, and is called with ``parameters`` as they are.

    Our Trainer computes in bfloat16 where the GPU, or the CPU, has instructions for it, else in float32;
    ``session.arguments(bf16=False)`` asks for float32. The first attempt decides it for the run.

    Every worker finds each of ``inputs`` as a local path: ``session.input("photos")``, or without a Session
    ``os.environ["TRAIN_FUNC_INPUT_PHOTOS"]``, the name in capitals with ``_`` for ``-``. A file stays a file; a folder
    or a repository of the Hub is a folder; a DataFrame or ``datasets.Dataset`` is a Parquet file. The content is part
    of the name of the run, and is verified before the ranks start. A claim, ``pvc://CLAIM/PATH``, is mounted read-only;
    only its address is part of the name.

    Raises:
        InvalidInput: naming every field that cannot work, what it was and what it may be.
    """

    task: Task | None = None
    """What kind of training, on what model and data: ``TextClassification(model=..., dataset=...)``."""
    workers: int = field(default=None, metadata={"judge": whole(1, 1000)})  # type: ignore[assignment]
    """Pods, or their stand-ins on this machine; by default 2 with a task and 1 without."""
    min_workers: int | None = field(default=None, metadata={"judge": whole(1, 999)})
    """Fewest workers with which the training goes on when others are lost; None: all are needed."""
    epochs: int = field(default=3, metadata={"judge": whole(1, 100_000)})
    """Times every training row is used."""
    batch_size: int = field(default=16, metadata={"judge": whole(1, 10**7)})
    """Rows per optimizer step over all workers together."""
    micro_batch_size: int | None = field(default=None, metadata={"judge": whole(1, 10**6)})
    """Most rows one rank holds at once; None: 640 tokens of texts on a CPU, on average, and 8 rows else."""
    learning_rate: float = field(default=5e-5, metadata={"judge": _learning_rate_fault})
    """Peak learning rate."""
    seed: int = field(default=42, metadata={"judge": whole(0, 2**32 - 1)})
    """Seed of the split, the order of the rows, the new layers and dropout."""
    max_attempts: int = field(default=3, metadata={"judge": whole(1, 1000)})
    """Attempts without a new checkpoint after which a retryable failure becomes final."""
    deadline: int = field(default=24 * 3600, metadata={"judge": whole(1, 10**9)})
    """Seconds after which the job fails; one whose workers find no node waits on."""
    checkpoint_every: float | None = field(default=None, metadata={"judge": _seconds(0)})
    """Seconds between two checkpoints; None: by what saving costs."""
    hang_after: float = field(default=60, metadata={"judge": _seconds(1)})
    """Seconds without progress, from the first step on, after which a rank counts as hanging and the attempt ends."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Values of your own, plain JSON, handed to the function; with a task beside the fields above."""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """Files, folders, ``s3://``, ``hf://`` and ``pvc://`` addresses and tables, by names of your own."""
    name: str | None = field(default=None, metadata={"judge": _name_fault})
    """Readable part of the run's name, such as ``"reviews"``; under another one the same Run is another run."""

    def __post_init__(self) -> None:
        inputs, input_faults = named_inputs(self.inputs)  # first: a DatasetDict is a dict, too
        for name in field_names(Run):
            object.__setattr__(self, name, inputs if name == "inputs" else plain(getattr(self, name)))
        if getattr(self, "workers", None) is None:
            object.__setattr__(self, "workers", 2 if self.task else 1)
        task: object = self.task
        faults = field_faults(self)
        if isinstance(task, Task):
            if not faults and self.workers > self.batch_size:
                faults = [f"workers={self.workers}: each takes at least one row of batch_size={self.batch_size}"]
            faults = [*task.all_faults(), *faults]
        elif task is not None:
            expected = "a task such as TextClassification(model=..., dataset=...) is expected"
            faults.insert(0, f"task={brief(task)}: {expected}")
        if not faults and self.min_workers is not None and self.min_workers >= self.workers:
            faults = [f"min_workers={self.min_workers}: fewer than workers={self.workers} are expected"]
        reserved = {RECORD_KEY, *(field_names(Run) if task is not None else ())}
        if faults := [*faults, *parameter_faults(self.parameters, reserved), *input_faults]:
            raise InvalidInput(faults)
        object.__setattr__(self, "parameters", json.loads(json.dumps(dict(self.parameters))))

    @classmethod
    def _unknown(cls, name: str, values: Mapping[str, Any]) -> str:
        """Names the task when the field is one of a task."""
        tasks = [type(values["task"])] if isinstance(values.get("task"), Task) else TASKS
        of_task = {field: task.__name__ for task in reversed(tasks) for field in field_names(task)}
        close = nearest(name, [*field_names(cls), *of_task])
        if close not in of_task:
            return f"{super()._unknown(name, values)} Values of your own go in parameters"
        meant = f"Run(task={of_task[close]}({close}=...))"
        return f"{name} belongs to the task: {meant}" if name == close else f"Run has no field {name!r}: {meant}?"

    def to_dict(self) -> dict[str, Any]:
        """The Run as plain JSON values; ``from_dict`` is its inverse."""
        values = {name: getattr(self, name) for name in field_names(Run)}
        parameters = json.loads(json.dumps(self.parameters))
        task = self.task and self.task.to_dict()
        return {**values, "task": task, "parameters": parameters, "inputs": dict(self.inputs)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Raises InvalidInput when a field is unknown or invalid."""
        task = values.get("task")
        return cls(**{**values, "task": Task.from_dict(task) if isinstance(task, Mapping) else task})


def name_of(
    run: Run,
    *,
    function: str,
    source_sha256: str,
    fingerprints: Mapping[str, str],
    packages: Mapping[str, str] | None = None,
) -> str:
    """A readable part and a hash of everything that decides the result: the same inputs give the same name.

    The readable part, which ``Run.name`` sets, is not hashed.

    Args:
        run: asks for the training.
        function: its name.
        source_sha256: of the text that travels.
        fingerprints: of the task's inputs, by field, and of the run's own, by key: the commit of what lies on the Hub,
            the address of a claim, else of the content.
        packages: versions of those that decide, by name: of an installed package that the task comes from, and of
            those that a backend was asked to bring.
    """
    of_task = {key: fingerprint for key, fingerprint in fingerprints.items() if not is_named(key)}
    decides = {
        "result_version": RESULT_VERSION,
        "source": source_sha256,
        "function": function,
        "task": run.task and run.task.identity(of_task),
        "inputs": dict(fingerprints),
        "seed": run.seed,
        "epochs": run.epochs,
        "batch_size": run.batch_size,
        "learning_rate": float(run.learning_rate),
        "parameters": run.parameters,
        "workers": None if run.task else run.workers,
        **({"packages": dict(packages)} if packages else {}),
    }
    inputs = [getattr(run.task, name) for name in run.task.inputs[:2]] if run.task else []
    named = [str(address) for address in inputs if address is not None] or [
        type(run.task).__name__ if run.task else function
    ]
    words = [_slug(address) for address in named]
    # A folder is often called model, as that of a package is: the data then says more alone.
    readable = run.name or "-".join(words[words[0] == "model" :] or words)[:DERIVED_LENGTH].strip("-")
    return f"{readable}-{hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:HASH_LENGTH]}"


def replace_inputs(run: Run, addresses: Mapping[str, Any]) -> Run:
    """Returns the Run with other values in fields of its task, by field, and other addresses of inputs, by key."""
    of_task = {key: value for key, value in addresses.items() if not is_named(key)}
    task = run.task and dataclasses.replace(run.task, **of_task)
    return dataclasses.replace(run, task=task, inputs=with_addresses(run.inputs, addresses))


def ranks_fault(run: Run, num_ranks: int) -> str | None:
    """Returns what is wrong with this number of ranks of all workers together."""
    if num_ranks <= run.batch_size:
        return None
    return (
        f"{num_ranks} ranks: a global batch has batch_size={run.batch_size} rows, at least one for each rank is "
        "expected: raise batch_size of the Run, or use fewer workers or GPUs"
    )


def recorded_only(run: Run) -> dict[str, float | None]:
    """Returns the fields that are recorded but not part of the name: two submissions of one run may differ in them."""
    return {name: getattr(run, name) for name in NOT_IN_NAME if run.task or name != "workers"}


NAME = re.compile(rf"[a-z][a-z0-9-]*-[0-9a-f]{{{HASH_LENGTH}}}")  # of a run


def _slug(address: str) -> str:
    last = re.split(r"[/\\]", address.rstrip("/\\"))[-1]
    words = re.sub(r"[^a-z0-9]+", "-", last.rsplit(".", 1)[0].lower()).strip("-")[:WORD_LENGTH].strip("-")
    return words if words[:1].isalpha() else f"r-{words}".rstrip("-")
