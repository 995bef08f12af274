"""Five workarounds for process groups of torch; for them each group is noted when torch registers it.

- A rank may leave its group before it ends, and torch then forgets the group; ``separate`` knows it.
- The destructor of a gloo group waits for its threads while it holds the interpreter's lock, and a thread that frees a
  tensor waits for that lock: a DDP model that goes out of scope after destroy_process_group() hangs its rank
  (https://github.com/pytorch/pytorch/issues/56297). So every group is kept until the process ends.
- A group that is kept keeps its store, in which the next first group of the process would find the addresses of the
  last one: torch begins to count its names anew. So each first group has names of its own. Only groups of the whole
  world are counted, which all ranks form: one rank may have formed a group alone.
- Rank 0 serves the store through which the others form the group, and may end while they still form it. So each rank
  counts itself in that store, and rank 0 waits for all. torchrun needs no such wait: its agent's store outlives each
  rank.
- A rank waits for the others in native code, where no signal handler runs. So a signal to stop ends the process while
  it forms the first group; otherwise it would use up the grace period of its worker.

Loads no torch: it waits until the template or train_func loads it.
"""

import contextlib
import functools
import os
import sys
import time
from typing import Any

from train_func.worker.rank import stop_flag
from train_func.worker.rank.imports import on_import

_MODULE = "torch.distributed.distributed_c10d"
_FORMED = "formed by"  # in the group's own store: how many ranks have formed it
_POLL_SECONDS = 0.05
_NAMES = 10**6  # of a first group and all groups that are made in it
_groups: list[tuple[Any, Any]] = []
"""Each group with its store; None if its backend has no store."""


def observe() -> None:
    """Keeps every process group that this process makes from now on."""
    on_import(_MODULE, _listen)


def separate(world_size: int, *, has_torch: bool) -> bool:
    """Returns whether this rank of several has torch, but never was in one group with all the others."""
    return has_torch and max((group.size() for group, _ in _groups), default=0) < world_size > 1


def wait_until_formed(seconds: float) -> None:
    """Waits until all other ranks have formed the groups of this rank, at most ``seconds``."""
    until = time.monotonic() + seconds
    with contextlib.suppress(RuntimeError):  # a store that has gone with its server
        for group, store in _groups:
            while store is not None and store.add(_FORMED, 0) < group.size() and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)


def _listen(c10d: Any) -> None:
    """Wraps the functions of torch that form the first group and register every group."""
    form, register = c10d.init_process_group, c10d._register_process_group
    num_formed = 0

    @functools.wraps(form)
    def form_or_end(*arguments: Any, **options: Any) -> None:
        nonlocal num_formed
        if not c10d.is_initialized():
            c10d._world.group_count = num_formed * _NAMES
        with stop_flag.ends_process():
            form(*arguments, **options)
        num_formed += c10d.get_world_size() == int(os.environ.get("WORLD_SIZE", "1"))

    def register_and_note(name: Any, group: Any) -> None:
        _, store = c10d._world.pg_map[group]
        _groups.append((group, store))
        register(name, group)
        if store is not None:
            with contextlib.suppress(RuntimeError):  # rank 0, which serves it, has failed: the next collective tells
                store.add(_FORMED, 1)

    c10d._register_process_group = register_and_note
    c10d.init_process_group = form_or_end
    sys.modules["torch.distributed"].__dict__["init_process_group"] = form_or_end  # where it was imported by name
