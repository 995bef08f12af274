"""Pace: lets arms train by turns, and counts what each of them does in its turn.

Every rank of an arm is a process, and all arms are alive at once. A rank waits before an optimizer step until the
program that compares them gives it further steps, and then tells what they were: rows by their numbers, tokens, losses,
and processor seconds. So an arm is measured beside the same other work of the machine as its neighbours.

The number of a row is its second token (or, of an image, its first pixel), which the model is given; so what a rank
has trained on is read where no sampler, loader or split can hide it.
"""

import os
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Listener, wait
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from transformers import TrainerCallback

KEY = b"benchmarks"
Figures = dict[str, Any]


@dataclass
class Turn:
    """What a rank did in its turn."""

    rows: list[int] = field(default_factory=list)
    """Numbers of the rows, in the order in which they were trained on."""
    losses: list[float] = field(default_factory=list)
    """Of each of them, before the step."""
    num_tokens: int = 0
    num_cells: int = 0
    """Tokens with what they were padded to."""
    cpu_seconds: float = 0.0
    seconds: float = 0.0
    peak_bytes: int = 0


def cpu_seconds() -> float:
    """Processor seconds of this process, and of its children that have ended."""
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, _WHOM))


_WHOM = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


class Pace(TrainerCallback):
    """One rank's side: a callback of a Trainer, and called by loops.

    Args:
        address: of the program that gives the turns.
        arm: its name.
        number_of: tells the numbers of the rows of a batch from what the model is called with.
        targets: the class of each row, by its number; of a language model None.
    """

    def __init__(
        self, address: str, arm: str, number_of: Callable[[Figures], torch.Tensor], targets: torch.Tensor | None
    ) -> None:
        self._gives = Client(address, family="AF_UNIX", authkey=KEY)
        self._gives.send((arm, int(os.environ.get("RANK", "0"))))
        self._number_of, self._targets = number_of, targets
        self._turn: Turn | None = None
        self._steps = 0
        self._begun = self._begun_cpu = 0.0

    def watch(self, model: torch.nn.Module) -> None:
        """Looks at every batch that the model, not yet wrapped, is trained on."""
        model.register_forward_hook(self._look, with_kwargs=True)

    def begin_step(self) -> None:
        """Returns when this step may begin."""
        if self._turn and not self._steps:
            self._tell(self._turn)
        if not self._turn:
            self._steps, self._turn = self._gives.recv(), Turn()
            self._begun, self._begun_cpu = time.monotonic(), cpu_seconds()
        self._steps -= 1

    def end(self) -> None:
        """Tells of the last turn."""
        if self._turn:
            self._tell(self._turn)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.begin_step()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.end()

    def _tell(self, turn: Turn) -> None:
        turn.cpu_seconds, turn.seconds = cpu_seconds() - self._begun_cpu, time.monotonic() - self._begun
        turn.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        self._gives.send(turn)
        self._turn = None

    def _look(self, model: torch.nn.Module, _: Any, given: Figures, output: Any) -> None:
        if not model.training or not self._turn:
            return
        with torch.no_grad():
            numbers = self._number_of(given)
            mask = given.get("attention_mask")
            if mask is not None:
                self._turn.num_tokens += int(mask.sum())
                self._turn.num_cells += mask.numel()
            self._turn.rows += numbers.tolist()
            if self._targets is not None:
                logits, targets = output.logits.float(), self._targets[numbers]
                self._turn.losses += functional.cross_entropy(logits, targets, reduction="none").tolist()


class Arms:
    """The other side: gives turns to arms, one at a time."""

    def __init__(self, folder: Path, num_ranks: int) -> None:
        self.address = str(folder / "pace")
        self._listener = Listener(self.address, family="AF_UNIX", authkey=KEY, backlog=64)
        self._num_ranks = num_ranks
        self._ranks: dict[str, list[Any]] = {}

    def __enter__(self) -> "Arms":
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def join(self, arm: str, is_alive: Callable[[], Any]) -> None:
        """Returns when all ranks of the arm have come; asks ``is_alive`` while they have not."""
        while len(self._ranks.get(arm, [])) < self._num_ranks:
            if not wait([self._listener._listener._socket], 1.0):  # type: ignore[attr-defined]
                is_alive()
                continue
            connection = self._listener.accept()
            name, _ = connection.recv()
            self._ranks.setdefault(name, []).append(connection)

    def train(self, arm: str, num_steps: int) -> list[Turn]:
        """Lets an arm train that many steps; returns the turn of each rank."""
        for connection in self._ranks[arm]:
            connection.send(num_steps)
        return [connection.recv() for connection in self._ranks[arm]]

    def leave(self, arm: str) -> None:
        """Lets go of the ranks of an arm, whose next wait for a turn fails."""
        for connection in self._ranks.pop(arm, []):
            connection.close()
