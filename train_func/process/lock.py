"""A lock file that is held exactly as long as its process lives: the kernel lets go of it when that dies."""

import contextlib
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

_CHANCE = random.SystemRandom()  # a training draws from the generator of the process, and has seeded it

PRIVATE, SHARED = 0o600, 0o666  # whether other users of this machine may take the lock too


def take(path: Path, seconds: float, mode: int = PRIVATE) -> int | None:
    """Takes the lock and returns its descriptor, or None when another process holds it for ``seconds``."""
    import fcntl  # not on Windows, where Local says so

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    end = time.monotonic() + seconds
    try:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            if time.monotonic() >= end:
                break
            time.sleep(_CHANCE.uniform(0.001, 0.01))  # a reader that looks whether it is held has it for a moment, too
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def release(descriptor: int) -> None:
    """Lets go of the lock, also for processes that were forked meanwhile, as those that load data are."""
    import fcntl

    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


@contextlib.contextmanager
def hold(path: Path, mode: int = PRIVATE) -> Iterator[None]:
    """Waits for the lock and holds it."""
    descriptor = take(path, float("inf"), mode)
    try:
        yield
    finally:
        if descriptor is not None:
            release(descriptor)


def is_held(path: Path) -> bool:
    """Returns whether a process holds the lock now."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
