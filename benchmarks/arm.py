"""python -m benchmarks.arm MODULE ARM FOLDER ADDRESS STEPS CHOICE: one rank of an arm that is not train_func's."""

import importlib
import json
import os
import sys
from pathlib import Path

import torch

from benchmarks.pace import Pace


def main() -> None:
    module, arm, folder, address, num_steps, choice = sys.argv[1:]
    torch.set_num_threads(1)
    of = importlib.import_module(module)
    kind, _, _ = arm.partition(" ")  # "B eager 8" is B with a choice
    pace = Pace(address, arm, of.numbers_of, of.labels(folder))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    of.ARMS[kind](pace, str(Path(folder)), rank, size, int(num_steps), **json.loads(choice))


if __name__ == "__main__":
    main()
