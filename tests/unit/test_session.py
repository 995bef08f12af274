"""A Session in one plain process: the function of the notebook called as it is, and what is refused on the way."""

import contextlib
import dataclasses
import json
import os
import shutil
import threading
from pathlib import Path

import pyarrow as pa
import pytest
import torch
import transformers
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from transformers import TrainingArguments

from tests.distributed import small
from tests.halves import find_text_model
from tests.messages import refuses, unnamed
from tests.stored_runs import put_submission
from tests.tiny_session import result_of, trainer_of
from train_func.errors import InvalidInput, StorageFailed
from train_func.run import Run
from train_func.wire.events import LAST_STEP, RowsAudited
from train_func.wire.exits import FENCED, MODEL, Exit, exit_of
from train_func.wire.records import Lease, Numerics, RunRecord
from train_func.worker import Session
from train_func.worker.numerics import numerics_of
from train_func.worker.rank import end, world
from train_func.worker.training.arguments import DefaultSize, logging_steps_of
from train_func.worker.training.plan import facts_of

ROWS = Dataset.from_dict({"x": [0.0] * 40})


def train_func(parameters):
    with Session(parameters) as session:
        trainer = trainer_of(session)
        trainer.train()
        session.publish(trainer, metrics={"budget": 0.5})
        return trainer


def test_the_function_can_be_called_as_it_is_and_publishes_a_usable_model(a_record, store, tmp_path, capsys):
    store.put("tiny-reviews-0123/source/source.py", b"def train_func(parameters): ...\n")
    record = put_submission(store, a_record(epochs=3), cells={"pieces": []})
    trained = train_func(record.parameters()).model

    result = result_of(store)
    assert (result["attempt"], result["step"], result["num_steps"]) == (1, 6, 6)
    assert (result["metrics"]["rows"], result["metrics"]["budget"]) == (8, 0.5)
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
    assert RunRecord.from_dict(json.loads((folder / "run.json").read_text())) == record
    classify = transformers.pipeline("text-classification", model=str(folder), device="cpu")
    assert torch.equal(classify.model.classifier.weight, trained.classifier.weight)
    assert {found["label"] for found in classify("tasty fresh friendly", top_k=None)} == {"good", "bad"}

    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"published attempt=1 model={store.address}/tiny-reviews-0123/model"
    assert str(RowsAudited(what="epoch=3", counts=once, world_size=1)) in lines
    assert str(RowsAudited(what="held_out", counts=measured, world_size=1)) in lines


def test_a_run_that_has_its_result_is_not_trained_again(a_record, store):
    train_func(a_record().parameters())
    published = store.get("tiny-reviews-0123/model/manifest.json").data
    with refuses("tiny-reviews-0123", "fresh=True"):
        train_func(a_record().parameters())
    assert store.get("tiny-reviews-0123/model/manifest.json").data == published


def test_without_a_supervisor_a_session_takes_the_next_attempt(a_record):
    numbers = []
    for _ in range(2):
        with Session(a_record().parameters()) as session:
            numbers.append(session.attempt)
    assert numbers == [1, 2]


def test_the_probe_is_kept_for_all_attempts(a_record, store):
    key = "tiny-reviews-0123/numerics.json"
    cut = {"micro_batch_tokens": None, "micro_batch_size": 4, "num_ranks": 5}
    store.put(key, Numerics(precision="bf16", devices=("another",), **cut).to_json())
    with Session(a_record(micro_batch_size=8).parameters()) as session:
        assert session.arguments()["bf16"] is True
        facts = facts_of(small.part_of(session))
        assert (facts.batch_size, facts.num_micro_batches, facts.micro_batch_size) == (16, 5, 4)
    setup = json.loads(store.get("tiny-reviews-0123/attempts/1/setup.json").data)
    assert (setup["workers"], setup["world_size"]) == (2, 1)
    assert {name: setup["numerics"][name] for name in cut} == cut
    assert {"python", "torch", "transformers", "datasets", "train_func"} <= set(setup["versions"])
    assert setup["machine"]["cpus"] == str(os.cpu_count())


