"""Inputs: the files and folders that a Run may name besides its task, and how their addresses are read."""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from train_func.errors import InvalidInput
from train_func.fields import brief, text_fault
from train_func.plain import plain
from train_func.tables import is_table, saved

HUB, CLAIM = "hf://", "pvc://"
DATA_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".conll")  # of files of rows
_PREFIX = "inputs/"  # no field of a task has a slash in its name
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_REPOSITORY = re.compile(
    rf"{HUB}(?P<datasets>datasets/)?(?P<id>[\w.-]+(?:/[\w.-]+)?)(?:@(?P<revision>[^@\s]+))?", re.ASCII
)
_CLAIM = re.compile(rf"{CLAIM}(?P<name>[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?)(?:/(?P<path>.*))?")
_ENDING = re.compile(r"(?:\.[A-Za-z0-9]{1,12})?\.(?:gz|bz2|xz|zst)|\.[A-Za-z0-9]{1,12}")
_EXPECTED = (
    "a path, an address such as s3://bucket/folder, hf://OWNER/NAME, hf://datasets/OWNER/NAME, pvc://CLAIM/PATH, a "
    "pandas DataFrame or a datasets.Dataset is expected"
)


@dataclass(frozen=True)
class Repository:
    """A repository of the Hub: ``hf://[datasets/]OWNER/NAME[@REVISION]``."""

    kind: Literal["model", "dataset"]
    id: str
    revision: str = "main"

    def at(self, commit: str) -> str:
        """Returns the address of one of its commits."""
        return f"{HUB}{'datasets/' if self.kind == 'dataset' else ''}{self.id}@{commit}"


@dataclass(frozen=True)
class Claim:
    """A folder or file in the volume of a PersistentVolumeClaim: ``pvc://CLAIM[/PATH]``."""

    name: str
    path: str = ""

    def __str__(self) -> str:
        return f"{CLAIM}{self.name}/{self.path}".rstrip("/")


def repository_of(address: str) -> Repository | None:
    """Returns the repository of an address; None if it names something else."""
    match = _REPOSITORY.fullmatch(address)
    if match is None:
        return None
    return Repository("dataset" if match["datasets"] else "model", match["id"], match["revision"] or "main")


def claim_of(address: str) -> Claim | None:
    """Returns the place in a claim of an address; None if it names something else."""
    match = _CLAIM.fullmatch(address)
    path = (match["path"] or "").rstrip("/") if match else ""
    if match is None or (path and {"", ".", ".."} & set(path.split("/"))):
        return None
    return Claim(match["name"], path)


def claims_of(inputs: Mapping[str, str]) -> list[str]:
    """Returns the names of the claims of inputs, each once."""
    return sorted({claim.name for address in inputs.values() if (claim := claim_of(address))})


def key_of(name: str) -> str:
    """Returns the key of an input, which differs from all names of a task's fields."""
    return f"{_PREFIX}{name}"


def is_named(key: str) -> bool:
    """Returns whether a key names an input, and no field of a task."""
    return key.startswith(_PREFIX)


def with_addresses(inputs: Mapping[str, str], addresses: Mapping[str, str]) -> dict[str, str]:
    """Returns the inputs, with the new address for each key in ``addresses``."""
    return {name: addresses.get(key_of(name), address) for name, address in inputs.items()}


def variable_of(name: str) -> str:
    """Returns the variable with the path of the input, for the ranks."""
    return f"TRAIN_FUNC_INPUT_{name.upper().replace('-', '_')}"


def ending_of(name: str) -> str:
    """Returns the ending that tells the type of a file, such as ``.csv`` or ``.csv.gz``; "" if there is none."""
    match = re.search(rf"(?<=.)(?:{_ENDING.pattern})$", name)
    return match[0] if match else ""


def named_inputs(inputs: object) -> tuple[dict[str, Any], list[str]]:
    """Returns the inputs as text, with tables saved and named by their files; and the faults of the inputs."""
    if not isinstance(inputs, Mapping):
        return {}, [f"inputs={brief(inputs)}: a dict of named inputs is expected, such as {{'photos': './photos'}}"]
    values, faults = dict(inputs), list[str]()
    names_of: dict[str, list[str]] = defaultdict(list)
    for name in inputs:
        if isinstance(name, str) and _NAME.fullmatch(name):
            names_of[variable_of(name)].append(name)
        else:
            faults.append(f"inputs[{name!r}]: a name of letters, digits, '_' and '-' is expected, a letter first")
    faults += [
        f"inputs: {', '.join(map(repr, alike))} would all be {variable}; give them names that differ in more than this"
        for variable, alike in names_of.items()
        if len(alike) > 1
    ]
    for name, value in inputs.items():
        field = f"inputs[{name!r}]"
        try:
            values[name] = saved(value, field) if is_table(value) else plain(value)
        except InvalidInput as refused:
            faults += refused.faults
        else:
            faults += [fault] if (fault := _fault(field, values[name])) else []
    return values, faults


def _fault(field: str, value: object) -> str | None:
    if fault := text_fault(field, value, _EXPECTED):
        return fault
    assert isinstance(value, str)
    if value.startswith(HUB) and repository_of(value) is None:
        return (
            f"{field}={value!r}: hf://OWNER/NAME or hf://datasets/OWNER/NAME is expected, with @REVISION for a branch, "
            "tag or commit; a repository is taken whole"
        )
    if value.startswith(CLAIM) and claim_of(value) is None:
        return (
            f"{field}={value!r}: pvc://CLAIM or pvc://CLAIM/PATH is expected, the name of a PersistentVolumeClaim and "
            "a path in its volume, without '.' and '..'"
        )
    return None
