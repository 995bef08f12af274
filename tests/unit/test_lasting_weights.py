"""A checkpoint is the state of one moment, also where weights are written to by their .data, which leaves no trace."""

import threading
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from safetensors.torch import load_file
from transformers import TrainerCallback

from tests.unit.test_session import a_record, home, model_folder, reviews, store, trainer_of
from train_func.worker import Session, Trainer
from train_func.worker.checkpoint import saver
from train_func.worker.checkpoint.state import State

__all__ = ["a_record", "home", "model_folder", "reviews", "store"]  # fixtures

LIMIT = 60.0  # seconds


class Writer:
    """Writes to every weight; ``moments``: the weights before and after each writing.

    ``goes_on``: it has written, or waits for a copy before it will.
    """

    def __init__(self):
        self.moments, self.goes_on = [], threading.Event()

    def write(self, model):
        self.moments.append(snapshot(model))
        for of in model.parameters():
            of.data.mul_(1.01).add_(1e-3)
        self.moments.append(snapshot(model))
        self.goes_on.set()


def snapshot(model):
    return {name: of.detach().clone() for name, of in model.named_parameters()}


def callback_at(event, writer):
    def write(self, args, state, control, model=None, **others):
        writer.write(model)

    return type("Writes", (TrainerCallback,), {event: write})()


class LetsEachSaveEnd(TrainerCallback):
    """So that the next is due at the begin of every step and at the end of every epoch; keeps what was saved."""

    def __init__(self, store, writer):
        self.store, self.writer, self.found = store, writer, {}
        self.folder = Path(store.address.removeprefix("file://"))

    def on_step_end(self, args, state, control, **others):
        self.writer.goes_on.set()
        for thread in threading.enumerate():
            if thread.name == "checkpoint":
                thread.join()
        for entry in self.store.list("tiny-reviews-0123/checkpoints/"):
            if "training" in entry.key:
                self.found[entry.key] = weights_in(State.read(self.folder / entry.key, entry.key))

    on_epoch_end = on_step_end


class Hooked(torch.nn.Module):
    """A layer of the function's own that keeps its model's weights in bounds, as it is called."""

    def __init__(self, inner, write):
        super().__init__()
        self.inner, self._write = inner, write

    def forward(self, *args, **kwargs):
        self._write()
        return self.inner(*args, **kwargs)


class Subclass(Trainer):
    def training_step(self, model, *args, **kwargs):
        self.writer.write(model)
        return super().training_step(model, *args, **kwargs)


@pytest.mark.parametrize("where", ["on_epoch_begin", "on_step_begin", "on_train_end", "forward", "training_step"])
def test_a_checkpoint_whose_weights_are_written_to_while_it_is_copied_is_of_one_moment(
    a_record, store, monkeypatch, where
):
    writer, waits, copy = Writer(), threading.Event(), saver._copy

    def slowly(source, target):
        copied = copy(source, target)
        if threading.current_thread() is not threading.main_thread() and not waits.is_set():
            waits.set()
            assert writer.goes_on.wait(LIMIT)
        return copied

    def begin(self, taken, begin=saver.Saver.begin):
        writer.moments.append({name: of.detach().clone() for name, of in weights_in(taken.training).items()})
        writer.goes_on.clear()
        waits.clear()
        begin(self, taken)

    def wait_copied(self, wait_copied=saver.Saver.wait_copied):
        if self.is_busy:
            writer.goes_on.set()
        wait_copied(self)

    monkeypatch.setattr(saver, "_copy", slowly)
    monkeypatch.setattr(saver.Saver, "wait_copied", wait_copied)
    monkeypatch.setattr(saver.Saver, "begin", begin)
    with Session(a_record(checkpoint_every=0).parameters()) as session:
        trainer = trainer_of(session, {"epochs": 2, "learning_rate": 1e-3})
        trainer.writer = writer
        trainer.add_callback(saves := LetsEachSaveEnd(store, writer))
        if where == "training_step":
            trainer.__class__ = Subclass
        if where.startswith("on_"):
            trainer.add_callback(callback_at(where, writer))
        if where == "forward":
            trainer.model.classifier = Hooked(trainer.model.classifier, lambda: writer.write(trainer.model))
        trainer.train()
    assert writer.moments
    saves.on_step_end(None, None, None)
    assert len(saves.found) >= 4
    for key, saved in saves.found.items():
        assert any(all(torch.equal(of[name], saved[name]) for name in of) for of in writer.moments), key


def weights_in(state):
    return {name: of for name, of in state.whole()["model"].items() if of.is_floating_point()}


def test_a_frozen_average_that_a_loop_writes_to_is_saved_as_of_one_moment(a_record, store, monkeypatch):
    moments, written, copy = [], threading.Event(), saver._copy

    def slowly(source, target):
        if threading.current_thread() is not threading.main_thread():
            assert written.wait(LIMIT)
        return copy(source, target)

    monkeypatch.setattr(saver, "_copy", slowly)
    rows = Dataset.from_dict({"x": [[float(number)] for number in range(40)]})
    with Session(a_record(checkpoint_every=0).parameters()) as session:
        model, average = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1).requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        session.checkpoint(model, optimizer, average=average)
        for step in session.steps(split_dataset_by_node(session.plan(rows), 0, 1)):
            average.weight.data.add_(1)
            written.set()
            for batch, weight in step:
                (weight * model(batch["x"].float()).square().mean()).backward()
            optimizer.step()
            optimizer.zero_grad()
            average.weight.data.mul_(0.5)
            moments.append(average.weight.clone())
            written.clear()
        written.set()
    folder = Path(store.address.removeprefix("file://")) / "tiny-reviews-0123/checkpoints"
    saved = [load_file(path) for path in folder.rglob("frozen.safetensors")]
    assert saved
    for tensors in saved:
        (weight,) = (of for of in tensors.values() if of.shape == (1, 1))
        assert any(torch.equal(weight, moment) for moment in moments)
