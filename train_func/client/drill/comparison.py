"""The undisturbed run beside a drilled one: the same Run under another readable name, and the verdict on both results.

The readable part of a name decides no result, so that both trainings are the same but for what disturbed the one.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from train_func.client.backend import Backend
from train_func.client.drill.report import Comparison
from train_func.client.preflight import input_addresses
from train_func.client.stored_run import Submission, published_result, start_job
from train_func.errors import InvalidInput
from train_func.run import READABLE_LENGTH
from train_func.storage import Store
from train_func.text import counted
from train_func.wire.events import now
from train_func.wire.layout import newest_number
from train_func.wire.records import RunRecord

UNDISTURBED = "undisturbed"
WEIGHTS = ".safetensors"


def undisturbed(record: RunRecord) -> RunRecord:
    """Returns the record of the same Run under another readable name, of which nothing is submitted yet."""
    readable, _, digest = record.name.rpartition("-")
    name = f"{UNDISTURBED}-{readable}"[:READABLE_LENGTH].rstrip("-")
    return replace(record, run=replace(record.run, name=name), name=f"{name}-{digest}", generation=1, submission=0)


def start(record: RunRecord, of: RunRecord, backend: Backend, store: Store) -> None:
    """Starts the job of ``record`` with the source of another run, unless another client has.

    Raises:
        InvalidInput: the backend has no room for it, or cannot execute it.
    """
    submitted = Submission.newest(store, of.keys)
    assert submitted is not None  # its job has run
    record = replace(record, run=backend.prepare(record, {}, 0, store))
    number = newest_number(store.names(record.keys.submissions)) + 1
    record = replace(record, submission=number, submitted=now())
    source, addresses = store.get(of.keys.source).data.decode(), input_addresses(record.run).values()
    start_job(record, source, submitted.cells, backend.request(record), addresses, backend, store)


def compare(
    record: RunRecord,
    state: str,
    backend: Backend,
    store: Store,
    end_of: Callable[[RunRecord], str],
    note: Callable[[str], None],
) -> Comparison:
    """Returns the verdict on the result of a drilled run, whose job has ended in ``state``.

    Trains the run undisturbed first, unless that was done before: ``end_of`` waits for the end of a job.
    """
    other = undisturbed(record)
    if state != "Succeeded":
        return _without(other, f"no verdict: the drilled job is {state}")
    if published_result(store, other.keys) is None:
        note(f"trains the same Run undisturbed, as {other.name}")
        try:
            start(other, record, backend, store)
        except InvalidInput as refusal:
            return _without(other, f"no verdict: the undisturbed run could not be started: {refusal}")
        if (end := end_of(other)) != "Succeeded":
            return _without(other, f"no verdict: the undisturbed job is {end}")
    ours, theirs = (published_result(store, each.keys) for each in (record, other))
    losses = (_last_loss(record, store), _last_loss(other, store))
    return judge(other.name, ours.files if ours else {}, theirs.files if theirs else {}, losses)


def _last_loss(record: RunRecord, store: Store) -> float | None:
    from train_func.client.display.history import read_rows  # pandas takes long to import

    losses = [row["loss"] for row in read_rows(store, record.keys) if isinstance(row.get("loss"), (int, float))]
    return losses[-1] if losses else None


def judge(
    name: str, ours: Mapping[str, str], theirs: Mapping[str, str], losses: tuple[float | None, float | None]
) -> Comparison:
    """Returns the verdict on the files of the drilled run and of the undisturbed one, SHA-256 by name.

    ``name`` is that of the undisturbed run, and ``losses`` are the last of each.
    """
    names = sorted(file for file in {*ours, *theirs} if file.endswith(WEIGHTS))
    weights = {file: (ours.get(file), theirs.get(file)) for file in names}
    different = [file for file, (one, other) in weights.items() if one != other]
    if not names:
        message = f"no verdict: neither run has published weights as *{WEIGHTS}"
    elif different:
        last = " and ".join("unknown" if loss is None else f"{loss:.6g}" for loss in losses)
        rounding = "another number of threads, or another kind of CPU, rounds its sums otherwise"
        message = f"{', '.join(different)} differ by SHA-256 ({rounding}); the last losses are {last}"
    else:
        message = f"the weights are the same, by the SHA-256 of {counted(len(names), 'file')}"
    return Comparison(
        run=name, is_same=not different if names else None, weights=weights, losses=losses, message=message
    )


def _without(other: RunRecord, message: str) -> Comparison:
    return Comparison(run=other.name, is_same=None, weights={}, losses=(None, None), message=message)