@pytest.mark.parametrize("has_gpu", [False, True])
def test_without_a_size_rows_count_on_a_gpu_and_tokens_on_a_cpu_and_later_attempts_keep_what_the_first_had(
    a_record, store, monkeypatch, has_gpu
):
    record = a_record()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
    first = numerics_of(record, store, 1, ["x"], 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: not has_gpu)
    later = numerics_of(record, store, 2, ["x"], 2)
    for numerics in (first, later):
        cut = numerics.micro_batch_tokens, numerics.micro_batch_size, numerics.num_ranks
        assert cut == ((None, 8, 2) if has_gpu else (640, None, 2))


def test_an_attempt_that_computes_on_what_the_first_did_not_says_so_and_records_it(a_record, store, capsys):
    for _ in range(2):
        with Session(a_record().parameters()):
            pass
    assert "last bits" not in capsys.readouterr().out
    key = "tiny-reviews-0123/numerics.json"
    first = Numerics.from_json(store.get(key).data, key)
    store.put(key, dataclasses.replace(first, devices=("another",)).to_json())
    with Session(a_record().parameters()):
        pass
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "last bits" in line)
    assert unnamed(note, *first.devices, "another") == []
    setups = [json.loads(store.get(f"tiny-reviews-0123/attempts/{attempt}/setup.json").data) for attempt in (1, 3)]
    assert [tuple(setup["numerics"]["devices"]) for setup in setups] == [first.devices] * 2


def ranks_of(monkeypatch, num):
    """As if this process were one of so many ranks that all do the same."""
    monkeypatch.setattr(world, "size", lambda: num)
    monkeypatch.setattr(world, "gather", lambda value: [value] * num)


def test_more_ranks_than_rows_of_a_global_batch_are_refused_before_anything_is_recorded(a_record, store, monkeypatch):
    ranks_of(monkeypatch, 4)
    with refuses("4 ranks", "batch_size=3"):
        Session(a_record(workers=2, batch_size=3).parameters()).__enter__()
    assert store.list("tiny-reviews-0123/numerics.json") == []


