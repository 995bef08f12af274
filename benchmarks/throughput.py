"""python -m benchmarks.throughput [SHAPE] [--lengths reviews] [--ranks 1] [--rows 96] [--rounds 3] ...

Compares arms (benchmarks/texts.py, adapters.py, images.py) that train the same model on the same rows, by turns in one
run: in each round every arm trains as many steps as its rows make an epoch, while the others wait. Each rank has one
thread.

Prints what B is tuned over, which needs many batches to group rows by length; of every arm the processor seconds a row,
median and range over the rounds, rows a second, how often each row was used, what was padded, the peak of memory; the
ratios to D; and how much of the time the matrix products of the rows alone would take, at the speed that this machine
reaches in the same run. The first step of an arm is not counted. ``--json FILE`` keeps all of it, ``--picture
FILE.svg`` draws the losses of all arms.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks import adapters, images, ours, texts
from benchmarks.pace import Arms, Turn

ROOT = Path(__file__).parents[1]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TRAIN_FUNC_CPUS": "1", "HF_HUB_OFFLINE": "1"}
OF: Any = {shape: module for module in (texts, adapters, images) for shape in module.SHAPES}


@contextlib.contextmanager
def alive(arms: Arms, name: str, folder: Path, given: argparse.Namespace, **choice: Any) -> Iterator[None]:
    """An arm of which every rank waits for its first turn."""
    of = OF[given.shape]
    num_steps = given.steps * (1 if name in of.ONCE or choice.pop("briefly", False) else given.rounds)
    logs = folder / f"{name.replace(' ', '-')}.log"
    if name == "D":
        with of_train_func(arms, folder, given):
            yield
        return
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={given.ranks}"]
    rank = ["-m", "benchmarks.arm", of.__name__, name, str(folder), arms.address, str(num_steps), json.dumps(choice)]
    with logs.open("w") as log:
        process = subprocess.Popen(
            [*torchrun, *rank], cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **ONE_THREAD}
        )
        try:
            arms.join(name, lambda: process.poll() is None or sys.exit(f"{name} ended: {logs.read_text()[-3000:]}"))
            yield
        finally:
            arms.leave(name)
            process.terminate()
            process.wait()


@contextlib.contextmanager
def of_train_func(arms: Arms, folder: Path, given: argparse.Namespace) -> Iterator[None]:
    """D, a job on this machine."""
    from train_func import Local, submit

    os.environ.update(ONE_THREAD, TRAIN_FUNC_HOME=str(folder / "home"))
    run = ours.run(OF[given.shape], folder, arms.address, given.ranks, given.rounds)
    job = submit(ours.train_func, run, on=Local())
    try:
        arms.join("D", lambda: job.state in ("Created", "Running", "Pending") or job.result())
        yield
    finally:
        arms.leave("D")
        job.cancel()


def product_speed(seconds: float = 2.0) -> float:
    """Floating point operations a second of products in bf16, as forward, for inputs and for weights, on one thread."""
    torch.set_num_threads(1)
    left, right = torch.randn(2048, 768).bfloat16(), torch.randn(768, 3072).bfloat16()
    count, begun = 0, time.thread_time()
    while time.thread_time() - begun < seconds:
        left @ right
        count += 1
    return 2.0 * 2048 * 768 * 3072 * count / (time.thread_time() - begun)


def cost(turns: list[Turn]) -> float:
    """Processor seconds a row, over all ranks."""
    return sum(turn.cpu_seconds for turn in turns) / sum(len(turn.rows) for turn in turns)


def tune(arms: Arms, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Trains B with each choice for a few steps; returns the best one."""
    print("what B is tuned over:", flush=True)
    of, costs = OF[given.shape], {}
    for choice in of.CHOICES:
        name = f"B {' '.join(map(str, choice.values()))}"
        if choice["per_device"] * given.ranks > of.BATCH_SIZE:
            continue
        with alive(arms, name, folder, given, briefly=True, **choice):
            arms.train(name, 1)
            costs[name] = cost(arms.train(name, given.steps - 1)), choice
        print(f"  {name}: {costs[name][0]:.3f} s a row", flush=True)
    return min(costs.values(), key=lambda pair: pair[0])[1]


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Everything that was measured."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        of = OF[given.shape]
        of.write(folder, given.shape, given.lengths, given.rows)
        arms = stack.enter_context(Arms(folder, given.ranks))
        best = tune(arms, folder, given) if {"B", "C"} & {*given.arms} else {}
        for arm in given.arms:
            stack.enter_context(alive(arms, arm, folder, given, **(best if arm in ("B", "C") else {})))
        turns: dict[str, list[list[Turn]]] = {arm: [] for arm in given.arms}
        speeds = []
        for turn in range(given.rounds):
            speeds.append(product_speed())
            order = given.arms if turn % 2 == 0 else given.arms[::-1]
            for arm in order:
                if turn and arm in of.ONCE:
                    continue
                if not turn:
                    arms.train(arm, 1)  # memory, kernels and caches are made in it
                turns[arm].append(arms.train(arm, given.steps - (not turn)))
                print(f"round {turn + 1}, {arm}: {cost(turns[arm][-1]):.3f} s a row", flush=True)
        operations = of.num_operations(given.shape, folder) if of is texts else 0.0
    return summary(given, best, turns, speeds, operations)


