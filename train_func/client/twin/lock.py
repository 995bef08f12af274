"""A lock file that is held exactly as long as its process lives."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path


def take(path: Path, seconds: float) -> int | None:
    """Takes the lock and returns its descriptor, or None when another process holds it for ``seconds``."""
    import fcntl  # not on Windows, where Local says so

    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                os.close(descriptor)
                return None
            time.sleep(0.01)  # a reader that looks whether it is held has it for a moment, too
        else:
            return descriptor


@contextlib.contextmanager
def hold(path: Path) -> Iterator[None]:
    """Waits for the lock and holds it."""
    descriptor = take(path, float("inf"))
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a process holds the lock now."""
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
