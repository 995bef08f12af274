"""The table from exceptions to exit codes, and what only says that another rank has gone."""

import errno
import threading
from typing import get_args

import pytest
import torch
import torch.distributed as dist

from train_func.errors import (
    Cause,
    InvalidInput,
    JobFailed,
    SourceRefused,
    StorageFailed,
    StorageReason,
    TrainFuncError,
)
from train_func.wire.exits import Exit, PeerFailed, exit_of, is_lost_peer, retryable

GLOO_CLOSED = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:59608. "
    "This is typically caused by a remote worker crashing."
)
GLOO_TIMEOUT = (
    "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv"
)

PORT_IN_USE = (
    "The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, "
    "name: EADDRINUSE, message: address already in use"
)


def storage(reason):
    return StorageFailed("a message", reason=reason)


class Special(dist.DistStoreError):
    pass


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "code", "cause"),
    [
        (InvalidInput("x"), 64, "input"),
        (InvalidInput("x", cause="data"), 65, "data"),
        (InvalidInput("x", cause="model"), 66, "model"),
        (InvalidInput("x", cause="code"), 70, "code"),
        (SourceRefused("x"), 78, "source"),
        (storage("unreachable"), 144, "storage"),
        (storage("absent"), 69, "storage"),
        (storage("bucket"), 69, "storage"),
        (storage("credentials"), 150, "storage"),
        (storage("denied"), 77, "storage"),
        (storage("full"), 74, "storage"),
        (storage("conflict"), 73, "storage"),
        (storage("replaced"), 145, "peer"),
        (storage("unsupported"), 64, "storage"),
        (JobFailed("x", cause="quota"), 70, "quota"),
        (NameError("x"), 70, "code"),
        (MemoryError(), 70, "memory"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), 70, "memory"),
        (RuntimeError("the replay buffer is out of memory slots"), 70, "code"),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"), 70, "memory"),
        (OSError(errno.ENOSPC, "No space left on device"), 74, "storage"),
        (PermissionError(errno.EACCES, "Permission denied"), 77, "permission"),
        (OSError(errno.EROFS, "Read-only file system"), 77, "permission"),
        (FileNotFoundError(errno.ENOENT, "No such file"), 70, "code"),
        (ConnectionResetError("Connection reset by peer"), 70, "code"),
        (KeyboardInterrupt(), 143, "preemption"),
        (RuntimeError(GLOO_CLOSED), 145, "peer"),
        (dist.DistNetworkError(PORT_IN_USE), 146, "code"),
    ],
    ids=lambda value: f"{type(value).__name__}-{value}"[:40] if isinstance(value, BaseException) else None,
)
def test_every_exception_has_its_exit(error, code, cause):
    assert exit_of(error) == Exit(code, cause)


def test_every_reason_of_a_storage_failure_has_an_exit_and_those_that_another_pod_may_not_meet_are_retried():
    exits = {reason: exit_of(storage(reason)).code for reason in get_args(StorageReason)}
    retried = {"unreachable", "replaced", "credentials", "unproven"}
    assert {reason for reason, code in exits.items() if retryable(code)} == retried
    assert all(64 <= code <= 78 for code in exits.values() if not retryable(code))


def test_every_cause_of_a_refusal_is_final():
    for cause in get_args(Cause):
        assert not retryable(exit_of(InvalidInput("x", cause=cause)).code)
        assert exit_of(TrainFuncError("x", cause=cause)).cause == cause


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(GLOO_CLOSED),
        RuntimeError(GLOO_TIMEOUT),
        dist.DistBackendError("NCCL error: remote process exited or there was a network error"),
        dist.DistNetworkError("The client socket has failed to connect to 10.0.0.1:1234"),
        Special("wait timeout"),
        PeerFailed("rank 1 failed with KeyError"),
        storage("replaced"),
        caused(ValueError("the step failed"), RuntimeError(GLOO_CLOSED)),
    ],
    ids=str,
)
def test_a_lost_peer_is_recognised(error):
    assert is_lost_peer(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)"),
        RuntimeError("DataLoader timed out after 60 seconds"),
        RuntimeError("MLflow: Connection refused"),
        ValueError(GLOO_CLOSED),
        threading.BrokenBarrierError(),
        type("DistNetworkError", (RuntimeError,), {})("of another library"),
        ConnectionResetError("Connection reset by peer"),
        dist.DistNetworkError(PORT_IN_USE),
    ],
    ids=str,
)
def test_other_faults_are_not_blamed_on_a_peer(error):
    assert not is_lost_peer(error)
    assert exit_of(error).cause == "code"
