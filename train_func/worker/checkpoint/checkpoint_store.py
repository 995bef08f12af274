"""The checkpoints of one training in the store of its run: saved, found, verified, fenced and retained.

A checkpoint is a folder ``checkpoints/<training>/<attempt>-<step>/``: its files first, then a manifest with their sizes
and SHA-256. Without a manifest it is absent. With one it is complete, and never changed: a step that is saved again has
a folder of its own, and an unchanged file is copied within the store, so that no checkpoint needs another one. Hence no
record has to say which checkpoint counts, and none can go stale: one listing has all manifests, and the newest
checkpoint is the one with the highest (attempt, step) that verifies. A damaged one is skipped, and the log says why. If
all are damaged, the run stops, because only its user can decide to begin again.

An attempt may go on while the next one trains, for example behind a cut network. A writer looks for a later lease
(``attempt_records.py``) right before it puts a manifest, and ends as fenced if it finds one; the store needs no
condition of a put for that. Between that look and the put, a stale attempt may finish one more checkpoint. It is valid,
in a folder of its own, and no later attempt that has saved one prefers it.

Older checkpoints are deleted once the new one is complete: an attempt deletes its own and those of earlier attempts,
except the last two that it has saved or verified. It looks for a later lease before that too, so that a stale attempt
deletes no checkpoint that a later one has resumed from. A manifest is deleted before the files that it names, so the
rest of an incomplete deletion is absent, not damaged. A checkpoint whose manifest another version of this package wrote
is skipped too, and never deleted, because that version can resume from it.

Loads no torch until a checkpoint is read.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from train_func.errors import StorageFailed
from train_func.process.failpoint import reach
from train_func.storage import Entry, Store
from train_func.storage.store import ignore
from train_func.wire.codec import OtherFormat, Record, read_json
from train_func.wire.layout import CHECKPOINT_MANIFEST, CheckpointId
from train_func.wire.records import RunRecord
from train_func.wire.result import FileEntry
from train_func.worker.attempt_records import Fenced, check_lease

if TYPE_CHECKING:
    from train_func.worker.checkpoint.state import State

RETAINED = 2  # checkpoints; the newest may be damaged
TRAINING, BEST, FROZEN = "training", "best", "frozen"  # files of a checkpoint beside those of its ranks
SELDOM = {BEST, FROZEN}  # not in every checkpoint, and mostly what they were in the one before


def of_rank(rank: int) -> str:
    """Returns the name of a rank's own file."""
    return f"rank-{rank}"


@dataclass(frozen=True, kw_only=True)
class Manifest(Record):
    """The manifest of a checkpoint: its training, step and files.

    It holds the SHA-256 of each file and of itself, so that any later change in the store shows.
    """

    REMEDY = "The checkpoint stays in the store: the version that wrote it can go on from it"

    run: str
    generation: int
    training: int
    """The number of the training in the function, from 0."""
    attempt: int
    """The attempt that saved the checkpoint."""
    step: int
    """Steps done."""
    world_size: int
    """The number of ranks that saved it; each has a file of its own in it."""
    fingerprint: str
    """A digest of model, precision, optimizer and schedule; a training with others cannot resume from it."""
    files: Mapping[str, FileEntry]
    """The files by name."""

    def to_json(self, indent: int | None = 1) -> bytes:
        """Returns the content of the manifest's file."""
        plain = self.to_dict()
        return json.dumps({**plain, "sha256": _digest(plain)}, indent=indent, sort_keys=True).encode()

    @classmethod
    def from_json(cls, data: bytes, where: str = "the manifest") -> Self:
        """Returns the manifest; raises StorageFailed (reason "damaged") if it is none. ``where``: for messages."""
        plain = read_json(data, where)
        sha256 = plain.pop("sha256", None)
        if plain.get("format") == cls.FORMAT and sha256 != _digest(plain):  # another version may make another one
            raise _damaged(where, "its SHA-256 is not the one in it")
        return cls.from_dict(plain, where)


