"""The worker half of Parity."""

from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.protocol import Rows

BITS = 8


class MeanError:
    """Mean distance of the probability from what it should be."""

    def count(self, logits, labels):
        return {"error": float((1 - logits.float().softmax(-1)[range(len(labels)), labels]).sum())}

    def values(self, sums, num_rows):
        return {"mean_error": sums["error"] / num_rows}


class ParityWorker:
    def __init__(self, task, seed, store, cache):
        self._numbers, self._seed = task.numbers, seed

    def check(self):
        num_train = self._numbers - self._numbers // 5
        summary = f"{num_train} numbers to train on"
        return Findings(facts={"num_train": num_train}, summary=summary, num_model_bytes=10_000)

    def rows(self):
        from datasets import Dataset

        numbers = list(range(self._numbers))
        sides = [numbers[self._numbers // 5 :], numbers[: self._numbers // 5]]
        train, held_out = (Dataset.from_dict({"number": side, "row_id": side}) for side in sides)
        return Rows(train, held_out, {}, ("even", "odd"), ["numbers cost nothing"])

    def fetch(self):
        return {}

    def load(self, labels, precision):
        import torch
        from transformers import BertConfig, BertForSequenceClassification

        torch.manual_seed(self._seed)
        config = BertConfig(
            vocab_size=2,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            max_position_embeddings=BITS,
            id2label=dict(enumerate(labels)),
        )
        return BertForSequenceClassification(config), None

    def encode(self, rows, processor):
        def bits(row):
            return {"input_ids": [row["number"] >> bit & 1 for bit in range(BITS)], "label": row["number"] % 2}

        return rows.map(bits, remove_columns=["number"])

    def collator(self, processor, *, training):
        return stack

    def num_items(self, inputs, num_rows):
        return 3 * num_rows  # each weighs as much as any other, so that a mean stays a mean

    def metric(self):
        return MeanError()

    def pipeline(self):
        return {"task": "text-classification"}

    def card(self, labels):
        return "Whether a number is even.\n"


def stack(rows):
    import torch

    return {
        "input_ids": torch.tensor([row["input_ids"] for row in rows]),
        "labels": torch.tensor([row["label"] for row in rows]),
    }
