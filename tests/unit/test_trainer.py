"""A Trainer in a Session: it trains, measures and publishes what the run asks for, or refuses before its first step."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from datasets.distributed import split_dataset_by_node
from transformers import TrainingArguments
from transformers.integrations import KubeflowCallback

from tests.messages import refuses, unnamed
from tests.tiny_session import opened, result_of
from train_func.errors import InvalidInput, StorageFailed
from train_func.wire.events import StepProgress
from train_func.wire.metrics import row_of
from train_func.worker import Session, Trainer
from train_func.worker.rank import end, reporting
from train_func.worker.training.weights import fingerprint


def test_what_is_published_was_measured_on_all_held_out_rows(a_record, store):
    with opened(a_record(epochs=1), eval_strategy="epoch", dataloader_num_workers=1) as (session, trainer):
        trainer.eval_dataset = trainer.eval_dataset.select(range(3))
        trainer.compute_metrics = lambda prediction: {"odd": float("nan"), "shape": prediction.predictions.shape}
        trainer.train()
        assert trainer.evaluations[-1].metrics["rows"] == 3
        session.publish(trainer)
    result = result_of(store)
    assert result["metrics"] | {"loss": 0} == {"odd": None, "shape": [8, 2], "rows": 8, "loss": 0}
    assert result["audit"]["training"] == [{"rows": 32, "used_once": 32, "missing": 0, "repeated": 0}]


def test_evaluations_of_other_rows_are_not_published(a_record, store):
    """As many rows with other ids; the same rows changed; a dict of sets that share the held-out rows."""

    def compute_metrics(prediction):
        return {"seen": [float(np.abs(prediction.predictions).sum()), prediction.label_ids]}

    with opened(a_record(epochs=1)) as (session, trainer):
        trainer.compute_metrics = compute_metrics
        held_out = trainer.eval_dataset
        trainer.train()
        of_held_out = trainer.evaluate()["eval_seen"]
        train, _ = session.data(trainer.processing_class)
        others = train.filter(lambda row: row["label"] == 0).select(range(len(held_out)))
        changed = held_out.map(lambda row: {**row, "input_ids": row["input_ids"][::-1]})
        parts = {"a": held_out.select(range(3)), "b": held_out.select(range(3, len(held_out))), "others": others}
        found = [trainer.evaluate(rows)["eval_seen"] for rows in (others, changed)]
        found += [value for name, value in trainer.evaluate(parts).items() if name.endswith("_seen")]
        assert len(found) == 5
        assert of_held_out not in found
        num_evaluations = len(trainer.evaluations)
        session.publish(trainer)
        assert len(trainer.evaluations) == num_evaluations  # the first one is still true
    result = result_of(store)
    assert result["metrics"]["seen"] == of_held_out
    assert result["audit"]["held_out"]["rows"] == 8


def changed_by_data(model):
    model.classifier.weight.data.mul_(2)


def changed_in_one_value(model):
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight[2, 1] += 50


@pytest.mark.parametrize("change", [changed_by_data, changed_in_one_value])
def test_weights_that_changed_after_their_evaluation_are_measured_again(a_record, store, change):
    with opened(a_record(epochs=1)) as (session, trainer):
        held_out = trainer.eval_dataset
        trainer.eval_dataset = {"first": held_out.select(range(3)), "whole": held_out}
        trainer.train()
        before = trainer.evaluate()
        change(trainer.model)
        session.publish(trainer)
        after = trainer.evaluate()
    result = result_of(store)
    assert before["eval_whole_loss"] != after["eval_whole_loss"] == result["metrics"]["loss"]


def test_a_loss_that_is_not_finite_stops_the_training_with_step_and_rows(a_record):
    with opened(a_record(address="")) as (_, trainer):
        with torch.no_grad():
            trainer.model.classifier.bias.fill_(3e38)[0] = -3e38
        with pytest.raises(InvalidInput, match=r"row ids: \d+, ") as refused:
            trainer.train()
    assert unnamed(refused.value, "step 1 of 4", "inf", "learning_rate=0.001") == []


def test_a_trainer_without_arguments_is_refused_before_transformers_makes_its_own(a_record, tmp_path, monkeypatch):
    """Those have nothing of the run; with them the gradients would count once per rank."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with Session(a_record(epochs=3).parameters()) as session:
        model, tokenizer = session.model()
        train, _ = session.data(tokenizer)
        plan = split_dataset_by_node(session.plan(train), session.rank, session.world_size)
        with pytest.raises(InvalidInput, match=r"TrainingArguments\(\*\*session.arguments\(\)\)") as refused:
            Trainer(model=model, train_dataset=plan, processing_class=tokenizer)
    assert refused.value.cause == "code"
    assert not list(Path.cwd().iterdir())


