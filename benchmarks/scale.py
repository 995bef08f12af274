"""python -m benchmarks.scale [--measure] [--plot FILE]

A model of a training on paper: how the rows per second grow with the number of workers, and where data parallelism
ends. A step is compute, then exchange, then the optimizer; a checkpoint costs some seconds now and then, and the loss
of a worker costs a restart and the steps behind the newest checkpoint. The global batch stays as it is, as in a Run.
docs/scale.md has the assumptions and the table.

``--measure`` measures on this machine what MEASURED holds, in processor seconds of a rank: other programs disturb wall
time more. ``--plot`` draws efficiency against workers.
"""

import argparse
import math
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

BUCKET = 1 << 23  # bytes exchanged at once: that of train_func.worker.training.sums
WORKERS = [1 << power for power in range(9)]
NETWORKS = (1, 10, 25, 100)  # Gbit/s

# What --measure printed: docs/scale.md says when and on what machine. Seconds of processor of one rank.
MEASURED: dict[str, float] = {
    "minilm step, 1 rank": 0.662,
    "minilm update": 0.0142,
    "bert-base step, 1 rank": 3.87,
    "bert-base update": 0.0545,
    "exchange 10 MB": 0.00779,
    "exchange 100 MB": 0.0781,
    "exchange 400 MB": 0.296,
    "minilm step, 2 ranks": 0.409,
    "bert-base step, 2 ranks": 2.29,
}
MEASURED_ROWS = 16  # of a measured step
ROW_TOKENS = 157  # mean length of reviews, as in benchmarks/texts.py


@dataclass(frozen=True)
class Worker:
    """What trains one share of the batch: a core, or a GPU."""

    name: str
    memory: float  # bytes
    exchange: float  # bytes per second that one process can exchange, on whatever network
    message: float  # seconds of a message
    update: float  # seconds of the optimizer for each parameter
    save: float  # seconds that training loses for each byte of a checkpoint
    lifetime: float  # mean seconds until it is lost
    restart: float  # seconds from the loss to the next step


@dataclass(frozen=True)
class Model:
    """A model and the batch that it is trained with."""

    name: str
    parameters: float
    trainable: float
    row_seconds: float  # compute of one row by one worker
    worker: Worker
    network: float  # Gbit/s
    batch: int = 256  # rows of a step

    @property
    def checkpoint(self) -> float:
        """Returns the bytes of a checkpoint: the trained weights and two moments, in fp32."""
        return 12 * self.trainable


def exchange_seconds(size: float, workers: int, worker: Worker, network: float) -> float:
    """Returns the seconds of summing ``size`` bytes of gradients, which overlap with no computation.

    Each worker sends every other one a slice of each bucket, and then the sum of its own slice.
    """
    rate = min(worker.exchange, network * 1e9 / 8)
    messages = 2 * (workers - 1) * math.ceil(size / BUCKET)
    return 2 * size * (workers - 1) / workers / rate + messages * worker.message


def step_seconds(model: Model, workers: int) -> float:
    """Returns the seconds of a step that no checkpoint and no loss of a worker disturbs."""
    rows = math.ceil(model.batch / workers)
    exchange = exchange_seconds(4 * model.trainable, workers, model.worker, model.network)
    return rows * model.row_seconds + exchange + model.trainable * model.worker.update


def daly_interval(save: float, between_losses: float) -> float:
    """Returns the seconds of training between two checkpoints that cost least.

    Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, FGCS 22 (2006), which Young
    (CACM 17, 1974) has as sqrt(2 * save * between_losses).
    """
    if save >= 2 * between_losses:
        return between_losses
    part = save / (2 * between_losses)
    return math.sqrt(2 * save * between_losses) * (1 + math.sqrt(part) / 3 + part / 9) - save


def slowdown(interval: float, save: float, between_losses: float, restart: float) -> float:
    """Returns the seconds that a second of training takes with its checkpoints and restarts: Daly's complete model."""
    exponent = (interval + save) / between_losses
    if exponent > 500:
        return math.inf
    return between_losses * math.exp(restart / between_losses) * math.expm1(exponent) / interval


def rows_per_second(model: Model, workers: int) -> float:
    """Returns the rows per second over a long training, with checkpoints at Daly's interval."""
    save, between = model.checkpoint * model.worker.save, model.worker.lifetime / workers
    lost = slowdown(daly_interval(save, between), save, between, model.worker.restart)
    return model.batch / step_seconds(model, workers) / lost


def efficiency(model: Model, workers: int) -> float:
    """Returns the rows per second of each worker as a share of those of one alone."""
    return rows_per_second(model, workers) / workers / rows_per_second(model, 1)


def memory(model: Model) -> float:
    """Returns the bytes of weights, gradients and optimizer in a worker, without activations."""
    return 4 * model.parameters + 12 * model.trainable


def last_efficient(model: Model) -> int:
    """Returns the most workers, a power of two, that are at least half as good as one; 0: the model does not fit."""
    if memory(model) > model.worker.memory:
        return 0
    return max(workers for workers in WORKERS if efficiency(model, workers) >= 0.5)


