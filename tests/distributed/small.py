"""What the programs on several ranks train on: a tiny random BERT, rows of ugly lengths."""

import random

import numpy as np
import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from train_func.worker.training.plan import build_plan, lengths_of, plan_of, positions_of, row_ids_of

VOCABULARY = 50


def rows(num_rows, seed=0):
    """Rows of 3 to 30 tokens; ids that are neither positions nor in order."""
    draw = np.random.default_rng(seed)
    ids = draw.permutation(num_rows) * 3 + 1
    return Dataset.from_dict(
        {
            "input_ids": [draw.integers(1, VOCABULARY, draw.integers(3, 31)).tolist() for _ in range(num_rows)],
            "label": draw.integers(0, 3, num_rows).tolist(),
            "row_id": ids.tolist(),
        }
    )


def model(dropout=0.0, vocabulary=VOCABULARY):
    """``vocabulary``: a larger one makes a larger model that computes as fast."""
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(
        vocab_size=vocabulary,
        num_labels=3,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **shape,
    )
    return BertForSequenceClassification(config)


def plan(rows, batch_size, micro_batch_size, num_micro_batches, world_size=1, *, seed=5, num_epochs=1):
    cut = {"micro_batch_size": micro_batch_size, "num_micro_batches": num_micro_batches, "world_size": world_size}
    return build_plan(rows, lengths_of(rows), seed=seed, num_epochs=num_epochs, batch_size=batch_size, **cut)


def micro_batches(plan):
    """The places and rows of all entries of all epochs, the empty ones included."""
    whole, positions = plan_of(plan), positions_of(plan).tolist()
    return [whole.entry(epoch, at, whole.rows) for epoch in range(whole.facts.num_epochs) for at in positions]


def positions_by_step(plan):
    """The positions of the rows of every micro-batch of every step: step, then micro, to a list."""
    position = {row_id: number for number, row_id in enumerate(row_ids_of(plan_of(plan).rows).tolist())}
    steps = {}
    for place, _ in micro_batches(plan):
        steps.setdefault(place.step, {})[place.micro] = [position[row_id] for row_id in place.row_ids]
    return steps


def collate(features):
    longest = max(len(feature["input_ids"]) for feature in features)
    padded = [feature["input_ids"] + [0] * (longest - len(feature["input_ids"])) for feature in features]
    ids = torch.tensor(padded)
    return {
        "input_ids": ids,
        "attention_mask": (ids > 0).long(),
        "labels": torch.tensor([feature["label"] for feature in features]),
    }


def collate_and_mask(features):
    """Hides a third of the tokens, drawn by three generators that a collator may use."""
    batch = collate(features)
    third = torch.rand(batch["input_ids"].shape) + random.random() + np.random.rand() < 1
    batch["input_ids"][third] = 1
    return batch


def arguments(folder, plan_facts, **others):
    of_the_plan = {
        "num_train_epochs": plan_facts.num_epochs,
        "gradient_accumulation_steps": plan_facts.accumulation,
    }
    return arguments_of(folder, **of_the_plan, **others)


def arguments_of(folder, **others):
    quiet = {"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "use_cpu": True}
    return TrainingArguments(output_dir=str(folder), **{**quiet, **others})


def part_of(session, num_rows=101):
    """The part of this rank of a plan over so many rows."""
    return split_dataset_by_node(session.plan(rows(num_rows)), session.rank, session.world_size)


def trainer_of(session, *callbacks, kind=None, num_rows=101, dropout=0.0, eval_rows=None, **arguments):
    """A Trainer, or one of that kind, in a Session; ``arguments``: others than those of the run."""
    from train_func.worker import Trainer

    return (kind or Trainer)(
        model=model(dropout),
        args=TrainingArguments(**{**session.arguments(**arguments), "bf16": False}),
        train_dataset=part_of(session, num_rows),
        eval_dataset=eval_rows and rows(eval_rows, seed=1),
        data_collator=collate,
        callbacks=[*callbacks],
    )
