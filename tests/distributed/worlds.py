"""python -m torch.distributed.run --standalone --nproc-per-node 4 -m tests.distributed.worlds FOLDER

What is to be seen in worlds of 1 to 4 ranks, in one launch: importing takes longer than training here. Trainings are
looked at in all of them; what is only said of data is the same in each, and is looked at alone and in the one that
nothing divides.
"""

import contextlib
import gc
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.distributed import images, loops, lora, parity, splits, weighing

WORLD_SIZES = (1, 2, 3, 4)
ALONE_AND_UGLY = (1, 3)


@contextlib.contextmanager
def world_of(size, rank, folder):
    """The first ``size`` processes of this launch as a world of their own; True in those that belong to it."""
    if rank >= size:
        yield False
        return
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting-of-{size}", rank=rank, world_size=size)
    try:
        yield True
    finally:
        dist.destroy_process_group()


def main():
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    gc.freeze()  # transformers' Trainer collects after each training: a third of a second for what was imported
    for size in WORLD_SIZES:
        with world_of(size, rank, folder) as belongs:
            if belongs:
                programs = {"parity": parity, "loops": loops, "lora": lora, "images": images}
                if size in ALONE_AND_UGLY:
                    programs |= {"splits": splits, "weighing": weighing}
                found = {name: program.run(size, rank, folder) for name, program in programs.items()}
                torch.save(found, folder / f"world-{size}-rank-{rank}.pt")


if __name__ == "__main__":
    main()
