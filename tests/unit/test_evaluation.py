"""What an evaluation keeps and sends to the other ranks: no more than the metrics need."""

import pickle

import numpy as np
import pytest
import torch
from datasets import Dataset

from tests.distributed import small
from train_func.worker import Trainer
from train_func.worker.rank import world
from train_func.worker.tasks.streaming_metrics import Accuracy
from train_func.worker.training.arguments import DefaultSize

NUM_ROWS = 40


class Tokens(torch.nn.Module):
    """Logits per token, many times larger than all else that is known of a row, as those of a language model."""

    VOCABULARY = 1000

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.weight * torch.nn.functional.one_hot(input_ids, self.VOCABULARY)
        return {"loss": logits.mean(), "logits": logits}


@pytest.fixture
def sent(monkeypatch):
    """Bytes of everything that was gathered."""
    found, gather = [], world.gather

    def counted(value):
        found.append(len(pickle.dumps(value)))
        return gather(value)

    monkeypatch.setattr(world, "gather", counted)
    return found


def trainer_of(folder, model, **others):
    names = [name for name in ("prediction_loss_only", "per_device_eval_batch_size") if name in others]
    settings = {"per_device_eval_batch_size": 7, **{name: others.pop(name) for name in names}}
    arguments = small.arguments_of(folder, **settings)
    return Trainer(
        model=model, args=arguments, eval_dataset=small.rows(NUM_ROWS), data_collator=small.collate, **others
    )


def test_logits_that_no_metric_needs_are_not_sent(tmp_path, sent):
    metrics = trainer_of(tmp_path, Tokens()).evaluate()
    assert set(metrics) == {"eval_loss", "eval_rows", "epoch"}
    assert sum(sent) < NUM_ROWS * Tokens.VOCABULARY  # a byte for every logit of one token of each row


def test_logits_are_sent_where_compute_metrics_asks_for_them_and_padded_alike(tmp_path, sent):
    seen = []

    def compute_metrics(prediction):
        seen.append(prediction.predictions)
        return {"own": 1.0}

    trainer = trainer_of(tmp_path, Tokens(), compute_metrics=compute_metrics)
    assert trainer.evaluate()["eval_own"] == 1.0
    lengths = [len(ids) for ids in trainer.eval_dataset["input_ids"]]
    assert seen[0].shape == (NUM_ROWS, max(lengths), Tokens.VOCABULARY)
    for row, (ids, logits) in enumerate(zip(trainer.eval_dataset["input_ids"], seen[0], strict=True)):
        assert logits[: lengths[row]].argmax(-1).tolist() == ids
    shortest = int(np.argmin(lengths))
    assert (seen[0][shortest, -1] == -100).all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="asks the CPU")
@pytest.mark.parametrize(
    ("size", "batches"), [(DefaultSize(8), [(1, 3000), (3, 200), (8, 8)]), (8, [(8, 3000), (4, 4)])], ids=["none", "8"]
)
def test_on_a_cpu_batches_of_long_rows_are_small_unless_a_size_is_chosen(tmp_path, size, batches):
    model, shapes = Tokens(), []
    model.register_forward_pre_hook(
        lambda _, __, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    rows = Dataset.from_dict({"input_ids": [[1] * length for length in (3000, 200, 190, 180, *range(1, 9))]})
    trainer_of(tmp_path, model, per_device_eval_batch_size=size).predict(rows.add_column("label", [0] * len(rows)))
    assert shapes == batches


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.bool, torch.float16])
def test_predictions_keep_their_type_where_nothing_has_to_be_padded(tmp_path, kind):
    trainer = trainer_of(tmp_path, small.model(), compute_metrics=lambda prediction: {})
    trainer.preprocess_logits_for_metrics = lambda logits, labels: logits.argmax(-1).to(kind)
    output = trainer.predict(trainer.eval_dataset).predictions
    assert output.dtype == torch.empty(0, dtype=kind).numpy().dtype
    plain = trainer_of(tmp_path, small.model()).predict(trainer.eval_dataset)
    assert (output == plain.predictions.argmax(-1).astype(output.dtype)).all()


def test_prediction_loss_only_measures_the_loss_alone(tmp_path):
    def compute_metrics(prediction):
        raise AssertionError("has nothing to compute from")

    trainer = trainer_of(tmp_path, small.model(), prediction_loss_only=True, compute_metrics=compute_metrics)
    assert set(trainer.evaluate()) == {"eval_loss", "eval_rows", "epoch"}
    output = trainer.predict(trainer.eval_dataset)
    assert output.predictions is None
    assert set(output.metrics) == {"test_loss", "test_rows"}


@pytest.mark.parametrize(
    "logits, labels, right",
    [
        (np.eye(4), [0, 1, 2, 0], 3),
        (np.eye(4)[:, None].repeat(3, axis=1), [[0, -100, 0], [1, 1, 1], [2, 2, 2], [3, 3, -100]], None),  # tokens
        ([[0.1], [0.2], [0.3], [0.4]], [0, 0, 1, 1], None),  # regression, or one logit for two classes
        (np.eye(4), np.eye(4, dtype=int), None),  # several classes at once
        (np.eye(4, dtype=int), [0, 1, 2, 0], None),  # what preprocess_logits_for_metrics has made of them
    ],
)
def test_accuracy_is_given_only_where_each_row_has_one_class_of_several(logits, labels, right):
    assert (Accuracy().count(torch.as_tensor(logits), torch.as_tensor(labels)) or {}).get("num_right") == right
