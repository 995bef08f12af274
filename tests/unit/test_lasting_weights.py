"""A checkpoint is the state of one moment, also where weights are written to by their .data, which leaves no trace."""

import threading
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from tests.tiny_session import opened
from train_func.worker.checkpoint import saver
from train_func.worker.checkpoint.state import State

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


@pytest.mark.parametrize("where", ["on_epoch_begin", "on_step_begin", "on_train_end", "forward"])
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
    with opened(a_record(checkpoint_every=0)) as (_, trainer):
        trainer.add_callback(saves := LetsEachSaveEnd(store, writer))
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
