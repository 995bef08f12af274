"""The identity of what is asked for: its record, with name and generation, and how that of an earlier run differs."""

import re
from collections.abc import Collection
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from train_func.client.packages.wheels import NOTHING, Resolved
from train_func.client.preflight import Facts
from train_func.client.source import Source
from train_func.errors import InvalidInput
from train_func.inputs import key_of
from train_func.layout import RunKeys, later_generations
from train_func.records import Numerics, RunRecord
from train_func.run import Run, name_of
from train_func.storage import Readable, Store, find
from train_func.text import counted

_SPLIT = re.compile(r"\w+(\.\w+)*")  # as `datasets` names them


def record_of(
    run: Run, source: Source, facts: Facts, store: Store, *, fresh: bool, packages: Resolved = NOTHING
) -> RunRecord:
    """The record of what is asked for: of the newest generation there is, or with ``fresh`` of the next one."""
    run = placed(run, facts.fingerprints)
    made_of: dict[str, Any] = {
        "function": source.function,
        "source_sha256": source.sha256,
        "fingerprints": facts.fingerprints,
    }
    name = name_of(run, **made_of, packages={**_packages(run, source), **packages.given})
    newest = newest_generation(store, name)
    generation = newest + 1 if fresh or newest == 0 else newest
    return RunRecord(
        run=run,
        name=name,
        generation=generation,
        store=store.address,
        wheels={wheel.path.name: wheel.sha256 for wheel in packages.wheels},
        module=source.module,
        held_out_sha256=facts.held_out_sha256,
        **made_of,
    )


def _packages(run: Run, source: Source) -> dict[str, str]:
    """The versions of the installed packages that the task comes from; a local module is part of the source."""
    modules = {module.partition(".")[0] for module in run.task.modules} if run.task else set()
    if not (own := modules.intersection(source.imports) - {"train_func"}):
        return {}
    names = packages_distributions()
    return {package: version(package) for module in own for package in names.get(module, ())}


def addresses_of(run: Run) -> dict[str, str]:
    """What the inputs of the task, by its field, and those of the run, by key, are named by."""
    named = {name: getattr(run.task, name) for name in run.task.inputs} if run.task else {}
    files = {name: address for name, address in named.items() if isinstance(address, str)}
    return {**files, **{key_of(name): address for name, address in run.inputs.items()}}


def placed(run: Run, found: Collection[str] = ()) -> Run:
    """The run with its local files named from the root, each by one path, however it was written.

    A field that may name a split keeps what can be one, unless the check has ``found`` it to be a file.
    """
    files = addresses_of(run)
    if run.task:
        for name in set(run.task.splits) - set(found):
            if _SPLIT.fullmatch(files.get(name, "")):
                del files[name]
    return run.with_inputs({name: _absolute(address) for name, address in files.items()})


def _absolute(address: str) -> str:
    path = Path(address).expanduser()
    if not path.exists():
        return address
    real = path.resolve()
    # The ending of a file decides how it is read; a link in the Hub's cache leads to a file without one.
    return str(real if real.is_dir() or real.suffix == path.suffix else path.absolute())


def newest_generation(store: Readable, name: str) -> int:
    """The newest generation of a run; 0 when the store has none."""
    first = 1 if store.list(RunKeys(name, 1).run) else 0
    later = later_generations(store.names(RunKeys(name).generations)) if first else []
    return next((number for number in reversed(later) if store.list(RunKeys(name, number).run)), first)


def stored(store: Readable, name: str, generation: int) -> RunRecord:
    """The record of a run that was submitted before.

    Raises:
        StorageFailed: (reason "damaged") it is no record of a run that this version reads.
        InvalidInput: the Run in it is invalid.
    """
    key = RunKeys(name, generation).run
    return RunRecord.from_json(store.get(key).data, f"{store.address}/{key}")


def differing(before: RunRecord, asked: RunRecord) -> dict[str, tuple[object, object]]:
    """What two submissions of one run ask for differently: before and now, by name."""
    was, now = before.run.budget(), asked.run.budget()
    found: dict[str, tuple[object, object]] = {name: (was[name], now[name]) for name in was if was[name] != now[name]}
    if before.package_version != asked.package_version:
        found["train_func"] = (before.package_version, asked.package_version)
    return found


def check_ranks(store: Store, record: RunRecord, ranks_per_worker: int) -> None:
    """Says of a run that goes on that its batches stay cut as they were.

    Raises:
        InvalidInput: there are more ranks than rows, or micro-batches, of a global batch.
    """
    workers = record.run.workers
    num_ranks = workers * ranks_per_worker
    kept = find(store, record.keys.numerics)
    numerics = Numerics.from_json(kept.data, record.keys.numerics) if kept else None
    fault = record.run.ranks_fault(num_ranks) if record.run.task else None
    if numerics:
        fault = fault or numerics.idle_ranks_fault(num_ranks)
    if fault:
        gpus = f"workers={workers} with {counted(ranks_per_worker, 'GPU')} each: " if ranks_per_worker > 1 else ""
        raise InvalidInput(f"{gpus}{fault}")
    if numerics and numerics.micro_batch_size < record.run.micro_batch_size:
        print(
            f"note: micro_batch_size={numerics.micro_batch_size} stays, as its first attempt has cut the batches; "
            "fresh=True cuts anew"
        )
