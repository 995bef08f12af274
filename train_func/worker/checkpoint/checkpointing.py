"""Checkpointing: the ranks save one state together between two steps, stop there, and resume from the newest one.

Only rank 0 uses the store and the clock. The ranks vote in the exchange of every step, so that all of them save or stop
at the same step.
"""

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from train_func.process.failpoint import reach
from train_func.storage import Store
from train_func.wire.events import Resumes
from train_func.wire.records import RunRecord
from train_func.worker.checkpoint.checkpoint_store import BEST, TRAINING, Checkpoints, Manifest, of_rank
from train_func.worker.checkpoint.saver import Saver, StepState
from train_func.worker.checkpoint.state import State
from train_func.worker.rank import marks, reporting, stop_flag, world
from train_func.worker.rank.marks import Phase
from train_func.worker.stop import work_seconds

# An upload sees only between two of its parts that it is given up; a request to a silent server takes 40 s.
GIVING_UP_SECONDS = 1.0
LAST_SECONDS = 15 * 60.0  # longest wait for a store that is away with the last checkpoint of a training


@dataclass(frozen=True)
class Parts:
    """The parts of a state to save; see StepState."""

    training: Any
    """The state that is the same on all ranks."""
    rank: Any
    """The state of this rank alone."""
    lasting: frozenset[int] = frozenset()
    frozen: frozenset[int] = frozenset()
    best: tuple[int, Any] | None = None
    """On rank 0: the step of the best weights so far, and these weights."""


@dataclass(frozen=True)
class Resumption:
    """The state from which this rank resumes."""

    step: int
    """Steps done."""
    training: dict[str, Any]
    """The state that is the same on all ranks; its tensors are on the device."""
    rank: dict[str, Any]
    """The state saved by this rank; if fewer ranks saved it, that of the last one without its used rows."""
    lost: list[dict[str, Any]]
    """On rank 0: states saved by ranks that this attempt does not have."""
    best: tuple[int, Any] | None
    """On rank 0: the step of the best weights so far, and these weights."""
    run: str
    """The run that saved it."""
    is_own: bool
    """Whether it is the run itself."""


