"""A Session in one plain process: the function of the notebook called as it is, and what is refused on the way."""

import csv
import dataclasses
import json
import os
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from transformers import TrainingArguments

from tests.halves import find_text_model
from tests.messages import unnamed
from tests.runs import a_run
from tests.tiny_model import write_tiny_model
from train_func.errors import InvalidInput, StorageFailed
from train_func.events import RowsAudited, StepProgress
from train_func.exits import FENCED, MODEL, Exit, exit_of
from train_func.records import Lease, Numerics, RunRecord
from train_func.run import Run
from train_func.storage import open_store
from train_func.worker import Session, Trainer
from train_func.worker.rank import end, reporting, world
from train_func.worker.training.arguments import logging_steps_of
from train_func.worker.training.plan import facts_of, row_ids_of
from train_func.worker.training.weights import fingerprint

WORDS = {"bad": "terrible cold rude", "good": "tasty fresh friendly"}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """40 texts whose words give their class away."""
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(40):
            label = ("bad", "good")[number % 2]
            writer.writerow([f"the food was {'really ' * (number % 7)}{WORDS[label]} number {number}", label])
    return path


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in list(os.environ):
        if name.startswith("TRAIN_FUNC_") and name != "TRAIN_FUNC_TEST_DATA":
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(end, "here", end.Sessions())


@pytest.fixture
def store(tmp_path):
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def a_record(model_folder, reviews, store):
    def make(address=None, **fields):
        settings = {"model": str(model_folder), "dataset": str(reviews), "epochs": 2, "learning_rate": 1e-3}
        return RunRecord(
            run=a_run(**(settings | fields)),
            name="tiny-reviews-0123",
            generation=1,
            store=store.address if address is None else address,
            function="train_func",
            source_sha256="00",
        )

    return make


def trainer_of(session, parameters, kind=Trainer, **changes):
    model, tokenizer = session.model()
    train, held_out = session.data(tokenizer)
    data = split_dataset_by_node(session.plan(train), session.rank, session.world_size)
    of_run = {"num_train_epochs": parameters["epochs"], "learning_rate": parameters["learning_rate"]}
    return kind(
        model=model,
        args=TrainingArguments(**{**session.arguments(), **of_run, **changes}),
        train_dataset=data,
        eval_dataset=held_out,
        processing_class=tokenizer,
    )


def train_func(parameters):
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        trainer.train()
        session.publish(trainer)
        return trainer


def test_the_function_can_be_called_as_it_is_and_publishes_a_usable_model(a_record, store, tmp_path, capsys):
    store.put("tiny-reviews-0123/source/source.py", b"def train_func(parameters): ...\n")
    store.put("tiny-reviews-0123/source/cells.json", b"{}")
    trained = train_func(a_record(epochs=3).parameters()).model

    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
    assert (result["attempt"], result["step"], result["num_steps"]) == (1, 6, 6)
    assert result["metrics"]["rows"] == 8
    once = {"rows": 32, "used_once": 32, "missing": 0, "repeated": 0}
    measured = {"rows": 8, "in_metric_once": 8, "missing": 0, "repeated": 0}
    assert result["audit"] == {"world_size": 1, "training": [once] * 3, "held_out": measured}
    assert end.here == end.Sessions(opened=True, published=True, trained=True, num_trainings=1)

    folder = tmp_path / "fetched"
    folder.mkdir()
    for entry in store.list("tiny-reviews-0123/model/"):
        store.download(entry.key, folder / Path(entry.key).name)
    names = {path.name for path in folder.iterdir()}
    assert {"source.py", "cells.json", "run.json", "versions.json", "metrics.json", "manifest.json"} <= names
    assert not list(folder.glob("*.bin"))
    assert json.loads((folder / "metrics.json").read_text()) == result["metrics"]
    assert RunRecord.from_dict(json.loads((folder / "run.json").read_text())) == a_record(epochs=3)
    classify = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    assert torch.equal(classify.model.classifier.weight, trained.classifier.weight)
    assert {found["label"] for found in classify(list(WORDS.values()), top_k=None)[0]} == set(WORDS)

    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"published attempt=1 model={store.address}/tiny-reviews-0123/model"
    used = {"rows": 32, "used_once": 32, "missing": 0, "repeated": 0}
    measured = {"rows": 8, "in_metric_once": 8, "missing": 0, "repeated": 0}
    assert str(RowsAudited(what="epoch=3", counts=used, world_size=1)) in lines
    assert str(RowsAudited(what="held_out", counts=measured, world_size=1)) in lines


