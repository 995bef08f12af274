"""What is measured of a trained model, and that no fault of the measuring costs the model."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from tests.messages import unnamed
from tests.tiny_session import NAME, opened, result_of, trainer_of, trainer_over
from train_func.errors import InvalidInput
from train_func.worker import Session, split
from train_func.worker.training import evaluation

BEST = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}


def best_by(session, metric, compute_metrics=None):
    trainer = trainer_of(session, **BEST, metric_for_best_model=metric, per_device_eval_batch_size=3)
    trainer.compute_metrics = compute_metrics
    return trainer


def fails_always(prediction):
    return {"score": prediction.no_such_field}


def fails_on_all_rows(prediction):
    if len(prediction.label_ids) == 8:
        return {"score": prediction.no_such_field}
    raise ValueError("too few rows")


def test_metrics_that_cannot_be_computed_or_lack_the_best_one_stop_a_training_before_its_first_step(a_record):
    with Session(a_record(address="", epochs=1).parameters()) as session:
        for compute_metrics in (fails_always, fails_on_all_rows):
            trainer = best_by(session, "score", compute_metrics)
            with pytest.raises(AttributeError, match="no_such_field"):
                trainer.train()
            assert trainer.state.global_step == 0
        for metric, compute_metrics, known in [
            ("f1_macro", lambda _: {"macro_f1": 0.5}, ["'f1_macro'", "macro_f1", "loss", "rows"]),
            ("eval_f1_macro", lambda _: {"eval_macro_f1": 0.5}, ["'eval_f1_macro'", "macro_f1"]),
            ("accuracy", lambda _: {}, ["'accuracy'", "loss", "rows"]),
            ("bleu", None, ["'bleu'", "accuracy", "loss", "rows"]),
            ("a_f1_macro", lambda _: {"macro_f1": 0.5}, ["'a_f1_macro'", "a_macro_f1", "b_macro_f1"]),
            ("any", lambda _: [0.5, 0.7], ["compute_metrics", "[0.5, 0.7]", "dict"]),
        ]:
            trainer = best_by(session, metric, compute_metrics)
            if metric.startswith("a_"):
                held_out = trainer.eval_dataset
                trainer.eval_dataset = {"a": held_out.select(range(3)), "b": held_out.select(range(3, 8))}
            if metric == "accuracy":  # which predictions of another shape have not
                trainer.preprocess_logits_for_metrics = lambda logits, labels: logits[:, :1]
            with pytest.raises(InvalidInput) as refused:
                trainer.train()
            assert refused.value.cause == "code"
            assert [name for name in known if name not in str(refused.value)] == []
            assert trainer.state.global_step == 0


def of_all_rows_alone(prediction):
    """As classification_report gives a metric for each class."""
    return {"mine": 0.5} if len(prediction.label_ids) == 8 else {}


class AddsAMetric(transformers.TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **others):
        metrics["eval_mine"] = 0.5


@pytest.mark.parametrize("callbacks", [[], [AddsAMetric()]], ids=["a few rows have not", "a callback adds"])
def test_a_best_model_is_trained_by_a_metric_that(a_record, callbacks):
    with Session(a_record(address="", epochs=1).parameters()) as session:
        trainer = best_by(session, "mine", None if callbacks else of_all_rows_alone)
        for callback in callbacks:
            trainer.add_callback(callback)
        trainer.train()
        assert trainer.state.best_metric == 0.5


@pytest.mark.parametrize("prefix", ["eval", "test"])
def test_a_metric_that_has_the_prefix_already_gets_no_second_one(a_record, store, prefix):
    """As transformers does it; published metrics have plain names."""
    with Session(a_record(epochs=1).parameters()) as session:
        trainer = best_by(session, "f1", lambda _: {"eval_f1": 0.5, "recall": 0.25})
        trainer.train()
        found = [trainer.evaluate(metric_key_prefix=prefix)]
        found += [trainer.predict(trainer.eval_dataset, metric_key_prefix=prefix).metrics]
        session.publish(trainer)
    ours = "eval_f1" if prefix == "eval" else "test_eval_f1"
    for metrics in found:
        assert {name for name in metrics if "f1" in name} == {ours}
        assert metrics[f"{prefix}_recall"] == 0.25
    published = result_of(store)["metrics"]
    assert {name: published[name] for name in published if name not in ("loss", "rows")} == {"f1": 0.5, "recall": 0.25}


def test_a_model_that_cannot_be_measured_in_the_end_is_published_without_metrics(a_record, store, capsys):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        assert "precision" not in capsys.readouterr().out  # a loop of one's own computes as it is written
        trainer = trainer_of(session, eval_strategy="epoch", bf16=False)
        trainer.train()
        trained = trainer.model.classifier.weight.detach().clone()
        trainer.compute_metrics = lambda prediction: {}["never there"]
        with torch.no_grad():
            trainer.model.classifier.bias[0] += 1  # so that it has to be measured again
        session.publish(trainer)
    result = result_of(store)
    assert result["metrics"] == {}
    assert "KeyError: 'never there'" in result["note"]
    printed = capsys.readouterr().out
    assert "precision=fp32" in printed
    assert f"note: {result['note']}" in printed.splitlines()
    assert json.loads(store.get("tiny-reviews-0123/model/metrics.json").data) == {}
    folder = Path(store.address.removeprefix("file://")) / "tiny-reviews-0123/model"
    published = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    assert torch.equal(published.classifier.weight, trained)


class TrackerAway(transformers.TrainerCallback):
    """Fails where it is told what was measured."""

    def on_log(self, args, state, control, logs, **others):
        if any(name.startswith("eval_") for name in logs):
            raise ConnectionError("tracking server is away")


def test_what_was_measured_is_published_though_a_tracker_cannot_be_told(a_record, store, capsys):
    """The training evaluates nothing, so that publishing does."""
    with opened(a_record(epochs=1)) as (session, trainer):
        trainer.add_callback(TrackerAway())
        trainer.train()
        session.publish(trainer)
        with pytest.raises(ConnectionError):
            trainer.evaluate()
    result = result_of(store)
    assert result["metrics"]["loss"] > 0
    assert "ConnectionError" not in result.get("note", "")
    assert "ConnectionError: " in capsys.readouterr().out


def own_rows(session, run):
    """A user's rows, tokenised by the user: the session is not asked for its own."""
    with_ids = split(run)
    _, tokenizer = session.model()
    columns = ["row_id", "label", "input_ids", "attention_mask"]
    return [
        rows.map(lambda row: dict(tokenizer(row["text"], max_length=64, truncation=True))).select_columns(columns)
        for rows in (with_ids.train, with_ids.held_out)
    ]


