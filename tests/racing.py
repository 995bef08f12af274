"""Writers in processes of their own that all want the same object at the same moment."""

import multiprocessing
from multiprocessing.synchronize import Barrier
from typing import Any

from train_func.errors import StorageFailed
from train_func.storage import Store, open_store

SECONDS = 300


def race(address: str, *, num_writers: int, num_rounds: int) -> tuple[list[list[int]], list[list[int]]]:
    """Which writers won, for every round: of a conditional create, and of a conditional replace."""
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(num_writers, timeout=SECONDS), spawn.Queue()
    open_store(address).put("pointer", b"start")
    writers = [
        spawn.Process(target=_write, args=(address, number, num_rounds, barrier, answers), daemon=True)
        for number in range(num_writers)
    ]
    for writer in writers:
        writer.start()
    wins = [answers.get(timeout=SECONDS) for _ in writers]
    for writer in writers:
        writer.join(SECONDS)
    created, replaced = ([[] for _ in range(num_rounds)] for _ in range(2))
    for number, creates, replaces in wins:
        for round_ in creates:
            created[round_].append(number)
        for round_ in replaces:
            replaced[round_].append(number)
    return created, replaced


def _write(address: str, number: int, num_rounds: int, barrier: Barrier, answers: Any) -> None:
    store = open_store(address)
    creates, replaces = [], []
    for round_ in range(num_rounds):
        same_for_all = round_ % 2 == 0  # equal bytes must not make two winners
        lease = b"the same" if same_for_all else f"writer {number}".encode()
        barrier.wait()
        if _won(store, f"lease/{round_}", lease, if_absent=True):
            creates.append(round_)
        barrier.wait()
        version = store.get("pointer").version
        barrier.wait()
        pointer = f"round {round_}".encode() if same_for_all else f"round {round_} writer {number}".encode()
        if _won(store, "pointer", pointer, if_version=version):
            replaces.append(round_)
    answers.put((number, creates, replaces))


def _won(store: Store, key: str, data: bytes, **condition: Any) -> bool:
    try:
        store.put(key, data, **condition)
    except StorageFailed as failed:
        if failed.reason != "conflict":
            raise
        return False
    return True
