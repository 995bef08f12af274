"""The checkpoints of a run in its store: complete or absent, the newest verified one found, a stale writer kept out.

Files first, then a manifest with their SHA-256, then the pointer, moved by compare-and-swap, which names the manifests
that count; before each of the two the store is asked whether it has what came before. The pointer carries the number of
the attempt that leads: it takes the pointer over before it trains, and from then on one that came before it cannot move
it. Loads no torch until a checkpoint is read.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from train_func.errors import StorageFailed
from train_func.failpoint import reach
from train_func.layout import CHECKPOINT_MANIFEST
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.storage.store import ignore
from train_func.worker.checkpoint.lead import Lead
from train_func.worker.checkpoint.manifest import FileEntry, Kept, Manifest, Pointer, sha256_of
from train_func.worker.checkpoint.rebuilding import all_useless, folder_of, manifests_in, place_of, rebuilt
from train_func.worker.checkpoint.retention import check_stored, delete_others

if TYPE_CHECKING:
    from train_func.worker.checkpoint.state import State

KEPT = 2  # checkpoints; the newest may be of no use
TRAINING, BEST, FROZEN = "training", "best", "frozen"  # files of a checkpoint beside those of its ranks
SELDOM = {BEST, FROZEN}  # not in every checkpoint, and mostly what they were in the one before


def of_rank(rank: int) -> str:
    """The name of a rank's own file."""
    return f"rank-{rank}"


