"""The ranks of a run: who this process is, how it meets the others, and how a fault of one becomes a fault of all.

Without a launcher there is one rank, no process group, and every call here answers at once.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from train_func.errors import TrainFuncError
from train_func.wire.events import Event, Note
from train_func.wire.exits import PeerFailed
from train_func.worker.rank import marks, reporting

Result = TypeVar("Result")

# Others wait this long while one of them downloads, tokenises or publishes. A peer that dies is noticed at once.
PATIENCE = timedelta(hours=1)


@dataclass(frozen=True)
class World:
    """This process among the others, as its launcher said in the environment."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launched: bool
    """Whether a launcher started it, so that there are others to meet, or at least an address to meet at."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "World":
        def number(name: str, otherwise: int) -> int:
            return int(environment.get(name, otherwise))

        return cls(
            rank=number("RANK", 0),
            size=number("WORLD_SIZE", 1),
            local_rank=number("LOCAL_RANK", 0),
            local_size=number("LOCAL_WORLD_SIZE", 1),
            launched="RANK" in environment,
        )

    def init_process_group(self) -> str | None:
        """Forms the process group unless there is one already, and returns the backend; None when already there."""
        if torch.cuda.is_available():
            torch.cuda.set_device(self.local_rank % torch.cuda.device_count())
        if not self.launched or dist.is_initialized():
            return None
        if not torch.cuda.is_available():
            dist.init_process_group("gloo", timeout=PATIENCE)
            return "gloo"
        store, rank, size = next(rendezvous("env://", timeout=PATIENCE))
        # NCCL refuses two ranks on one GPU, as two workers have on a machine with one: gloo takes both.
        store.set(f"gpu/{self.rank}", str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
        gpus = {store.get(f"gpu/{number}") for number in range(self.size)}
        backend = "cpu:gloo,cuda:nccl" if len(gpus) == self.size else "gloo"
        group_store = PrefixStore("train_func", store)
        dist.init_process_group(backend, store=group_store, rank=rank, world_size=size, timeout=PATIENCE)
        return backend


def environment() -> Mapping[str, str]:
    """The process's environment: the one place where a rank's own code reads it."""
    return os.environ


def destroy_process_group() -> None:
    """Leaves the process group without waiting for other ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Number of this process among the others, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """Number of processes that train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def gather(value: Result) -> list[Result]:
    """Returns the values of all ranks in the order of ranks, on every rank; they must pickle."""
    if size() == 1:
        return [value]
    values: list[Any] = [None] * size()
    with marks.exchange():
        dist.all_gather_object(values, value)
    return values


def total(value: torch.Tensor) -> torch.Tensor:
    """Returns the sum over all ranks of a small tensor, which it overwrites and which is there when it returns."""
    if size() > 1:
        _wait_for_device(value)  # what a device has still to compute is no exchange
        with marks.exchange():
            dist.all_reduce(value)
            _wait_for_device(value)
    return value


def _wait_for_device(value: torch.Tensor) -> None:
    if value.is_cuda:
        torch.cuda.current_stream(value.device).synchronize()


def gather_tensors(value: torch.Tensor) -> list[torch.Tensor]:
    """Returns a tensor, of one shape and type on every rank, of all ranks in their order."""
    if size() == 1:
        return [value]
    tensors = [torch.empty_like(value) for _ in range(size())]
    with marks.exchange():
        dist.all_gather(tensors, value)
    return tensors


def spread(value: torch.Tensor) -> None:
    """Overwrites a tensor with what rank 0 has in it, bit for bit."""
    if size() > 1:
        with torch.no_grad():
            whole = value.detach().contiguous()
            with marks.exchange():
                dist.broadcast(whole.reshape(-1).view(torch.uint8), src=0)
            value.copy_(whole)


def log_rank0(event: Event) -> None:
    """Says an event once for all ranks."""
    if rank() == 0:
        reporting.say(event)


def note(text: str) -> None:
    """Says once for all ranks what a person should know."""
    log_rank0(Note(text=text))


def on_all_ranks(action: Callable[[], Result]) -> Result:
    """Runs ``action`` on every rank and returns this rank's result, when it has succeeded on all of them.

    Raises:
        Exception: this rank's own, or else that of the lowest rank that failed, so that no rank waits for it.
    """
    result, error = _attempt(action)
    _raise_any(error)
    return result  # type: ignore[return-value]  # no fault, so there is a result


def on_rank_zero(action: Callable[[], Result]) -> Result:
    """Runs ``action`` on rank 0 only and returns its result, which must pickle, on every rank.

    Raises:
        Exception: what rank 0 raised, on every rank.
    """
    result, error = _attempt(action) if rank() == 0 else (None, None)
    _raise_any(error)
    return gather(result)[0]  # type: ignore[return-value]  # rank 0 had no fault


def _attempt(action: Callable[[], Result]) -> tuple[Result | None, Exception | None]:
    try:
        return action(), None
    except Exception as error:
        return None, error


def _raise_any(error: Exception | None) -> None:
    """Raises this rank's error, or else the first of another rank."""
    shared = error
    if error and not isinstance(error, TrainFuncError):
        # A foreign exception may not pickle, and to a rank that had none it only means that another has gone.
        shared = PeerFailed(f"rank {rank()} failed with {type(error).__name__}: {error}")
    errors = gather(shared)
    for fault in (error, *errors):
        if fault:
            raise fault
