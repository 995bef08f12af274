"""The loss in chunks is the model's own, its gradients too."""

import copy
import inspect
import math

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
)

from train_func.worker.tasks import lm_loss
from train_func.worker.tasks.chat_tokens import NO_LABEL
from train_func.worker.tasks.streaming_metrics import TokenScores

WORDS = 97
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
PLAIN = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, **SHAPE, **PLAIN)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(vocab_size=WORDS, tie_word_embeddings=True, **SHAPE, **PLAIN)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=WORDS, n_positions=64, **GPT2, **PLAIN)),
}


def batch(num_rows=5, num_tokens=23):
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(2, WORDS, (num_rows, num_tokens), generator=draw)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=draw) < 0.6, NO_LABEL)
    attention = torch.ones_like(ids)
    attention[1, 15:] = 0
    labels[1, 15:] = NO_LABEL
    labels[2] = NO_LABEL  # a row without any
    return {"input_ids": ids, "attention_mask": attention, "labels": labels}


def pair(name):
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        made.append(MODELS[name]())
    assert lm_loss.in_chunks(made[1])
    return made


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("num_items", [None, 31])
@pytest.mark.parametrize("tokens_at_once", [3, 10_000])
def test_loss_and_gradients_are_those_of_the_whole_model(monkeypatch, name, num_items, tokens_at_once):
    monkeypatch.setattr(lm_loss, "MOST_LOGITS", tokens_at_once * WORDS)
    whole, chunked = pair(name)
    given = {} if num_items is None else {"num_items_in_batch": torch.tensor(num_items)}
    losses = []
    for model in (whole, chunked):
        model.train()
        loss = model(**batch(), **given).loss
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    for (_, one), (_, other) in zip(whole.named_parameters(), chunked.named_parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_an_evaluation_counts_tokens_and_those_that_are_right(monkeypatch, name):
    monkeypatch.setattr(lm_loss, "MOST_LOGITS", 4 * WORDS)
    whole, chunked = (model.eval() for model in pair(name))
    given = batch()
    with torch.no_grad():
        expected, found = whole(**given), chunked(**given)
    labels = given["labels"][:, 1:]
    counts = labels != NO_LABEL
    right = (expected.logits[:, :-1].argmax(-1) == labels) & counts
    assert found.logits.shape == (5, 3)
    assert found.logits[:, 1].tolist() == counts.sum(1).tolist()
    assert found.logits[:, 2].tolist() == right.sum(1).tolist()
    assert found.loss.item() == pytest.approx(expected.loss.item(), rel=1e-5)
    scores = TokenScores()
    values = scores.values(scores.count(found.logits, labels), 5)
    assert values["perplexity"] == pytest.approx(torch.exp(expected.loss).item(), rel=1e-5)
    assert values["token_accuracy"] == pytest.approx((right.sum() / counts.sum()).item())


def test_without_labels_the_model_is_as_it_was():
    whole, chunked = (model.eval() for model in pair("llama"))
    ids = batch()["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(whole(input_ids=ids).logits, chunked(input_ids=ids).logits)
    said = [model.generate(ids[:1], max_new_tokens=4, do_sample=False).tolist() for model in (whole, chunked)]
    assert said[0] == said[1]
    assert inspect.signature(chunked.forward) == inspect.signature(whole.forward)  # by which Trainer finds its inputs


def test_what_an_adapter_of_the_head_drops_is_the_same_for_the_loss_and_its_gradients(monkeypatch):
    monkeypatch.setattr(lm_loss, "MOST_LOGITS", 3 * WORDS)
    _, chunked = pair("llama")
    adapted = get_peft_model(chunked, LoraConfig(target_modules=["lm_head"], lora_dropout=0.5, init_lora_weights=False))
    weight = next(of for name, of in adapted.named_parameters() if "lora_A" in name)
    adapted.train()

    def loss():
        torch.manual_seed(0)
        return adapted(**batch()).loss

    (gradient,) = torch.autograd.grad(loss(), weight)
    direction = gradient / gradient.norm()
    ends = []
    for step in (1e-2, -1e-2):
        with torch.no_grad():
            weight.add_(step * direction)
        ends.append(loss().item())
        with torch.no_grad():
            weight.sub_(step * direction)
    assert (ends[0] - ends[1]) / 2e-2 == pytest.approx(gradient.norm().item(), rel=1e-2)


def test_a_copy_of_the_model_computes_its_loss_by_its_own_weights(tmp_path):
    _, chunked = pair("llama")
    torch.save(chunked, tmp_path / "model.pt")
    loaded, copied = torch.load(tmp_path / "model.pt", weights_only=False), copy.deepcopy(chunked)
    with torch.no_grad():
        for of in copied.parameters():
            of.zero_()
        assert copied(**batch()).loss.item() == pytest.approx(math.log(WORDS))
        assert copied(**batch()).logits.shape == chunked(**batch()).logits.shape
        assert chunked(**batch()).loss.item() != pytest.approx(math.log(WORDS), rel=1e-4)
        assert loaded(**batch()).loss.item() == pytest.approx(chunked(**batch()).loss.item(), rel=1e-5)


# Of each as it is by default, where that scales its logits, caps them, or adds to the loss; but for its shape.
OTHERS = {
    "capped": lambda **shape: Gemma2ForCausalLM(Gemma2Config(head_dim=16, **shape)),
    "divided": lambda **shape: GraniteForCausalLM(GraniteConfig(logits_scaling=8.0, **shape)),
    "multiplied": lambda **shape: CohereForCausalLM(CohereConfig(**shape)),
    "experts": lambda **shape: MixtralForCausalLM(
        MixtralConfig(output_router_logits=True, num_local_experts=4, **shape)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("larger", [1, 5])
def test_a_model_that_does_more_to_its_logits_or_its_loss_keeps_its_own(name, dtype, larger):
    torch.manual_seed(0)
    model = OTHERS[name](vocab_size=WORDS, num_key_value_heads=1, **SHAPE, **PLAIN).to(dtype)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(larger)
    own = model.forward
    assert not lm_loss.in_chunks(model)
    assert model.forward == own
    assert TokenScores().count(torch.zeros(5, 22, WORDS), batch()["labels"]) is None


EXPERTS = MixtralConfig(vocab_size=WORDS, num_key_value_heads=1, **SHAPE, **PLAIN)


@pytest.mark.parametrize("make", [*MODELS.values(), lambda: MixtralForCausalLM(EXPERTS)], ids=[*MODELS, "experts"])
def test_a_model_in_bfloat16_and_experts_whose_use_adds_nothing_have_their_loss_in_chunks_too(make):
    torch.manual_seed(0)
    assert lm_loss.in_chunks(make().bfloat16())
