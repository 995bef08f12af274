"""Adapters and the model that they belong to become one model, of the class that their task says."""

import json

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests.runs import a_run
from tests.tiny_llama import write_tiny_llama
from train_func.client import adapters
from train_func.client.adapters import write_merged
from train_func.client.backend import provisional
from train_func.layout import MODEL_MANIFEST, PIPELINE

KINDS = {
    "text-generation": (AutoModelForCausalLM, "CAUSAL_LM"),
    "text-classification": (AutoModelForSequenceClassification, "SEQ_CLS"),
}


@pytest.mark.parametrize(
    ("task", "pipeline"),
    [
        ("text-generation", {"task": "text-generation"}),
        ("text-classification", {"task": "text-classification"}),
        ("text-generation", None),
    ],
    ids=["a language model", "a classifier", "a language model of a loop of one's own"],
)
def test_what_is_merged_has_the_class_of_its_task_and_says_the_same(tmp_path, monkeypatch, task, pipeline):
    kind, peft_task = KINDS[task]
    base, published = write_tiny_llama(tmp_path / "base"), tmp_path / "published"
    torch.manual_seed(3)
    lora = LoraConfig(task_type=peft_task, r=2, target_modules=["q_proj"], init_lora_weights=False)
    both = get_peft_model(kind.from_pretrained(base), lora).eval()
    both.save_pretrained(published)
    AutoTokenizer.from_pretrained(base).save_pretrained(published)
    (published / MODEL_MANIFEST).write_text(json.dumps({"files": {}}))
    if pipeline:
        (published / PIPELINE).write_text(json.dumps(pipeline))
    monkeypatch.setattr(adapters, "base_of", lambda record: base)
    merged = write_merged(provisional(a_run(), "file:///store"), published, tmp_path / "merged")
    whole = kind.from_pretrained(merged).eval()
    ids = torch.arange(2, 9).reshape(1, 7)
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, both(ids).logits, rtol=0, atol=1e-5)
    assert AutoTokenizer.from_pretrained(merged).vocab_size == AutoTokenizer.from_pretrained(base).vocab_size