def _digest(plain: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its manifest, and the states in its files, by name."""

    manifest: Manifest
    states: Mapping[str, "State"]
    refused: tuple[str, ...]
    """Why newer checkpoints were skipped."""

    @property
    def training(self) -> "State":
        """Returns the state that is the same on all ranks, with the weights that are not trained."""
        training, frozen = self.states[TRAINING], self.states.get(FROZEN)
        return replace(training, tensors={**training.tensors, **(frozen.tensors if frozen else {})})


class Checkpoints:
    """The checkpoints of one training of a generation, for attempt ``attempt``."""

    def __init__(self, store: Store, record: RunRecord, attempt: int, fingerprint: str, training: int = 0) -> None:
        """``fingerprint``: of model, precision, optimizer and schedule; ``training``: its number, from 0."""
        self._store, self._record, self._attempt = store, record, attempt
        self._fingerprint, self._training = fingerprint, training
        self._whole: list[tuple[CheckpointId, Manifest]] = []
        """The last checkpoints that this attempt has verified or saved, the newest at the end."""
        self._begun: Counter[int] = Counter()
        """The number of checkpoints begun at each step; each has another folder."""
        self._unfinished: str | None = None
        """The folder of an incomplete checkpoint."""
        self.not_deleted: StorageFailed | None = None
        """Why checkpoints that the newest one replaces were not deleted."""

    def check_lease(self) -> None:
        """Raises Fenced if a later attempt has begun, or the store's own failure."""
        check_lease(self._store, self._record, self._attempt)

    def newest(self, folder: Path, other: RunRecord | None = None) -> Checkpoint | None:
        """Returns the newest checkpoint whose files all match its manifest; None if there is none.

        Args:
            folder: holds its files for a moment.
            other: another run, whose checkpoints of the same training are read and not changed.

        Raises:
            StorageFailed: reason "damaged", with a list, if there are checkpoints and none can be used; reason "absent"
                if ``other`` has no checkpoint of any training; or the store's own failure.
        """
        record = other or self._record
        for _ in range(2):  # another attempt may save, and delete what was listed, while files are downloaded
            refused, reasons = list[str](), set[str]()
            ids = (record.keys.checkpoint_id(entry.key) for entry in self._store.list(f"{record.keys.checkpoints}/"))
            complete = sorted(filter(None, ids), reverse=True)
            if other and not complete:
                gone = f"{other.name}, the run to resume from, has no checkpoints any more. Submit without resume"
                absent = StorageFailed(gone, reason="absent")
                absent.checkpoints_of = other.name
                raise absent
            for checkpoint_id in complete:
                if checkpoint_id.training != self._training:
                    continue
                try:
                    checkpoint = self._verify(record, checkpoint_id, folder, tuple(refused))
                except StorageFailed as failure:
                    if failure.reason not in ("damaged", "absent"):
                        raise
                    refused.append(f"step {checkpoint_id.step}: {failure}")
                    reasons.add(failure.reason)
                else:
                    if other is None:
                        self._whole = [(checkpoint_id, checkpoint.manifest)]
                    return checkpoint
            if "absent" not in reasons:
                break
        if not refused:
            return None
        faults = "\n".join(f"  - {fault}" for fault in refused)
        way = "put back what was changed in the store, or train from the beginning: submit(..., fresh=True)"
        if other:
            way = (
                f"{self._record.name} was to resume from them: submit it without resume, which trains from the "
                "beginning, or name a run with the same plan, model, precision, optimizer and kind of schedule"
            )
        error = StorageFailed(
            f"none of the checkpoints of {record.name} can be used:\n{faults}\n{way}", reason="damaged"
        )
        error.checkpoints_of = record.name
        raise error

    def _verify(
        self, record: RunRecord, checkpoint_id: CheckpointId, folder: Path, refused: tuple[str, ...]
    ) -> Checkpoint:
        from train_func.worker.checkpoint.state import State

        under = record.keys.checkpoint(checkpoint_id)
        key = f"{under}/{CHECKPOINT_MANIFEST}"
        manifest = Manifest.from_json(self._store.get(key).data, f"{self._store.address}/{key}")
        place = {"run": record.name, "generation": record.generation}
        place |= {name: getattr(checkpoint_id, name) for name in ("training", "attempt", "step")}
        if wrong := [f"{name} {getattr(manifest, name)}" for name in place if getattr(manifest, name) != place[name]]:
            raise _damaged(key, f"it is of {', '.join(wrong)}")
        if manifest.fingerprint != self._fingerprint:
            raise _damaged(key, "it was saved by a training of another model, precision, optimizer or kind of schedule")
        if set(manifest.files) - SELDOM != {TRAINING, *map(of_rank, range(manifest.world_size))}:
            raise _damaged(key, f"its files are {sorted(manifest.files)}, of {manifest.world_size} ranks")
        states: dict[str, State] = {}
        for name, entry in manifest.files.items():
            key, path = f"{under}/{name}.safetensors", folder / f"{name}.safetensors"
            sha256 = self._store.download(key, path)
            reach("checkpoint file downloaded")
            try:
                if (path.stat().st_size, sha256) != (entry.size, entry.sha256):
                    raise _damaged(key, "its SHA-256 is not the one in the manifest")
                states[name] = State.read(path, key)
            finally:
                path.unlink(missing_ok=True)
        checkpoint = Checkpoint(manifest, states, refused)
        try:
            checkpoint.training.whole()
        except KeyError as missing:
            raise _damaged(under, f"none of its files has the tensor {missing}") from missing
        return checkpoint

    def add(
        self, step: int, world_size: int, paths: Mapping[str, Path], sent: Callable[[int], object] = ignore
    ) -> Manifest:
        """Uploads the files, makes them a checkpoint, and then deletes older ones.

        Files of a failed checkpoint are deleted first, because they may fill the store.

        Args:
            step: steps done.
            world_size: the number of ranks that have saved it.
            paths: the files by name.
            sent: as in ``Store.upload``.

        Raises:
            Fenced: a later attempt has begun.
            StorageFailed: the store's own failure; earlier checkpoints do not change.
        """
        if self._unfinished:
            self._delete(self._store.list(f"{self._unfinished}/"))
        checkpoint_id = CheckpointId(self._training, self._attempt, step, self._begun[step])
        self._begun[step] += 1
        self._unfinished = folder = self._record.keys.checkpoint(checkpoint_id)
        files: dict[str, FileEntry] = {}
        for name, path in paths.items():
            key, size = f"{folder}/{name}.safetensors", path.stat().st_size
            copied = self._copy(key, name, path) if name in SELDOM else None
            files[name] = copied or FileEntry(size, self._store.upload(key, path, sent=sent, is_given_away=True))
            reach("checkpoint file uploaded")
        manifest = Manifest(
            run=self._record.name,
            generation=self._record.generation,
            training=self._training,
            attempt=self._attempt,
            step=step,
            world_size=world_size,
            fingerprint=self._fingerprint,
            files=files,
        )
        try:
            self.check_lease()
            self._store.put(f"{folder}/{CHECKPOINT_MANIFEST}", manifest.to_json())
            reach("checkpoint manifest put")
        except StorageFailed:
            self.check_lease()  # a later attempt deletes what this one uploads
            raise
        self._unfinished = None
        self._whole = [*self._whole, (checkpoint_id, manifest)][-RETAINED:]
        self._delete_others()
        return manifest

    def _copy(self, key: str, name: str, path: Path) -> FileEntry | None:
        """Copies a file within the store from a checkpoint that has the same; returns None if there is none."""
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        for checkpoint_id, manifest in reversed(self._whole):
            entry = manifest.files.get(name)
            if entry is None or entry.sha256 != sha256:
                continue
            source = f"{self._record.keys.checkpoint(checkpoint_id)}/{name}.safetensors"
            try:
                if self._store.copy(source, key) == sha256:
                    return entry
            except StorageFailed as failure:
                if failure.reason not in ("absent", "conflict", "damaged"):  # changed by another program
                    raise
        return None

    def _delete_others(self) -> None:
        """Deletes checkpoints of this and earlier attempts that are not retained; a later attempt may upload already.

        Raises Fenced; any other failure is only noted, because the checkpoint is saved.
        """
        self.not_deleted = None
        folder = f"{self._record.keys.checkpoints_of(self._training)}/"
        retained = [f"{self._record.keys.checkpoint(checkpoint_id)}/" for checkpoint_id, _ in self._whole]

        def is_ours(key: str) -> bool:
            attempt = key.removeprefix(folder).partition("-")[0]
            return attempt.isdecimal() and int(attempt) <= self._attempt and not key.startswith(tuple(retained))

        try:
            self.check_lease()
            entries = [entry for entry in self._store.list(folder) if is_ours(entry.key)]
            for key in (entry.key for entry in entries):
                saved = self._record.keys.checkpoint_id(key)
                if saved and saved.attempt < self._attempt:
                    try:
                        Manifest.from_json(self._store.get(key).data)
                    except StorageFailed as failure:
                        if isinstance(failure, OtherFormat):
                            retained.append(key.removesuffix(CHECKPOINT_MANIFEST))
                        elif failure.reason not in ("damaged", "absent"):  # nothing tells whose it is
                            retained.append(key.removesuffix(CHECKPOINT_MANIFEST))
                            self.not_deleted = failure
            self._delete(entry for entry in entries if is_ours(entry.key))
        except Fenced:
            raise
        except StorageFailed as failure:
            self.not_deleted = failure
        reach("checkpoints deleted")

    def _delete(self, entries: Iterable[Entry]) -> None:
        for entry in sorted(entries, key=lambda entry: not entry.key.endswith(f"/{CHECKPOINT_MANIFEST}")):
            self._store.delete(entry.key)


def _damaged(key: str, why: str) -> StorageFailed:
    return StorageFailed(f"{key} is damaged: {why}", reason="damaged")