def summary(
    given: argparse.Namespace,
    best: dict[str, Any],
    turns: dict[str, list[list[Turn]]],
    speeds: list[float],
    operations: float,
) -> dict[str, Any]:
    """The figures of every arm."""
    bound = operations / statistics.median(speeds)
    figures = {}
    for arm, rounds in turns.items():
        every = [turn for turns_of_ranks in rounds for turn in turns_of_ranks]
        costs = [cost(turns_of_ranks) for turns_of_ranks in rounds]
        last = Counter(row for turn in rounds[-1] for row in turn.rows)
        figures[arm] = {
            "cpu_seconds_a_row": costs,
            "rows_a_second": sum(len(turn.rows) for turn in every) / sum(turns[0].seconds for turns in rounds),
            "rows_used": len(last),
            "most_uses": max(last.values()),
            "cells_a_token": sum(turn.num_cells for turn in every) / max(1, sum(turn.num_tokens for turn in every)),
            "peak_gb": max(turn.peak_bytes for turn in every) / 1e9,
            "share_of_bound": bound / statistics.median(costs),
            "losses": [loss for turn in every for loss in turn.losses],
        }
    return {"given": vars(given), "best": best, "gflops": [speed / 1e9 for speed in speeds], "arms": figures}


def show(found: dict[str, Any]) -> None:
    """Prints the table."""
    middle = {arm: statistics.median(of["cpu_seconds_a_row"]) for arm, of in found["arms"].items()}
    print(f"B and C with {found['best']}; products at {statistics.median(found['gflops']):.0f} GFLOP/s")
    head = "arm | CPU s a row (range) | rows a s | arm / D | rows used, most often | padded | peak GB | of the bound"
    print(head)
    for arm, of in found["arms"].items():
        costs = of["cpu_seconds_a_row"]
        print(
            f"{arm} | {middle[arm]:.3f} ({min(costs):.3f} to {max(costs):.3f}) | {of['rows_a_second']:.2f} | "
            f"{middle[arm] / middle['D']:.2f} | {of['rows_used']}, {of['most_uses']} | {of['cells_a_token']:.2f} | "
            f"{of['peak_gb']:.2f} | {of['share_of_bound']:.0%}"
        )


def draw(found: dict[str, Any], path: Path) -> None:
    """Draws the loss of every arm against the rows that it was trained on, as means of 16 rows."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4))
    for arm, of in found["arms"].items():
        means = [statistics.mean(of["losses"][at : at + 16]) for at in range(0, len(of["losses"]) - 15, 16)]
        axes.plot([16 * (at + 1) for at in range(len(means))], means, label=arm)
    axes.set_xlabel("rows trained on")
    axes.set_ylabel("loss of the rows, before their step")
    axes.legend()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("shape", choices=OF, nargs="?", default="bert-base")
    parser.add_argument("--lengths", choices=texts.LENGTHS, default="reviews")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--arms", type=lambda names: names.split(","), help="default: all that there are of the shape")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    given.steps = given.rows // OF[given.shape].BATCH_SIZE
    if given.steps < 2:
        parser.error(f"--rows {given.rows}: at least two batches of {OF[given.shape].BATCH_SIZE} are expected")
    given.arms = given.arms or [*OF[given.shape].ARMS, "D"]
    found = compare(given)
    show(found)
    if given.json:
        given.json.write_text(json.dumps(found, default=str))
    if given.picture:
        draw(found, given.picture)


if __name__ == "__main__":
    main()