def test_a_learning_rate_other_than_the_runs_is_told(a_record, capsys):
    with opened(a_record(epochs=1), learning_rate=5e-5) as (_, trainer):
        trainer.train()
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "learning_rate" in line)
    assert all(part in note for part in ("note:", "5e-05", "0.001", "session.arguments()"))


def test_tensorboard_writes_where_the_supervisor_keeps_it(a_record, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_WORK_DIR", str(tmp_path))
    with opened(a_record(epochs=1), report_to="tensorboard") as (_, trainer):
        trainer.train()
    assert list((tmp_path / "runs").glob("events*"))
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ
    assert not list(tmp_path.glob("session-*"))


@pytest.mark.parametrize(
    "saves, loaded",
    [
        ({"save_strategy": "best", "eval_steps": 1}, 3),
        ({"save_strategy": "steps", "eval_steps": 1, "save_steps": 2}, 2),
    ],
)
def test_the_best_step_is_the_one_whose_weights_were_loaded(a_record, store, capsys, saves, loaded):
    """Step 3 is the best, evaluated in both cases, and saved in the first one alone."""
    best = {"load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": True}
    with opened(a_record(), eval_strategy="steps", **best, **saves) as (session, trainer):
        trainer.compute_metrics = lambda _: {"score": -abs(trainer.state.global_step - 3)}
        trainer.add_callback(measuring := MeasuresAtThree())
        trainer.train()
        assert fingerprint(trainer.model) == measuring.weights[loaded]
        session.publish(trainer)
    assert result_of(store)["audit"]["best_step"] == loaded
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: the weights"))
    assert f"of step {loaded} " in note
    assert "step 3" in note  # that it was better is no secret


class MeasuresAtThree(transformers.TrainerCallback):
    """As one does that has a reason of its own to evaluate; keeps what weights each step had."""

    def __init__(self):
        self.weights = {}

    def on_step_end(self, args, state, control, model, **others):
        self.weights[state.global_step] = fingerprint(model)
        if state.global_step == 3:
            control.should_evaluate = True


def test_a_best_model_that_there_is_not_is_told(a_record, store, capsys):
    """The training ends before its first evaluation."""
    steps = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
    with opened(a_record(), **steps, load_best_model_at_end=True) as (session, trainer):
        trainer.add_callback(StopsAfterTwo())
        trainer.train()
        trainer.evaluate()
        session.publish(trainer)
    assert "best_step" not in result_of(store)["audit"]
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "load_best_model_at_end" in line)
    assert "step 2" in note


