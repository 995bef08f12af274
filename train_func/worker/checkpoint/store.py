"""The checkpoints of one training in the store of its run: saved, found, verified, fenced and retained.

A checkpoint is a folder ``checkpoints/<training>/<attempt>-<step>/``: its files first, then a manifest with their sizes
and SHA-256. Without a manifest it is absent, whatever else lies there. With one it is complete, and never changed: a
step that is saved again gets a folder of its own, and a file that is as it was before is copied within the store, so
that no checkpoint needs another one. Hence no record has to say which checkpoint counts, and none can go stale: one
listing has all manifests, and the newest checkpoint is the one with the highest (attempt, step) that verifies. A
damaged one is stepped over, and the log says why. Where all are damaged, the run stops: to begin anew is for its user
to decide.

An attempt may outlive its place, as behind a cut network, while the next one trains. A writer looks for a later lease
(``lease.py``) right before it puts a manifest, and ends as fenced where
it finds one; a store needs no other condition of a put for that. Between that look and the put, a stale attempt may
finish one more checkpoint. It is a valid one in a folder of its own, and no later attempt that has saved one prefers
it.

Older checkpoints go when the store is seen to have the new one, and never before: an attempt deletes what is of itself
and of earlier attempts, but for the last two that it has saved or verified. It looks for a later lease before that
too, so that a stale attempt does not delete what the later one has gone on from. A manifest is deleted before the
files that it names: what is left of a broken deletion is absent, not damaged.

Loads no torch until a checkpoint is read.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from train_func.errors import StorageFailed
from train_func.failpoint import reach
from train_func.layout import CHECKPOINT_MANIFEST, CheckpointId
from train_func.records import RunRecord
from train_func.result import FileEntry
from train_func.storage import Entry, Store, scheme_of
from train_func.storage.store import ignore
from train_func.worker.checkpoint.manifest import Manifest
from train_func.worker.lease import Fenced, check_lease

if TYPE_CHECKING:
    from train_func.worker.checkpoint.state import State

RETAINED = 2  # checkpoints; the newest may be damaged
TRAINING, BEST, FROZEN = "training", "best", "frozen"  # files of a checkpoint beside those of its ranks
SELDOM = {BEST, FROZEN}  # not in every checkpoint, and mostly what they were in the one before


def of_rank(rank: int) -> str:
    """The name of a rank's own file."""
    return f"rank-{rank}"


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint: its manifest, and the state that each of its files holds, by name."""

    manifest: Manifest
    states: Mapping[str, "State"]
    refused: tuple[str, ...]
    """Why newer ones were not taken."""

    @property
    def training(self) -> "State":
        """What all ranks have alike, with the weights that are not trained."""
        training, frozen = self.states[TRAINING], self.states.get(FROZEN)
        return replace(training, tensors={**training.tensors, **(frozen.tensors if frozen else {})})


class Checkpoints:
    """The checkpoints of one training of a generation, as attempt ``attempt`` sees them."""

    def __init__(self, store: Store, record: RunRecord, attempt: int, fingerprint: str, training: int = 0) -> None:
        """``fingerprint``: a digest of what the training is made of; ``training``: its number, from 0."""
        self._store, self._record, self._attempt = store, record, attempt
        self._fingerprint, self._training = fingerprint, training
        self._whole: list[tuple[CheckpointId, Manifest]] = []
        """The last that this attempt has verified or saved, the newest at the end."""
        self._begun: Counter[int] = Counter()
        """How often a checkpoint of each step was begun: each time in another folder."""
        self._unfinished: str | None = None
        """The folder of a checkpoint that was begun and not completed."""
        self.not_deleted: StorageFailed | None = None
        """Why the newest checkpoint has left what it has replaced."""

    def check_lease(self) -> None:
        """Raises Fenced where a later attempt has begun, or the store's own failure."""
        check_lease(self._store, self._record, self._attempt)

    def newest(self, folder: Path, other: RunRecord | None = None) -> Checkpoint | None:
        """Returns the newest checkpoint whose every file is what its manifest says; None where none was ever saved.

        Args:
            folder: takes its files for a moment.
            other: another run whose checkpoints of the same training are read, and not changed.

        Raises:
            StorageFailed: reason "damaged", listing them, when there are some and none can be used; reason "absent"
                when ``other`` has no checkpoint of any training; or the store's own failure.
        """
        record, refused = other or self._record, list[str]()
        complete = self._list(record)
        if other and not complete:
            gone = f"{other.name}, which was to be gone on with, has no checkpoints any more. Submit without resume"
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
            else:
                if other is None:
                    self._whole = [(checkpoint_id, checkpoint.manifest)]
                return checkpoint
        if refused:
            raise self._none_usable(record, refused)
        return None

    def _list(self, record: RunRecord) -> list[CheckpointId]:
        """Returns the checkpoints of a run that have a manifest, the newest first."""
        entries = self._store.list(f"{record.keys.checkpoints}/")
        ids = (record.keys.checkpoint_id(entry.key) for entry in entries)
        return sorted(filter(None, ids), reverse=True)

    def _verify(
        self, record: RunRecord, checkpoint_id: CheckpointId, folder: Path, refused: tuple[str, ...]
    ) -> Checkpoint:
        under = record.keys.checkpoint(checkpoint_id)
        manifest = self._read_manifest(record, checkpoint_id)
        files = manifest.files.items()
        states = {name: self._read_file(f"{under}/{name}.safetensors", entry, folder) for name, entry in files}
        checkpoint = Checkpoint(manifest, states, refused)
        try:
            checkpoint.training.whole()
        except KeyError as missing:
            raise _damaged(under, f"none of its files has the tensor {missing}") from missing
        return checkpoint

    def _read_manifest(self, record: RunRecord, checkpoint_id: CheckpointId) -> Manifest:
        key = f"{record.keys.checkpoint(checkpoint_id)}/{CHECKPOINT_MANIFEST}"
        manifest = Manifest.from_json(self._store.get(key).data, f"{self._store.address}/{key}")
        if (manifest.run, manifest.generation) != (record.name, record.generation):
            raise _damaged(key, f"it is of {manifest.run}, generation {manifest.generation}")
        place = (manifest.training, manifest.attempt, manifest.step)
        if place != (checkpoint_id.training, checkpoint_id.attempt, checkpoint_id.step):
            training, attempt, step = place
            raise _damaged(key, f"it is of attempt {attempt}, step {step} of training {training}")
        if manifest.fingerprint != self._fingerprint:
            raise _damaged(key, "it was saved by a training of another model, precision or optimizer")
        expected = {TRAINING, *map(of_rank, range(manifest.world_size))}
        if set(manifest.files) - SELDOM != expected:
            raise _damaged(key, f"its files are {sorted(manifest.files)}, of {manifest.world_size} ranks")
        return manifest

    def _read_file(self, key: str, entry: FileEntry, folder: Path) -> "State":
        from train_func.worker.checkpoint.state import State

        path = folder / key.rpartition("/")[2]
        sha256 = self._store.download(key, path)
        reach("checkpoint file downloaded")
        try:
            if (path.stat().st_size, sha256) != (entry.size, entry.sha256):
                raise _damaged(key, "its SHA-256 is not the one in the manifest")
            return State.read(path)
        except StorageFailed as failure:
            raise failure if key in str(failure) else _damaged(key, str(failure)) from failure
        finally:
            path.unlink(missing_ok=True)

    def _none_usable(self, record: RunRecord, refused: list[str]) -> StorageFailed:
        faults = "\n".join(f"  - {fault}" for fault in refused)
        way = "put back what was changed in the store, or train from the beginning: submit(..., fresh=True)"
        if record is not self._record:
            way = (
                f"{self._record.name} was to go on from them: submit it without resume, which trains from the "
                "beginning, or name a run with the same plan, model, precision and optimizer"
            )
        error = StorageFailed(
            f"none of the checkpoints of {record.name} can be used:\n{faults}\n{way}", reason="damaged"
        )
        error.checkpoints_of = record.name
        return error

    def add(
        self, step: int, world_size: int, paths: Mapping[str, Path], sent: Callable[[int], object] = ignore
    ) -> Manifest:
        """Uploads the files, and makes them a checkpoint when the store is seen to have them.

        What is no longer of use is deleted then. What a failed one left is deleted before, because the store may be
        full of it.

        Args:
            step: steps done.
            world_size: the number of ranks that have taken part.
            paths: the files by name.
            sent: as in ``Store.upload``.

        Raises:
            Fenced: a later attempt has begun.
            StorageFailed: reason "damaged" when the store has not what was uploaded, or the store's own failure. The
                checkpoints there were are as they were.
        """
        self._delete_unfinished()
        checkpoint_id = CheckpointId(self._training, self._attempt, step, self._begun[step])
        self._begun[step] += 1
        self._unfinished = folder = self._record.keys.checkpoint(checkpoint_id)
        files: dict[str, FileEntry] = {}
        for name, path in paths.items():
            files[name] = self._copy(folder, name, path) or self._upload(folder, name, path, sent)
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
            self._check_files(folder, files)
            self.check_lease()
            self._put(folder, manifest)
        except StorageFailed:
            self.check_lease()  # a later attempt deletes what this one uploads
            raise
        self._unfinished = None
        self._whole = [*self._whole, (checkpoint_id, manifest)][-RETAINED:]
        self._delete_others()
        return manifest

    def _upload(self, folder: str, name: str, path: Path, sent: Callable[[int], object]) -> FileEntry:
        size = path.stat().st_size
        key = f"{folder}/{name}.safetensors"
        return FileEntry(size, self._store.upload(key, path, sent=sent, is_given_away=True))

    def _copy(self, folder: str, name: str, path: Path) -> FileEntry | None:
        """Copies a file within the store from a checkpoint that has the same; None where it has to be uploaded."""
        if name not in SELDOM:
            return None
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        for checkpoint_id, manifest in reversed(self._whole):
            entry = manifest.files.get(name)
            if entry is None or entry.sha256 != sha256:
                continue
            source = f"{self._record.keys.checkpoint(checkpoint_id)}/{name}.safetensors"
            try:
                if self._store.copy(source, f"{folder}/{name}.safetensors", entry.size) == sha256:
                    return entry
            except StorageFailed as failure:
                if failure.reason not in ("absent", "conflict", "damaged"):  # changed by another program
                    raise
        return None

    def _check_files(self, folder: str, files: Mapping[str, FileEntry]) -> None:
        """Compares the files in ``folder`` with what the store says it has: their sizes, and their recorded SHA-256.

        The bytes are not read back. A server has compared them with their SHA-256 when they came. A folder has written
        them to the disk before their name appeared in it, and a read would find them in memory still, for about a
        second of a processor per GB.

        Raises:
            StorageFailed: reason "damaged", naming the first that is missing or differs; or the store's own failure.
        """
        sizes = {entry.key: entry.size for entry in self._store.list(f"{folder}/")}
        has_records = scheme_of(self._store.address).local_path(self._store.address) is None
        for name, file in files.items():
            key = f"{folder}/{name}.safetensors"
            where = f"{self._store.address}/{key}"
            if key not in sizes:
                raise _damaged(where, "the store took it, and has it no more")
            if sizes[key] != file.size:
                raise _damaged(where, f"the store has {sizes[key]} bytes of it, and {file.size} were uploaded")
            if has_records and self._store.checksum(key) != file.sha256:
                raise _damaged(where, "the store has another SHA-256 of it than was uploaded")

    def _put(self, folder: str, manifest: Manifest) -> None:
        data, key = manifest.to_json(), f"{folder}/{CHECKPOINT_MANIFEST}"
        self._store.put(key, data)
        reach("checkpoint manifest put")
        if self._store.get(key).data != data:
            raise _damaged(key, "the store has other bytes than were put")

    def _delete_unfinished(self) -> None:
        if self._unfinished:
            self._delete(self._store.list(f"{self._unfinished}/"))

    def _delete_others(self) -> None:
        """Deletes what this and earlier attempts have left, but for what is retained; a later one may upload already.

        Raises Fenced; any other failure is noted, because the checkpoint is saved all the same.
        """
        self.not_deleted = None
        folder = f"{self._record.keys.checkpoints_of(self._training)}/"
        retained = tuple(f"{self._record.keys.checkpoint(checkpoint_id)}/" for checkpoint_id, _ in self._whole)
        try:
            self.check_lease()
            others = [entry for entry in self._store.list(folder) if not entry.key.startswith(retained)]
            self._delete(entry for entry in others if self._is_ours(entry.key.removeprefix(folder)))
        except Fenced:
            raise
        except StorageFailed as failure:
            self.not_deleted = failure
        reach("checkpoints deleted")

    def _is_ours(self, name: str) -> bool:
        attempt = name.partition("-")[0]
        return attempt.isdecimal() and int(attempt) <= self._attempt

    def _delete(self, entries: Iterable[Entry]) -> None:
        for entry in sorted(entries, key=lambda entry: not entry.key.endswith(f"/{CHECKPOINT_MANIFEST}")):
            self._store.delete(entry.key)


def _damaged(key: str, why: str) -> StorageFailed:
    return StorageFailed(f"{key}: {why}", reason="damaged")
