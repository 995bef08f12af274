"""One table: what went wrong, the exit code that says so, and whether the operator tries again.

Workers end with these codes and the client reads them. Codes of 128 and above are retried by the operator, those below
are final.
"""

import errno
import re
from dataclasses import dataclass

from train_func.errors import Cause, InvalidInput, SourceRefused, StorageFailed, StorageReason, TrainFuncError

DONE = 0
USAGE = 64
DATA = 65
MODEL = 66
DIVERGED = 67
MISSING = 69  # a bucket, an object
CODE = 70
SPENT = 71  # all attempts used up
DEADLINE = 72
FENCED = 73  # another job of the run has begun, or the run has a result
FULL = 74
PERMISSION = 77
SOURCE = 78  # the function's text
FIRST_SIGNAL = 129  # 128 and the number of the signal that killed the process
STOPPED = 143
UNREACHABLE = 144
PEER = 145
RENDEZVOUS = 146
KILLED = 147
HANG = 148
RESIZED = 149  # the group goes on with other workers
KEY = 150  # the store refuses the key of a pod; a new pod gets the current one


@dataclass(frozen=True)
class Exit:
    """How a process ends, and why."""

    code: int
    cause: Cause


def retryable(code: int) -> bool:
    """Returns whether the operator starts a worker again that ended with ``code``."""
    return code >= 128


_REFUSED: dict[Cause, int] = {
    "input": USAGE,
    "data": DATA,
    "model": MODEL,
    "divergence": DIVERGED,
    "code": CODE,
    "permission": PERMISSION,
    "source": SOURCE,
}
_STORAGE: dict[StorageReason, int] = {
    "unreachable": UNREACHABLE,
    "absent": MISSING,
    "bucket": MISSING,
    "credentials": KEY,
    "unproven": UNREACHABLE,
    "denied": PERMISSION,
    "full": FULL,
    "conflict": FENCED,
    "replaced": PEER,
    "damaged": DATA,
    "address": USAGE,
    "unsupported": USAGE,
}
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_ALLOCATOR = re.compile(r"\[enforce fail at \S*alloc_cpu\.cpp:\d+\]")  # where torch says that it was raised
_CUDA_ALLOCATION = 2  # cudaErrorMemoryAllocation, which is raised outside of torch's own allocator


# What a code says by itself, of a worker that could not write down why it ended.
_CAUSES: dict[int, Cause] = {
    **dict.fromkeys(range(FIRST_SIGNAL, STOPPED), "killed"),  # 137 too: only the kernel knows whether it was for memory
    **dict.fromkeys(_STORAGE.values(), "storage"),
    **{code: cause for cause, code in _REFUSED.items()},
    STOPPED: "preemption",
    DEADLINE: "deadline",
    PEER: "peer",
    RENDEZVOUS: "peer",
    KILLED: "killed",
    HANG: "hang",
    RESIZED: "preemption",
}


def cause_of(code: int) -> Cause:
    """Returns the cause that an exit code alone tells."""
    return _CAUSES.get(code, "unknown")


def exit_of(error: BaseException, *, has_peers: bool = True) -> Exit:
    """Returns the exit of a process that ``error`` ended. ``has_peers``: whether other ranks may have gone."""
    if is_lost_peer(error, has_peers=has_peers):
        return Exit(PEER, "peer")
    match error:
        case StorageFailed():
            return Exit(_STORAGE[error.reason], error.cause)
        case InvalidInput() | SourceRefused():
            return Exit(_REFUSED.get(error.cause, SOURCE), error.cause)
        case TrainFuncError():
            return Exit(CODE, error.cause)
        case KeyboardInterrupt():
            return Exit(STOPPED, "preemption")
        case PermissionError():
            return Exit(PERMISSION, "permission")
        case OSError() if error.errno == errno.EROFS:  # as most of a container's file system may be
            return Exit(PERMISSION, "permission")
        case OSError() if error.errno in NO_SPACE:
            return Exit(FULL, "storage")
        case _ if _is_out_of_memory(error):
            return Exit(CODE, "memory")
        case _ if _is_port_in_use(error):  # which may be free when it is tried again
            return Exit(RENDEZVOUS, "code")
    return Exit(CODE, "code")


def _is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or _is_of_torch(error, "OutOfMemoryError"):
        return True
    if _is_of_torch(error, "AcceleratorError"):
        return getattr(error, "error_code", None) == _CUDA_ALLOCATION
    return type(error) is RuntimeError and bool(_ALLOCATOR.search(str(error)))


# What torch.distributed raises when the process at the other end of a connection has gone. Its exceptions are named
# here and not imported, because a worker that fails early has no torch loaded.
_LOST_TYPES = ("DistBackendError", "DistNetworkError", "DistStoreError")
_C10D = re.compile(r"\[\S*/(?:gloo/transport|distributed/c10d)/\S+:\d+\] ")  # where gloo says that it was raised


class PeerFailed(RuntimeError):
    """Another rank has failed, and has said so."""


def is_lost_peer(error: BaseException, *, has_peers: bool = True) -> bool:
    """Returns whether ``error``, or one that it followed from, only says that another rank has gone.

    No wording tells that: torch has types for it, and gloo, which raises a plain RuntimeError, also out of ``wait()``
    and out of a backward pass, begins it with its source file. Of a rank alone, only the types say so. The same types
    tell that rank 0 cannot listen for the others, which is its own fault. The others of an attempt that was replaced
    have gone to a later one.
    """
    seen: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in seen:
        if _is_port_in_use(current):
            return False
        if isinstance(current, StorageFailed) and current.reason == "replaced":
            return True
        is_of_gloo = type(current) is RuntimeError and bool(_C10D.match(str(current)))
        if _is_of_torch(current, *_LOST_TYPES) or (has_peers and (is_of_gloo or isinstance(current, PeerFailed))):
            return True
        seen.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    return False


def _is_port_in_use(error: BaseException) -> bool:
    return _is_of_torch(error, *_LOST_TYPES) and errno.errorcode[errno.EADDRINUSE] in str(error)


def _is_of_torch(error: BaseException, *names: str) -> bool:
    return any(kind.__name__ in names and kind.__module__.partition(".")[0] == "torch" for kind in type(error).__mro__)