def takes_over(model: Model) -> str:
    """Returns in words what to do where data parallelism ends, by what takes most there."""
    if memory(model) > model.worker.memory:
        return "it does not fit: shard the optimizer (FSDP), or LoRA"
    workers = 2 * last_efficient(model)
    if workers > WORKERS[-1]:
        return "data parallelism suffices"
    step = step_seconds(model, workers)
    save, between = model.checkpoint * model.worker.save, model.worker.lifetime / workers
    slow = slowdown(daly_interval(save, between), save, between, model.worker.restart)
    parts = {
        "a larger batch, a faster network, or LoRA: the gradients take long": exchange_seconds(
            4 * model.trainable, workers, model.worker, model.network
        ),
        "shard the optimizer (FSDP): each worker updates all weights": model.trainable * model.worker.update,
        "workers that live longer: restarts take long": (slow - 1) * step,
    }
    return max(parts, key=lambda words: parts[words])


def fit(measured: dict[str, float]) -> tuple[Worker, dict[str, float]]:
    """Returns a core with its measured constants, and the seconds of a row of each measured model."""
    small, large = measured["exchange 10 MB"], measured["exchange 400 MB"]
    # Between two ranks: seconds = size / rate + 2 * buckets * message. Both terms grow with the size, so that the two
    # sizes tell the rate with its messages; what a message costs on a network is assumed, and a round here is small.
    rate = 390e6 / (large - small)
    update = measured["bert-base update"] / PARAMETERS["bert-base"]
    core = Worker(
        "core",
        memory=16e9,
        exchange=rate,
        message=50e-6,  # assumed: a message between two machines of one data centre
        update=update,
        save=0.4 / 1.3e9,  # make checkpoint-cost: ten steps take 0.4 s longer for 1.3 GB
        lifetime=24 * 3600,  # the most that a preemptible machine of Compute Engine lives (its documentation)
        restart=6.6,  # make recovery: next new step after a killed worker, median
    )
    rows = {shape: measured[f"{shape} step, 1 rank"] / MEASURED_ROWS for shape in SHAPES}
    return core, rows


SHAPES = {
    "minilm": {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536},
    "bert-base": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "intermediate_size": 3072},
}
PARAMETERS = {"minilm": 22.7e6, "bert-base": 109.5e6}

GPU_FLOPS = 400e12  # of an H100 in bf16, as reached in training: The Llama 3 Herd of Models, arXiv 2407.21783, table 4
GPU = Worker(
    "H100",
    memory=80e9,
    exchange=math.inf,  # NCCL fills the network: its own time is left out
    message=50e-6,  # assumed, as for a core
    update=28 / 3.35e12,  # AdamW reads 16 bytes and writes 12; 3.35 TB/s: data sheet of the H100 SXM
    save=0.05 / 1.3e9,  # a copy over PCIe 5, calculated
    lifetime=54 * 86400 * 16384 / 419,  # 419 losses in 54 days of 16,384 GPUs: arXiv 2407.21783, section 3.3.4
    restart=30.0,  # assumed: 8.4 s here (make recovery, p95), and the reading of a large checkpoint
)


def models(measured: dict[str, float]) -> list[Model]:
    """Returns the models of the table. A language model has rows of 512 tokens."""
    core, rows = fit(measured)
    token = 512 / GPU_FLOPS
    return [
        Model("MiniLM", PARAMETERS["minilm"], PARAMETERS["minilm"], rows["minilm"], core, 10),
        Model("BERT-base", PARAMETERS["bert-base"], PARAMETERS["bert-base"], rows["bert-base"], core, 10),
        Model("1B LoRA", 1.236e9, 10e6, 4 * 1.236e9 * token, GPU, 100),
        Model("1B full", 1.236e9, 1.236e9, 6 * 1.236e9 * token, GPU, 100),
        Model("7B full", 6.74e9, 6.74e9, 6 * 6.74e9 * token, GPU, 100),
    ]


def predictions(measured: dict[str, float]) -> dict[str, float]:
    """Returns what the model says of each measured figure that it was not fitted to."""
    core, rows = fit(measured)
    loopback = replace(core, message=0)
    found = {"exchange 100 MB": exchange_seconds(100e6, 2, loopback, math.inf)}
    for shape, row in rows.items():
        exchange = exchange_seconds(4 * PARAMETERS[shape], 2, loopback, math.inf)
        found[f"{shape} step, 2 ranks"] = MEASURED_ROWS / 2 * row + exchange
    return found


def table(measured: dict[str, float]) -> str:
    """Returns the tables of docs/scale.md, in Markdown."""
    lines = ["| model | worker, network | " + " | ".join(map(str, WORKERS)) + " |", "|---" * (len(WORKERS) + 2) + "|"]
    for model in models(measured):
        cells = [f"{efficiency(model, n):.0%}, {rows_per_second(model, n):,.3g}" for n in WORKERS]
        lines.append(f"| {model.name} | {model.worker.name}, {model.network:g} Gbit/s | " + " | ".join(cells) + " |")
    lines += ["", "| model | GB | " + " | ".join(f"{of} Gbit/s" for of in NETWORKS) + " | then |", "|---" * 7 + "|"]
    for model in models(measured):
        ends = [last_efficient(replace(model, network=of)) or "none" for of in NETWORKS]
        lines.append(
            f"| {model.name} | {memory(model) / 1e9:.2g} | {' | '.join(map(str, ends))} | {takes_over(model)} |"
        )
    return "\n".join(lines)