def trainer_on(session, train, held_out):
    model, tokenizer = session.model()
    return trainer_over(session, model, train, held_out, processing_class=tokenizer)


def test_of_own_rows_the_eval_dataset_is_what_is_published_as_measured(a_record, store):
    record = a_record(epochs=1)
    with Session(record.parameters()) as session:
        train, held_out = own_rows(session, record.run)
        trainer = trainer_on(session, train, {"a": held_out.select(range(3)), "b": held_out.select(range(3, 8))})
        trainer.train()
        trainer.evaluate()
        with torch.no_grad():
            trainer.model.classifier.bias[0] += 1
        trainer.evaluate(train.select(range(5)))
        session.publish(trainer)
        expected = trainer.evaluate()
    result = result_of(store)
    assert result["metrics"] == {
        name.removeprefix("eval_"): value for name, value in expected.items() if name != "epoch"
    }
    assert result["audit"]["held_out"]["rows"] == 8


def predictions_in(store):
    return json.loads(store.get(f"{NAME}/model/held_out_predictions.json").data)


def test_what_the_published_weights_predict_of_each_held_out_row_is_published_by_its_id(a_record, store):
    record = replace(a_record(learning_rate=1e-6), held_out_sha256="6" * 64)
    with opened(record, eval_strategy="epoch", per_device_eval_batch_size=3) as (session, trainer):
        trainer.add_callback(Worsens(4))  # behind the first evaluation
        trainer.train()
        session.publish(trainer)
        told, rows = trainer.predict(trainer.eval_dataset), trainer.eval_dataset
    found = predictions_in(store)
    columns = {name: np.array(column) for name, column in found["columns"].items()}
    order = np.argsort(rows["row_id"])
    assert columns["row"].tolist() == np.array(rows["row_id"])[order].tolist()
    assert columns["expected"].tolist() == told.label_ids[order].tolist()
    assert columns["predicted"].tolist() == told.predictions.argmax(-1)[order].tolist()
    shares = torch.tensor(told.predictions).softmax(-1).max(-1).values.numpy()[order]
    assert columns["confidence"] == pytest.approx(shares, rel=1e-4)
    assert (found["step"], found["num_rows"]) == (trainer.state.global_step, 8)
    assert (found["labels"], found["held_out_sha256"]) == (["bad", "good"], "6" * 64)
    assert "food" not in json.dumps(found)


