"""python -m benchmarks.throughput [SHAPE] [--lengths reviews] [--ranks 1] [--rows 800] [--steps 6] [--rounds 3] ...

Compares arms (benchmarks/texts.py, adapters.py, images.py) that train the same model on the same rows, by turns in one
run: in each round every arm trains so many steps, while the others wait. Each rank has one thread.

The rows of a turn are read from what the model is given, and those of two turns differ in length. So the cost of a row
is the processor time of a turn, divided by the work of its rows, times the work of a mean row. The stock Trainer groups
rows by length only among many: 800 rows give it as much to choose from as it ever takes.

Prints what B is tuned over; of every arm the processor seconds a row, median and range over the rounds, rows a second,
how often each row was used, what was padded, the peak of memory; the ratios to D; and how much of the time the matrix
products of the rows alone would take, at the speed that this machine reaches in the same run. The first step of an arm
is not counted. ``--json FILE`` keeps all of it, ``--table FILE.md`` the table, and ``--picture FILE.svg`` draws the
losses of all arms.
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
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
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
    of = OF[given.shape]
    num_epochs = -(-given.rounds * given.steps * of.BATCH_SIZE // given.rows)
    run = ours.run(of, folder, arms.address, given.ranks, num_epochs)
    job = submit(ours.train_func, run, on=Local(cpu=1))
    try:
        arms.join("D", lambda: job.state in ("Created", "Running", "Pending") or job.result())
        yield
    finally:
        arms.leave("D")
        job.cancel()


def product_speed(bf16: bool, seconds: float = 2.0) -> float:
    """Floating point operations a second of products as in a forward pass, on one thread."""
    torch.set_num_threads(1)
    dtype = torch.bfloat16 if bf16 else torch.float32
    left, right = torch.randn(2048, 768, dtype=dtype), torch.randn(768, 3072, dtype=dtype)
    count, begun = 0, time.thread_time()
    while time.thread_time() - begun < seconds:
        left @ right
        count += 1
    return 2.0 * 2048 * 768 * 3072 * count / (time.thread_time() - begun)


class Works:
    """The work of rows. ``rows``: that of each, in any unit."""

    def __init__(self, rows: list[float]) -> None:
        self._rows = rows
        self.mean = statistics.mean(rows)

    def num_rows(self, turns: list[Turn]) -> float:
        """How many mean rows there were, over all ranks."""
        return sum(self._rows[row] for turn in turns for row in turn.rows) / self.mean

    def cost(self, turns: list[Turn]) -> float:
        """Processor seconds a mean row, over all ranks."""
        return sum(turn.cpu_seconds for turn in turns) / self.num_rows(turns)


def tune(arms: Arms, works: Works, folder: Path, given: argparse.Namespace, bf16: bool) -> dict[str, Any]:
    """Trains B with each choice for a few steps; returns the best one."""
    print(f"what B is tuned over, in {'bf16' if bf16 else 'fp32'}, in which products are faster:", flush=True)
    of, costs = OF[given.shape], {}
    for own in of.CHOICES[: given.choices]:
        choice = {"bf16": bf16, **own}
        name = f"B {' '.join(map(str, choice.values()))}"
        if choice["per_device"] * given.ranks > of.BATCH_SIZE or choice["bf16"] > bf16:
            continue
        with alive(arms, name, folder, given, briefly=True, **choice):
            arms.train(name, 1)
            costs[name] = works.cost(arms.train(name, given.steps - 1)), choice
        print(f"  {name}: {costs[name][0]:.3f} s a row", flush=True)
    return min(costs.values(), key=lambda pair: pair[0])[1]


def compare(given: argparse.Namespace) -> dict[str, Any]:
    """Everything that was measured."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        of = OF[given.shape]
        of.write(folder, given.shape, given.lengths, given.rows)
        arms = stack.enter_context(Arms(folder, given.ranks))
        works = Works(of.work_of_rows(given.shape, folder))
        bf16 = product_speed(True) > product_speed(False)
        best = tune(arms, works, folder, given, bf16) if {"B", "C"} & {*given.arms} else {}
        turns: dict[str, list[list[Turn]]] = {arm: [] for arm in given.arms}

        def take_turn(arm: str) -> None:
            if not turns[arm]:
                arms.train(arm, 1)  # memory, kernels and caches are made in it
            turns[arm].append(arms.train(arm, given.steps - (not turns[arm])))
            print(f"round {len(turns[arm])}, {arm}: {works.cost(turns[arm][-1]):.3f} s a row", flush=True)

        for arm in [arm for arm in given.arms if arm in of.ONCE]:
            with alive(arms, arm, folder, given):
                take_turn(arm)
        others, speeds = [arm for arm in given.arms if arm not in of.ONCE], []
        for arm in others:
            stack.enter_context(alive(arms, arm, folder, given, **(best if arm in ("B", "C") else {})))
        for number in range(given.rounds):
            speeds.append(product_speed(bf16))
            for arm in others if number % 2 == 0 else others[::-1]:
                take_turn(arm)
    return summary(given, best, turns, speeds, works)


