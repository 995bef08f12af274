"""What is measured of a trained model, and that no fault of the measuring costs the model."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from datasets.distributed import split_dataset_by_node
from transformers import TrainingArguments

from tests.unit.test_session import a_record, home, model_folder, reviews, store, trainer_of
from train_func.worker import Session, Trainer
from train_func.worker.pod.stop import Stop
from train_func.worker.training import evaluation
from train_func.worker.training.pending import Pending

__all__ = ["a_record", "home", "model_folder", "reviews", "store"]  # fixtures


@pytest.mark.parametrize("fails", ["always", "on all rows"])
def test_metrics_that_cannot_be_computed_stop_a_training_before_its_first_step(a_record, fails):
    def compute_metrics(prediction):
        if fails == "always" or len(prediction.label_ids) == 8:
            return {"score": prediction.no_such_field}
        raise ValueError("too few rows")

    with Session(a_record(address="").parameters()) as session:
        trainer = trainer_of(session, {"epochs": 2, "learning_rate": 1e-3}, per_device_eval_batch_size=3)
        trainer.compute_metrics = compute_metrics
        with pytest.raises(AttributeError, match="no_such_field"):
            trainer.train()
        assert trainer.state.global_step == 0


def test_a_rehearsed_measurement_changes_neither_the_training_nor_what_is_measured(a_record, monkeypatch):
    """Also where the metrics need more rows than are rehearsed."""

    def weights(rehearses):
        sizes = []

        def compute_metrics(prediction):
            sizes.append(len(prediction.label_ids))
            assert len(prediction.label_ids) == 8
            return {"score": 1.0}

        with Session(a_record(address="").parameters()) as session:
            trainer = trainer_of(session, {"epochs": 2, "learning_rate": 1e-3}, per_device_eval_batch_size=3)
            trainer.compute_metrics = compute_metrics
            if not rehearses:
                monkeypatch.setattr(evaluation, "rehearse", lambda *_: None)
            torch.manual_seed(7)  # transformers seeds again; what a model draws for itself must not differ either
            trainer.train()
            assert trainer.evaluations == []
            assert [log for log in trainer.state.log_history if "eval_loss" in log] == []
            drawn = torch.rand(1).item()
            return sizes, drawn, torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    (sizes, drawn, ours), (none, undisturbed, theirs) = weights(True), weights(False)
    assert (sizes, none) == ([3, 8], [])
    assert drawn == undisturbed
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", [Trainer, transformers.Trainer])
def test_a_model_that_cannot_be_measured_in_the_end_is_published_without_metrics(a_record, store, kind, capsys):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters, kind=kind, eval_strategy="epoch")
        trainer.train()
        trained = trainer.model.classifier.weight.detach().clone()
        trainer.compute_metrics = lambda prediction: {}["never there"]
        with torch.no_grad():
            trainer.model.classifier.bias[0] += 1  # so that it has to be measured again
        session.publish(trainer)
    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
    assert result["metrics"] == {}
    assert "KeyError: 'never there'" in result["note"]
    assert f"note: {result['note']}" in capsys.readouterr().out.splitlines()
    assert json.loads(store.get("tiny-reviews-0123/model/metrics.json").data) == {}
    folder = Path(store.address.removeprefix("file://")) / "tiny-reviews-0123/model"
    published = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert torch.equal(published.classifier.weight, trained)


class Killed(BaseException):
    """As if the process were gone."""


def test_a_model_is_whole_and_left_to_be_published_when_its_rank_is_lost_while_it_measures(
    a_record, store, tmp_path, monkeypatch
):
    monkeypatch.setenv("TRAIN_FUNC_WORK_DIR", str(tmp_path))  # of a pod, which outlives the rank
    parameters = a_record(epochs=1).parameters()

    def compute_metrics(prediction):
        raise Killed

    with pytest.raises(Killed), Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        trainer.train()
        trainer.compute_metrics = compute_metrics
        session.publish(trainer)
    assert not store.list("tiny-reviews-0123/model/")
    pending = Pending(tmp_path)
    assert pending.attempt == 1
    pending.upload(store, a_record(epochs=1), Stop())
    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
    assert (result["metrics"], result["step"]) == ({}, 2)
    assert result["note"]
    assert "model.safetensors" in result["files"]


def own_rows(session):
    """A user's rows, tokenised by the user: the session is not asked for its own."""
    with_ids = session._prepared
    _, tokenizer = session.model()
    part = {name: getattr(with_ids, name) for name in ("train", "held_out")}
    train, held_out = (
        rows.map(lambda row: dict(tokenizer(row["text"], max_length=64, truncation=True))).select_columns(
            ["row_id", "label", "input_ids", "attention_mask"]
        )
        for rows in part.values()
    )
    return train, held_out


@pytest.mark.parametrize("sets", ["one", "several", "none"])
def test_of_own_rows_the_eval_dataset_is_what_is_published_as_measured(a_record, store, sets):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        train, held_out = own_rows(session)
        assert session._held_out is None
        eval_dataset = {
            "one": held_out,
            "several": {"a": held_out.select(range(3)), "b": held_out.select(range(3, 8))},
            "none": None,
        }[sets]
        model, tokenizer = session.model()
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**session.arguments()),
            train_dataset=split_dataset_by_node(session.plan(train), 0, 1),
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
        )
        trainer.train()
        if sets != "none":
            trainer.evaluate()
        with torch.no_grad():
            trainer.model.classifier.bias[0] += 1
        trainer.evaluate(train.select(range(5)))
        session.publish(trainer)
        expected = {} if sets == "none" else trainer.evaluate()
    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
    assert result["metrics"] == {
        name.removeprefix("eval_"): value for name, value in expected.items() if name != "epoch"
    }
    assert (result["audit"]["held_out"] or {}).get("rows") == (None if sets == "none" else 8)


def test_what_is_measured_again_leaves_out_what_the_training_left_out(a_record, store):
    parameters = a_record(epochs=1).parameters()
    outputs = []
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        trainer.compute_metrics = lambda prediction: outputs.append(prediction.predictions) or {}
        trainer.train(ignore_keys_for_eval=["logits"])
        session.publish(trainer)
    assert len(outputs) == 2
    assert all(isinstance(output, tuple) and not output for output in outputs)
