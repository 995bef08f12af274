"""Checkpointing: the ranks save one state together between two steps, stop there, and go on from the newest one.

Rank 0 alone knows the store and the clock. What is to be done is voted on in the exchange that every step has anyway,
so all ranks do it at the same step.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from train_func.events import BeginsAnew, Resumed
from train_func.failpoint import reach
from train_func.records import Numerics, RunRecord
from train_func.storage import Store
from train_func.worker.checkpoint.manifest import Manifest
from train_func.worker.checkpoint.saver import Saver, Snapshot
from train_func.worker.checkpoint.state import State
from train_func.worker.checkpoint.store import BEST, TRAINING, Checkpoint, Checkpoints, of_rank
from train_func.worker.rank import marks, reporting, sessions, stop_flag, world
from train_func.worker.rank.marks import Phase
from train_func.worker.stop import RESERVE

Like = tuple[str, torch.dtype, torch.Size, bool]  # of a tensor: its name, and whether the device has it


@dataclass(frozen=True)
class Parts:
    """What is to be saved; see Snapshot."""

    training: Any
    """Of all ranks."""
    rank: Any
    lasting: frozenset[int] = frozenset()
    frozen: frozenset[int] = frozenset()
    best: tuple[int, Any] | None = None
    """On rank 0: the step of the best weights so far, and those."""


@dataclass(frozen=True)
class Restored:
    """What this rank goes on from."""

    step: int
    """Steps done."""
    training: dict[str, Any]
    """Of all ranks; its tensors are on the device."""
    rank: dict[str, Any]
    """Of this rank. If fewer ranks saved the checkpoint, that of the last one, without its used rows."""
    lost: list[dict[str, Any]]
    """Of ranks that there are no more; on rank 0."""
    best: tuple[int, Any] | None
    """On rank 0: the step of the best weights so far, and those."""
    run: str
    """That saved it."""
    is_own: bool
    """Whether that is the run itself."""


class Checkpointing:
    """Of one training of a function; every method is collective but ``votes`` and ``before_update``."""

    def __init__(
        self, store: Store, record: RunRecord, attempt: int, *, number: int, made_of: Any, folder: Path
    ) -> None:
        """``number``: of the training in the function, from 0; ``made_of``: plain, what it has to have in common with
        one that saved a checkpoint for it.

        Raises:
            StorageFailed: reason "conflict" when a later attempt has begun, or the store's own failure.
        """
        self._saver: Saver | None = None
        self._begun_at: int | None = None
        self._taken_at: int | None = None
        self._checkpoints = Checkpoints(store, record, attempt, _fingerprint(made_of), number)
        self._folder, self._name, self._attempt = folder, record.name, attempt
        self._other = (
            replace(record, name=record.resumes, generation=record.resumes_generation) if record.resumes else None
        )
        world.on_rank_zero(self._checkpoints.check_lease)
        if world.rank() == 0:
            self._saver = Saver(self._checkpoints, folder, record.run.checkpoint_every, reporting.say)

    def restore(self, device: torch.device) -> Restored | None:
        """The newest verified checkpoint, on every rank; None where there is none.

        Raises:
            StorageFailed: reason "damaged" when there are some, and none can be used.
        """
        found: list[Checkpoint | None] = [None]

        def read() -> tuple[Manifest, Any, list[Like], list[bytes]] | None:
            found[0] = newest = self._newest()
            if newest is None:
                return None
            training, ranks = newest.training, range(newest.manifest.world_size)
            like = [(name, of.dtype, of.shape, name in training.on_device) for name, of in training.tensors.items()]
            own = [newest.states[of_rank(rank)].to_bytes() for rank in ranks]
            return newest.manifest, training.plain, like, own

        told = world.on_rank_zero(read)
        if told is None:
            return None
        manifest, plain, like, ranks = told[0], told[1], told[2], [State.from_bytes(data) for data in told[3]]
        tensors = self._spread(found[0], like, device)
        self._begun_at = manifest.step
        rank = ranks[min(world.rank(), len(ranks) - 1)].whole()
        if world.rank() >= len(ranks):
            rank["used"] = []
        lost = [state.whole() for state in ranks[world.size() :]] if world.rank() == 0 else []
        best = found[0].states[BEST].whole() if found[0] and BEST in found[0].states else None
        whole = State(tensors, plain).whole()
        reach("checkpoint restored")
        own_best, is_own = (best["step"], best["weights"]) if best else None, manifest.run == self._name
        return Restored(manifest.step, whole, rank, lost, own_best, manifest.run, is_own)

    def _newest(self) -> Checkpoint | None:
        self._folder.mkdir(parents=True, exist_ok=True)
        checkpoint, run = self._checkpoints.newest(self._folder), ""
        if checkpoint is None and self._other:
            checkpoint, run = self._checkpoints.newest(self._folder, self._other), self._other.name
        if checkpoint:
            saved, refused = checkpoint.manifest, list(checkpoint.refused)
            world.log_rank0(Resumed(step=saved.step, attempt=saved.attempt, run=run, refused=refused))
        elif self._attempt > 1:
            why = f"the store has no checkpoint of this training{f', nor one of {run}' if run else ''}"
            world.log_rank0(BeginsAnew(attempt=self._attempt, why=why))
        return checkpoint

    @staticmethod
    def _spread(found: Checkpoint | None, like: Sequence[Like], device: torch.device) -> dict[str, torch.Tensor]:
        """Rank 0 alone has read the file."""
        tensors, read = {}, found.training.tensors if found else {}
        for name, dtype, shape, is_on_device in like:
            source = read[name] if found else torch.empty(shape, dtype=dtype)
            tensors[name] = source.to(device) if is_on_device else source
            world.spread(tensors[name])
        return tensors

    def votes(self) -> list[int]:
        """Returns what is added up over the ranks: it is time, a signal has come, a later attempt has begun, the last
        checkpoint could not be saved."""
        saver = self._saver
        of_saver = (saver.is_due, saver.fenced is not None, saver.has_failed) if saver else (False, False, False)
        return [int(vote) for vote in (of_saver[0], stop_flag.requested(), *of_saver[1:])]

    def ask(self) -> None:
        """The next checkpoint is due now."""
        if self._saver:
            self._saver.hasten()

    @marks.within(Phase.SAVING)
    def decide(self, counts: Sequence[int], step: int, take: Callable[[], Parts], *, is_over: bool = False) -> None:
        """Between two steps, ``step`` of them done: saves what ``take`` gives, and stops, where that was voted for.

        ``counts``: those of ``votes``, summed over all ranks; ``is_over``: no step comes after this, and the end is
        saved in any case, so that another attempt can publish it. The state that was restored is not saved again: what
        ends the ranks before they have done a step would be taken for progress.

        Raises:
            InvalidInput: (cause "code") the state holds what is neither a tensor nor plain.
            StorageFailed: reason "conflict" when a later attempt has begun.
            StopSignal: on every rank, when a signal has come to one; the state is saved then, as far as can be.
        """
        is_due, is_stopped, is_fenced, has_failed = map(bool, counts)
        if has_failed:
            self._taken_at = None
        if is_fenced:
            world.on_rank_zero(self._raise_fenced)
        if is_stopped:
            world.on_rank_zero(self._finish_slow)
        if step != self._begun_at and (is_stopped or (step != self._taken_at and (is_due or is_over))):
            self._save(step, world.on_all_ranks(take))
        if is_stopped:
            world.on_rank_zero(self._finish)
            raise stop_flag.stopped_after(step)

    @marks.within(Phase.SAVING)
    def save_before(self, seconds: float, step: int, take: Callable[[], Parts]) -> None:
        """Before what lasts so long, after ``step`` steps: saves what ``take`` gives, unless that costs more than it
        is worth or another checkpoint is on its way. Returns when it was copied."""
        if step in (0, self._begun_at, self._taken_at):
            return
        if world.on_rank_zero(lambda: self._saver is not None and self._saver.is_worth_it_before(seconds)):
            self._save(step, world.on_all_ranks(take))
            self.before_update()

    def _save(self, step: int, parts: Parts) -> None:
        self._taken_at = step
        own = world.on_all_ranks(lambda: State.of(parts.rank, of_rank(world.rank())).to_bytes())
        of_ranks = world.gather(own)

        def begin() -> None:
            assert self._saver is not None
            ranks = [State.from_bytes(data) for data in of_ranks]
            best = parts.best and State.of({"step": parts.best[0], "weights": parts.best[1]}, BEST)
            training = State.of(parts.training, TRAINING)
            self._saver.begin(Snapshot(step, training, ranks, best, parts.lasting | parts.frozen, parts.frozen))

        world.on_rank_zero(begin)

    def _finish_slow(self) -> None:
        assert self._saver is not None
        self._saver.finish(float(world.environment().get("TRAIN_FUNC_GRACE_SECONDS", "inf")) - RESERVE)

    def _finish(self) -> None:
        assert self._saver is not None
        self._saver.wait()
        self._raise_fenced()

    def _raise_fenced(self) -> None:
        if self._saver and self._saver.fenced:
            raise self._saver.fenced

    @marks.within(Phase.SAVING)
    def before_update(self) -> None:
        """To be called before the optimizer's step: returns when the state that is being saved was copied."""
        if self._saver:
            self._saver.wait_copied()

    def close(self) -> None:
        """Returns when what was begun is saved; nothing else of this training will be. Not collective."""
        if self._saver:
            self._saver.wait()
            self._raise_fenced()


def _fingerprint(made_of: Any) -> str:
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


class Trainings:
    """Those of a function, in their order over all of its sessions: each has checkpoints of its own."""

    def __init__(self, store: Store, record: RunRecord, attempt: int, numerics: Numerics, folder: Path) -> None:
        """``folder`` takes files on their way."""
        self._store, self._record, self._attempt, self._folder = store, record, attempt, folder
        self._precision = numerics.precision  # not the cut: a finer one goes on after the same step

    def begin(self, made_of: Mapping[str, Any]) -> Checkpointing:
        """Collective: those of the next training, which is made of that, plain."""
        number, sessions.here.num_trainings = sessions.here.num_trainings, sessions.here.num_trainings + 1
        return Checkpointing(
            self._store,
            self._record,
            self._attempt,
            number=number,
            made_of={**made_of, "precision": self._precision},
            folder=self._folder / str(number),
        )
