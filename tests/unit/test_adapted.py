"""A model with adapters: what identifies its weights, at a cost that is not that of its base each time."""

import hashlib
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from train_func.worker.training import state, weights

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


def a_model(seed=0):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=9_700, **SHAPE))
    return get_peft_model(model, LoraConfig(target_modules="all-linear", r=4))


def change(model, *, of_base):
    with torch.no_grad():
        next(of for of in model.parameters() if of.requires_grad != of_base).view(-1)[3] += 1


@pytest.fixture
def hashed(monkeypatch):
    """Bytes that were hashed."""
    found, sha256 = [], hashlib.sha256

    class Counting:
        def __init__(self, data=b""):
            self._digest = sha256(data)
            self.hexdigest = self._digest.hexdigest

        def update(self, data):
            found.append(memoryview(data).nbytes)
            self._digest.update(data)

    monkeypatch.setattr(hashlib, "sha256", Counting)
    return found


@pytest.mark.parametrize("of_base", [True, False])
def test_the_fingerprint_is_that_of_adapters_and_base(of_base):
    model = a_model()
    before = weights.fingerprint(model)
    assert weights.fingerprint(a_model()) == before
    change(model, of_base=of_base)
    changed = weights.fingerprint(model)
    assert changed != before
    other = a_model()
    change(other, of_base=of_base)
    assert weights.fingerprint(other) == changed


def test_the_base_is_hashed_once_for_a_restart_and_all_that_follows(hashed):
    model = a_model()
    of_base = sum(of.nbytes for of in model.parameters() if not of.requires_grad)
    own = sum(of.nbytes for of in weights.own_weights(model).values())
    trainer = SimpleNamespace(model=model, accelerator=SimpleNamespace(unwrap_model=lambda of: of))
    state.made_of(trainer)
    for _ in range(2):
        weights.fingerprint(model)
    assert of_base <= sum(hashed) < 1.1 * of_base + 2 * own  # with names, types and shapes