def summary(
    given: argparse.Namespace,
    best: dict[str, Any],
    turns: dict[str, list[list[Turn]]],
    speeds: list[float],
    works: Works,
) -> dict[str, Any]:
    """The figures of every arm."""
    bound = works.mean / statistics.median(speeds) if OF[given.shape] is texts else 0.0  # else it is no operations
    figures = {}
    for arm, rounds in turns.items():
        every = [turn for turns_of_ranks in rounds for turn in turns_of_ranks]
        costs = [works.cost(turns_of_ranks) for turns_of_ranks in rounds]
        uses = Counter(row for turn in every for row in turn.rows)
        figures[arm] = {
            "cpu_seconds_a_row": costs,
            "rows_a_second": sum(map(works.num_rows, rounds)) / sum(turns[0].seconds for turns in rounds),
            "num_used": uses.total(),
            "num_rows": len(uses),
            "cells_a_token": sum(turn.num_cells for turn in every) / max(1, sum(turn.num_tokens for turn in every)),
            "peak_gb": max(turn.peak_bytes for turn in every) / 1e9,
            "share_of_bound": bound / statistics.median(costs),
            "losses": [loss for turn in every for loss in turn.losses],
        }
    return {"given": vars(given), "best": best, "gflops": [speed / 1e9 for speed in speeds], "arms": figures}


def table(found: dict[str, Any]) -> str:
    """The figures, as Markdown."""
    middle = {arm: statistics.median(of["cpu_seconds_a_row"]) for arm, of in found["arms"].items()}
    head = (
        "arm",
        "CPU s a row (range)",
        "rows a s",
        "arm / D",
        "rows, different ones",
        "padded",
        "peak GB",
        "of the bound",
    )
    rows: list[tuple[str, ...]] = [head, ("---",) * len(head)]
    for arm, of in found["arms"].items():
        costs = of["cpu_seconds_a_row"]
        rows.append(
            (
                arm,
                f"{middle[arm]:.3f} ({min(costs):.3f} to {max(costs):.3f})",
                f"{of['rows_a_second']:.2f}",
                f"{middle[arm] / middle['D']:.2f}",
                f"{of['num_used']}, {of['num_rows']}",
                f"{of['cells_a_token']:.2f}",
                f"{of['peak_gb']:.2f}",
                f"{of['share_of_bound']:.0%}" if of["share_of_bound"] else "",
            )
        )
    speed = f"B and C with {found['best']}; products at {statistics.median(found['gflops']):.0f} GFLOP/s"
    return "\n".join([speed, "", *(f"| {' | '.join(row)} |" for row in rows), ""])


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
    parser.add_argument("--rows", type=int, default=800)
    parser.add_argument("--steps", type=int, default=6, help="in a round; 0: an epoch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--choices", type=int, default=99, help="most that B is tuned over")
    parser.add_argument("--arms", type=lambda names: names.split(","), help="default: all that there are of the shape")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    given.steps = given.steps or given.rows // OF[given.shape].BATCH_SIZE
    if given.steps < 2:
        parser.error(f"--steps {given.steps}: at least 2 are expected, because the first one is not counted")
    given.arms = given.arms or [*OF[given.shape].ARMS, "D"]
    found = compare(given)
    print(table(found))
    if given.table:
        given.table.write_text(table(found))
    if given.json:
        given.json.write_text(json.dumps(found, default=str))
    if given.picture:
        draw(found, given.picture)


if __name__ == "__main__":
    main()