class Checkpointing:
    """Saves and restores one training of a function; every method is collective unless it says otherwise."""

    def __init__(
        self, store: Store, record: RunRecord, attempt: int, *, number: int, made_of: Any, folder: Path
    ) -> None:
        """``number``: the training's number in the function, from 0; ``made_of``: plain values that must equal those of
        the training that saved a checkpoint.

        Raises:
            Fenced: a later attempt has begun.
            StorageFailed: the store's own failure.
        """
        self._saver: Saver | None = None
        self._begun_at: int | None = None
        self._taken_at: int | None = None
        fingerprint = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()
        self._checkpoints = Checkpoints(store, record, attempt, fingerprint, number)
        self._folder, self._name, self._attempt = folder, record.name, attempt
        self._other = (
            replace(record, name=record.resumes, generation=record.resumes_generation) if record.resumes else None
        )
        world.on_rank_zero(self._checkpoints.check_lease)
        if world.rank() == 0:
            self._saver = Saver(self._checkpoints, folder, record.run.checkpoint_every, reporting.say)

    def restore(self, device: torch.device) -> Resumption | None:
        """Returns the newest verified checkpoint on every rank; None if there is none.

        Raises:
            StorageFailed: reason "damaged" if there are checkpoints and none can be used.
        """
        tensors: dict[str, torch.Tensor] = {}  # on rank 0, which alone reads the files
        best: tuple[int, Any] | None = None

        def read() -> tuple[Manifest, Any, list[tuple[str, torch.dtype, torch.Size, bool]], list[bytes]] | None:
            nonlocal best
            self._folder.mkdir(parents=True, exist_ok=True)
            checkpoint, run = self._checkpoints.newest(self._folder), ""
            if checkpoint is None and self._other:
                checkpoint, run = self._checkpoints.newest(self._folder, self._other), self._other.name
            if checkpoint is None:
                if self._attempt > 1:
                    why = f"the store has no checkpoint of this training{f', nor one of {run}' if run else ''}"
                    world.log_resumption(Resumes(step=0, attempt=self._attempt, why=why))
                return None
            for fault in checkpoint.refused:
                world.note(f"a newer checkpoint was not taken: {fault}")
            saved, refused = checkpoint.manifest, "; ".join(checkpoint.refused)
            why = f"the newest that is whole, because newer ones are not: {refused}" if refused else "the newest"
            world.log_resumption(
                Resumes(step=saved.step, attempt=self._attempt, saved_by=saved.attempt, of_run=run, why=why)
            )
            training, states = checkpoint.training, checkpoint.states
            tensors.update(training.tensors)
            if BEST in states:
                best = states[BEST].whole()["step"], states[BEST].whole()["weights"]
            on_device = training.on_device
            likes = [(name, tensor.dtype, tensor.shape, name in on_device) for name, tensor in tensors.items()]
            ranks = [states[of_rank(rank)].to_bytes() for rank in range(saved.world_size)]
            return saved, training.plain, likes, ranks

        parts = world.on_rank_zero(read)
        if parts is None:
            return None
        manifest, plain, likes, data_of_ranks = parts
        for name, dtype, shape, is_on_device in likes:
            tensor = tensors[name] if name in tensors else torch.empty(shape, dtype=dtype)
            tensors[name] = tensor.to(device) if is_on_device else tensor
            world.spread(tensors[name])
        ranks = [State.from_bytes(data).whole() for data in data_of_ranks]
        self._begun_at = manifest.step
        rank = ranks[min(world.rank(), len(ranks) - 1)]
        if world.rank() >= len(ranks):
            rank["used"] = []
        reach("checkpoint restored")
        return Resumption(
            step=manifest.step,
            training=State(tensors, plain).whole(),
            rank=rank,
            lost=ranks[world.size() :] if world.rank() == 0 else [],
            best=best,
            run=manifest.run,
            is_own=manifest.run == self._name,
        )

    def votes(self) -> list[int]:
        """Returns the votes, to be summed over the ranks: a checkpoint is due, a signal has come, a later attempt has
        begun, the last checkpoint could not be saved. Not collective."""
        if self._saver is None:
            return [0, int(stop_flag.requested()), 0, 0]
        votes = (self._saver.is_due, stop_flag.requested(), self._saver.fenced is not None, self._saver.has_failed)
        return [int(vote) for vote in votes]

    def ask(self) -> None:
        """Makes the next checkpoint due now. Not collective."""
        if self._saver:
            self._saver.hasten()

    @marks.within(Phase.SAVING)
    def decide(self, counts: Sequence[int], step: int, take: Callable[[], Parts], *, is_over: bool = False) -> None:
        """Saves the state of ``take`` between two steps, and stops, if the ranks have voted for it.

        The restored state is not saved again, because the failure of an attempt without a step would count as progress.

        Args:
            counts: the ``votes``, summed over all ranks.
            step: steps done.
            take: returns the state.
            is_over: whether no step follows; the state is then always saved, so that another attempt can publish it.

        Raises:
            InvalidInput: (cause "code") a part of the state is neither a tensor nor plain.
            Fenced: a later attempt has begun.
            StopSignal: on every rank, if a signal has come to one; the state is saved then, if possible.
        """
        is_due, is_stopped, is_fenced, has_failed = map(bool, counts)
        if has_failed:
            self._taken_at = None
        if is_fenced:
            world.on_rank_zero(self._raise_fenced)
        if is_stopped and self._saver:
            self._saver.finish(_grace_seconds() - stop_flag.seconds())
        if step != self._begun_at and (is_stopped or (step != self._taken_at and (is_due or is_over))):
            self._save(step, world.on_all_ranks(take))
        if is_stopped:
            seconds = min(LAST_SECONDS, _grace_seconds() - stop_flag.seconds())
            world.on_rank_zero(partial(self.close, seconds))
            raise stop_flag.stop_signal(step)

    @marks.within(Phase.SAVING)
    def save_before(self, seconds: float, step: int, take: Callable[[], Parts]) -> None:
        """Saves the state of ``take`` after ``step`` steps, before work of ``seconds``; returns once it is copied.

        Does nothing if saving costs more than it is worth."""
        if step in (0, self._begun_at, self._taken_at):
            return

        def may_save() -> bool:
            saver = self._saver
            if saver is None or not saver.is_worth_it_before(seconds, _grace_seconds()):
                return False
            return saver.give_up(GIVING_UP_SECONDS)

        if world.on_rank_zero(may_save):
            self._save(step, world.on_all_ranks(take))
            self.before_update()

    def _save(self, step: int, parts: Parts) -> None:
        self._taken_at = step
        gathered = world.gather(world.on_all_ranks(lambda: State.of(parts.rank, of_rank(world.rank())).to_bytes()))

        def begin() -> None:
            assert self._saver is not None
            ranks = [State.from_bytes(data) for data in gathered]
            best = parts.best and State.of({"step": parts.best[0], "weights": parts.best[1]}, BEST)
            training = State.of(parts.training, TRAINING)
            self._saver.begin(StepState(step, training, ranks, best, parts.lasting, parts.frozen))

        world.on_rank_zero(begin)

    def _raise_fenced(self) -> None:
        if self._saver and self._saver.fenced:
            raise self._saver.fenced

    @marks.within(Phase.SAVING)
    def before_update(self) -> None:
        """Waits, before the optimizer changes the state, until it is copied. Not collective."""
        if self._saver:
            self._saver.wait_copied()

    @marks.within(Phase.SAVING)
    def close(self, seconds: float = 0.0) -> None:
        """Waits until the last checkpoint is saved; while the store is away, tries it again for ``seconds``.

        A signal shortens them to the grace period. Not collective; raises Fenced as ``decide`` does.
        """
        until = time.monotonic() + seconds

        def seconds_left() -> float:
            grace = _grace_seconds() - stop_flag.seconds() if stop_flag.requested() else math.inf
            return min(until - time.monotonic(), grace)

        if self._saver:
            self._saver.insist(seconds_left)
            self._raise_fenced()


def _grace_seconds() -> float:
    """Returns the seconds that the ranks have after a signal."""
    return work_seconds(float(world.environment().get("TRAIN_FUNC_GRACE_SECONDS", "inf")))
