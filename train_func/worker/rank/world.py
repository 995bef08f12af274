"""The ranks of a run: their number, their process group, their exchanges, and how a fault of one reaches all.

Without a launcher there is one rank, no process group, and every call here returns at once.
"""

import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from train_func.errors import TrainFuncError
from train_func.wire.events import LAST_STEP, Event, Note, Resumes
from train_func.wire.exits import PeerFailed
from train_func.worker.rank import marks, reporting

Result = TypeVar("Result")

# Others wait this long while one of them downloads, tokenises or publishes. A peer that dies is noticed at once.
PATIENCE = timedelta(hours=1)
HEAD_START = 10  # seconds in which rank 0 listens, wherever ranks begin together


@dataclass(frozen=True)
class World:
    """The place of this process among the others, from the environment that its launcher set."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    launched: bool
    """Whether a launcher started it, so that there are other ranks, or at least an address to form a group at."""

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
        """Forms the process group and returns its backend; returns None if there is a group already."""
        if torch.cuda.is_available():
            torch.cuda.set_device(self.local_rank % torch.cuda.device_count())
        if not self.launched or dist.is_initialized():
            return None
        if self.rank:
            _wait_for_listener(environment())
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


def _wait_for_listener(variables: Mapping[str, str]) -> None:
    """Waits until rank 0 listens, for ``HEAD_START`` seconds at most; torch itself waits for the rest, and says so.

    A rank that comes first would else stand still for half a second: torch's TCPStore tries a refused connection again
    after 0.25 to 0.75 s (ExponentialBackoffWithJitter in torch/csrc/distributed/c10d/Backoff.hpp).
    """
    address = variables.get("MASTER_ADDR", ""), int(variables.get("MASTER_PORT", 0))
    end = time.monotonic() + HEAD_START
    while time.monotonic() < end:
        try:
            socket.create_connection(address, timeout=HEAD_START).close()
        except ConnectionRefusedError:
            time.sleep(0.01)
        except OSError:
            return
        else:
            return


def environment() -> Mapping[str, str]:
    """Returns the environment of the process."""
    return os.environ


def destroy_process_group() -> None:
    """Leaves the process group without waiting for other ranks."""
    if dist.is_initialized():
        dist.destroy_process_group()


def rank() -> int:
    """Returns the number of this process among the others, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def size() -> int:
    """Returns the number of processes that train together."""
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
    """Overwrites a small tensor with its sum over all ranks, and returns it."""
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
    """Returns the tensors of all ranks in their order; shape and type must be the same on every rank."""
    if size() == 1:
        return [value]
    tensors = [torch.empty_like(value) for _ in range(size())]
    with marks.exchange():
        dist.all_gather(tensors, value)
    return tensors


def spread(value: torch.Tensor) -> None:
    """Overwrites a tensor with the bits of rank 0."""
    if size() > 1:
        with torch.no_grad():
            whole = value.detach().contiguous()
            with marks.exchange():
                dist.broadcast(whole.reshape(-1).view(torch.uint8), src=0)
            value.copy_(whole)


def log_rank0(event: Event) -> None:
    """Sends an event, on rank 0 only."""
    if rank() == 0:
        reporting.say(event)


def log_resumption(event: Resumes) -> None:
    """Sends from where an attempt goes on, with the last step of the one before, on rank 0 only.

    That step is of one training of the function; those before it go on beyond it, and those after it begin.
    """
    last_step = int(os.environ.get(LAST_STEP, "0"))
    if last_step >= event.step:
        os.environ.pop(LAST_STEP, None)
    log_rank0(replace(event, last_step=last_step))


def note(text: str) -> None:
    """Sends a note for a person, on rank 0 only."""
    log_rank0(Note(text=text))


def on_all_ranks(action: Callable[[], Result]) -> Result:
    """Runs ``action`` on every rank; returns this rank's result once it has succeeded on all of them.

    Raises:
        Exception: this rank's error, or else that of the lowest failed rank, so that no rank waits forever.
    """
    result, error = _attempt(action)
    _raise_any(error)
    return result  # type: ignore[return-value]  # no fault, so there is a result


def on_rank_zero(action: Callable[[], Result]) -> Result:
    """Runs ``action`` on rank 0 only and returns its result, which must pickle, on every rank.

    Raises:
        Exception: the error of rank 0, on every rank.
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
