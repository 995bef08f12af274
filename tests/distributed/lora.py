"""Tunes a small Llama by adapters in worlds of any size, and in one process with peft and transformers' own Trainer."""

from itertools import chain

import torch
import torch.distributed as dist
import transformers
from datasets.distributed import split_dataset_by_node
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

from tests.distributed import small
from tests.tiny_llama import write_questions, write_tiny_llama
from train_func.tasks import CausalLM
from train_func.worker import Trainer, context
from train_func.worker.context import Context
from train_func.worker.tasks.causal_lm import CausalLMTuner
from train_func.worker.training.plan import facts_of
from train_func.worker.training.weights import fingerprint

SIZES = (101, 40, 7)
RANK, RATE, EPOCHS, BATCH = 4, 1e-2, 2, 16
CONSTANT = {"learning_rate": RATE, "lr_scheduler_type": "constant"}


def tuner_of(folder, num_rows, **fields):
    data = write_questions(folder / f"{num_rows}.jsonl", num_rows)
    task = CausalLM(model=model_in(folder.parent), dataset=data, lora_rank=RANK, max_length=256, **fields)
    tuner = CausalLMTuner(task, 0, None, folder / "cache")
    tuner.fetch()
    return tuner


def model_in(folder):
    """Rank 0 alone writes it: transformers saves nothing on the others."""
    if dist.get_rank() == 0:
        write_tiny_llama(folder / "llama")
    dist.barrier()
    return str(folder / "llama")


class Losses(Trainer):
    """Keeps the loss of every step."""

    def __init__(self, *args, **others):
        self.losses = []
        super().__init__(*args, **others)

    def training_step(self, *args, **others):
        loss = super().training_step(*args, **others)
        if self.accelerator.sync_gradients:
            self.losses.append(loss.item())
        return loss


class Stock(transformers.Trainer):
    """transformers' own, on batches that are given; keeps the loss of every step."""

    def __init__(self, *args, batches, **others):
        self.losses, self._batches = [], batches
        super().__init__(*args, **others)

    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_sampler=self._batches, collate_fn=self.data_collator)

    def training_step(self, *args, **others):
        loss = super().training_step(*args, **others)
        self.losses.append(loss.item())
        return loss


def base_of(model):
    return torch.cat([of.detach().reshape(-1) for of in model.parameters() if not of.requires_grad])


def train(num_rows, world_size, rank, folder, stock):
    tuner = tuner_of(folder, num_rows)
    model, tokenizer = tuner.load((), "fp32")
    before = base_of(model)
    rows = tuner.rows()
    encoded, held_out = tuner.encode(rows.train, tokenizer), tuner.encode(rows.held_out, tokenizer)
    plan = small.plan(encoded, BATCH, 4, 4, world_size, seed=0, num_epochs=EPOCHS)
    context.here = Context(task=tuner)
    try:
        arguments = small.arguments(folder, facts_of(plan), per_device_eval_batch_size=8, **CONSTANT)
        part = split_dataset_by_node(plan, rank, world_size)
        trainer = Losses(model, arguments, train_dataset=part, eval_dataset=held_out, processing_class=tokenizer)
        trainer.train()
        metrics = trainer.evaluate()
    finally:
        context.here = Context()
    found = {
        "losses": trainer.losses,
        "metrics": metrics,
        "sha256": fingerprint(model),
        "is_base_untouched": torch.equal(before, base_of(model)),
    }
    if stock:
        found["stock"] = train_stock(tuner, tokenizer, encoded, plan, folder)
    return found


def train_stock(tuner, tokenizer, encoded, plan, folder):
    """The losses of transformers' Trainer on the same global batches, whole ones."""
    steps = small.positions_by_step(plan)
    model = AutoModelForCausalLM.from_pretrained(tuner.model.folder, dtype=torch.float32)
    config = LoraConfig(task_type="CAUSAL_LM", r=RANK, lora_alpha=2 * RANK, target_modules="all-linear")
    torch.manual_seed(0)
    model = get_peft_model(model, config)
    trainer = Stock(
        model,
        small.arguments_of(folder, num_train_epochs=1, **CONSTANT),
        batches=[[*chain(*steps[step].values())] for step in sorted(steps)],
        train_dataset=encoded.remove_columns("row_id"),
        data_collator=tuner.collator(tokenizer, training=True),
    )
    trainer.train()
    return {"losses": trainer.losses}


def run(world_size, rank, folder):
    own = folder / f"lora-{world_size}-{rank}"
    own.mkdir()
    return {num_rows: train(num_rows, world_size, rank, own, world_size == 1) for num_rows in SIZES}
