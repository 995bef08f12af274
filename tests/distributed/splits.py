"""Gives Trainer data that was split in right and wrong ways, and tells what was said."""

from pathlib import Path

import numpy as np
import torch
from datasets import Dataset, Value, load_from_disk
from datasets.distributed import split_dataset_by_node

from tests.distributed import small
from train_func.errors import InvalidInput
from train_func.worker import Trainer
from train_func.worker.training import audit
from train_func.worker.training.plan import facts_of, row_ids_of

NUM_ROWS = 40


class LeavesOutAStep(Trainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        if self.state.global_step == 2:
            return torch.zeros(())
        return super().training_step(model, inputs, num_items_in_batch)


def blocks_by_hand(data, rank, size):
    starts = [len(data) * r // size for r in range(size + 1)]
    return data.select(range(starts[rank], starts[rank + 1]))


def shard(data, rank, size):
    return data.shard(num_shards=size, index=rank)


def shard_strided(data, rank, size):
    return data.shard(num_shards=size, index=rank, contiguous=False)


split = split_dataset_by_node
# What is done to the plan before Trainer gets it.
PLANS = {
    "split once": split,
    "sharded once": shard,
    "blocks by hand": blocks_by_hand,
    "another rank's block": lambda plan, rank, size: split(plan, (rank + 1) % size, size),
    "split twice": lambda plan, rank, size: split(split(plan, rank, size), rank, size),
    "split and sharded": lambda plan, rank, size: shard(split(plan, rank, size), rank, size),
    "split and sharded with strides": lambda plan, rank, size: shard_strided(split(plan, rank, size), rank, size),
    "split and halved": lambda plan, rank, size: split(plan, rank, size).select(range(5)),
    "sharded with strides": shard_strided,
    "not split": lambda plan, rank, size: plan,
    "all as rank 0": lambda plan, rank, size: split(plan, 0, size),
    "shuffled": lambda plan, rank, size: split(plan, rank, size).shuffle(seed=1),
    "formatted": lambda plan, rank, size: split(plan, rank, size).with_format("torch"),
}
RIGHT = ("split once", "sharded once", "blocks by hand", "another rank's block")
RIGHT_ALONE = ("split twice", "split and sharded", "not split")


def the_plan(size, rows=None):
    return small.plan(rows or small.rows(NUM_ROWS), 12, 2, 6, size)


def what_is_said(action):
    try:
        action()
    except InvalidInput as error:
        return error.cause, str(error)
    return None


def trainer_of(kind, folder, plan, train, **others):
    return kind(
        model=small.model(),
        args=small.arguments(folder, facts_of(plan), **others),
        data_collator=small.collate,
        train_dataset=train,
        eval_dataset=small.rows(10, seed=1),
    )


def on_the_plan(folder, rank, size):
    """In a world of one, only what is right there."""
    plan = the_plan(size)
    part = split(plan, rank, size)
    trainer = trainer_of(Trainer, folder, plan, part)

    def train(part):
        trainer.train_dataset = part
        return what_is_said(trainer.train)

    for name, change in PLANS.items():
        if size > 1 or name in RIGHT + RIGHT_ALONE:
            yield name, train(change(plan, rank, size))
    rows = small.rows(NUM_ROWS)
    for name, given in {
        "rows": rows,
        "rows split": split(rows, rank, size),
        "rows shuffled": rows.shuffle(seed=rank),
        "some rows": rows.select(range(10)),
        "rows without ids": rows.remove_columns("row_id"),
    }.items():
        yield name, what_is_said(lambda given=given: audit.check_rows_alike(given, row_ids_of(rows), "training"))
    if size == 1:
        return
    yield "rows, no plan", train(rows)
    yield "without use_cpu", what_is_said(trainer_of(Trainer, folder, plan, part, use_cpu=False).train)
    yield "a step left out", what_is_said(trainer_of(LeavesOutAStep, folder, plan, part).train)
    held_out = split(small.rows(10, seed=1), rank, size)
    shuffled = small.rows(10, seed=1).remove_columns("row_id").shuffle(seed=rank)
    trainer.train_dataset = plan
    yield "predicted rows shuffled", what_is_said(lambda: trainer.predict(shuffled))
    yield "held-out split", what_is_said(lambda: trainer.evaluate(held_out))


def without_ids(folder, rank, size):
    """Rows of a loop of one's own; ``rank`` is 0 everywhere in a world of one."""
    rows = small.rows(101).remove_columns("row_id")
    draw = np.random.default_rng(0)
    bodies = [draw.bytes(20_000) for _ in range(40)]
    images = Dataset.from_dict(
        {
            "pixels": draw.integers(0, 255, (101, 12, 12, 3)).tolist(),
            "image": [{"bytes": bodies[row % 40] + b"end", "path": None} for row in range(101)],
        }
    )
    texts = Dataset.from_dict({"text": ["the same words at first " * 400 + f"{row:03}" for row in range(101)]})
    rare = Dataset.from_dict({"is_rare": (draw.random(5_000) < 0.1).tolist(), "none": [None] * 5_000})
    rows.save_to_disk(str(folder / f"copy-{size}-{rank}"))
    noise = np.random.default_rng(rank)
    yield "whole", rows
    yield "of a copy of the file", load_from_disk(str(folder / f"copy-{size}-{rank}"))
    yield "in a format of its own", rows.with_format(("torch", "numpy", None)[rank % 3])
    for name, of in {"rows": rows, "images": images, "texts": texts, "rare classes": rare}.items():
        yield f"{name}, shuffled", of.shuffle(seed=rank)
    yield "images, changed at random", images.map(lambda row: {"pixels": noise.random((12, 12, 3))})
    yield "fewer", rows.select(range(101 - rank))
    yield "of another type", rows.cast_column("label", Value("int64" if rank else "int32"))
    yield "with another column", rows.rename_column("label", f"label-{rank}")
    yield "with ids on one rank", rows if rank else small.rows(101)


def cost_of_large_rows(size):
    """Bytes by which this process grew at most where a plan of 40 MB of rows was made and split."""
    rows = Dataset.from_dict({"image": [np.random.default_rng(row).bytes(10**6) for row in range(40)]})
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew; tracemalloc cannot be ended beside threads
    before = memory_of("VmRSS")
    audit.check_rows_alike(rows, None, "training")
    split(the_plan(size, rows), 0, size)
    return memory_of("VmHWM") - before


def memory_of(field):
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.split(f"{field}:")[1].split()[0])


def run(world_size, rank, folder):
    def said_of(rows):
        return what_is_said(lambda: audit.check_rows_alike(rows, None, "training"))

    return {
        "plan": dict(on_the_plan(folder, rank, world_size)),
        "without ids": {name: said_of(rows) for name, rows in without_ids(folder, rank, world_size)},
        "bytes": cost_of_large_rows(world_size),
    }
