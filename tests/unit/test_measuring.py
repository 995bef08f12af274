"""What is measured of a trained model, and that no fault of the measuring costs the model."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from datasets.distributed import split_dataset_by_node
from transformers import TrainingArguments

from tests.messages import unnamed
from tests.unit.test_session import a_record, home, model_folder, reviews, store, trainer_of
from train_func.errors import InvalidInput
from train_func.worker import Session, Trainer, trainers

__all__ = ["a_record", "home", "model_folder", "reviews", "store"]  # fixtures


BEST = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}


def best_by(session, metric, compute_metrics=None):
    of_run = {"epochs": 1, "learning_rate": 1e-3}
    trainer = trainer_of(session, of_run, **BEST, metric_for_best_model=metric, per_device_eval_batch_size=3)
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
            ("f1_macro", lambda _: {"macro_f1": 0.5}, ["macro_f1", "loss", "rows"]),
            ("eval_f1_macro", lambda _: {"eval_macro_f1": 0.5}, ["macro_f1"]),
            ("accuracy", lambda _: {}, ["loss", "rows"]),
            ("bleu", None, ["accuracy", "loss", "rows"]),
            ("a_f1_macro", lambda _: {"macro_f1": 0.5}, ["a_macro_f1", "b_macro_f1"]),
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
            assert [name for name in (repr(metric), *known) if name not in str(refused.value)] == []
            assert trainer.state.global_step == 0


def test_a_best_model_by_a_metric_that_a_few_rows_have_not_is_trained(a_record):
    """One per class, as classification_report gives them."""

    def compute_metrics(prediction):
        return {"recall_of_last": 0.5} if len(prediction.label_ids) == 8 else {}

    with Session(a_record(address="", epochs=1).parameters()) as session:
        trainer = best_by(session, "recall_of_last", compute_metrics)
        trainer.train()
        assert trainer.state.best_metric == 0.5


class AddsAMetric(transformers.TrainerCallback):
    def on_evaluate(self, args, state, control, metrics, **others):
        metrics["eval_mine"] = 0.5


def test_a_best_model_by_a_metric_that_a_callback_adds_is_trained(a_record):
    with Session(a_record(address="", epochs=1).parameters()) as session:
        trainer = best_by(session, "mine")
        trainer.add_callback(AddsAMetric())
        trainer.train()
        assert trainer.state.best_metric == 0.5


@pytest.mark.parametrize("prefix", ["eval", pytest.param("test", marks=pytest.mark.slow)])
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
    published = json.loads(store.get("tiny-reviews-0123/result.json").data)["metrics"]
    assert {name: published[name] for name in published if name not in ("loss", "rows")} == {"f1": 0.5, "recall": 0.25}


class Begins(transformers.TrainerCallback):
    """As a tracker does, which can be used from then on."""

    def __init__(self):
        self.begun = []

    def on_train_begin(self, args, state, control, **others):
        self.begun.append(state.max_steps)


def test_metrics_may_use_what_a_training_has_before_its_first_step(a_record):
    with Session(a_record(address="", epochs=1).parameters()) as session:
        trainer = trainer_of(session, {"epochs": 1, "learning_rate": 1e-3})
        trainer.add_callback(begins := Begins())
        seen = []

        def compute_metrics(prediction):
            state = trainer.state
            seen.append([begins.begun[-1], state.epoch, state.global_step / state.max_steps, trainer.lr_scheduler])
            return {}

        trainer.compute_metrics = compute_metrics
        for training in range(1, 3):
            trainer.train()
            assert len(seen) == training  # rehearsed once
            assert seen[-1] == [2, 0, 0, trainer.lr_scheduler]


@pytest.mark.slow
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
                monkeypatch.setattr(trainers._Rehearsal, "measure", lambda _: None)
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


def test_a_model_that_cannot_be_measured_in_the_end_is_published_without_metrics(a_record, store, capsys):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        assert "precision" not in capsys.readouterr().out  # a loop of one's own computes as it is written
        trainer = trainer_of(session, parameters, eval_strategy="epoch", bf16=False)
        trainer.train()
        trained = trainer.model.classifier.weight.detach().clone()
        trainer.compute_metrics = lambda prediction: {}["never there"]
        with torch.no_grad():
            trainer.model.classifier.bias[0] += 1  # so that it has to be measured again
        session.publish(trainer)
    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
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

    def __init__(self, event):
        setattr(self, event, self.fail)

    def fail(self, args, state, control, logs=(), metrics=(), **others):
        if any(name.startswith("eval_") for name in [*logs, *metrics]):
            raise ConnectionError("tracking server is away")


@pytest.mark.parametrize(
    "event",
    [
        "on_log",
        pytest.param("on_evaluate", marks=pytest.mark.slow),
        pytest.param("log of a subclass", marks=pytest.mark.slow),
    ],
)
def test_what_was_measured_is_published_though_a_tracker_cannot_be_told(a_record, store, event, capsys):
    """The training evaluates nothing, so that publishing does."""
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        away = TrackerAway(event.partition(" ")[0])
        if event.startswith("on_"):
            trainer.add_callback(away)
        else:
            log = trainer.log
            trainer.log = lambda logs, *others: away.fail(None, None, None, logs) or log(logs, *others)
        trainer.train()
        session.publish(trainer)
        with pytest.raises(ConnectionError):
            trainer.evaluate()
    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
    assert result["metrics"]["loss"] > 0
    assert not result.get("note")
    assert "ConnectionError: " in capsys.readouterr().out


def own_rows(session):
    """A user's rows, tokenised by the user: the session is not asked for its own."""
    with_ids = session._loading.rows
    _, tokenizer = session.model()
    part = {name: getattr(with_ids, name) for name in ("train", "held_out")}
    train, held_out = (
        rows.map(lambda row: dict(tokenizer(row["text"], max_length=64, truncation=True))).select_columns(
            ["row_id", "label", "input_ids", "attention_mask"]
        )
        for rows in part.values()
    )
    return train, held_out


