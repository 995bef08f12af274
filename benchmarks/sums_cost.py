"""Measures what sums in one order cost, beside DistributedDataParallel, which averages as it likes.

python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/sums_cost.py [bert-base|minilm] [malloc]

Two models of one shape are trained by turns, a step each, on the same rows: one in DistributedDataParallel as
transformers wraps it, whose micro-batches but the last are not exchanged, and one by Sums. The ratio of the two is
printed with the quartiles of the ratios of neighbours, in processor seconds of all ranks, which other work on the
machine does not change. Memory stays with the process in both, as in a training; "malloc" as a second argument leaves
it as it is by default.
"""

import contextlib
import itertools
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import BertConfig, BertForSequenceClassification

from train_func.worker.training.sums import Sums, memory_of_steps, parameters_of

SHAPES = {
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
}
NUM_PARTS, ROWS, TOKENS = 4, 8, 32  # micro-batches of a step, rows of each, tokens of each
STEPS = 24


def make(shape):
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SHAPES[shape]))


def loss_of(model, part):
    generator = torch.Generator().manual_seed(part)
    ids = torch.randint(1, 30_000, (ROWS, TOKENS), generator=generator)
    labels = torch.randint(0, 2, (ROWS,), generator=generator)
    return model(input_ids=ids, labels=labels).loss / NUM_PARTS


def by_ddp(model, parts):
    for part in parts:
        with contextlib.nullcontext() if part == parts[-1] or dist.get_world_size() == 1 else model.no_sync():
            loss_of(model, part).backward()


def by_sums(model, parts, sums, runs):
    sums.begin(runs)
    for part in parts:
        with sums.micro_batch(part, counts=True):
            loss_of(model, part).backward()
    sums.end()


def main():
    shape = sys.argv[1] if len(sys.argv) > 1 else "bert-base"
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size, rank = dist.get_world_size(), dist.get_rank()
    bounds = [NUM_PARTS * number // size for number in range(size + 1)]
    runs = [*itertools.pairwise(bounds)]
    parts = [*range(*runs[rank])]
    one, other = make(shape), make(shape)
    parallel = DistributedDataParallel(one, gradient_as_bucket_view=True) if size > 1 else one
    sums = Sums(parameters_of([other], []))
    ways = {
        "ddp": (one, lambda: by_ddp(parallel, parts)),
        "sums": (other, lambda: by_sums(other, parts, sums, runs)),
    }
    times = {name: [] for name in ways}
    with contextlib.nullcontext() if "malloc" in sys.argv else memory_of_steps():
        for step in range(STEPS):
            for name in sorted(ways, reverse=bool(step % 2)):
                model, train = ways[name]
                optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
                dist.barrier()
                begun = time.process_time()
                train()
                optimizer.step()
                optimizer.zero_grad()
                dist.barrier()
                seconds = torch.tensor(time.process_time() - begun)
                dist.all_reduce(seconds)
                times[name].append(seconds.item())
    ratios = sorted(b / a for a, b in zip(times["ddp"][2:], times["sums"][2:], strict=True))
    if rank == 0:
        medians = {name: statistics.median(of[2:]) for name, of in times.items()}
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(f"{shape} ranks={size} {medians} ratio={middle:.3f} quartiles={low:.3f} {high:.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
