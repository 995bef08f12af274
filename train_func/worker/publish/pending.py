"""What an attempt publishes, as it waits in the pod of worker 0 to become the result of the run. Loads no torch.

Rank 0 adds to it, and sends what it adds to the store under the attempt. When all ranks of all workers have ended well,
the supervisor makes it the result, and waits for a store that is away. What ends the attempt before is followed by
another one, which goes on from the newest checkpoint and publishes then. Without a supervisor rank 0 makes the result.
"""

import contextlib
import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from train_func.errors import InvalidInput
from train_func.events import Published
from train_func.failpoint import reach
from train_func.layout import CARD, LABELS
from train_func.records import RunRecord
from train_func.run import Run
from train_func.storage import Store
from train_func.worker.attempt_setup import versions
from train_func.worker.publish.card import TaskPart, render
from train_func.worker.publish.store import File, delete_checkpoints, publish, send, take_source
from train_func.worker.rank import reporting, sessions
from train_func.worker.rank.end import Outcome
from train_func.worker.rank.output import files_of, links_to_no_file, take
from train_func.worker.rank.values import plain_result
from train_func.worker.stop import Stop
from train_func.worker.store_wait import RECORD_SECONDS, patient

PUBLISH_SECONDS = 15 * 60.0  # longest wait for the store after the training; the job's deadline ends it earlier

NO_MODEL = (
    "no model is published: train_func has published nothing, and has left no files. Call session.publish(trainer) on "
    "every rank, or with a loop of its own session.publish(model), inside `with Session(parameters) as session`"
)


@dataclass(frozen=True, kw_only=True)
class _State:
    """What is known of the files, in a file beside their folder; each state replaces the one before in one step."""

    attempt: int
    model_files: tuple[str, ...] = ()
    """Files of the model that was added last; another model replaces them."""
    card: TaskPart | None = None
    """What the task says of that model; None where it is none of a task."""
    report: Mapping[str, Any] = field(default_factory=dict)
    sent: Mapping[str, File] = field(default_factory=dict)
    """Files that the store has under the attempt, by name."""


class Pending:
    """The publication in the working folder of a pod.

    What is in it belongs to one attempt. A process that dies while it changes something ends its attempt, and the next
    one begins with an empty folder, so only a change that raises has to leave everything as it was.
    """

    def __init__(self, work_dir: Path) -> None:
        self._root = work_dir / "publication"
        self._file = self._root / "state.json"
        self.folder = self._root / "files"
        """Where the files lie that wait here."""

    @property
    def attempt(self) -> int | None:
        """The attempt that trained what waits here; None when nothing does."""
        state = self._read()
        return state.attempt if state else None

    def add(
        self,
        write: Callable[[Path], object],
        attempt: int,
        *,
        is_model: bool = False,
        card: TaskPart | None = None,
    ) -> None:
        """Adds the files that ``write`` makes in an empty folder; a file of the same name as before is replaced.

        ``is_model``: they are a whole model, and replace the one that was added before with all of its files.
        ``card``: what the task says of that model. What ``write`` raises leaves everything as it was.
        """
        state = self._state(attempt)
        new = self._root / "added"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        write(new)
        reach("publication written")
        names = files_of(new)
        replaced = {*names, *(state.model_files if is_model else ())}
        remaining = [name for name in files_of(self.folder) if name not in replaced]
        for name in remaining:
            with contextlib.suppress(OSError):  # a file where the other has a folder
                (new / name).parent.mkdir(parents=True, exist_ok=True)
                (self.folder / name).rename(new / name)
        shutil.rmtree(self.folder, ignore_errors=True)
        new.rename(self.folder)
        if is_model:
            state = replace(state, model_files=tuple(names), card=card)
        self._write(replace(state, sent={name: state.sent[name] for name in remaining if name in state.sent}))

    def report(self, attempt: int, report: Mapping[str, Any]) -> None:
        """Adds to the report on the files; metrics are added by name, everything else replaces what was reported."""
        state = self._state(attempt)
        metrics = {**state.report.get("metrics", {}), **report.get("metrics", {})}
        whole = {name: value for name, value in {**state.report, **report}.items() if (name, value) != ("note", "")}
        self._write(replace(state, report={**whole, "metrics": metrics}))

    def conclude(self, run: Run, attempt: int, output: Path, outcome: Outcome | None) -> None:
        """Adds what the function has left in ``output`` and has returned; nothing more is to come.

        A file that was published before under the same name stays, and so does that in ``output``, with a note.

        Args:
            run: of the attempt.
            attempt: its number.
            output: the folder of rank 0.
            outcome: of rank 0.
        """
        returned, left_out = (outcome.returned, outcome.left_out) if outcome else ({}, ())
        self.report(attempt, {"returned": dict(returned)})
        report = self._state(attempt).report
        refused: list[str] = []
        names, lost = set(files_of(self.folder)), links_to_no_file(output)
        self.add(lambda folder: refused.extend(take(output, folder, names)), attempt)
        notes = [report.get("note", ""), *(outcome.notes if outcome else ())]
        if run.task and not files_of(self.folder):
            notes.append(NO_MODEL)
        for message, items in (
            ("not JSON, and therefore not in the result as it was returned", left_out),
            ("returned, in place of the published metric of that name", sorted({*returned} & {*report["metrics"]})),
            ("not published, because the name is taken or kept for other use", refused),
            ("not published, because these links lead to no file", lost),
        ):
            if items:
                notes.append(f"{message}: {', '.join(items)}")
        self.report(attempt, {"note": "; ".join(filter(None, notes))})

    def send(self, store: Store, record: RunRecord) -> None:
        """Sends the files to the store, where they are no result yet. Raises StorageFailed."""
        if state := self._read():
            self._write(replace(state, sent=send(store, record, state.attempt, self.folder, state.sent)))

    def publish(self, store: Store, record: RunRecord, stop: Stop) -> None:
        """Makes it the result of the run, says so, and removes it here, and in the store the checkpoints of the run.

        Raises:
            StorageFailed: the store is away for too long, or what ``publish`` raises.
            Stopped: on a signal.
        """
        state = self._read()
        assert state is not None
        seconds = min(PUBLISH_SECONDS, record.run.deadline)
        waiting = patient(store, stop, seconds, "publish what was trained")
        if note := state.report.get("note"):
            reporting.note(note)
        names = files_of(self.folder)
        if names:
            self._describe(state, record)
            take_source(waiting, record, self.folder)
        publish(waiting, record, state.attempt, self.folder, state.report, state.sent)
        if names:
            reporting.say(Published(attempt=state.attempt, model=f"{store.address}/{record.keys.model}"))
        shutil.rmtree(self._root, ignore_errors=True)
        if not stop.requested:  # the rest of a grace period belongs to the records
            delete_checkpoints(store, record, RECORD_SECONDS)

    def _describe(self, state: _State, record: RunRecord) -> None:
        """Adds the files that describe the others; a file of the function's own stays."""
        packages, metrics = versions(), state.report.get("metrics", {})
        plain: dict[str, Any] = {"run.json": record.to_dict(), "versions.json": packages}
        if metrics or state.model_files:
            plain["metrics.json"] = metrics
        if state.card and state.card.labels:
            plain[LABELS] = state.card.labels
        texts = {name: json.dumps(content, indent=1) + "\n" for name, content in plain.items()}
        if state.card and not (self.folder / CARD).exists():
            try:
                texts[CARD] = render(record, state.card, state.report, state.attempt, packages)
            except Exception as error:  # the model is worth more than its card
                reporting.note(f"{CARD}, the card of the model, is not published: {type(error).__name__}: {error}")
        for name, text in texts.items():
            if not (self.folder / name).exists():
                unfinished = self._root / "unfinished"
                unfinished.write_text(text)
                unfinished.replace(self.folder / name)

    def _state(self, attempt: int) -> _State:
        """Returns what is known of the attempt; what another one has left is removed."""
        state = self._read()
        if state and state.attempt == attempt:
            return state
        shutil.rmtree(self._root, ignore_errors=True)
        self.folder.mkdir(parents=True)
        return _State(attempt=attempt)

    def _write(self, state: _State) -> None:
        unfinished = self._file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(asdict(state)))
        unfinished.replace(self._file)
        reach("publication kept")

    def _read(self) -> _State | None:
        if not self._file.exists():
            return None
        plain = json.loads(self._file.read_text())
        plain["sent"] = {name: File(*file) for name, file in plain["sent"].items()}
        plain["card"] = plain["card"] and TaskPart(**plain["card"])
        return _State(**{**plain, "model_files": tuple(plain["model_files"])})


