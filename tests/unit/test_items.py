"""Over how many items a loss is the mean, counted in what the collator has made."""

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    SegformerConfig,
    SegformerForImageClassification,
    SegformerForSemanticSegmentation,
    T5Config,
    T5ForConditionalGeneration,
)

from train_func.worker.training.weighing import Items, items_of

IDS = torch.ones(2, 4, dtype=torch.long)
TAGS = torch.tensor([[1, -100, 2, 0], [-100, -100, -100, 1]])


@pytest.mark.parametrize("shifts", [False, True])
@pytest.mark.parametrize(
    "inputs",
    [
        {"input_ids": IDS},
        {"input_ids": IDS, "labels": [{"boxes": 1}, {"boxes": 2}]},
        {"edges": torch.ones(7, 2), "nodes": torch.ones(5, 3)},  # tensors whose first dimension is not rows
        {"graph": object()},
    ],
)
def test_items_are_the_rows_that_were_collated_where_there_are_no_labels_to_count(inputs, shifts):
    assert Items(shifts).count(inputs, 2) == 2


@pytest.mark.parametrize(
    "labels, items",
    [
        (torch.tensor([2, 0]), 2),
        (torch.tensor([2, -100]), 1),
        (TAGS, 4),
        (torch.full((2, 4), -100), 0),
        (torch.tensor([-100.0, 3.5]), 2),  # a number to be learnt, not a mark
        (torch.zeros(2, 3), 6),
    ],
)
def test_items_are_the_labels_that_a_loss_counts(labels, items):
    assert Items().count({"input_ids": IDS, "labels": labels}, 2) == items


@pytest.mark.parametrize(
    "inputs",
    [
        {"input_ids": IDS, "labels": torch.tensor([2, 0])},
        {"input_ids": IDS, "labels": torch.tensor([[2], [0]])},
        {"input_ids": IDS, "labels": torch.zeros(2, 3, dtype=torch.long)},  # several classes at once
        {"input_ids": IDS, "labels": torch.zeros(2, 4)},  # numbers, though as many as tokens
        {"tokens": IDS, "labels": torch.tensor([2, 0])},
    ],
)
def test_labels_of_rows_are_not_shifted_though_the_model_has_a_loss_that_shifts_those_of_tokens(inputs):
    assert Items(shifts_labels=True).count(inputs, 2) == inputs["labels"].numel()


def test_labels_of_tokens_are_shifted_whatever_the_tokens_are_called():
    assert Items(shifts_labels=True).count({"tokens": IDS, "labels": TAGS}, 2) == 3
    one_token_each = {"input_ids": IDS[:, :1], "labels": TAGS[:, :1]}
    assert Items(shifts_labels=True).count(one_token_each, 2) == 0


def test_rows_without_a_label_get_some_so_that_their_loss_is_finite():
    assert Items().with_labels({"labels": torch.full((2, 4), -100)})["labels"].eq(0).all()
    assert Items(ignored=255).with_labels({"labels": torch.full((2, 4), 255)})["labels"].eq(0).all()


class Around(nn.Module):
    """A user's own module, which has no loss_type."""

    def __init__(self, *inner):
        super().__init__()
        self.inner = nn.ModuleList(inner)


SIZES = {"vocab_size": 11, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}


def llama():
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=11, n_embd=8, n_layer=1, n_head=1))


def t5():
    return T5ForConditionalGeneration(T5Config(vocab_size=11, d_model=8, d_kv=8, d_ff=8, num_layers=1, num_heads=1))


def bert(kind=BertForSequenceClassification):
    return kind(BertConfig(**SIZES))


def segformer(kind, **config):
    return kind(SegformerConfig(depths=[1] * 4, hidden_sizes=[8] * 4, decoder_hidden_size=8, **config))


@pytest.mark.parametrize(
    "make, shifts",
    [
        (llama, True),
        (gpt2, True),  # its loss_type is None
        (lambda: Around(llama()), True),
        (lambda: Around(Around(gpt2()), nn.Linear(2, 2)), True),
        (lambda: Around(llama(), bert(BertModel)), True),  # which computes no loss
        (lambda: Around(llama(), bert()), False),  # of two kinds of loss either may be meant
        (bert, False),
        (t5, False),
        (lambda: nn.Linear(2, 2), False),
    ],
)
def test_labels_are_shifted_where_the_loss_of_transformers_within_the_model_shifts_them(make, shifts):
    assert items_of(make(), shifts_labels=False).shifts_labels == shifts


@pytest.mark.parametrize(
    "make, ignored",
    [
        (lambda: segformer(SegformerForSemanticSegmentation), 255),
        (lambda: Around(segformer(SegformerForSemanticSegmentation, semantic_loss_ignore_index=7)), 7),
        (lambda: segformer(SegformerForImageClassification), -100),  # 255 is a class
        (bert, -100),
    ],
)
def test_the_ignored_label_is_the_one_that_the_loss_of_the_model_ignores(make, ignored):
    assert items_of(make(), shifts_labels=False).ignored == ignored
