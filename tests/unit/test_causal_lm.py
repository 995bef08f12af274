"""The models that CausalLM takes, what it makes of them, and how they are used once they are published."""

import json
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from tests.tiny_llama import write_questions, write_tiny_llama
from train_func.errors import InvalidInput
from train_func.tasks import CausalLM
from train_func.worker.tasks.causal_lm import CausalLMTuner

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture
def folder(tmp_path):
    return Path(write_tiny_llama(tmp_path / "llama"))


def other_model(folder, model_type, **fields):
    """Another type of model, in place of the Llama in the folder."""
    words = json.loads((folder / "config.json").read_text())["vocab_size"]
    config = AutoConfig.for_model(model_type, vocab_size=words, max_position_embeddings=600, **SHAPE, **fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def tuner_of(folder, **fields):
    data = write_questions(folder.parent / "rows.jsonl", 40)
    task = CausalLM(model=str(folder), dataset=data, max_length=256, **fields)
    return CausalLMTuner(task, 0, None, folder.parent / "cache")


def loaded(folder, precision="fp32", **fields):
    tuner = tuner_of(folder, **fields)
    tuner.fetch()
    return tuner, *tuner.load((), precision)


@pytest.mark.parametrize("model_type", ["bert", "xlm-roberta"])
def test_an_encoder_is_refused_at_the_submission(folder, model_type):
    other_model(folder, model_type)
    (fault,) = tuner_of(folder).check().faults
    assert fault[0] == "model"
    assert "is_decoder" in fault[1]


@pytest.mark.parametrize("fields", [{}, {"lora_rank": 4}])
def test_an_encoder_that_is_a_decoder_by_its_config_is_taken(folder, fields):
    other_model(folder, "bert", is_decoder=True)
    assert not tuner_of(folder, **fields).check().faults
    loaded(folder, **fields)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_model_that_sees_the_tokens_it_has_to_predict_is_refused_whatever_its_type(folder, precision):
    other_model(folder, "bert-generation", initializer_range=0.3)  # of no table of encoders; it does attend
    assert not tuner_of(folder).check().faults
    with pytest.raises(InvalidInput) as refused:
        loaded(folder, precision, lora_rank=4)
    assert refused.value.cause == "model"