def test_of_very_many_held_out_rows_some_at_even_distances_are_kept(a_record, store, monkeypatch):
    monkeypatch.setattr(evaluation, "MOST_ROWS", 4)
    with opened(a_record(epochs=1)) as (session, trainer):
        trainer.train()
        session.publish(trainer)
        ids = sorted(trainer.eval_dataset["row_id"])
    found = predictions_in(store)
    assert (found["columns"]["row"], found["num_rows"]) == (ids[::2], 8)


class Worsens(transformers.TrainerCallback):
    """Makes the weights worse in one step, and as good as before in another."""

    def __init__(self, worse, better=None):
        self.by = {worse: 4.0, better: -4.0}

    def on_step_end(self, args, state, control, model=None, **others):
        if by := self.by.get(state.global_step):
            with torch.no_grad():
                model.classifier.bias += torch.tensor([by, -by])


SCORE = {"metric_for_best_model": "score"}
FALLS = [0.9, 0.8]  # a value of each epoch's end
GROWS = [0.8, 0.9]


@pytest.mark.parametrize(
    ("worsens", "own", "computed", "facts"),
    [
        pytest.param([4], {}, None, ["step 2", "epoch 1", "loss", "load_best_model_at_end=True"], id="worse"),
        pytest.param([], SCORE, {"score": FALLS}, ["step 2", "metric_for_best_model='score'"], id="a score"),
        pytest.param([4], {}, {"macro_f1": FALLS}, ["macro_f1", 0.9, 0.8], id="an own metric"),
        pytest.param([4], {}, {"rmse": GROWS}, ["rmse", "greater_is_better=False"], id="an own error"),
        pytest.param([4], {}, {"macro_f1": GROWS}, [], id="the loss alone was better"),
        pytest.param([2, 3], {}, {"macro_f1": FALLS}, [], id="the loss was worse"),
        pytest.param([4], {}, {"score": FALLS}, [], id="of unknown direction"),
        pytest.param([2, 3], {}, None, [], marks=pytest.mark.slow, id="the last is the best"),
    ],
)
def test_where_an_earlier_evaluation_was_better_by_the_metric_that_judges_the_result_says_which_and_how_to_publish_it(
    a_record, store, worsens, own, computed, facts
):
    with opened(a_record(learning_rate=1e-6), eval_strategy="epoch", **own) as (session, trainer):
        if worsens:
            trainer.add_callback(Worsens(*worsens))
        if computed:
            trainer.compute_metrics = lambda _: {
                name: values[trainer.state.global_step > 2] for name, values in computed.items()
            }
        trainer.train()
        session.publish(trainer)
    note = result_of(store).get("note", "")
    assert unnamed(note, *facts) == []
    assert ("was better" in note) is bool(facts)


@pytest.mark.parametrize("compute_metrics", [None, lambda prediction: {"hits": 0.2}], ids=["the task's", "own"])
def test_a_model_below_the_majority_class_baseline_is_published_with_a_note(a_record, store, compute_metrics):
    record = a_record(epochs=1)
    with Session(record.parameters()) as session:
        train, held_out = own_rows(session, record.run)
        train, held_out = (
            rows.select([*np.flatnonzero(np.array(rows["label"]) == 0), np.argmax(rows["label"])])
            for rows in (train, held_out)
        )
        trainer = trainer_on(session, train, held_out)
        trainer.compute_metrics = compute_metrics
        trainer.train()
        with torch.no_grad():
            trainer.model.classifier.weight.zero_()
            trainer.model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
        session.publish(trainer)
    result = result_of(store)
    assert result["metrics"]["hits" if compute_metrics else "accuracy"] == 0.2
    assert unnamed(result["note"], "accuracy 0.200", "baseline 0.800") == []
    assert "baseline 0.800" in result["note"]