def test_the_same_run_gives_the_same_weights(a_record):
    def weights(seed):
        record = a_record(seed=seed, address="")
        with Session(record.parameters()) as session:
            trainer = trainer_of(session, record.parameters())
            trainer.train()
            return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_run_that_has_its_result_is_not_trained_again(a_record, store):
    train_func(a_record().parameters())
    published = store.get("tiny-reviews-0123/model/manifest.json").data
    with pytest.raises(InvalidInput) as refused:
        train_func(a_record().parameters())
    assert unnamed(refused.value, "tiny-reviews-0123", "fresh=True") == []
    assert store.get("tiny-reviews-0123/model/manifest.json").data == published


def test_without_a_supervisor_a_session_takes_the_next_attempt(a_record):
    numbers = []
    for _ in range(2):
        with Session(a_record().parameters()) as session:
            numbers.append(session.attempt)
    assert numbers == [1, 2]


def test_what_is_published_was_measured_on_all_held_out_rows(a_record, store):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters, eval_strategy="epoch", dataloader_num_workers=1)
        trainer.eval_dataset = trainer.eval_dataset.select(range(3))
        trainer.compute_metrics = lambda prediction: {"odd": float("nan"), "shape": prediction.predictions.shape}
        trainer.train()
        assert trainer.evaluations[-1].metrics["rows"] == 3
        session.publish(trainer)
    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
    assert result["metrics"] | {"loss": 0} == {"odd": None, "shape": [8, 2], "rows": 8, "loss": 0}
    assert result["audit"]["training"] == [{"rows": 32, "used_once": 32, "missing": 0, "repeated": 0}]