def test_training_that_has_not_ended_is_not_published(a_record, store):
    with opened(a_record()) as (session, trainer):
        with pytest.raises(InvalidInput, match="step 0 .*trainer.train"):
            session.publish(trainer)
        trainer.add_callback(StopsAfterTwo(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        with pytest.raises(InvalidInput, match="after step 2 of 4"):
            session.publish(trainer)
    assert not store.list("tiny-reviews-0123/model/")
    assert end.here == end.Sessions(opened=True, num_trainings=1)


def test_a_training_that_a_callback_ends_early_is_published(a_record, store):
    with opened(a_record()) as (session, trainer):
        trainer.add_callback(StopsAfterTwo())
        trainer.train()
        session.publish(trainer)
    result = json.loads(store.get("tiny-reviews-0123/model/manifest.json").data)
    assert (result["step"], result["num_steps"]) == (2, trainer.state.max_steps)
    assert trainer.state.max_steps > 2


class StopsAfterTwo(transformers.TrainerCallback):
    """By the way that callbacks have, or by an exception."""

    def __init__(self, error=None):
        self.error = error

    def on_step_end(self, args, state, control, **others):
        if state.global_step == 2 and self.error:
            raise self.error
        control.should_training_stop = state.global_step == 2


class EndsEpochs(transformers.TrainerCallback):
    """After these steps."""

    def __init__(self, steps):
        self.steps = steps

    def on_step_end(self, args, state, control, **others):
        control.should_epoch_stop = state.global_step in self.steps


@pytest.mark.parametrize(
    "ended_after, counted, num_steps",
    [
        ([2], [2, 3], 10),
        ([2, 6], [2, 3], 10),  # asked to end where it ends, an epoch is whole
    ],
)
def test_epochs_that_a_callback_ends_early_are_not_counted_and_all_others_are(
    a_record, store, capsys, monkeypatch, ended_after, counted, num_steps
):
    events = []
    monkeypatch.setattr(reporting, "_sink", [lambda event: (events.append(event), reporting._print(event))])
    with opened(a_record(epochs=3, batch_size=8)) as (session, trainer):  # 4 steps each
        trainer.add_callback(EndsEpochs(ended_after))
        trainer.train()
        assert trainer.state.global_step == num_steps
        session.publish(trainer)
    once = {"rows": 32, "used_once": 32, "missing": 0, "repeated": 0}
    assert result_of(store)["audit"]["training"] == [once] * len(counted)
    lines = capsys.readouterr().out.splitlines()
    audited = [line.split()[1] for line in lines if line.startswith("audit epoch=")]
    assert audited == [f"epoch={epoch}" for epoch in counted]
    told = [re.search(r"\bepoch (\d)", line) for line in lines if line.startswith("note:") and "early" in line]
    assert [found[1] for found in told] == [str(epoch) for epoch in (1, 2, 3) if epoch not in counted]
    expected, epoch, num_done = [], 0, 0
    for step in range(1, num_steps + 1):
        num_done += 1
        expected.append(epoch + num_done / 4)
        if step in ended_after or num_done == 4:
            epoch, num_done = epoch + 1, 0
    assert [event.epoch for event in events if isinstance(event, StepProgress)] == expected


@pytest.mark.parametrize("name", ["learning_rate", "grad_norm"])
def test_the_history_has_what_transformers_logs_of_each_step(a_record, monkeypatch, name):
    events = []
    monkeypatch.setattr(reporting, "_sink", [events.append])
    with opened(a_record(epochs=2), logging_strategy="steps", logging_steps=1, warmup_steps=3) as (_, trainer):
        trainer.train()
        logged = [log[name] for log in trainer.state.log_history if name in log]
    rows = [row for event in events if (row := row_of(event)) and "loss" in row.values]
    assert [row.values[name] for row in rows] == logged
    assert len({*logged}) > 2


@pytest.mark.parametrize("is_heard", [True, False])
def test_in_a_trainjob_its_progress_is_posted_by_the_supervisor_or_where_there_is_none_by_transformers(
    a_record, store, monkeypatch, is_heard
):
    monkeypatch.setenv("KUBEFLOW_TRAINER_SERVER_URL", "https://127.0.0.1:9")
    monkeypatch.setattr(reporting, "_sink", [print if is_heard else reporting._print])
    with opened(a_record()) as (_, trainer):
        callbacks = [type(callback) for callback in trainer.callback_handler.callbacks]
    assert (KubeflowCallback in callbacks) is not is_heard


def test_what_cannot_be_published_is_not_trained(a_record, store):
    """What would refuse a model after its training refuses it before the first step."""
    with opened(a_record()) as (session, trainer):
        trainer.model.save_pretrained = None
        with pytest.raises(InvalidInput, match=r"BertForSequenceClassification.* save_pretrained.* session\.steps"):
            trainer.train()
        del trainer.model.save_pretrained
        trainer.processing_class = object()
        with pytest.raises(InvalidInput, match="processing_class|save_pretrained"):
            trainer.train()
        trainer.processing_class = None
        trainer.args.enable_jit_checkpoint = True  # which makes a stopped training look like one that has ended
        with pytest.raises(InvalidInput, match="enable_jit_checkpoint=True"):
            trainer.train()
        trainer.args.enable_jit_checkpoint = False
        store.put("tiny-reviews-0123/result.json", b'{"format": 1, "attempt": 99, "files": {}}')
        with pytest.raises(StorageFailed, match="attempt 99") as refused:
            trainer.train()
        assert refused.value.reason == "conflict"
        assert trainer.state.global_step == 0
        with pytest.raises(InvalidInput, match="after step 0"):
            session.publish(trainer)


class OfTheirs(transformers.Trainer):
    """As a library or a user derives one."""


def of_transformers(session, kind, **others):
    model, tokenizer = session.model()
    train, held_out = session.data(tokenizer)
    arguments = TrainingArguments(**{**session.arguments(), **others})
    return kind(model, arguments, train_dataset=train, eval_dataset=held_out, processing_class=tokenizer)


@pytest.mark.parametrize("kind", [transformers.Trainer, OfTheirs])
def test_a_trainer_of_transformers_is_refused_before_its_first_step_with_the_import_to_change(a_record, store, kind):
    with Session(a_record().parameters()) as session:
        trainer = of_transformers(session, kind)
        for use in (trainer.train, lambda: session.publish(trainer)):
            with refuses(kind.__name__, "from train_func.worker import Trainer", "session.plan", cause="code"):
                use()
        assert trainer.state.global_step == 0
    assert not store.list("tiny-reviews-0123/model/")


def test_one_that_was_trained_before_the_session_is_not_published_by_it(a_record, store):
    parameters = a_record().parameters()
    with Session(parameters) as session:
        trainer = of_transformers(session, transformers.Trainer, max_steps=1)
    trainer.train()
    assert trainer.state.global_step == 1  # without a Session it is any function
    with Session(parameters) as session, pytest.raises(InvalidInput, match="from train_func.worker import Trainer"):
        session.publish(trainer)
    assert not store.list("tiny-reviews-0123/model/")