def plot(measured: dict[str, float], path: Path) -> None:
    """Draws efficiency against workers, on a ground of its own, which light and dark pages leave as it is."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "scale"  # the same file each time
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5), facecolor="white")
    for model, style in zip(models(measured), ("-", "--", ":", "-.", (0, (1, 4))), strict=True):
        values = [100 * efficiency(model, of) for of in WORKERS]
        note = f"{model.name}, {model.worker.name}s, {model.network:g} Gbit/s"
        note += "" if memory(model) <= model.worker.memory else ", if it did fit"
        axes.plot(WORKERS, values, linestyle=style, linewidth=2, marker="o", markersize=4, label=note)
    axes.axhline(50, color="black", linewidth=0.8)
    axes.text(WORKERS[-1], 51.5, "half", horizontalalignment="right")
    axes.legend(frameon=False, loc="upper right")
    axes.set_xscale("log", base=2)
    axes.set_xticks(WORKERS, [str(of) for of in WORKERS])
    axes.set(xlabel="workers", ylabel="efficiency, percent", ylim=(0, 105))
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})


def cpu_seconds(call: Callable[[], Any], times: int) -> float:
    """Returns the median of processor seconds of this process; the first call is left out."""
    import torch.distributed as dist

    values = []
    for _ in range(times + 1):
        dist.barrier()
        begun = time.process_time()
        call()
        values.append(time.process_time() - begun)
    return statistics.median(values[1:])


def exchange_cost(rank: int, size: int) -> float:
    """Returns the processor seconds of exchanging so many MB of gradients between two ranks."""
    import torch
    import torch.distributed as dist

    from train_func.worker.training.sums import Sums

    parameter = torch.nn.Parameter(torch.zeros(size * 250_000))
    sums, taken = Sums([("p", parameter)]), []
    for _ in range(6):
        dist.barrier()
        sums.begin([(0, 1), (1, 2)])
        with sums.micro_batch(rank, counts=True):
            parameter.grad = torch.ones_like(parameter)
        begun = time.process_time()
        sums.end()
        taken.append(time.process_time() - begun)
    return statistics.median(taken[1:])


def model_costs(rank: int, ranks: int, shape: str) -> dict[str, float]:
    """Returns the processor seconds of a step of two micro-batches, and of an update, by name."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    from train_func.worker.training.sums import Sums, parameters_of

    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**SHAPES[shape])).train()
    sums = Sums(parameters_of([model], []))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    runs = [(0, 2)] if ranks == 1 else [(0, 1), (1, 2)]
    ids = torch.randint(1, 30_000, (MEASURED_ROWS // 2, ROW_TOKENS))

    def step() -> None:
        sums.begin(runs)
        for part in range(*runs[rank]):
            with sums.micro_batch(part, counts=True), torch.autocast("cpu", torch.bfloat16):
                model(input_ids=ids, labels=ids[:, 0] % 2).loss.backward()
        sums.end()

    costs = {f"{shape} step, {ranks} rank{'s' * (ranks > 1)}": cpu_seconds(step, 5)}
    return costs | ({f"{shape} update": cpu_seconds(optimizer.step, 5)} if ranks == 1 else {})


def measure_rank(rank: int, ranks: int, port: int, results: Any) -> None:
    """Measures in one rank of ``ranks``."""
    import torch
    import torch.distributed as dist

    from train_func.worker.training.attention import attention_of_steps
    from train_func.worker.training.sums import memory_of_steps

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with memory_of_steps(), attention_of_steps():
        sizes = (10, 100, 400) if ranks == 2 else ()
        values = {f"exchange {size} MB": exchange_cost(rank, size) for size in sizes}
        for shape in SHAPES:
            values |= model_costs(rank, ranks, shape)
    dist.barrier()
    if rank == 0:
        results.put(values)
    dist.destroy_process_group()


def measure() -> dict[str, float]:
    """Measures this machine, with one rank and with two, in some minutes."""
    import torch.multiprocessing as mp

    values: dict[str, float] = {}
    for ranks in (1, 2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        results = mp.get_context("spawn").SimpleQueue()
        mp.spawn(measure_rank, (ranks, port, results), nprocs=ranks)
        values |= results.get()
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    measured = measure() if options.measure else MEASURED
    for name, value in measured.items():
        print(f'    "{name}": {value:.3g},')
    for name, value in predictions(measured).items():
        print(f"{name}: model {value:.3f} s, measured {measured[name]:.3f} s, {value / measured[name] - 1:+.0%}")
    print(table(measured))
    if options.plot:
        plot(measured, options.plot)


if __name__ == "__main__":
    main()
