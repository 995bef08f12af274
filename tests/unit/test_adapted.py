"""A model with adapters: its own weights are those of the adapters, and its base is known by a digest."""

import threading

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback

from tests.local_jobs import until
from tests.tiny_session import trainer_of
from train_func.storage import open_store
from train_func.wire.layout import CHECKPOINT_MANIFEST
from train_func.worker import Session, Trainer
from train_func.worker.rank import end
from train_func.worker.training import weights

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def a_model(seed=0):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=97, **SHAPE))
    return get_peft_model(model, LoraConfig(target_modules="all-linear", r=4))


@pytest.mark.parametrize("of_base", [True, False])
def test_a_change_of_the_adapters_is_told_from_one_of_their_base(of_base):
    model, other = a_model(), a_model()
    assert weights.fingerprint(other) == weights.fingerprint(model)
    assert weights.base_sha256(other) == weights.base_sha256(model)
    with torch.no_grad():
        next(value for value in other.parameters() if value.requires_grad != of_base).view(-1)[3] += 1
    assert (weights.fingerprint(other) == weights.fingerprint(model)) is of_base
    assert (weights.base_sha256(other) == weights.base_sha256(model)) is not of_base


class Freezes(TrainerCallback):
    """Freezes the adapters of a layer before the third step; may fail before a step, as one whose worker is lost.

    One that is going to fail waits before each step until the state behind the step before is saved.
    """

    def __init__(self, fails_before=None):
        self.fails_before, self.begun, self.record = fails_before, [], None

    def saved(self):
        keys = [entry.key for entry in open_store(self.record.store).list(f"{self.record.keys.checkpoints}/")]
        return {int(key.split("/")[-2].partition("-")[2]) for key in keys if key.endswith(CHECKPOINT_MANIFEST)}

    def saves(self):
        """Whether a thread still ends a checkpoint: a step that ends meanwhile begins none of its own."""
        return any(thread.name == "checkpoint" for thread in threading.enumerate())

    def on_step_begin(self, args, state, control, model=None, **others):
        if self.fails_before and state.global_step:
            until(lambda: state.global_step in self.saved() and not self.saves(), "the state is saved")
        self.begun.append(state.global_step + 1)
        if self.begun[-1] == 3:
            for name, of in model.named_parameters():
                if "layer.0" in name:
                    of.requires_grad_(False)
        if self.begun[-1] == self.fails_before:
            raise ConnectionError("the worker is lost")


def adapted(model, **others):
    torch.manual_seed(3)
    config = LoraConfig(task_type="SEQ_CLS", target_modules=["query"], r=4)
    return Trainer(model=get_peft_model(model, config), **others)


def test_a_layer_that_is_frozen_in_the_middle_of_a_training_is_kept_and_restored(a_record, monkeypatch):
    def trained(callback, address=None):
        monkeypatch.setattr(end, "here", end.Sessions())  # as in another process
        record = a_record(address, batch_size=8, checkpoint_every=0, learning_rate=1e-2)
        callback.record = record
        with Session(record.parameters()) as session:
            trainer = trainer_of(session, adapted)
            trainer.add_callback(callback)
            trainer.train()
            return trainer.model.state_dict()

    expected = trained(Freezes(), address="")
    with pytest.raises(ConnectionError):
        trained(Freezes(fails_before=6))
    second = Freezes()
    found = trained(second)
    assert second.begun[0] == 6
    assert all(torch.equal(found[name], expected[name]) for name in expected)
