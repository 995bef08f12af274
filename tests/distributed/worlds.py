"""python -m tests.distributed.ranks tests.distributed.worlds 4 FOLDER

What is to be seen in worlds of 1 to 4 ranks, in one launch: importing takes longer than training here. The steps of
Trainer and of loops of one's own are looked at in all of them; kinds of models, of losses and of data, which take the
same steps, alone and in the one that nothing divides.
"""

import contextlib
import os

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


def main(folder, rank):
    torch.set_num_threads(1)
    for size in WORLD_SIZES:
        with world_of(size, rank, folder) as belongs:
            if belongs:
                programs = {"parity": parity, "loops": loops}
                if size in ALONE_AND_UGLY:
                    programs |= {"lora": lora, "images": images, "splits": splits, "weighing": weighing}
                found = {name: program.run(size, rank, folder) for name, program in programs.items()}
                torch.save(found, folder / f"world-{size}-rank-{rank}.pt")