class Publishing:
    """What one Session publishes, on its rank 0."""

    def __init__(self, work_dir: Path, store: Store, record: RunRecord, attempt: int, *, is_supervised: bool) -> None:
        """``is_supervised``: by a supervisor, which makes the result when the ranks of all workers have ended."""
        self._is_supervised, self._is_over = is_supervised, False
        self._pending = Pending(work_dir)
        self._store = store
        self._record = record
        self._attempt = attempt
        self._seconds = min(PUBLISH_SECONDS, record.run.deadline)

    @property
    def folder(self) -> Path:
        """Where the files lie that were added last, with those before them."""
        return self._pending.folder

    def add(self, write: Callable[[Path], object], is_model: bool, card: TaskPart | None = None) -> None:
        """Adds files that ``write`` makes in a folder. Raises StorageFailed, or InvalidInput after the result."""
        self._check_open()
        self._pending.add(write, self._attempt, is_model=is_model, card=card)
        self._send()

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Adds metrics of the function's own. Raises InvalidInput when the result is there."""
        self._check_open()
        values, left_out = plain_result(metrics)
        self._pending.report(self._attempt, {"metrics": values})
        if left_out:
            note = f"not JSON, and therefore not among the metrics as it was given: {', '.join(left_out)}"
            sessions.here.notes.append(note)  # which a supervisor tells with the result
            reporting.note(note)

    def note(self, text: str) -> None:
        """Adds what a person should know of the files."""
        self._pending.report(self._attempt, {"note": text})

    def keep(self, write: Callable[[Path], object], report: Mapping[str, Any], card: TaskPart | None) -> None:
        """Adds a model that has been trained to its end, with the report on it until it is measured."""
        self._check_open()
        self._pending.add(write, self._attempt, is_model=True, card=card)
        self._pending.report(self._attempt, report)

    def measured(self, report: Mapping[str, Any]) -> None:
        """Replaces the report on that model by the final one. Raises StorageFailed."""
        self._pending.report(self._attempt, {"note": "", **report})
        if self._is_supervised:
            self._send()
        else:
            self.finish()

    def finish(self) -> None:
        """Makes the result of what was added, where no supervisor does."""
        if not (self._is_supervised or self._is_over or self._pending.attempt is None):
            self._is_over = True
            self._pending.publish(self._store, self._record, Stop())

    def _send(self) -> None:
        self._pending.send(patient(self._store, Stop(), self._seconds, "publish what was trained"), self._record)

    def _check_open(self) -> None:
        if self._is_over:
            raise InvalidInput(
                "the result of this run is published already: where a function is called without submit, its Trainer "
                "is published last, and other files before it",
                cause="code",
            )