def test_a_rank_holds_no_rows_that_it_has_encoded(a_record, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("text,label\n" + "".join(f"{row} {'word ' * 2_000},{row % 2}\n" for row in range(101)))
    with Session(a_record(address="", dataset=str(path)).parameters()) as session:
        before = pa.total_allocated_bytes()
        _, tokenizer = session.model()
        encoded = session.data(tokenizer)
        held = pa.total_allocated_bytes() - before
    assert all(map(len, encoded))
    assert held < path.stat().st_size / 2


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
        plan = split_dataset_by_node(session.plan(ROWS), 0, 1)
        model = torch.nn.Linear(1, 1)
        if is_given:
            session.checkpoint(model)
        held = session.steps(plan)  # as a bar of tqdm holds it
        for _ in held:
            with pytest.raises(InvalidInput, match="within the loop") as refused:
                session.checkpoint(model)
            break
        assert refused.value.cause == "code"
        session.checkpoint(model)
        with refuses("twice", cause="code"):
            next(iter(held))


@pytest.mark.parametrize(
    ("attempt", "is_saved", "reasons"),
    [("1", True, []), ("1", False, []), ("2", True, ["has no checkpoint"]), ("2", False, ["session.checkpoint was"])],
)
def test_a_later_attempt_that_finds_no_checkpoint_says_that_it_begins_at_step_1_and_why(
    a_record, monkeypatch, capsys, attempt, is_saved, reasons
):
    monkeypatch.setenv("TRAIN_FUNC_ATTEMPT", attempt)
    with Session(a_record(epochs=1).parameters()) as session:
        plan = split_dataset_by_node(session.plan(ROWS), 0, 1)
        model = torch.nn.Linear(1, 1)
        if is_saved:
            session.checkpoint(model, torch.optim.AdamW(model.parameters()))
        for step in session.steps(plan):
            assert step.number == 1
            break
    said = [line for line in capsys.readouterr().out.splitlines() if "begins at step 1" in line]
    assert [reason for line, reason in zip(said, reasons, strict=True) if reason not in line] == []


def test_steps_that_are_done_again_are_told_once_and_of_the_training_that_was_cut_short(a_record, monkeypatch, capsys):
    monkeypatch.setenv("TRAIN_FUNC_ATTEMPT", "2")
    monkeypatch.setenv(LAST_STEP, "3")
    with Session(a_record(epochs=1).parameters()) as session:
        for _ in range(2):
            for step in session.steps(split_dataset_by_node(session.plan(ROWS), 0, 1)):
                list(step)
    told = [line for line in capsys.readouterr().out.splitlines() if "begins at step 1" in line]
    assert ["3 steps are done again" in line for line in told] == [True, False]


def test_an_input_that_the_run_lacks_is_told_with_how_to_submit_it(a_record):
    with Session(a_record().parameters()) as session, pytest.raises(InvalidInput) as refused:
        session.input("letters")
    assert unnamed(refused.value, "'letters'", "Run(inputs={'letters': 'file'})") == []


def wait_for_saves():
    for thread in threading.enumerate():
        if thread.name == "checkpoint":
            thread.join()


def test_a_loop_ends_when_a_later_attempt_has_begun_and_saves_nothing_from_then_on(a_record, store, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_ATTEMPT", "1")
    record, saved = a_record(epochs=3, batch_size=8, checkpoint_every=0), []
    with pytest.raises(StorageFailed) as ended, Session(record.parameters()) as session:
        plan = split_dataset_by_node(session.plan(ROWS), 0, 1)
        model = torch.nn.Linear(1, 1)
        session.checkpoint(model, torch.optim.AdamW(model.parameters()))
        for step in session.steps(plan):
            wait_for_saves()
            assert [*step]
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


def test_arguments_are_those_of_the_run_with_others_beside_them(a_record):
    with Session(a_record(address="").parameters()) as session:
        called = session.arguments(save_strategy="epoch", report_to="none", num_train_epochs=2, seed=42)
        assert TrainingArguments(**called).save_strategy == "epoch"
        assert {**session.arguments(), "save_strategy": "epoch"} == called
        assert (called["num_train_epochs"], called["learning_rate"], called["seed"]) == (2, 1e-3, 42)
        assert session.arguments(learning_rate=0.5)["learning_rate"] == 0.5
        assert isinstance(TrainingArguments(**called).per_device_eval_batch_size, DefaultSize)
        assert not isinstance(
            session.arguments(per_device_eval_batch_size=8)["per_device_eval_batch_size"], DefaultSize
        )
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


@pytest.mark.parametrize("ends", ["done", "error", "left and held"])
def test_a_call_leaves_no_checkpoints_which_nothing_would_find_again(a_record, store, monkeypatch, ends):
    monkeypatch.setenv("TRAIN_FUNC_STORE", store.address)
    run, saved = a_record(epochs=1, batch_size=8, checkpoint_every=0).run, []

    def files():
        return [entry.key for entry in store.list("") if "/checkpoints/" in entry.key]

    with contextlib.suppress(ZeroDivisionError), Session(run.to_dict()) as session:
        model = torch.nn.Linear(1, 1)
        session.checkpoint(model, torch.optim.AdamW(model.parameters()))
        loop = iter(session.steps(split_dataset_by_node(session.plan(ROWS), 0, 1)))
        for step in loop:
            wait_for_saves()
            saved += files()
            assert [*step]
            if saved and ends == "left and held":
                break
        _ = 1 / (ends != "error")
    assert saved
    assert next(loop, None) is None  # which would save another
    assert files() == []


def test_data_that_changed_after_the_submission_is_refused(a_record):
    record = dataclasses.replace(a_record(), fingerprints={"dataset": "11"})
    changed = pytest.raises(InvalidInput, match=r"reviews\.csv .*\b11\b")
    with Session(record.parameters()) as session, changed as refused:
        session.model()
    assert refused.value.cause == "data"


def test_weights_that_changed_after_the_submission_are_refused_by_name(a_record, tiny_bert, tmp_path):
    folder = Path(shutil.copytree(tiny_bert, tmp_path / "submitted"))
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


def test_without_a_task_there_is_neither_model_nor_data(plain_process, store, tmp_path, monkeypatch):
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