@pytest.mark.parametrize("sets", ["one", *(pytest.param(name, marks=pytest.mark.slow) for name in ("several", "none"))])
def test_of_own_rows_the_eval_dataset_is_what_is_published_as_measured(a_record, store, sets):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        train, held_out = own_rows(session)
        assert session._trainers.held_out is None
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


class Worsens(transformers.TrainerCallback):
    """Makes the weights worse in one step, and as good as before in another."""

    def __init__(self, worse, better=None):
        self.by = {worse: 4.0, better: -4.0}

    def on_step_end(self, args, state, control, model=None, **others):
        if by := self.by.get(state.global_step):
            with torch.no_grad():
                model.classifier.bias += torch.tensor([by, -by])


SCORE = {"metric_for_best_model": "score"}


@pytest.mark.parametrize(
    ("worsens", "own", "facts"),
    [
        pytest.param([4], {}, ["step 2", "epoch 1", "loss", "load_best_model_at_end=True"], id="worse"),
        pytest.param([], SCORE, ["step 2", "score", "metric_for_best_model='score'"], id="a score"),
        *(
            pytest.param(worsens, own, [], marks=pytest.mark.slow, id=name)
            for worsens, own, name in [
                ([4], {"load_best_model_at_end": True, "save_strategy": "epoch"}, "the best is loaded"),
                ([2, 3], {}, "the last is the best"),
                ([], {**SCORE, "greater_is_better": False}, "a score that is to be low"),
            ]
        ),
    ],
)
def test_where_an_earlier_evaluation_was_better_the_result_says_which_and_how_to_publish_it(
    a_record, store, worsens, own, facts
):
    with Session(a_record().parameters()) as session:
        trainer = trainer_of(session, {"epochs": 2, "learning_rate": 1e-6}, eval_strategy="epoch", **own)
        if worsens:
            trainer.add_callback(Worsens(*worsens))
        else:
            trainer.compute_metrics = lambda prediction: {"score": 1.0 / (1 + trainer.state.global_step)}
        trainer.train()
        session.publish(trainer)
    note = json.loads(store.get("tiny-reviews-0123/result.json").data).get("note", "")
    assert unnamed(note, *facts) == []
    assert ("was better" in note) is bool(facts)


def test_a_model_below_the_majority_class_baseline_is_published_with_a_note(a_record, store):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        train, held_out = own_rows(session)
        train, held_out = (
            rows.select([*np.flatnonzero(np.array(rows["label"]) == 0), np.argmax(rows["label"])])
            for rows in (train, held_out)
        )
        model, tokenizer = session.model()
        plan = split_dataset_by_node(session.plan(train), 0, 1)
        arguments = TrainingArguments(**session.arguments())
        trainer = Trainer(
            model=model, args=arguments, train_dataset=plan, eval_dataset=held_out, processing_class=tokenizer
        )
        trainer.train()
        with torch.no_grad():
            trainer.model.classifier.weight.zero_()
            trainer.model.classifier.bias.copy_(torch.tensor([0.0, 1.0]))
        session.publish(trainer)
    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
    assert result["metrics"]["accuracy"] == 0.2
    assert "baseline 0.800" in result["note"]
