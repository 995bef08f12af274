"""The memory guard: a rank is killed before the kernel would kill its whole worker, and with it who could say why.

Where a container needs more than its limit, a node of today kills all of its processes at once, the supervisor too:
https://github.com/kubernetes/kubernetes/pull/117793. The guard leaves it alive, and ranks start again in their pods.
"""

import signal
from collections.abc import Sequence

from train_func.process_memory import unreclaimable_bytes
from train_func.process_tree import descendants, send

SHARE, AT_MOST = 0.05, 512 * 2**20  # of the limit, and bytes, that are left when the guard acts


def limit_of(memory: int) -> int:
    """Bytes from which on the guard acts in a worker that may have ``memory``.

    The page tables and buffers of the kernel count in the limit too, and are not seen here.
    """
    return memory - min(int(SHARE * memory), AT_MOST)


def kill_largest(ranks: Sequence[int]) -> None:
    """Kills the one of these processes that has, with its descendants, the most memory."""
    send(max(ranks, key=lambda rank: unreclaimable_bytes([rank, *descendants(rank)])), signal.SIGKILL)
