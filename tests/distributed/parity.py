"""Trains the same plans in worlds of any size, and tells what every step did."""

from itertools import chain

import numpy as np
import torch
from datasets.distributed import split_dataset_by_node
from transformers import TrainerCallback

from tests.distributed import small
from train_func.worker import Trainer
from train_func.worker.training.plan import facts_of, rows_of
from train_func.worker.training.weights import fingerprint

# name: rows, batch size, micro-batch size, micro-batches per global batch, dropout
CASES = {
    "101-rows": (101, 16, 4, 4, 0.0),
    "40-rows": (40, 12, 2, 6, 0.0),
    "7-rows": (7, 16, 8, 2, 0.0),
    "3-micro-batches": (40, 16, 6, 3, 0.0),
    "dropout": (101, 16, 4, 4, 0.1),
    "dropout-idle-ranks": (40, 16, 8, 2, 0.1),
    "random-collator": (40, 16, 4, 4, 0.1),
}
UGLY = ("3-micro-batches", "dropout-idle-ranks", "random-collator")  # alone, and in the world that nothing divides
NUM_EPOCHS = 2
EVERY_LOSS = {"logging_strategy": "steps", "logging_steps": 1}


def cases_of(world_size):
    return [name for name in CASES if name not in UGLY or world_size in (1, 3)]


class Keeps(TrainerCallback):
    """Writes down the gradient of every step, as the optimiser will see it."""

    def __init__(self):
        self.gradients = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **others):
        self.gradients.append(flat(p.grad for p in model.parameters()))


def flat(tensors):
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors]).numpy()


def train(name, world_size, rank, folder):
    num_rows, *cut, dropout = CASES[name]
    plan = small.plan(small.rows(num_rows), *cut, world_size, num_epochs=NUM_EPOCHS)
    keeps = Keeps()
    trainer = Trainer(
        model=small.model(dropout),
        args=small.arguments(folder, facts_of(plan), optim="sgd", learning_rate=0.5, max_grad_norm=0, **EVERY_LOSS),
        data_collator=small.collate_and_mask if name == "random-collator" else small.collate,
        train_dataset=split_dataset_by_node(plan, rank, world_size),
        eval_dataset=small.rows(num_rows // 2, seed=1),
        callbacks=[keeps],
    )
    assert trainer.args.world_size == world_size
    steps = trainer.train().global_step
    metrics = trainer.evaluate()
    unseen = small.rows(num_rows // 2, seed=1)
    return {
        "predictions": trainer.predict(unseen.remove_columns("row_id")).predictions,
        "one_by_one": one_by_one(trainer.model, unseen) if world_size == 1 else None,
        "steps": steps,
        "gradients": np.stack(keeps.gradients),
        "weights": flat(trainer.model.parameters()),
        "sha256": fingerprint(trainer.model),
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row],
        "metrics": metrics,
        "once": [coverage.num_once for coverage in trainer.coverage],
        "in_metric": trainer.evaluations[-1].coverage.num_once,
        "batches": batches(plan),
    }


def one_by_one(model, rows):
    """What the model says of each row alone."""
    with torch.no_grad():
        return torch.cat([model(**small.collate([row])).logits for row in rows]).numpy()


def batches(plan):
    """Row positions of every step, over all ranks."""
    return {step: sorted(chain(*parts.values())) for step, parts in small.positions_by_step(plan).items()}


def reference_of(name):
    """The same training by plain PyTorch in one process: a whole global batch in one forward pass."""
    num_rows, *cut, _ = CASES[name]
    plan = small.plan(small.rows(num_rows), *cut, num_epochs=NUM_EPOCHS)
    model, gradients = small.model(), []
    steps = batches(plan)
    for step, positions in sorted(steps.items()):
        inputs = small.collate([rows_of(plan)[position] for position in positions])
        model.zero_grad()
        model(**inputs).loss.backward()
        gradients.append(flat(p.grad for p in model.parameters()))
        rate = 0.5 * (1 - step / len(steps))  # the linear schedule that Trainer takes by default
        with torch.no_grad():
            for p in model.parameters():
                p -= rate * p.grad
    return {"gradients": np.stack(gradients), "weights": flat(model.parameters()), "batches": steps}


def run(world_size, rank, folder):
    return {name: train(name, world_size, rank, folder) for name in cases_of(world_size)}
