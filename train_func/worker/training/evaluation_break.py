"""An evaluation of a training that may be broken off: what to go on from then, and when the ranks ask whether it is."""

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

LOOK = 0.5  # seconds between two times that the ranks ask
SAMPLE = 16  # elements of each tensor


class EvaluationBreak:
    """Of one evaluation; ``is_due`` is the same on all ranks, because they tell each other how long a batch takes."""

    def __init__(self, model: nn.Module, pending: Mapping[str, Any], random: Mapping[str, Any]) -> None:
        """``pending``: what makes up for the evaluation; ``random``: the state of the generators before it."""
        self.pending, self.random = pending, random
        self._model, self._sample = model, _sample(model)
        self._next, self._last, self._begun = 1, 0, time.monotonic()

    def is_due(self, number: int) -> bool:
        """Whether the ranks ask after batch ``number``, from 1, which every rank has."""
        return number >= self._next

    def own(self, *, has_failed: bool, is_stopped: bool) -> list[int]:
        """To be added up over the ranks: failed, stopped, holds other weights, microseconds since the last time."""
        has_others = not torch.equal(self._sample, _sample(self._model))  # averages of them, for example
        return [int(has_failed), int(is_stopped), int(has_others), round((time.monotonic() - self._begun) * 1e6)]

    def has_asked(self, number: int, seconds: float) -> None:
        """After batch ``number``; ``seconds``: since the last time, as the ranks agree."""
        of_batch = max(seconds / (number - self._last), 1e-6)
        self._last, self._next, self._begun = number, number + max(1, int(LOOK / of_batch)), time.monotonic()


def _sample(model: nn.Module) -> torch.Tensor:
    """Some elements of every parameter, as float64 on the CPU."""
    parts = [of.detach().reshape(-1) for of in model.parameters()]
    chosen = [of[:: max(1, of.numel() // SAMPLE)][:SAMPLE].double() for of in parts]
    return torch.cat(chosen).cpu() if chosen else torch.empty(0)