def test_the_attempt_is_the_one_the_supervisor_names(a_record, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_ATTEMPT", "7")
    with Session(a_record().parameters()) as session:
        assert session.attempt == 7


def test_the_probe_is_kept_for_all_attempts(a_record, store):
    key = "tiny-reviews-0123/numerics.json"
    kept = Numerics(precision="bf16", num_micro_batches=5, micro_batch_size=4, device="another")
    store.put(key, kept.to_json())
    with Session(a_record(micro_batch_size=8).parameters()) as session:
        assert session.arguments()["bf16"] is True
        assert session.arguments()["gradient_accumulation_steps"] == 5
        assert session.arguments()["per_device_train_batch_size"] == 4
    setup = json.loads(store.get("tiny-reviews-0123/attempts/1/setup.json").data)
    assert (setup["workers"], setup["world_size"], setup["numerics"]["num_micro_batches"]) == (2, 1, 5)
    assert {"python", "torch", "transformers", "datasets", "train_func"} <= set(setup["versions"])
    assert setup["machine"]["cpus"] == str(os.cpu_count())


def test_more_ranks_than_micro_batches_are_refused_with_the_remedy(a_record, store, monkeypatch):
    kept = Numerics(precision="fp32", num_micro_batches=1, micro_batch_size=16, device="another")
    store.put("tiny-reviews-0123/numerics.json", kept.to_json())
    monkeypatch.setattr(world, "size", lambda: 2)
    monkeypatch.setattr(world, "gather", lambda value: [value, value])
    with pytest.raises(InvalidInput, match="2 ranks.* 1 micro-batches"):
        Session(a_record(micro_batch_size=16).parameters()).__enter__()


def ranks_of(monkeypatch, num):
    """As if this process were one of so many ranks that all do the same."""
    monkeypatch.setattr(world, "size", lambda: num)
    monkeypatch.setattr(world, "gather", lambda value: [value] * num)


def test_more_ranks_than_rows_of_a_global_batch_are_refused_before_anything_is_recorded(a_record, store, monkeypatch):
    ranks_of(monkeypatch, 4)
    with pytest.raises(InvalidInput) as refused:
        Session(a_record(workers=2, batch_size=3).parameters()).__enter__()
    assert unnamed(refused.value, "4 ranks", "batch_size=3") == []
    assert store.list("tiny-reviews-0123/numerics.json") == []


@pytest.mark.parametrize(("workers", "num_ranks", "cut"), [(1, 1, 2), (3, 1, 3), (1, 4, 4), (3, 4, 4), (4, 2, 4)])
def test_a_batch_is_cut_for_the_ranks_asked_for_or_for_those_there_are_if_they_are_more(
    a_record, monkeypatch, workers, num_ranks, cut
):
    ranks_of(monkeypatch, num_ranks)
    with Session(a_record(workers=workers, batch_size=16, micro_batch_size=8).parameters()) as session:
        assert session.numerics.num_micro_batches == cut


def test_the_model_knows_the_labels_and_the_rows_have_ids(a_record):
    with Session(a_record().parameters()) as session:
        model, tokenizer = session.model()
        train, held_out = session.data(tokenizer)
        assert model.config.id2label == {0: "bad", 1: "good"} == dict(enumerate(session.labels))
        assert sorted([*row_ids_of(train), *row_ids_of(held_out)]) == list(range(40))
        assert facts_of(session.plan(train)).num_epochs == 2
        assert (session.rank, session.world_size) == (0, 1)


def test_a_rank_holds_no_rows_that_it_has_encoded(a_record, tmp_path):
    texts = [f"{WORDS[('bad', 'good')[row % 2]]} {row} {'word ' * 2_000}" for row in range(101)]
    path = tmp_path / "long.csv"
    path.write_text("text,label\n" + "".join(f"{text},{('bad', 'good')[row % 2]}\n" for row, text in enumerate(texts)))
    with Session(a_record(address="", dataset=str(path)).parameters()) as session:
        before = pa.total_allocated_bytes()
        _, tokenizer = session.model()
        encoded = session.data(tokenizer)
        held = pa.total_allocated_bytes() - before
    assert all(map(len, encoded))
    assert held < path.stat().st_size / 2


def test_metrics_that_are_no_dict_are_refused_before_the_first_step(a_record):
    with Session(a_record(epochs=1).parameters()) as session:
        trainer = trainer_of(session, {"epochs": 1, "learning_rate": 1e-3})
        trainer.compute_metrics = lambda prediction: [0.5, 0.7]
        with pytest.raises(InvalidInput, match=r"compute_metrics.*\[0.5, 0.7\].*dict"):
            trainer.train()
        assert trainer.state.global_step == 0


def test_compute_metrics_gets_every_row_in_order(a_record):
    seen = []

    def compute_metrics(prediction):
        seen.append(prediction)
        return {"half": np.float32(0.5)}

    with Session(a_record(address="").parameters()) as session:
        trainer = trainer_of(session, {"epochs": 2, "learning_rate": 1e-3})
        trainer.compute_metrics = compute_metrics
        metrics = trainer.evaluate()
        assert metrics["eval_half"] == 0.5
        assert "eval_accuracy" not in metrics
        assert seen[0].label_ids.tolist() == trainer.eval_dataset["label"][:]
        one_by_one = [trainer.evaluate(trainer.eval_dataset.select([i]))["eval_loss"] for i in range(8)]
        assert metrics["eval_loss"] == pytest.approx(np.mean(one_by_one), rel=1e-2)  # bfloat16 where the CPU has it
        assert seen[0].predictions.shape == (8, 2)


@pytest.mark.parametrize("is_given", [True, False])
def test_a_checkpoint_without_an_optimizer_is_told_of(a_record, capsys, is_given):
    with Session(a_record().parameters()) as session:
        model = torch.nn.Linear(1, 1)
        session.checkpoint(model, *([torch.optim.AdamW(model.parameters())] if is_given else []))
    assert ("no optimizer" in capsys.readouterr().out) is not is_given


def test_what_a_second_call_would_leave_out_of_the_checkpoints_is_refused(a_record):
    with Session(a_record().parameters()) as session:
        model = torch.nn.Linear(1, 1)
        session.checkpoint(model)
        with pytest.raises(InvalidInput, match="again before session.steps") as refused:
            session.checkpoint(torch.optim.AdamW(model.parameters()))
    assert refused.value.cause == "code"


@pytest.mark.parametrize("is_given", [True, False])
def test_a_checkpoint_within_the_loop_is_refused_and_one_for_the_next_loop_is_not(a_record, is_given):
    with Session(a_record(epochs=1).parameters()) as session:
        plan = split_dataset_by_node(session.plan(Dataset.from_dict({"x": [0.0] * 40})), 0, 1)
        model = torch.nn.Linear(1, 1)
        if is_given:
            session.checkpoint(model)
        for _ in session.steps(plan):
            with pytest.raises(InvalidInput, match="within the loop") as refused:
                session.checkpoint(model)
            break
        assert refused.value.cause == "code"
        session.checkpoint(model)


@pytest.mark.parametrize(
    ("attempt", "is_saved", "reasons"),
    [("1", True, []), ("1", False, []), ("2", True, ["has no checkpoint"]), ("2", False, ["session.checkpoint was"])],
)
def test_a_later_attempt_that_finds_no_checkpoint_says_that_it_begins_at_step_1_and_why(
    a_record, monkeypatch, capsys, attempt, is_saved, reasons
):
    monkeypatch.setenv("TRAIN_FUNC_ATTEMPT", attempt)
    with Session(a_record(epochs=1).parameters()) as session:
        plan = split_dataset_by_node(session.plan(Dataset.from_dict({"x": [0.0] * 40})), 0, 1)
        model = torch.nn.Linear(1, 1)
        if is_saved:
            session.checkpoint(model, torch.optim.AdamW(model.parameters()))
        for step in session.steps(plan):
            assert step.number == 1
            break
    said = [line for line in capsys.readouterr().out.splitlines() if "begins at step 1" in line]
    assert [reason for line, reason in zip(said, reasons, strict=True) if reason not in line] == []


def wait_for_saves():
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


def test_a_loop_ends_when_a_later_attempt_has_begun_and_saves_nothing_from_then_on(a_record, store, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_ATTEMPT", "1")
    record, saved = a_record(epochs=3, batch_size=8, checkpoint_every=0), []
    with pytest.raises(StorageFailed) as ended, Session(record.parameters()) as session:
        plan = split_dataset_by_node(session.plan(Dataset.from_dict({"x": [0.0] * 40})), 0, 1)
        model = torch.nn.Linear(1, 1)
        session.checkpoint(model, torch.optim.AdamW(model.parameters()))
        for step in session.steps(plan):
            wait_for_saves()
            if step.number == 4:
                saved += store.list(f"{record.keys.checkpoints}/")
                store.put(record.keys.attempt(2).lease, Lease(attempt=2).to_json())
            assert step.number < 7
    assert exit_of(ended.value).code == FENCED
    assert saved
    manifests = [entry for entry in store.list(f"{record.keys.checkpoints}/") if "manifest" in entry.key]
    assert manifests == [entry for entry in saved if "manifest" in entry.key]
    monkeypatch.setattr(end, "here", end.Sessions())
    with Session(record.parameters()) as session, pytest.raises(StorageFailed) as ended:  # before it trains
        session.checkpoint(model, torch.optim.AdamW(model.parameters()))
    assert exit_of(ended.value).code == FENCED


def test_rows_without_numbers_of_their_own_are_measured_by_their_places(a_record):
    with Session(a_record(address="").parameters()) as session:
        trainer = trainer_of(session, {"epochs": 1, "learning_rate": 1e-3})
        trainer.compute_metrics = lambda prediction: {"labels": prediction.label_ids.tolist()}
        unnumbered = trainer.eval_dataset.remove_columns(["row_id"])
        assert trainer.evaluate(unnumbered)["eval_labels"] == unnumbered["label"][:]


def test_evaluations_of_other_rows_are_not_published(a_record, store):
    """As many rows with other ids; the same rows changed; a dict of sets that share the held-out rows."""
    parameters = a_record(epochs=1).parameters()

    def compute_metrics(prediction):
        return {"seen": [float(np.abs(prediction.predictions).sum()), prediction.label_ids]}

    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
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
    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
    assert result["metrics"]["seen"] == of_held_out
    assert result["audit"]["held_out"]["rows"] == 8


def changed_in_place(model):
    with torch.no_grad():
        model.classifier.bias[0] += 1


def changed_by_data(model):
    model.classifier.weight.data.mul_(2)


def changed_in_one_value(model):
    with torch.no_grad():
        model.bert.embeddings.position_embeddings.weight[2, 1] += 50


@pytest.mark.parametrize("change", [changed_in_place, changed_by_data, changed_in_one_value])
def test_weights_that_changed_after_their_evaluation_are_measured_again(a_record, store, change):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        held_out = trainer.eval_dataset
        trainer.eval_dataset = {"first": held_out.select(range(3)), "whole": held_out}
        trainer.train()
        before = trainer.evaluate()
        change(trainer.model)
        session.publish(trainer)
        after = trainer.evaluate()
    result = json.loads(store.get("tiny-reviews-0123/result.json").data)
    assert before["eval_whole_loss"] != after["eval_whole_loss"] == result["metrics"]["loss"]


def test_evaluating_nothing_is_refused(a_record):
    parameters = a_record(address="").parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        trainer.eval_dataset = None
        with pytest.raises(InvalidInput, match="NoneType.*datasets.Dataset"):
            trainer.evaluate()


def test_a_loss_that_is_not_finite_stops_the_training_with_step_and_rows(a_record):
    parameters = a_record(address="").parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        with torch.no_grad():
            trainer.model.classifier.bias.fill_(3e38)[0] = -3e38
        with pytest.raises(InvalidInput, match=r"row ids: \d+, ") as refused:
            trainer.train()
    assert unnamed(refused.value, "step 1 of 4", "inf", "learning_rate=0.001") == []


class EndsIn(transformers.TrainerCallback):
    """Ends the attempt in a step, when the state from before it is saved."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **others):
        if state.global_step == self.step:
            wait_for_saves()
            raise ZeroDivisionError


def test_what_a_collator_refuses_is_told_in_its_own_words_also_by_an_attempt_that_goes_on_within_an_epoch(
    a_record, capsys, monkeypatch
):
    class Refuses(transformers.TrainerCallback):
        def on_epoch_begin(self, args, state, control, **others):
            trains.append(True)

    def collate(features):
        if trains:
            raise InvalidInput("the picture of row 5 cannot be read", cause="data")
        return collate_sound(features)

    trains = []
    parameters = a_record(checkpoint_every=0).parameters()
    with pytest.raises(ZeroDivisionError), Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        trainer.add_callback(EndsIn(1))
        trainer.train()
    monkeypatch.setattr(end, "here", end.Sessions())  # as in another process
    with pytest.raises(InvalidInput, match="picture of row 5") as refused, Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        trainer.data_collator, collate_sound = collate, trainer.data_collator
        trainer.add_callback(Refuses())
        trainer.train()
    assert refused.value.cause == "data"
    assert "behind step 1" in capsys.readouterr().out


def test_arguments_are_those_of_the_run_with_others_beside_them(a_record):
    with Session(a_record(address="").parameters()) as session:
        called = session.arguments(save_strategy="epoch", report_to="none", num_train_epochs=2, seed=42)
        assert TrainingArguments(**called).save_strategy == "epoch"
        assert {**session.arguments(), "save_strategy": "epoch"} == called
        assert (called["num_train_epochs"], called["learning_rate"], called["seed"]) == (2, 1e-3, 42)
        assert session.arguments(learning_rate=0.5)["learning_rate"] == 0.5
        for no_tracker in ({}, {"report_to": "none"}, {"report_to": []}):
            assert "logging_steps" not in session.arguments(**no_tracker)
        for tracker in ("tensorboard", ["mlflow"]):  # need not be installed to be asked for
            tracked = session.arguments(report_to=tracker)
            assert (tracked["logging_strategy"], tracked["logging_steps"]) == ("steps", 0.01)
        for asked, every in (({}, 0), ({"logging_steps": 3}, 3), ({"logging_steps": 0.05}, 21)):
            assert logging_steps_of(TrainingArguments(**session.arguments(**asked)), num_steps=401) == every
        with pytest.raises(InvalidInput) as refused:
            session.arguments(seed=1, max_steps=5, gradient_accumulation_steps=8, output_dir="mine", bf16=True)
        assert len(refused.value.faults) == 4
        for name in ("seed=1", "max_steps=5", "gradient_accumulation_steps=8", "output_dir='mine'"):
            assert any(name in fault for fault in refused.value.faults)


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


def test_epochs_other_than_the_runs_are_refused_with_the_remedy(a_record, tmp_path):
    """As TrainingArguments has them of itself, when the user names none."""
    with Session(a_record(epochs=1).parameters()) as session:
        own = TrainingArguments(str(tmp_path))
        trainer = trainer_of(session, {"epochs": own.num_train_epochs, "learning_rate": 1e-3})
        with pytest.raises(InvalidInput) as refused:
            trainer.train()
        assert unnamed(refused.value, "num_train_epochs=3.0", 1, "**session.arguments()") == []
        assert trainer.state.global_step == 0


def test_what_the_session_gives_when_called_is_the_training_that_the_run_asks_for(a_record, capsys):
    with Session(a_record(epochs=1, learning_rate=2e-3).parameters()) as session:
        trainer = trainer_of(session, {"epochs": 9, "learning_rate": 9}, **session.arguments())
        trainer.train()
        assert (trainer.state.max_steps, trainer.args.learning_rate) == (2, 2e-3)
    assert "learning_rate" not in capsys.readouterr().out


def test_a_learning_rate_other_than_the_runs_is_told(a_record, capsys):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        trainer_of(session, parameters, learning_rate=5e-5).train()
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "learning_rate" in line)
    assert all(part in note for part in ("note:", "5e-05", "0.001", "session.arguments()"))


def test_tensorboard_writes_where_the_supervisor_keeps_it(a_record, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_WORK_DIR", str(tmp_path))
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters, report_to="tensorboard")
        trainer.train()
    assert list((tmp_path / "runs").glob("events*"))
    assert "TENSORBOARD_LOGGING_DIR" not in os.environ
    assert not list(tmp_path.glob("session-*"))


@pytest.mark.parametrize("metric", ["f1", "eval_bleu"])
def test_a_best_model_by_an_unknown_metric_is_refused_before_the_first_step(a_record, metric):
    parameters = a_record().parameters()
    with Session(parameters) as session:
        best = {"eval_strategy": "epoch", "load_best_model_at_end": True, "metric_for_best_model": metric}
        trainer = trainer_of(session, parameters, **session.arguments(save_strategy="epoch", **best))
        with pytest.raises(InvalidInput, match=f"'{metric}'.* accuracy, loss, rows"):
            trainer.train()
        assert trainer.state.global_step == 0


@pytest.mark.parametrize(
    "saves, loaded",
    [
        ({"save_strategy": "best", "eval_steps": 1}, 3),
        ({"save_strategy": "steps", "eval_steps": 1, "save_steps": 2}, 2),
    ],
)
def test_the_best_step_is_the_one_whose_weights_were_loaded(a_record, store, capsys, saves, loaded):
    """Step 3 is the best, evaluated in both cases, and saved in the first one alone."""
    parameters = a_record().parameters()
    with Session(parameters) as session:
        best = {"load_best_model_at_end": True, "metric_for_best_model": "score", "greater_is_better": True}
        trainer = trainer_of(session, parameters, eval_strategy="steps", **best, **saves)
        trainer.compute_metrics = lambda _: {"score": -abs(trainer.state.global_step - 3)}
        trainer.add_callback(measuring := MeasuresAtThree())
        trainer.train()
        assert fingerprint(trainer.model) == measuring.weights[loaded]
        session.publish(trainer)
    assert json.loads(store.get("tiny-reviews-0123/result.json").data)["audit"]["best_step"] == loaded
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
    parameters = a_record(epochs=2).parameters()
    with Session(parameters) as session:
        steps = {"eval_strategy": "steps", "eval_steps": 3, "save_strategy": "steps", "save_steps": 3}
        trainer = trainer_of(session, parameters, **steps, load_best_model_at_end=True)
        trainer.add_callback(StopsAfterTwo())
        trainer.train()
        trainer.evaluate()
        session.publish(trainer)
    assert "best_step" not in json.loads(store.get("tiny-reviews-0123/result.json").data)["audit"]
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "load_best_model_at_end" in line)
    assert "step 2" in note


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"num_train_epochs": 3}, ["num_train_epochs=3", "expected 2"]),
        ({"gradient_accumulation_steps": 3, "num_train_epochs": 3}, ["2 faults", "accumulation", "epochs"]),
    ],
)
def test_arguments_that_do_not_fit_the_plan_are_refused_before_the_first_step(a_record, changes, named):
    parameters = a_record(address="").parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters, **changes)
        with pytest.raises(InvalidInput) as refused:
            trainer.train()
        assert all(word in str(refused.value) for word in named), refused.value
        assert trainer.state.global_step == 0


def test_training_that_has_not_ended_is_not_published(a_record, store):
    parameters = a_record().parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
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
    parameters = a_record().parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
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


def test_ranks_exchange_what_callbacks_ask_for_only_where_a_callback_may_ask_one_rank_alone(a_record, monkeypatch):
    """Every exchange waits for the device."""

    def num_exchanges(*callbacks):
        exchanges = []
        monkeypatch.setattr(world, "total", lambda value: exchanges.append(value) or value)
        with Session(a_record(epochs=1, batch_size=8).parameters()) as session:
            trainer = trainer_of(session, {"epochs": 1, "learning_rate": 1e-3})
            for callback in callbacks:
                trainer.add_callback(callback)
            trainer.train()
        return len(exchanges), trainer.state.global_step

    usual, num_steps = num_exchanges()
    alike, _ = num_exchanges(transformers.ProgressCallback())
    own, _ = num_exchanges(EndsEpochs([]))
    assert usual == alike
    assert own - usual >= num_steps > 0


@pytest.mark.parametrize(
    "ended_after, counted, num_steps",
    [
        ([2], [2, 3], 10),
        pytest.param([2, 4, 6], [], 6, marks=pytest.mark.slow),
        pytest.param([4, 6], [1, 3], 10, marks=pytest.mark.slow),
        ([2, 6], [2, 3], 10),  # asked to end where it ends, an epoch is whole
    ],
)
def test_epochs_that_a_callback_ends_early_are_not_counted_and_all_others_are(
    a_record, store, capsys, monkeypatch, ended_after, counted, num_steps
):
    events = []
    monkeypatch.setattr(reporting, "_sink", [lambda event: (events.append(event), reporting._print(event))])
    parameters = a_record(epochs=3, batch_size=8).parameters()  # 4 steps each
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        trainer.add_callback(EndsEpochs(ended_after))
        trainer.train()
        assert trainer.state.global_step == num_steps
        session.publish(trainer)
    once = {"rows": 32, "used_once": 32, "missing": 0, "repeated": 0}
    assert json.loads(store.get("tiny-reviews-0123/result.json").data)["audit"]["training"] == [once] * len(counted)
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


def test_what_cannot_be_published_is_not_trained(a_record, store):
    """What would refuse a model after its training refuses it before the first step."""
    parameters = a_record().parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
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


def test_how_many_checkpoints_are_kept_and_what_is_in_them_is_refused(a_record):
    asked = {"save_total_limit": 3, "save_only_model": True}
    parameters = a_record(address="", epochs=1).parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters)
        for name, value in asked.items():
            setattr(trainer.args, name, value)
        for refuse in (lambda: session.arguments(**asked), trainer.train):
            with pytest.raises(InvalidInput) as refused:
                refuse()
            assert [named for named in asked for fault in refused.value.faults if f"({named}=" in fault] == [*asked]
        assert trainer.state.global_step == 0


class OfTheirs(transformers.Trainer):
    """As a library or a user derives one."""


class Both(Trainer, OfTheirs):
    """Ours, with what another class adds."""


def of_transformers(session, kind, **others):
    model, tokenizer = session.model()
    train, held_out = session.data(tokenizer)
    arguments = transformers.Seq2SeqTrainingArguments(**{**session.arguments(), **others})
    return kind(model, arguments, train_dataset=train, eval_dataset=held_out, processing_class=tokenizer)


@pytest.mark.parametrize("kind", [transformers.Trainer, transformers.Seq2SeqTrainer, OfTheirs])
def test_a_trainer_of_transformers_is_refused_before_its_first_step_with_the_import_to_change(a_record, store, kind):
    with Session(a_record().parameters()) as session:
        trainer = of_transformers(session, kind)
        for use in (trainer.train, lambda: session.publish(trainer)):
            with pytest.raises(InvalidInput) as refused:
                use()
            assert refused.value.cause == "code"
            assert unnamed(refused.value, kind.__name__, "from train_func.worker import Trainer", "session.plan") == []
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


def test_a_trainer_derived_from_ours_trains_and_is_published(a_record, store):
    parameters = a_record(epochs=1).parameters()
    with Session(parameters) as session:
        trainer = trainer_of(session, parameters, Both)
        trainer.train()
        session.publish(trainer)
    assert json.loads(store.get("tiny-reviews-0123/result.json").data)["step"] == 2


@pytest.mark.parametrize("launched", [{"RANK": "0"}, {"TRAIN_FUNC_ATTEMPT": "1"}])
def test_ranks_and_pods_without_a_store_are_refused_before_they_train(a_record, monkeypatch, launched):
    for name, value in launched.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match="TRAIN_FUNC_STORE"):
        Session(a_record(address="").run.to_dict())


def test_a_call_in_a_notebook_publishes_as_often_as_it_is_made(a_record, tmp_path, capsys):
    """No launcher, no store: the folder is named before training, and each call leaves the earlier results alone."""
    run, models = a_record(epochs=1).run, []
    for _ in range(2):
        train_func(run.to_dict())
        lines = capsys.readouterr().out.splitlines()
        (named,) = (line for line in lines if line.startswith("note: train_func was called without a launcher"))
        folder = Path(named.rpartition("file://")[2])
        assert folder.is_relative_to(tmp_path / "home" / "store")
        assert lines.index(named) < next(i for i, line in enumerate(lines) if line.startswith("progress"))
        transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        models.append(json.loads((folder / "manifest.json").read_text()))
    assert [model["generation"] for model in models] == [1, 2]
    first = json.loads((folder.parent / "result.json").read_text())
    assert first == models[0]


def test_a_call_goes_to_the_store_of_the_environment(a_record, store, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_STORE", store.address)
    with Session(a_record().run.to_dict()) as session:
        assert session.store.address == store.address


def test_data_that_changed_after_the_submission_is_refused(a_record):
    record = dataclasses.replace(a_record(), fingerprints={"dataset": "11"})
    with (
        Session(record.parameters()) as session,
        pytest.raises(InvalidInput, match=r"reviews\.csv .*\b11\b") as refused,
    ):
        session.model()
    assert refused.value.cause == "data"


def test_weights_that_changed_after_the_submission_are_refused_by_name(a_record, model_folder, tmp_path):
    folder = Path(shutil.copytree(model_folder, tmp_path / "submitted"))
    submitted = find_text_model(a_record(model=str(folder)).run.task, None, tmp_path / "cache").fingerprint
    record = dataclasses.replace(a_record(model=str(folder)), fingerprints={"model": submitted})
    with Session(record.parameters()) as session:
        session.model()
    plant(folder / "model.safetensors")
    with Session(record.parameters()) as session, pytest.raises(InvalidInput, match=str(folder)) as refused:
        session.model()
    assert exit_of(refused.value) == Exit(MODEL, "model")


def plant(weights):
    """Others of the same size and, as far as that can be set, the same age."""
    before, data = weights.stat(), bytearray(weights.read_bytes())
    data[-4:] = bytes(byte ^ 1 for byte in data[-4:])
    weights.write_bytes(data)
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_without_a_task_there_is_neither_model_nor_data(store, tmp_path, monkeypatch):
    """The function gets its parameters as they are; the record lies in the folder of the job."""
    run = Run(parameters={"epochs": "as I call them"})
    record = RunRecord(run=run, name="n", generation=1, store=store.address, function="f", source_sha256="")
    (tmp_path / "run.json").write_text(json.dumps(record.to_dict()))
    monkeypatch.setenv("TRAIN_FUNC_JOB_DIR", str(tmp_path))
    with Session(record.parameters()) as session:
        assert (session.record, session.world_size) == (record, 1)
        with pytest.raises(InvalidInput, match="task"):
            session.model()


def test_a_session_leaves_nothing_behind(a_record, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_WORK_DIR", str(tmp_path))
    before, train = set(tmp_path.iterdir()), transformers.Trainer.train
    with pytest.raises(ZeroDivisionError), Session(a_record().parameters()) as session:
        assert Path(session.arguments()["output_dir"]).is_dir()
        assert transformers.Trainer.train is not train
        _ = 1 / 0
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"store", "home"}
    assert transformers.Trainer.train is train


def test_a_session_that_cannot_open_leaves_nothing_behind(a_record, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_WORK_DIR", str(tmp_path))
    with pytest.raises(StorageFailed):
        Session(a_record(address="ftp://nowhere").parameters()).__enter__()
    assert not list(tmp_path.glob("session-*"))
