"""Randomness that depends on the place in the plan, not on the number of ranks nor on what was drawn before."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal

import numpy as np
import torch

Purpose = Literal["collate", "forward", "evaluate"]
_PURPOSES: dict[Purpose, int] = {"collate": 0, "forward": 1, "evaluate": 2}


def seed_for(purpose: Purpose, seed: int, step: int, micro: int) -> None:
    """Seeds every generator of this process for one micro-batch of one step; ``micro`` may be -1."""
    place = np.random.SeedSequence([seed, step, micro + 1, _PURPOSES[purpose]])
    number = int(place.generate_state(1, np.uint64)[0]) >> 1
    random.seed(number)
    np.random.seed(number % 2**32)  # what a user's collator may draw from
    _seed_torch(number)


def _seed_torch(number: int) -> None:
    """As torch.manual_seed, which formats a stack for each kind of device that is not there."""
    if _has_accelerator():
        torch.manual_seed(number)
    else:
        torch.default_generator.manual_seed(number)


@cache
def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restores the state of all random generators at the end of the block."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
