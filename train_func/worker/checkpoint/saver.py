"""The saver: copies a state while training goes on, and makes a checkpoint of the copy in a thread.

A training pauses only while its state is copied. A tensor that only the optimizer changes is copied in the thread, and
the optimizer's next step waits for the copy. torch counts the changes of a tensor; if a tensor was changed meanwhile,
all are copied at once from then on. The copy takes the memory of the tensors once more; the next checkpoint reuses it.

One checkpoint is made at a time. A newer state replaces one that is still on its way, because an old state is not worth
the network traffic. A failure ends no training: it is reported, and the next checkpoint tries again. If no other one
follows, the same copy is sent again while the store is away. Only a fenced attempt has to stop.
"""

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from train_func.errors import StorageFailed
from train_func.process.failpoint import reach
from train_func.wire.events import CheckpointFailed, CheckpointSaved, Event, Note, WaitsForStore
from train_func.worker.attempt_records import Fenced
from train_func.worker.checkpoint.checkpoint_store import BEST, FROZEN, TRAINING, Checkpoints, Manifest, of_rank
from train_func.worker.checkpoint.state import State
from train_func.worker.store_wait import NOTICE_SECONDS

SHARE = 50  # how many times as long as a checkpoint took the next one waits, unless the Run says
SHORTEST_SECONDS = 10.0  # between two, at least, unless the Run says
PAUSE_SECONDS = 2.0  # before the last checkpoint is sent again
NICENESS = 10  # of the thread: training goes first


class _Superseded(Exception):
    """A newer checkpoint replaces this one."""


@dataclass(frozen=True)
class StepState:
    """A state between two steps; its tensors belong to the training, and will change."""

    step: int
    """Steps done."""
    training: State
    ranks: Sequence[State]
    best: State | None = None
    """The best weights so far; they do not change."""
    lasting: frozenset[int] = frozenset()
    """Addresses of tensors that do not change until the optimizer's next step; the others are copied at once."""
    frozen: frozenset[int] = frozenset()
    """Addresses of weights that are not trained; they have a file of their own, which is uploaded if it changes."""


