"""python -m tests.distributed.ranks MODULE NUM_RANKS FOLDER

Imports a program of this folder once, forks its ranks and has each call ``main(folder, rank)``, with the variables that
torchrun sets. Importing takes longer than training here, so it is done once, as the template of a worker does it.
"""

import contextlib
import gc
import importlib
import os
import random
import signal
import socket
import sys
import traceback
from pathlib import Path

import datasets
import numpy as np


def be_rank(program, folder, rank, variables):
    """Runs the program as this rank; never returns."""
    code = 1
    try:
        os.environ.update(variables | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        for seed in (random.seed, np.random.seed, datasets.fingerprint.fingerprint_rng.seed):
            seed()  # as in processes of their own, no two ranks draw the same
        program.main(folder, rank)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def fork(*arguments):
    pid = os.fork()
    if pid == 0:
        be_rank(*arguments)
    return pid


def main():
    program, num_ranks, folder = importlib.import_module(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    assert len([*Path("/proc/self/task").iterdir()]) == 1  # a thread would not be there in a fork
    gc.freeze()  # transformers' Trainer collects after each training: a third of a second for what was imported
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    size = {"WORLD_SIZE": str(num_ranks), "LOCAL_WORLD_SIZE": str(num_ranks)}
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = {fork(program, folder, rank, size | meeting) for rank in range(num_ranks)}
    failed = False
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status and not failed:
            failed = True
            for other in ranks:  # else they would wait for the one that has failed
                with contextlib.suppress(ProcessLookupError):
                    os.kill(other, signal.SIGKILL)
    sys.exit(failed)


if __name__ == "__main__":
    main()
