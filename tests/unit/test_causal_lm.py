"""The models that CausalLM takes, what it makes of them, and how they are used once they are published."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.messages import unnamed
from tests.tiny_llama import CHATML, write_questions, write_tiny_llama
from train_func.client.model.load import ready
from train_func.errors import InvalidInput
from train_func.tasks import CausalLM
from train_func.wire.layout import PIPELINE
from train_func.worker.tasks.causal_lm import CausalLMTuner

SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return Path(write_tiny_llama(tmp_path_factory.mktemp("made") / "llama"))


@pytest.fixture
def folder(llama, tmp_path):
    return shutil.copytree(llama, tmp_path / "llama")


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


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["bert", "bert-generation"])  # the latter is of no table of encoders; it does attend
def test_a_model_that_sees_the_tokens_it_has_to_predict_is_refused_whatever_its_type(folder, kind, precision):
    other_model(folder, kind, initializer_range=0.3)
    with pytest.raises(InvalidInput) as refused:
        loaded(folder, precision, lora_rank=4)
    assert refused.value.cause == "model"


@pytest.mark.parametrize("fields", [{}, {"lora_rank": 4}])
def test_an_encoder_that_is_a_decoder_by_its_config_is_taken(folder, fields):
    other_model(folder, "bert", is_decoder=True)
    assert not tuner_of(folder, **fields).check().faults
    assert loaded(folder, **fields)[1].config.is_decoder


def test_frozen_weights_are_held_in_what_products_are_computed_in_and_adapters_are_exact(folder):
    _, model, _ = loaded(folder, "bf16", lora_rank=4)
    held = {(of.dtype, of.requires_grad) for of in model.parameters()}
    assert held == {(torch.bfloat16, False), (torch.float32, True)}
    assert {of.dtype for of in loaded(folder, "bf16")[1].parameters()} == {torch.float32}


ENDLESS = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"


def with_template(folder, text, *tokens):
    """The model in the folder with another chat template, and with the tokens that it writes beside words."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.chat_template = text
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    torch.manual_seed(0)  # the new rows are drawn
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(folder)
    return tokenizer.convert_tokens_to_ids(list(tokens))


def always_saying(model, token):
    """Makes the model write one and the same token behind any text."""
    with torch.no_grad():
        hidden = model.model(input_ids=torch.tensor([[2, 3, 4]])).last_hidden_state[0, -1]
        model.get_output_embeddings().weight.zero_()[token] = hidden


@pytest.mark.parametrize("fields", [{}, {"lora_rank": 4}])
def test_the_published_model_stops_where_its_template_ends_an_answer(folder, tmp_path, fields):
    _, end = with_template(folder, CHATML, "<|im_start|>", "<|im_end|>")
    tuner, model, tokenizer = loaded(folder, **fields)
    assert not tuner.model_notes
    published = tmp_path / "published"
    for of in (model, tokenizer):
        of.save_pretrained(published)
    (published / PIPELINE).write_text(json.dumps(dict(tuner.pipeline())))
    use = ready(published, base=folder if fields else None)
    always_saying(use.model, end)
    (said,) = use([{"role": "user", "content": "which worker?"}], skip_special_tokens=False)
    assert said["generated_text"] == "<|im_end|>"  # and not as many of them as the model may write


def test_a_model_that_stops_there_by_itself_is_published_with_its_own_configuration(folder):
    tuner, model, tokenizer = loaded(folder, lora_rank=4)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert not tuner.model_notes
    assert "eos_token_id" not in tuner.pipeline()


def test_a_template_that_ends_answers_with_no_token_of_its_own_is_told(folder):
    with_template(folder, ENDLESS)
    tuner, model, tokenizer = loaded(folder)
    assert len(tuner.model_notes) == 1
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.mark.parametrize("pad", [None, "the same"])
def test_a_token_that_ends_and_pads_is_trained_as_a_word_like_any_other(folder, pad):
    tokens, config = folder / "tokenizer_config.json", folder / "config.json"
    settings, model = json.loads(tokens.read_text()), json.loads(config.read_text())
    tokens.write_text(json.dumps({**settings, "pad_token": pad and settings["eos_token"]}))
    config.write_text(json.dumps({**model, "pad_token_id": pad and model["eos_token_id"]}))
    _, model, tokenizer = loaded(folder)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.config.pad_token_id
    ids = torch.tensor([[5, tokenizer.eos_token_id, 6, 7, 8]])  # two turns
    model(input_ids=ids, labels=ids).loss.backward()
    found = model.get_input_embeddings().weight.grad[tokenizer.eos_token_id]
    stock = AutoModelForCausalLM.from_pretrained(folder, pad_token_id=None)
    stock(input_ids=ids, labels=ids).loss.backward()
    expected = stock.get_input_embeddings().weight.grad[tokenizer.eos_token_id]
    assert expected.norm() > 0
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("layers", [("q_prj",), ("v_proj", "q_prj"), ("mlp.q_proj",), ("norm",)])
def test_layers_that_the_model_or_peft_does_not_have_are_refused_by_the_field_that_names_them(folder, layers):
    with pytest.raises(InvalidInput) as refused:
        loaded(folder, lora_rank=4, lora_layers=layers)
    assert refused.value.cause == "input"
    assert unnamed(refused.value, "lora_layers=", repr(layers[-1]), "q_proj") == []
    assert "v_proj'" not in str(refused.value).partition("called")[2]