class Saver:
    """Makes one checkpoint at a time; its failure ends no training, unless a later attempt has begun."""

    def __init__(
        self, checkpoints: Checkpoints, folder: Path, every: float | None, say: Callable[[Event], object]
    ) -> None:
        """``every``: seconds between two checkpoints; None: saving takes about 2 % of the time."""
        self._checkpoints, self._folder, self._every, self._say = checkpoints, folder, every, say
        self._buffers: dict[str, torch.Tensor] = {}
        self._thread: threading.Thread | None = None
        self._copied = threading.Event()
        self._due = time.monotonic() + (SHORTEST_SECONDS if every is None else every)
        self._begun = time.monotonic()
        self._took = 0.0
        self._copies_at_once = self._is_asked = self._is_given_up = self._is_told_of_others = False
        self.fenced: Fenced | None = None
        """The error of an attempt, if a later one has begun."""
        self.has_failed = False
        """Whether the last checkpoint could not be saved."""
        self._unsent: tuple[StepState, State, StorageFailed] | None = None
        """The last checkpoint, its copy, and the failure of the store, if that was away."""

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_due(self) -> bool:
        """Returns whether the next checkpoint is due, and the last one is done."""
        return not self.is_busy and self.fenced is None and (self._is_asked or time.monotonic() >= self._due)

    def is_worth_it_before(self, seconds: float, grace: float) -> bool:
        """Returns whether saving before work of ``seconds`` is worth its cost.

        A checkpoint on its way is given up for that only if the next one will be done by the end of the work.
        """
        shortest = min(SHORTEST_SECONDS, grace) if self._every is None else min(SHORTEST_SECONDS, grace, self._every)
        return self.fenced is None and seconds >= shortest and not (self.is_busy and seconds < self._duration)

    @property
    def _duration(self) -> float:
        """Returns the seconds that a checkpoint takes, while one is on its way: at least as long as that one by now."""
        return max(self._took, time.monotonic() - self._begun)

    def hasten(self) -> None:
        """Makes the next checkpoint due."""
        self._is_asked = True

    def give_up(self, seconds: float | None = None) -> bool:
        """Gives up the checkpoint that is on its way; if that takes longer than ``seconds``, it goes on after all.

        Returns whether none is on its way any more.
        """
        self._is_given_up = True
        is_over = self.wait(seconds)
        self._is_given_up = False
        return is_over

    def begin(self, snapshot: StepState) -> None:
        """Begins a checkpoint; call ``wait_copied`` before tensors change.

        A checkpoint that is on its way is given up, unless all of its files are in the store.
        """
        self.give_up()
        self._begun = begun = time.monotonic()
        self._is_asked, self._unsent = False, None
        tensors: dict[str, torch.Tensor] = {}
        lasting: dict[str, tuple[torch.Tensor, int]] = {}  # copied by the thread; the version counts changes
        try:
            for name, tensor in snapshot.training.tensors.items():
                buffer = self._buffers.get(name)
                if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                    buffer = self._buffers[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
                tensors[name] = buffer
                if tensor.data_ptr() in snapshot.lasting and not self._copies_at_once:
                    lasting[name] = tensor, tensor._version
                else:
                    _copy(tensor, tensors[name])
        except Exception as failure:  # mostly for want of memory, which the training needs more
            self._buffers.clear()
            self._tell(failure, snapshot.step)
            self._end(0.0)
            return
        self._copied.clear()
        copy = State(tensors, snapshot.training.plain)
        self._start(snapshot, copy, lasting, time.monotonic() - begun)

    def _start(self, *args: Any) -> None:
        self._thread = threading.Thread(target=self._save, args=args, name="checkpoint", daemon=True)
        self._thread.start()

    def insist(self, seconds_left: Callable[[], float]) -> None:
        """Waits for the checkpoint on its way; while the store is away and time is left, sends it again."""
        self.wait()
        notice = time.monotonic()
        while self._unsent and seconds_left() > PAUSE_SECONDS:
            snapshot, copy, failure = self._unsent
            if time.monotonic() >= notice:
                notice, purpose = time.monotonic() + NOTICE_SECONDS, "save the last checkpoint"
                self._say(WaitsForStore(seconds_left=seconds_left(), message=str(failure), purpose=purpose))
            time.sleep(PAUSE_SECONDS)
            self._start(snapshot, copy, {}, 0.0)
            self.wait()

    def wait_copied(self) -> None:
        """Waits until the tensors may change."""
        if self.is_busy:
            self._copied.wait()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits up to ``seconds``; returns whether no checkpoint is on its way any more."""
        if self._thread is not None:
            self.wait_copied()
            self._thread.join(seconds)
        return not self.is_busy

    def _save(
        self, snapshot: StepState, copy: State, lasting: Mapping[str, tuple[torch.Tensor, int]], blocked: float
    ) -> None:
        begun = time.monotonic()
        try:
            try:
                for name, (tensor, version) in lasting.items():
                    _copy(tensor, copy.tensors[name])
                    if tensor._version != version:  # something beside the optimizer changes it: nothing lasts
                        self._copies_at_once = True
                        self.hasten()
                        return
            finally:
                self._copied.set()
            with contextlib.suppress(OSError):  # where a profile of seccomp forbids it
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            manifest = self._write(snapshot, copy)
        except _Superseded:
            pass
        except Exception as failure:  # whatever it is, the training is worth more
            was_away, self._unsent = self._unsent is not None, None
            if isinstance(failure, StorageFailed) and failure.retryable:
                self._unsent = snapshot, copy, failure
            if not (was_away and self._unsent):
                self._tell(failure, snapshot.step)
            begun = time.monotonic()  # and tried again soon
        else:
            seconds = time.monotonic() - begun
            size = sum(file.size for file in manifest.files.values())
            self._took, self.has_failed, self._unsent = seconds, False, None
            self._say(CheckpointSaved(step=snapshot.step, size=size, seconds=seconds))
            why, was_told = self._checkpoints.not_deleted, self._is_told_of_others
            self._is_told_of_others = why is not None
            if why and not was_told:
                self._say(Note(text=f"checkpoints that are not needed any more are still in the store: {why}"))
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._end(blocked + time.monotonic() - begun)

    def _tell(self, failure: Exception, step: int) -> None:
        self.fenced, self.has_failed = failure if isinstance(failure, Fenced) else None, True
        why = str(failure) if isinstance(failure, OSError) else f"{type(failure).__name__}: {failure}"
        self._say(CheckpointFailed(step=step, message=why))

    def _end(self, took: float) -> None:
        self._due = time.monotonic() + (max(SHORTEST_SECONDS, SHARE * took) if self._every is None else self._every)

    def finish(self, seconds: float) -> None:
        """Waits up to ``seconds`` for the checkpoint on its way, if another one could not be saved in that time."""
        if self._duration > seconds:
            self.wait(seconds)

    def _write(self, snapshot: StepState, copy: State) -> Manifest:
        """Writes and uploads a checkpoint; ``copy``: the copied state that is the same on all ranks."""
        seldom = {name for name, source in snapshot.training.tensors.items() if source.data_ptr() in snapshot.frozen}
        changing = {name: tensor for name, tensor in copy.tensors.items() if name not in seldom}
        states = {TRAINING: State(changing, copy.plain)}
        states |= {of_rank(rank): state for rank, state in enumerate(snapshot.ranks)}
        if seldom:
            states[FROZEN] = State({name: copy.tensors[name] for name in seldom}, None)
        if snapshot.best:
            states[BEST] = snapshot.best
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        paths: dict[str, Path] = {}
        for name, state in states.items():
            paths[name] = self._folder / f"{name}.safetensors"
            self._check_superseded()
            reach("checkpoint file begun")
            state.write(paths[name])
            reach("checkpoint file written")
        return self._checkpoints.add(snapshot.step, len(snapshot.ranks), paths, self._check_superseded)

    def _check_superseded(self, num_bytes: int = 0) -> None:
        if self._is_given_up:
            raise _Superseded


def _copy(source: torch.Tensor, target: torch.Tensor) -> None:
    """Copies a tensor, with numpy if both are in this memory, because torch would use the threads that compute."""
    source = source.detach()
    if source.device.type == "cpu" and source.is_contiguous() and source.numel():
        target.reshape(-1).view(torch.uint8).numpy()[:] = source.reshape(-1).view(torch.uint8).numpy()
    else:
        target.copy_(source)
