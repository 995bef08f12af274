"""Attention and dropout of a training on a CPU: the numbers of the formula, what a seed drops, and who uses them."""

import hashlib
import json

import pytest
import torch
from transformers import (
    AttentionInterface,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    TrainerCallback,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tests.tiny_session import opened
from train_func.worker.training.attention import SMALLEST, attend, attention_of_steps

ROWS, HEADS, SIZE = 3, 4, 8
BLIND = 2  # the row that a mask of padding leaves without a token
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100}
MODELS = {
    "bert": lambda **of: BertForSequenceClassification(BertConfig(**TINY, **of)),
    "gpt2": lambda **of: GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, **of)),
    "llama": lambda **of: LlamaForCausalLM(LlamaConfig(**TINY, num_key_value_heads=2, **of)),
}
NO_DROPOUT = {
    "bert": {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0},
    "gpt2": {"attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0},
    "llama": {},
}


def inputs_of(num_tokens, dtype, num_key_heads=HEADS, rows=ROWS, heads=HEADS, size=SIZE):
    generator = torch.Generator().manual_seed(num_tokens)

    def drawn(num_heads):  # as a layer has it: heads within tokens
        values = torch.randn(rows, num_tokens, num_heads, size, generator=generator).to(dtype)
        return values.transpose(1, 2).requires_grad_()

    return drawn(heads), drawn(num_key_heads), drawn(num_key_heads)


def mask_of(kind, num_tokens):
    places = torch.arange(num_tokens)
    if kind == "padding":
        lengths = torch.tensor([num_tokens, max(1, num_tokens // 2), 0])
        return (places < lengths[:, None])[:, None, None].expand(-1, 1, num_tokens, -1)
    if kind == "causal":
        return (places <= places[:, None])[None, None]
    return None


def reference(query, key, value, mask, stays):
    """In float64; ``stays``: by what each probability is multiplied."""
    key, value = (of.repeat_interleave(query.shape[1] // key.shape[1], 1) for of in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if mask is None:
        probabilities = scores.softmax(-1)
    else:
        sees = mask.any(-1, keepdim=True)
        probabilities = scores.masked_fill(~mask & sees, -torch.inf).softmax(-1).masked_fill(~sees, 0)
    return (probabilities * stays @ value).transpose(1, 2)


def stays_of(seed, query, key, mask, dropout, num_tokens):
    """What the dropout of this seed multiplies probabilities by: values that are the rows of 1 show them."""
    ones = torch.eye(num_tokens, dtype=query.dtype).expand(*key.shape[:2], -1, -1)
    torch.manual_seed(seed)
    probabilities = attend(query, key, ones, mask, dropout).transpose(1, 2).detach()
    steps = 2**15 if query.dtype == torch.bfloat16 else 2**31
    rate = round(dropout * steps) / steps
    return probabilities.ne(0).double() / (1 - rate)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("kind", ["none", "padding", "causal"])
@pytest.mark.parametrize("num_key_heads", [HEADS, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 0.015)])
@pytest.mark.parametrize("num_tokens", [1, 7, 40, 101])
def test_numbers_and_gradients_are_those_of_the_formula(num_tokens, dtype, tolerance, num_key_heads, kind, dropout):
    inputs, mask = inputs_of(num_tokens, dtype, num_key_heads), mask_of(kind, num_tokens)
    stays = stays_of(5, *inputs[:2], mask, dropout, num_tokens)
    torch.manual_seed(5)
    out = attend(*inputs, mask, dropout)
    gradient = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = [out, *torch.autograd.grad(out, inputs, gradient)]
    exact = [of.detach().double().requires_grad_() for of in inputs]
    expected = reference(*exact, mask, stays)
    expected = [expected, *torch.autograd.grad(expected, exact, gradient.double())]
    for ours, true in zip(found, expected, strict=True):
        assert ours.dtype == dtype
        assert (ours.double() - true).norm() <= tolerance * (true.norm() + true.numel() ** 0.5)


def test_many_tokens_are_computed_in_parts_with_the_numbers_of_the_formula():
    inputs = inputs_of(701, torch.float32, rows=2, heads=3, num_key_heads=3)
    out = attend(*inputs, mask_of("causal", 701))
    found = torch.autograd.grad(out.square().sum(), inputs)
    exact = [of.detach().double().requires_grad_() for of in inputs]
    true = torch.autograd.grad(reference(*exact, mask_of("causal", 701), 1).square().sum(), exact)
    for ours, expected in zip(found, true, strict=True):
        assert (ours.double() - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_query_without_a_key_gives_zeros_and_has_no_gradient(dropout):
    inputs = inputs_of(40, torch.bfloat16)
    out = attend(*inputs, mask_of("padding", 40), dropout)
    gradients = torch.autograd.grad(out.float().square().sum(), inputs)
    assert not out[BLIND].any()
    assert out.isfinite().all()
    assert all(of.isfinite().all() and not of[BLIND].any() for of in gradients)


@pytest.fixture(scope="module")
def dropped():
    """Which of 8 rows, 4 heads, 200 queries and keys two calls drop, at a rate of 0.1."""
    query, key, _ = inputs_of(200, torch.bfloat16, rows=8)
    torch.manual_seed(3)
    ones = torch.eye(200, dtype=torch.bfloat16).expand(8, HEADS, -1, -1)
    return torch.stack([attend(query, key, ones, None, 0.1).transpose(1, 2).eq(0) for _ in range(2)])


def test_as_many_probabilities_are_dropped_as_the_model_says(dropped):
    rate, num = dropped.double().mean().item(), dropped.numel()
    assert abs(rate - 0.1) < 4 * (0.09 / num) ** 0.5
    for dims in ((1, 2, 3, 4), (0, 2, 3, 4), (0, 1, 3, 4), (0, 1, 2, 4), (0, 1, 2, 3)):
        rates = dropped.double().mean(dims)
        assert (rates - 0.1).abs().max() < 4.5 * (0.09 * rates.numel() / num) ** 0.5


@pytest.mark.parametrize("dim", range(5), ids=["calls", "rows", "heads", "queries", "keys"])
@pytest.mark.parametrize("distance", [1, 2, 3, 4])
def test_what_is_dropped_in_one_place_says_nothing_of_another(dropped, dim, distance):
    if distance >= dropped.shape[dim]:
        pytest.skip("there are no two that far apart")
    length = dropped.shape[dim] - distance
    both = dropped.narrow(dim, 0, length) & dropped.narrow(dim, distance, length)
    assert abs(both.double().mean().item() - 0.01) < 4.5 * (0.01 / both.numel()) ** 0.5


def test_a_seed_decides_what_is_dropped_and_each_call_draws_one_number():
    query, key, value = inputs_of(40, torch.bfloat16)

    def drawn(seed):
        torch.manual_seed(seed)
        return attend(query, key, value, None, 0.1), torch.get_rng_state()

    (first, state), (again, _), (other, _) = drawn(1), drawn(1), drawn(2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    torch.manual_seed(1)
    torch.randint(2**63 - 1, ())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("dtype", "golden"),
    [
        (torch.bfloat16, "6f896d6a346185c2"),
        (torch.float32, "a1b30682b0fbbb39"),
    ],
)
def test_what_a_seed_drops_stays(dtype, golden):
    """Other bits are other numbers of the same run: raise RESULT_VERSION in train_func/run.py, then record them."""
    query, key, _ = inputs_of(64, dtype, rows=1)
    ones = torch.eye(64, dtype=dtype).expand(1, HEADS, -1, -1)
    torch.manual_seed(0)
    bits = attend(query, key, ones, None, 0.1).transpose(1, 2).eq(0)
    assert hashlib.sha256(bits.contiguous().numpy().tobytes()).hexdigest()[:16] == golden


def dropped_by_layer(seed, rate=0.1, dtype=torch.bfloat16, shape=(16, 101, 70)):
    torch.manual_seed(seed)
    with attention_of_steps():
        return torch.nn.Dropout(rate)(torch.ones(shape, dtype=dtype))


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_layer_drops_as_much_as_it_says_and_the_others_are_larger_by_that(rate, dtype):
    factors = dropped_by_layer(3, rate, dtype)
    rates = (~factors.bool()).double().mean(1)
    assert (rates - rate).abs().max() < 4.5 * (rate * (1 - rate) / factors.shape[1]) ** 0.5
    assert abs(rates.mean() - rate) < 4 * (rate * (1 - rate) / factors.numel()) ** 0.5
    expected = torch.tensor([0, 1 / (1 - rate)], dtype=dtype)
    assert torch.allclose(factors.unique(), expected, rtol=2e-5)
    values = torch.randn(factors.shape, dtype=dtype, requires_grad=True)
    torch.manual_seed(3)
    with attention_of_steps():
        out = torch.nn.Dropout(rate)(values)
    out.backward(torch.full_like(out, 2))
    assert torch.equal(out, values * factors)
    assert torch.equal(values.grad, 2 * factors)


def test_a_seed_decides_what_a_layer_drops_and_each_call_draws_one_number():
    first, state = dropped_by_layer(1), torch.get_rng_state()
    assert torch.equal(first, dropped_by_layer(1))
    assert not torch.equal(first, dropped_by_layer(2))
    torch.manual_seed(1)
    torch.randint(2**63 - 1, ())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_a_seed_drops_in_a_layer_stays():
    """Other bits are other numbers of the same run: raise RESULT_VERSION in train_func/run.py, then record them."""
    bits = dropped_by_layer(0).eq(0)
    assert hashlib.sha256(bits.numpy().tobytes()).hexdigest()[:16] == "95e3cdcb8d7cadd3"


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(torch.nn.Dropout(0.1).eval(), id="evaluation"),
        pytest.param(torch.nn.Dropout(0.0), id="no dropout"),
        pytest.param(torch.nn.Dropout(0.1, inplace=True), id="in place"),
        pytest.param(torch.nn.Dropout1d(0.1), id="another kind"),
    ],
)
def test_other_layers_are_left_to_torch(layer):
    values = torch.ones(4, 8, SMALLEST)
    torch.manual_seed(0)
    before = layer(values.clone())
    torch.manual_seed(0)
    with attention_of_steps():
        assert torch.equal(layer(values.clone()), before)


def batch_of(model):
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 99, (4, 24), generator=generator)
    seen = (torch.arange(24) < torch.tensor([24, 20, 9, 1])[:, None]).long()
    labels = ids if hasattr(model, "lm_head") else torch.tensor([0, 1, 1, 0])
    return {"input_ids": ids, "attention_mask": seen, "labels": labels}


def gradients_of(model, *, is_cast=True, forward=None):
    model.zero_grad()
    torch.manual_seed(7)
    with torch.autocast("cpu", torch.bfloat16, enabled=is_cast):
        loss = (model if forward is None else forward)(**batch_of(model)).loss
    loss.backward()
    return torch.cat([of.grad.flatten() for of in model.parameters() if of.grad is not None])


def made(name, **config):
    torch.manual_seed(0)
    return MODELS[name](**config).train()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_trains_as_with_attention_of_torch(name):
    model = made(name, **NO_DROPOUT[name])
    before = gradients_of(model)
    with attention_of_steps():
        now = gradients_of(model)
    assert not torch.equal(now, before)
    assert torch.nn.functional.cosine_similarity(now, before, dim=0) > 0.999


@pytest.mark.parametrize("is_cast", [True, False], ids=["bf16", "fp32"])
def test_gradient_checkpointing_drops_the_same_when_a_layer_is_computed_again(is_cast):
    model = made("bert")
    with attention_of_steps():
        once = gradients_of(model, is_cast=is_cast)
        for reentrant in (False, True):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
            again = gradients_of(model, is_cast=is_cast)
            assert (again - once).norm() < 1e-3 * once.norm()  # 5e-6: autocast adds gradients in another order


def test_a_compiled_model_trains():
    model = made("bert", **NO_DROPOUT["bert"])
    plain = gradients_of(model)
    with attention_of_steps():
        compiled = gradients_of(model, forward=torch.compile(model, backend="eager", fullgraph=True))
    assert torch.nn.functional.cosine_similarity(compiled, plain, dim=0) > 0.999


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda model: model.eval(), id="evaluation"),
        pytest.param(lambda model: model.set_attn_implementation("eager"), id="another attention"),
        pytest.param(lambda model: model.double(), id="float64"),
    ],
)
def test_all_else_is_left_to_torch(use):
    model = made("bert")
    use(model)
    before = gradients_of(model, is_cast=False)
    with attention_of_steps():
        assert torch.equal(gradients_of(model, is_cast=False), before)


class Looks(TrainerCallback):
    def __init__(self):
        self.used = set()

    def on_step_end(self, *args, **kwargs):
        self.used.add(AttentionInterface()["sdpa"])


def test_a_training_uses_it_and_what_is_published_does_not_name_it(a_record, store, tmp_path):
    looks = Looks()
    with opened(a_record(batch_size=8)) as (_, trainer):
        trainer.add_callback(looks)
        trainer.train()
    assert sdpa_attention_forward not in looks.used
    assert AttentionInterface()["sdpa"] is sdpa_attention_forward
    trainer.model.save_pretrained(tmp_path)
    assert "attn" not in json.dumps([*json.loads((tmp_path / "config.json").read_text())])
