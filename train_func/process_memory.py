"""The memory of this process's descendants on Linux, and whether it has come to a limit."""

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from train_func import process_tree

FAMILY_SECONDS = 0.2  # between two looks at who belongs to the family
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class FamilyMemory:
    """Of everything below this process, together."""

    def __init__(self, limit: int) -> None:
        """``limit``: bytes that the kernel cannot take back."""
        self._limit = limit
        self._family: list[int] = []
        self._family_until = 0.0
        self._suspicious = limit  # the exact look costs milliseconds per GB: only when it can be the limit

    def exceeds(self) -> bool:
        """Whether it is above the limit now; to be asked several times a second."""
        now = time.monotonic()
        if now >= self._family_until:
            self._family, self._family_until = process_tree.descendants(os.getpid()), now + FAMILY_SECONDS
        resident = _resident_bytes(self._family)
        if resident <= self._suspicious:
            return False
        exact = unreclaimable_bytes(self._family)
        self._suspicious = resident + max(0, self._limit - exact)
        return exact > self._limit


def unreclaimable_bytes(pids: Sequence[int]) -> int:
    """What the kernel cannot drop: anonymous and shared memory, shared pages counted in proportion (PSS)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines()
            total += (
                sum(int(line.split()[1]) for line in lines if line.startswith((b"Pss_Anon:", b"Pss_Shmem:"))) * 1024
            )
    return total


def _resident_bytes(pids: Sequence[int]) -> int:
    """Sum of the resident sizes: quick, and too high where pages are shared."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE_BYTES
    return total
