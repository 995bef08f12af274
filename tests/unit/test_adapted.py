"""A model with adapters: its own weights are those of the adapters, and its base is known by a digest."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

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
