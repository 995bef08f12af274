"""Evaluates models of tasks with the metrics of these, and predicts the same rows, in worlds of any size."""

import numpy as np
import torch
from transformers import BertForSequenceClassification, BertForTokenClassification

from tests.distributed import small
from tests.distributed.weighing import collate_tagged, tagged_rows
from train_func.worker import Trainer
from train_func.worker.tasks.metrics import LabelScores, NumberErrors, TagScores

SIZES = (101, 40, 7)
TAGS = ("O", "B-DISH", "I-DISH")


def with_labels(num_rows, make):
    rows = small.rows(num_rows)
    draw = np.random.default_rng(num_rows)
    return rows.remove_columns("label").add_column("label", [make(draw) for _ in range(num_rows)])


def several(num_rows):
    return with_labels(num_rows, lambda draw: (draw.random(3) < 0.4).astype(float).tolist())


def numbers(num_rows):
    return with_labels(num_rows, lambda draw: float(draw.normal()))


def model_of(kind, **settings):
    torch.manual_seed(0)
    config = small.model().config
    config.update(settings)
    return kind(config)


CASES = {
    "several": (
        several,
        lambda: model_of(BertForSequenceClassification, problem_type="multi_label_classification"),
        small.collate,
        LabelScores,
    ),
    "numbers": (
        numbers,
        lambda: model_of(BertForSequenceClassification, num_labels=1, problem_type="regression"),
        small.collate,
        NumberErrors,
    ),
    "tags": (tagged_rows, lambda: model_of(BertForTokenClassification), collate_tagged, lambda: TagScores(TAGS)),
}


def evaluate(name, num_rows, folder):
    make_rows, make_model, collate, metric = CASES[name]
    rows = make_rows(num_rows)
    arguments = small.arguments_of(folder, per_device_eval_batch_size=8)
    trainer = Trainer(model=make_model(), args=arguments, eval_dataset=rows, data_collator=collate)
    trainer.metric = metric()
    metrics = trainer.evaluate()
    output = trainer.predict(rows)
    return {"metrics": metrics, "logits": output.predictions, "labels": output.label_ids}


def run(world_size, rank, folder):
    return {(name, num_rows): evaluate(name, num_rows, folder) for name in CASES for num_rows in SIZES}