@dataclass(frozen=True)
class Found:
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
    """Those of one training of a generation, as attempt ``attempt`` sees them."""

    def __init__(
        self,
        store: Store,
        record: RunRecord,
        attempt: int,
        fingerprint: str,
        number: int = 0,
        former: str | None = None,
    ) -> None:
        """``fingerprint``: of what the training is made of; ``former``: the same, as an earlier version of train_func
        has written it; ``number``: of the training in the function, from 0."""
        self._store, self._record, self._attempt = store, record, attempt
        self._fingerprint, self._former = fingerprint, former
        self._number, self._resumed_by = number, ""  # another run, where these are gone on with in it
        self._folder, self._key = record.keys.checkpoints_of(number), record.keys.newest_checkpoint(number)
        self._lead = Lead(store, self._key, record.name, attempt)
        self._manifests: dict[str, Manifest] = {}
        """By key, those that the pointer names and this process has written or verified."""
        self._begun: Counter[int] = Counter()
        """How often a checkpoint of each step was begun: one that the pointer names is never written over."""
        self._unfinished: str | None = None
        """Folder of a checkpoint that failed before the pointer could have named it."""
        self._has_said = False
        """Whether the store says, beside the checkpoints, that this attempt has saved one."""
        self.not_deleted: StorageFailed | None = None
        """Why the newest checkpoint has left what it has replaced."""

    def take_over(self) -> None:
        """Makes this attempt the one that leads; to be called once, before it trains.

        A pointer that is damaged or gone is made anew of the manifests that are there.

        Raises:
            Fenced: a later attempt leads.
            StorageFailed: reason "damaged", listing what is left, when pointer and manifests are damaged or gone; or
                the store's own failure.
        """
        self._lead.take(lambda why: rebuilt(self._store, self._record, self._number, self._attempt, why))
        reach("checkpoints taken over")

    def newest_of(self, record: RunRecord, folder: Path) -> Found | None:
        """That of the same training in another run, of which nothing is changed; ``folder`` takes its files.

        None where that run has never saved one of this training.

        Raises:
            StorageFailed: as ``newest``; reason "absent" when the other run has none of any training.
        """
        other = Checkpoints(self._store, record, self._attempt, self._fingerprint, self._number, self._former)
        other._resumed_by = self._record.name
        if not self._store.names(record.keys.checkpoints):
            gone = f"{record.name}, which was to be gone on with, has no checkpoints any more. Submit without resume"
            absent = StorageFailed(gone, reason="absent")
            absent.checkpoints_of = record.name
            raise absent
        own = self._record.name
        other._lead.look(lambda why: rebuilt(self._store, record, self._number, self._attempt, why, resumed_by=own))
        return other.newest(folder)

    def add(
        self,
        step: int,
        world_size: int,
        paths: Mapping[str, Path],
        sent: Callable[[int], object] = ignore,
    ) -> Manifest:
        """Uploads the files and makes them the newest checkpoint when the store is seen to have them.

        What is no longer of use is deleted then. What a failed one left is deleted before, because the store may be
        full of it.

        Args:
            step: steps done.
            world_size: of the ranks that have taken part.
            paths: the files by name.
            sent: as in ``Store.upload``.

        Raises:
            Fenced: a later attempt leads.
            StorageFailed: reason "damaged" when the store has not what was uploaded, or the store's own failure. The
                checkpoints there were are as they were.
        """
        self._delete_unfinished()
        self._unfinished = folder = folder_of(self._folder, self._attempt, step, self._begun[step])
        self._begun[step] += 1
        files: dict[str, FileEntry] = {}
        for name, path in paths.items():
            key, size = f"{folder}/{name}.safetensors", path.stat().st_size
            held = self._held(name, path) if name in SELDOM else None
            files[name] = held or FileEntry(key, size, self._store.upload(key, path, sent=sent, is_given_away=True))
            reach("checkpoint file uploaded")
        with self._lead.refusing():
            check_stored(self._store, folder, (file for file in files.values() if file.key.startswith(f"{folder}/")))
        manifest = Manifest(
            run=self._record.name,
            generation=self._record.generation,
            attempt=self._attempt,
            step=step,
            world_size=world_size,
            fingerprint=self._fingerprint,
            files=files,
        )
        data, key = manifest.to_json(), f"{folder}/{CHECKPOINT_MANIFEST}"
        self._store.put(key, data)
        reach("checkpoint manifest put")
        with self._lead.refusing():
            if self._store.get(key).data != data:
                raise _useless(key, "the store has other bytes than were put")
        if not self._has_said:
            said = {"step": step, "manifest": key}
            self._store.put(self._record.keys.attempt(self._attempt).saved(self._number), json.dumps(said).encode())
            self._has_said = True
        self._unfinished, self._manifests[key] = None, manifest
        self._lead.move(lambda pointer: self._with(pointer, Kept(step, key, sha256_of(data))))
        reach("checkpoint pointer moved")
        self._delete_others()
        reach("checkpoints deleted")
        return manifest

    def _held(self, name: str, path: Path) -> FileEntry | None:
        """The same file of a checkpoint that is kept, when the store has it as it was."""
        kept = (self._manifests[of.key].files.get(name) for of in self._lead.pointer.kept if of.key in self._manifests)
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        entry = next((of for of in kept if of and of.sha256 == sha256), None)
        try:
            return entry if entry and self._store.checksum(entry.key) == sha256 else None
        except StorageFailed as failure:
            if failure.reason != "absent":
                raise
            return None

    def _with(self, pointer: Pointer, newest: Kept) -> Pointer:
        others = [of for of in pointer.kept if of.key != newest.key]
        others.sort(key=lambda of: of.key not in self._manifests)  # those that are known to be whole first
        return replace(pointer, kept=(newest, *others)[:KEPT])

    def newest(self, folder: Path, is_wanted: Callable[[Manifest], str | None] = lambda manifest: None) -> Found | None:
        """The newest checkpoint whose every file is what its manifest says; None where there never was one.

        Where none that the pointer names is of use, one that it does not name is taken. ``folder`` takes the files.
        ``is_wanted`` says why a sound one cannot be taken.

        Raises:
            StorageFailed: reason "damaged", listing them, when there are some and all are of no use; or the store's
                own failure.
        """
        refused: list[str] = []
        for kept in chain(self._lead.pointer.kept, self._unnamed()):
            try:
                manifest = self._verified_manifest(kept)
                if fault := is_wanted(manifest):
                    raise _useless(kept.key, fault)
                states = {name: self._verified_file(name, of, folder) for name, of in manifest.files.items()}
                found = _complete(Found(manifest, states, tuple(refused)), kept.key)
            except StorageFailed as failure:
                if failure.reason not in ("damaged", "absent"):
                    raise
                refused.append(f"step {kept.step}: {failure}")
            else:
                self._manifests[kept.key] = manifest
                return found
        if self._lead.pointer.kept:
            raise all_useless(self._record.name, refused, self._resumed_by)
        return None  # a first one that was begun, and deleted again

    def _unnamed(self) -> Iterator[Kept]:
        """Those that the pointer does not name: it may be older than what it has lain beside, or never have moved."""
        named = {of.key for of in self._lead.pointer.kept}
        yield from (of for of in manifests_in(self._store, self._folder) if of.key not in named)

    def _verified_manifest(self, kept: Kept) -> Manifest:
        where = f"{self._store.address}/{kept.key}"
        data = self._store.get(kept.key).data
        if sha256_of(data) != kept.sha256:
            raise _useless(kept.key, "its SHA-256 is not the one in the pointer")
        manifest = Manifest.from_json(data, where)
        if (manifest.run, manifest.generation) != (self._record.name, self._record.generation):
            raise _useless(kept.key, f"it is of {manifest.run}, generation {manifest.generation}")
        place = place_of(kept.key, self._folder)
        if place is None or (manifest.attempt, manifest.step) != place[:2] or manifest.step != kept.step:
            raise _useless(kept.key, f"it is of attempt {manifest.attempt}, step {manifest.step}")
        if manifest.fingerprint not in (self._fingerprint, self._former):
            raise _useless(kept.key, "it was saved by a training of another model, precision or optimizer")
        expected = {TRAINING, *map(of_rank, range(manifest.world_size))}
        if set(manifest.files) - SELDOM != expected:
            raise _useless(kept.key, f"its files are {sorted(manifest.files)}, of {manifest.world_size} ranks")
        return manifest

    def _verified_file(self, name: str, entry: FileEntry, folder: Path) -> "State":
        from train_func.worker.checkpoint.state import State

        path = folder / f"{name}.safetensors"
        sha256 = self._store.download(entry.key, path)
        reach("checkpoint file downloaded")
        try:
            if (path.stat().st_size, sha256) != (entry.size, entry.sha256):
                raise _useless(entry.key, "its SHA-256 is not the one in the manifest")
            return State.read(path)
        except StorageFailed as failure:
            raise failure if entry.key in str(failure) else _useless(entry.key, str(failure)) from failure
        finally:
            path.unlink(missing_ok=True)

    def _delete_unfinished(self) -> None:
        if self._unfinished:
            for entry in self._store.list(f"{self._unfinished}/"):
                self._store.delete(entry.key)

    def _delete_others(self) -> None:
        self.not_deleted, kept = None, self._lead.pointer.kept
        if any(of.key not in self._manifests for of in kept):
            return  # what those are made of was never read
        needed = {of.key for of in kept}
        needed |= {file.key for of in kept for file in self._manifests[of.key].files.values()}
        try:
            delete_others(self._store, self._folder, self._attempt, needed)
        except StorageFailed as failure:  # the checkpoint is saved all the same
            self.not_deleted = failure


def _complete(found: Found, key: str) -> Found:
    try:
        found.training.whole()
    except KeyError as missing:
        raise _useless(key, f"none of its files has the tensor {missing}") from missing
    return found


def _useless(key: str, why: str) -> StorageFailed:
    return StorageFailed(f"{key}: {why}", reason="damaged")
