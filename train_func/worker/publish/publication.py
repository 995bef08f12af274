"""The publication of an attempt: it waits in the pod of worker 0, and becomes the result of the run. Loads no torch.

Rank 0 adds files to it, and sends them to the store under the attempt. When all ranks of all workers have ended well,
the supervisor makes it the result, and waits for a store that is away. If the attempt ends before that, another one
resumes from the newest checkpoint and publishes. Without a supervisor rank 0 makes the result.

One attempt of a run wins: its files come first, under the attempt, then ``result.json``, which only one attempt can
create, then the copy to the model folder, whose manifest comes last. A worker that finds an incomplete copy completes
it.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from train_func.errors import InvalidInput, StorageFailed
from train_func.process.failpoint import reach
from train_func.process.timeout import call_with_timeout
from train_func.storage import Store, find, put_new
from train_func.wire.codec import Record
from train_func.wire.events import Published
from train_func.wire.layout import CARD, CELLS, LABELS, RUN, SOURCE
from train_func.wire.predictions import PREDICTIONS, Predictions
from train_func.wire.records import RunRecord, SubmissionRecord
from train_func.wire.result import FileEntry, Result, complete
from train_func.worker import masks
from train_func.worker.attempt_records import check_lease, versions
from train_func.worker.publish.card import TaskPart, render
from train_func.worker.rank import end, reporting
from train_func.worker.rank.end import Outcome
from train_func.worker.rank.folders import files_of, links_to_no_file, take
from train_func.worker.rank.json_values import left_out_note, plain_result
from train_func.worker.stop import Stop
from train_func.worker.store_wait import RECORD_SECONDS, patient

PUBLISH_SECONDS = 15 * 60.0  # longest wait for the store after the training; the job's deadline ends it earlier

NO_MODEL = (
    "no model is published: train_func has published nothing, and has left no files. Call session.publish(trainer) on "
    "every rank, or with a loop of its own session.publish(model), inside `with Session(parameters) as session`"
)


@dataclass(frozen=True, kw_only=True)
class _State(Record):
    """The state of a publication, in a file beside its folder; each state replaces the last one atomically."""

    model_files: tuple[str, ...] = ()
    """The files of the model that was added last; another model replaces them."""
    card: TaskPart | None = None
    """The task's part of the model's card; None if it is no model of a task."""
    predictions: Predictions | None = None
    """The predictions of the model."""
    report: Mapping[str, Any] = field(default_factory=dict)
    own_metrics: tuple[str, ...] = ()
    """Names of the metrics in the report that the function has added; the others belong to the model."""
    sent: Mapping[str, FileEntry] = field(default_factory=dict)
    """The files that the store has under the attempt, by name."""


class Publication:
    """The publication of one attempt, in the working folder of its pod.

    A change that raises leaves everything unchanged, unless the store was away: what was to be sent is added then. A
    process that dies during a change ends its attempt.
    """

    def __init__(
        self, work_dir: Path, store: Store, record: RunRecord, attempt: int, *, is_supervised: bool = True
    ) -> None:
        """``is_supervised``: whether a supervisor makes the result, once the ranks of all workers have ended."""
        self._root = work_dir / "publication" / str(attempt)
        self._file = self._root / "state.json"
        self.folder = self._root / "files"
        """The folder of all files that were added."""
        self._store, self._record, self._attempt = store, record, attempt
        self._is_supervised, self._is_over = is_supervised, False
        self._seconds = min(PUBLISH_SECONDS, record.run.deadline)

    def add(
        self,
        write: Callable[[Path], object],
        *,
        is_model: bool = False,
        card: TaskPart | None = None,
        sends: bool = True,
    ) -> None:
        """Adds the files that ``write`` makes in an empty folder; they replace files of the same name.

        Args:
            write: writes the files; if it raises, nothing changes.
            is_model: whether they are a whole model, which replaces the last model, its files and its report.
            card: the task's part of the model's card.
            sends: whether to send them to the store at once, where they are no result yet.

        Raises:
            InvalidInput: the result exists already.
            StorageFailed: the store is away for too long.
        """
        self._check_open()
        state, new = self._state(), self._root / "added"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        write(new)
        reach("publication written")
        names = files_of(new)
        replaced = {*names, *(state.model_files if is_model else ())}
        remaining = []
        for name in files_of(self.folder):
            with contextlib.suppress(OSError):  # a file where the other has a folder
                if name not in replaced:
                    (new / name).parent.mkdir(parents=True, exist_ok=True)
                    (self.folder / name).rename(new / name)
                    remaining.append(name)
        shutil.rmtree(self.folder, ignore_errors=True)
        new.rename(self.folder)
        if is_model:
            metrics = {name: state.report["metrics"][name] for name in state.own_metrics}
            state = replace(state, model_files=tuple(names), card=card, predictions=None, report={"metrics": metrics})
        self._write(replace(state, sent={name: state.sent[name] for name in remaining if name in state.sent}))
        if sends:
            self.send()

    def add_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Adds metrics of the function's own. Raises InvalidInput if the result exists already."""
        self._check_open()
        values, left_out = plain_result(metrics)
        self.report({"metrics": values})
        state = self._state()
        self._write(replace(state, own_metrics=(*state.own_metrics, *values)))
        note = left_out_note(left_out)
        if note and self._is_supervised:
            end.here.notes.append(note)  # which the supervisor tells with the result
        elif note:
            reporting.note(note)

    def report(self, report: Mapping[str, Any]) -> None:
        """Updates the report on the files; metrics are added by name, everything else is replaced."""
        state, metrics = self._state(), report.get("metrics", {})
        whole = {**state.report, **report, "metrics": {**state.report.get("metrics", {}), **metrics}}
        own_metrics = tuple(name for name in state.own_metrics if name not in metrics)
        self._write(replace(state, report=whole, own_metrics=own_metrics))

    def add_predictions(self, predictions: Predictions) -> None:
        """Adds the predictions of the last model for the held-out rows."""
        self._write(replace(self._state(), predictions=predictions))

    def conclude(self, output: Path, outcome: Outcome | None) -> None:
        """Adds the files in ``output`` and the result of the function; the last addition.

        A published file of the same name is not replaced; the file in ``output`` then stays there, with a note.

        Args:
            output: the folder for files of rank 0.
            outcome: the outcome of rank 0.
        """
        returned = outcome.returned if outcome else {}
        self.report({"returned": dict(returned)})
        report = self._state().report
        refused: list[str] = []
        names, lost = set(files_of(self.folder)), links_to_no_file(output)
        self.add(lambda folder: refused.extend(take(output, folder, names)), sends=False)
        notes = [report.get("note", ""), *(outcome.notes if outcome else ())]
        if self._record.run.task and not files_of(self.folder):
            notes.append(NO_MODEL)
        notes.append(left_out_note(outcome.left_out) if outcome else "")
        for message, items in (
            ("returned, in place of the published metric of that name", sorted({*returned} & {*report["metrics"]})),
            ("not published, because the name is taken or kept for other use", refused),
            ("not published, because these links lead to no file", lost),
        ):
            if items:
                notes.append(f"{message}: {', '.join(items)}")
        self.report({"note": "; ".join(filter(None, notes))})

    def send(self) -> None:
        """Sends the files to the store, under the attempt. Raises StorageFailed."""
        store, state = self._patient(Stop()), self._state()
        self._write(replace(state, sent=send_files(store, self._record, self._attempt, self.folder, state.sent)))

    def finish(self) -> None:
        """Publishes the result, unless a supervisor does."""
        if self._file.exists() and not (self._is_supervised or self._is_over):
            self._is_over = True
            self.publish(Stop())

    def publish(self, stop: Stop) -> dict[str, Any]:
        """Makes it the result of the run, reports that, and removes its files here and the run's checkpoints.

        Returns the metrics, updated with the return value of the function.

        Raises:
            Fenced: a later attempt has begun.
            StorageFailed: the store is away for too long; reason "conflict" if another attempt has published already.
            Stopped: on a signal.
        """
        record, state, waiting = self._record, self._state(), self._patient(stop)
        state = replace(state, report=masks.mask(state.report))
        report = {name: value for name, value in state.report.items() if (name, value) != ("note", "")}
        if "note" in report:
            reporting.note(report["note"])
        names = files_of(self.folder)
        if names:
            self._describe(state)
            take_source(waiting, record, self.folder)
        publish_files(waiting, record, self._attempt, self.folder, report, state.sent)
        if names:
            reporting.say(Published(attempt=self._attempt, model=f"{self._store.address}/{record.keys.model}"))
        shutil.rmtree(self._root.parent, ignore_errors=True)
        if not stop.requested:  # the rest of a grace period belongs to the records
            delete_checkpoints(self._store, record, RECORD_SECONDS)
        return {**report.get("metrics", {}), **report.get("returned", {})}

    def _patient(self, stop: Stop) -> Store:
        return patient(self._store, stop, self._seconds, "publish what was trained")

    def _describe(self, state: _State) -> None:
        """Adds the card and the other descriptions; a file of the function's own is not replaced."""
        packages, metrics = versions(), state.report.get("metrics", {})
        plain: dict[str, Any] = {RUN: self._record.to_dict(), "versions.json": packages}
        if metrics or state.model_files:
            plain["metrics.json"] = {**metrics, **state.report.get("returned", {})}  # what result() gives
        if state.card and state.card.labels:
            plain[LABELS] = state.card.labels
        texts = {name: json.dumps(content, indent=1) + "\n" for name, content in plain.items()}
        if state.predictions:
            texts[PREDICTIONS] = state.predictions.to_json(indent=None).decode()
        if state.card and not (self.folder / CARD).exists():
            try:
                texts[CARD] = render(self._record, state.card, state.report, self._attempt, packages, state.predictions)
            except Exception as error:  # the model is worth more than its card
                reporting.note(f"{CARD}, the card of the model, is not published: {type(error).__name__}: {error}")
        for name, text in texts.items():
            if not (self.folder / name).exists():
                (self.folder / name).write_text(text)

    def _state(self) -> _State:
        if self._file.exists():
            return _State.from_json(self._file.read_bytes(), "the publication")
        for folder in self._root.parent.glob("*"):  # what earlier attempts have left in this pod
            shutil.rmtree(folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return _State()

    def _write(self, state: _State) -> None:
        unfinished = self._file.with_suffix(".unfinished")
        unfinished.write_bytes(state.to_json())
        unfinished.replace(self._file)
        reach("publication kept")

    def _check_open(self) -> None:
        if self._is_over:
            raise InvalidInput(
                "the result of this run is published already: a function that is called without submit has to publish "
                "its Trainer last, after all other files",
                cause="code",
            )


def send_files(
    store: Store, record: RunRecord, attempt: int, folder: Path, sent: Mapping[str, FileEntry] | None = None
) -> dict[str, FileEntry]:
    """Puts the files of ``folder`` under the attempt, except those that were ``sent`` before; returns all of them."""
    prefix, files = record.keys.attempt(attempt).model, dict(sent or {})
    for name in files_of(folder):
        if name not in files:
            size = (folder / name).stat().st_size
            files[name] = FileEntry(size, store.upload(f"{prefix}/{name}", folder / name))
            reach("file sent")
    return files


def publish_files(
    store: Store,
    record: RunRecord,
    attempt: int,
    folder: Path,
    report: Mapping[str, Any],
    sent: Mapping[str, FileEntry] | None = None,
) -> None:
    """Publishes the files of ``folder`` as the result of the run.

    Args:
        store: the store of the run.
        record: the record of the run.
        attempt: the attempt that has made the files.
        folder: the folder of the files.
        report: those of step, num_steps, metrics, audit, note and returned that exist.
        sent: files that the store has under the attempt already.

    Raises:
        Fenced: a later attempt has begun.
        StorageFailed: reason "conflict" if another attempt has published already; or the store's own failure.
    """
    files = send_files(store, record, attempt, folder, sent)
    check_lease(store, record, attempt)
    key, result = record.keys.result, Result.write(attempt, record.generation, report, files)
    if not put_new(store, key, result) and store.get(key).data != result:  # the same bytes are this attempt's own
        check_unpublished(store, record, attempt, "has trained to the end")
    reach("result put")
    complete(store, record)


def check_unpublished(store: Store, record: RunRecord, attempt: int, done: str = "is about to train") -> None:
    """Raises StorageFailed, reason "conflict", if another attempt has published already."""
    key = record.keys.result
    result = find(store, key)
    if not result:
        return
    published = Result.read(result.data, f"{store.address}/{key}")
    raise StorageFailed(
        f"Attempt {attempt} of {record.name} {done}, but attempt {published.attempt} has published already, as "
        f"{store.address}/{key} says. Nothing of this attempt was published; fetch the model that is there",
        reason="conflict",
    )


def delete_checkpoints(store: Store, record: RunRecord, seconds: float) -> None:
    """Deletes the checkpoints of a generation whose result is published, because nothing resumes from them any more.

    If the store is away or takes longer than ``seconds``, the rest stays there, and a note says so.
    """

    def delete() -> None:
        for entry in store.list(f"{record.keys.checkpoints}/"):
            store.delete(entry.key)
            reach("checkpoint file deleted")

    try:
        call_with_timeout(seconds, delete)
    except (StorageFailed, TimeoutError) as failure:
        where = f"{store.address}/{record.keys.checkpoints}/"
        reporting.note(f"checkpoints that the run no longer needs stay in {where}: {str(failure) or 'no answer'}")


def take_source(store: Store, record: RunRecord, folder: Path) -> list[str]:
    """Adds the function's source to the files to publish; returns notes on missing parts.

    A file of the function's own is not replaced, because the store may have it already; a note says so.
    """
    notes = []
    source, key = find(store, record.keys.source), record.keys.submission(record.submission)
    submitted = find(store, key) if source else None
    cells = SubmissionRecord.from_json(submitted.data, key).cells if submitted else None
    for name, text, origin in (
        (SOURCE, source and source.data, record.keys.source),
        (CELLS, cells and json.dumps(cells, indent=1).encode(), key),
    ):
        path = folder / name
        if not text:
            notes.append(f"{name} is not published: the run was started without submit, so it is not in the store")
        elif not path.exists():
            path.write_bytes(text)
        elif path.is_dir() or path.read_bytes() != text:
            address = f"{store.address}/{origin}"
            reporting.note(f"{name} is a file that the function has published; what submit has kept is in {address}")
    return notes
