"""Finds what cannot work before anything starts: function, packages, data, model and store, all faults at once.

Data and model are looked at in a process of its own (``python -m train_func.worker check``), so that the notebook's
process needs neither torch nor datasets for it, and can ask other things meanwhile.
"""

import contextlib
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from train_func import tables
from train_func.client.backend import Backend, Input
from train_func.client.source import Source, pack
from train_func.errors import InvalidInput, SourceRefused
from train_func.inputs import key_of
from train_func.process import python_path
from train_func.process.timeout import begin
from train_func.run import Run, replace_inputs
from train_func.storage import Store, open_store
from train_func.text import listed
from train_func.wire.layout import PROBES

if TYPE_CHECKING:
    from train_func.client.packages.requirements import Resolution

END_SECONDS = 0.4  # for a process that was killed; with the limit of a store's probe it fits into the 5 promised
LIMIT_SECONDS = 3600  # a large Hub data set or model may have to be downloaded first
_SPLIT = re.compile(r"\w+(\.\w+)*")  # as `datasets` names them


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the check learnt of the inputs."""

    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """The fingerprints of the inputs: those of the task by its field, those of the run by key."""
    num_model_bytes: int = 0
    """The bytes of the weights that every worker loads."""
    notes: tuple[str, ...] = ()
    summary: str = ""
    """The data in few words."""
    inputs: Mapping[str, Input] = field(default_factory=dict)
    """Files of this machine that the run reads, by the field that names them."""
    commits: Mapping[str, Any] = field(default_factory=dict)
    """What branches and tags of the Hub are at this moment, by the field that names them."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else is known of the rows, by name, plain JSON."""
    held_out_sha256: str = ""
    """The hash of the held-out rows; empty where nothing tells which they are."""


class Question:
    """A question to the worker's half of this package, in a process of its own; leaving ``with`` ends that."""

    def __init__(self, command: str, about: str, **request: object) -> None:
        """``about``: what is asked for, as messages call it."""
        self._about = about
        # The path leads to the module of a task of the user's own; Python itself ignores what is no text in it.
        path = [entry for entry in sys.path if isinstance(entry, str)]
        line = json.dumps({**request, "path": path})
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "train_func.worker", command],
            env={**os.environ, **python_path(os.environ)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: its exit code and its words tell why
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that waits for a hung mount ends with that
            self._process.communicate(timeout=END_SECONDS)

    def answer(self) -> dict[str, Any]:
        """Waits for it; raises InvalidInput with every fault that was found."""
        try:
            out, err = self._process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise InvalidInput(
                f"{self._about} did not end within {LIMIT_SECONDS} s; files of the Hub that have arrived are kept: try "
                "again, or download data and model first, and name their folders",
                cause="data",
            ) from None
        # Whatever the exit code: a process that has answered may still abort at its end, for threads of its libraries.
        answer = None
        with contextlib.suppress(IndexError, ValueError):
            answer = json.loads(out.strip().splitlines()[-1])
        if not isinstance(answer, dict):
            evidence = "\n".join((err.strip() or out.strip()).splitlines()[-15:])
            raise InvalidInput(f"{self._about} itself failed (exit code {self._process.returncode}):\n{evidence}")
        if faults := answer.get("faults"):
            raise InvalidInput([fault["message"] for fault in faults], cause=faults[0]["cause"])
        return answer


class Check(Question):
    """The check of a run's data and model, and of what its store holds of them."""

    def __init__(self, run: Run, store: str) -> None:
        super().__init__("check", "the check of data and model", run=run.to_dict(), store=store)

    def facts(self) -> Facts:
        """Waits for it; raises InvalidInput with every fault that was found."""
        report = self.answer()
        facts = report["facts"]
        return Facts(
            fingerprints=facts.pop("fingerprints"),
            num_model_bytes=facts.pop("num_model_bytes"),
            notes=tuple(report["notes"]),
            summary=report["summary"],
            inputs={
                name: Input(Path(entry["path"]), entry["files"], entry["sha256"])
                for name, entry in report["inputs"].items()
            },
            commits=report["commits"],
            about=facts,
            held_out_sha256=report["held_out_sha256"],
        )


def pack_function(
    function: Callable[..., object] | Source, run: Run, backend: Backend
) -> "tuple[Source, Resolution | None]":
    """Returns the packed function, and the packages that travel with it.

    These are None if the workers have those of this process, or if nothing tells what they have.

    Raises SourceRefused and InvalidInput as ``submit`` does.
    """
    modules, values = (run.task.modules, None) if run.task else ((), run.parameters)
    inventory = begin(backend.inventory)  # a registry may be silent for seconds, which no fault of the source waits for

    def is_there(module: str) -> bool:
        from train_func.client.packages.requirements import is_present

        return is_present(module, backend.packages, inventory.result)

    if isinstance(function, Source):
        source = function
    else:
        source = pack(function, modules, values, is_there=is_there, workers=run.workers)
        if run.task and (names := [*inspect.signature(function).parameters.keys() & run.parameters.keys()]):
            raise SourceRefused(
                f"{source.function} has an argument {listed(sorted(names))}, but gets one dict, because its run has a "
                "task: give it one argument, as `def name(parameters):`, and take each value by its name from that"
            )
    if run.min_workers is not None and not re.search(r"\bSession\(", source.text):
        raise InvalidInput(
            f"min_workers={run.min_workers}: {source.function} opens no Session, so it saves nothing, and would begin "
            "anew whenever a worker is lost or comes. Let it train over session.steps, behind session.checkpoint, or "
            "leave min_workers out",
            cause="code",
        )
    if not backend.packages and inventory.result() is None:
        return source, None
    from train_func.client.packages.requirements import collect_wheels

    return source, collect_wheels(backend.packages, inventory.result(), source.imports)


def check_inputs(backend: Backend, run: Run) -> tuple[Store, Facts]:
    """The store, and what is known of data and model; raises what ``submit`` raises, and creates nothing."""
    tables.check_there(input_addresses(run))
    try:
        address = backend.store_address()
    except InvalidInput:
        backend.check(run)  # tells this together with everything else
        raise
    if not (run.task or run.inputs):
        backend.check(run)
        return _probed(address), Facts()
    with Check(with_absolute_paths(run), address) as check:
        backend.check(run)
        return _probed(address), check.facts()


def _probed(address: str) -> Store:
    store = open_store(address)
    store.probe(PROBES)
    return store


def input_addresses(run: Run) -> dict[str, str]:
    """The addresses of the inputs: those of the task by its field, those of the run by key."""
    fields = {name: getattr(run.task, name) for name in run.task.inputs} if run.task else {}
    addresses = {name: address for name, address in fields.items() if isinstance(address, str)}
    return {**addresses, **{key_of(name): address for name, address in run.inputs.items()}}


def with_absolute_paths(run: Run, files: Collection[str] = ()) -> Run:
    """The run with its local files named from the root, each by one path, however it was written.

    A field that may name a split keeps what can be one, unless the check has found it among the ``files``.
    """
    addresses = input_addresses(run)
    for name in set(run.task.splits) - set(files) if run.task else ():
        if _SPLIT.fullmatch(addresses.get(name, "")):
            del addresses[name]
    for name, address in addresses.items():
        with contextlib.suppress(OSError, RuntimeError):  # the check says that it cannot be read, or names no user
            path = Path(address).expanduser()
            if path.exists():
                real = path.resolve()
                # The ending of a file decides how it is read; a link in the Hub's cache leads to a file without one.
                addresses[name] = str(real if real.is_dir() or real.suffix == path.suffix else path.absolute())
    return replace_inputs(run, addresses)
