"""python -m benchmarks.checkpoint_cost [--folder FOLDER] [--rounds 3] [--layers 12]

What a checkpoint of a BERT-base and its optimizer, 1.3 GB, costs the training that it is taken of, beside what the save
of transformers' Trainer costs. The arms follow each other in every round of one process: no save, ours, Trainer's. Each
is ten steps long and begins with its save. Both save to FOLDER; the disk has written everything before an arm begins.

Prints for each arm the seconds that the loop stood still, the delay (the arm less the steps without a save), the work
of the processor for the save, which other programs of the machine disturb less, the peak of memory over what was held
before and the size of what was saved, both in GB; then the medians and their ratios. The first round is left out:
buffers are made there. Fails where an arm has not saved its step.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from train_func.run import Run
from train_func.storage import open_store
from train_func.wire.layout import CHECKPOINT_MANIFEST, CheckpointId
from train_func.wire.records import RunRecord
from train_func.worker.checkpoint.checkpoint_store import Manifest
from train_func.worker.checkpoint.checkpointing import Checkpointing, Parts
from train_func.worker.training import trainer_state

STEPS = 10
ROWS, TOKENS = 4, 64  # of a step
ARMS = ("no save", "ours", "Trainer")


class Training:
    """A model on made-up tokens, with the Trainer that holds it; its steps are taken one by one."""

    def __init__(self, folder: Path, num_layers: int) -> None:
        torch.manual_seed(0)
        model = BertForSequenceClassification(BertConfig(num_hidden_layers=num_layers))
        arguments = TrainingArguments(str(folder / "trainer"), save_total_limit=2, report_to=[])
        self.trainer = Trainer(model=model, args=arguments)
        self.trainer.create_optimizer_and_scheduler(1000)
        record = RunRecord(
            run=Run(checkpoint_every=3600),
            name="a-run",
            generation=1,
            store=(folder / "store").as_uri(),
            function="f",
            source_sha256="0" * 64,
        )
        self.store, self.keys = open_store(record.store), record.keys
        self.checkpointing = Checkpointing(self.store, record, 1, number=0, made_of="", folder=folder / "files")
        self.blocked = 0.0

    def step(self) -> None:
        ids = torch.randint(1000, 30000, (ROWS, TOKENS))
        self.trainer.model.train()
        self.trainer.model(input_ids=ids, labels=ids[:, 0] % 2).loss.backward()
        self._stands_still(self.checkpointing.before_update)
        self.trainer.optimizer.step()
        self.trainer.optimizer.zero_grad()
        self.trainer.state.global_step += 1

    def save(self, arm: str) -> None:
        if arm == "ours":
            votes, step = [1, 0, 0, 0], self.trainer.state.global_step
            self._stands_still(lambda: self.checkpointing.decide(votes, step, self._parts))
        elif arm == "Trainer":
            self._stands_still(lambda: self.trainer._save_checkpoint(self.trainer.model, trial=None))

    def size_of_saved(self, arm: str, step: int) -> int:
        """Bytes of what an arm has saved; raises where its newest is not that of this step."""
        if arm == "no save":
            return 0
        if arm == "Trainer":
            saved = Path(self.trainer.args.output_dir, f"checkpoint-{step}")
            sizes = {path.name: path.stat().st_size for path in saved.glob("*")}
            if not {"model.safetensors", "optimizer.pt"} <= sizes.keys():
                raise RuntimeError(f"Trainer has not saved step {step}: {saved} has {sorted(sizes)}")
            return sum(sizes.values())
        key = f"{self.keys.checkpoint(CheckpointId(0, 1, step))}/{CHECKPOINT_MANIFEST}"
        manifest = Manifest.from_json(self.store.get(key).data, key)
        return sum(file.size for file in manifest.files.values())

    def _parts(self) -> Parts:
        rank = trainer_state.of_rank(self.trainer)
        return Parts(trainer_state.of_training(self.trainer), rank, trainer_state.lasting(self.trainer))

    def _stands_still(self, call) -> None:
        begun = time.perf_counter()
        call()
        self.blocked += time.perf_counter() - begun


def status(name: str) -> int:
    """Bytes, from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def measured(training: Training, arm: str) -> dict[str, float]:
    os.sync()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    held, training.blocked, step = status("VmRSS:"), 0.0, training.trainer.state.global_step
    begun, begun_cpu = time.perf_counter(), time.process_time()
    training.save(arm)
    for _ in range(STEPS):
        training.step()
    seconds = time.perf_counter() - begun
    training.checkpointing.close()
    until_saved, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
    peak = (status("VmHWM:") - held) / 1e9
    figures = {"blocked": training.blocked, "seconds": seconds, "until_saved": until_saved, "cpu": cpu, "peak": peak}
    return {**figures, "size": training.size_of_saved(arm, step) / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=12)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(dir=given.folder))
    found: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    try:
        training = Training(folder, given.layers)
        for _ in range(2):
            training.step()
        for number in range(given.rounds + 1):
            for arm in ARMS:
                figures = measured(training, arm)
                found[arm].append(figures)
                figures["delay"] = figures["seconds"] - found["no save"][-1]["seconds"]
                figures["work"] = figures["cpu"] - found["no save"][-1]["cpu"]
                told = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
                print(f"round {number}, {arm}: {told}", flush=True)
    finally:
        shutil.rmtree(folder)
    middle = {arm: {name: median(of[name] for of in found[arm][1:]) for name in found[arm][0]} for arm in ARMS}
    for name in ("blocked", "delay", "work", "peak", "size"):
        ours, trainers = middle["ours"][name], middle["Trainer"][name]
        print(f"{name}: ours {ours:.3f}, Trainer {trainers:.3f}, Trainer / ours {trainers / ours:.1f}")


if __name__ == "__main__":
    main()
