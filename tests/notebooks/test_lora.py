"""Notebook 03 runs headless: adapters learn the shipped questions by heart, come back, and merge into their model."""

import dataclasses
import json
import re

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.contracts.test_notebooks import ROOT
from tests.notebooks.executing import execute, home_in
from train_func import Local, attach
from train_func.client.cli import main
from train_func.errors import InvalidInput
from train_func.storage import open_store

NOTEBOOK = ROOT / "notebooks/03_lora.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lora")
    with home_in(folder):
        text = execute(NOTEBOOK, folder / "executed.ipynb", workers=1)
        name = re.search(r"^(\S+-[0-9a-f]{12}): submitted", text, re.MULTILINE)[1]
        yield text, attach(name, on=Local())


def says(model, tokenizer, prompt, completion):
    """Whether that is what the model answers: the likeliest token at each place, behind all those before it."""
    turn = [{"role": "user", "content": prompt}]
    asked = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    begin, whole = (
        tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"][0]
        for text in (asked, asked + completion)
    )
    with torch.no_grad():
        likeliest = model(whole[None]).logits[0, len(begin) - 1 : -1].argmax(-1)
    return torch.equal(likeliest, whole[len(begin) :])


def test_it_answers_what_it_was_trained_on_word_for_word_and_knew_none_of_it_before(executed):
    text, job = executed
    right = int(re.search(r"^trained on: (\d+) of 40 answers are word for word", text, re.MULTILINE)[1])
    print(re.search(r"^not seen: .*$", text, re.MULTILINE)[0])
    assert right >= 32
    rows = [json.loads(line) for line in (ROOT / "notebooks/data/questions.jsonl").read_text().splitlines()][:40]
    model = AutoModelForCausalLM.from_pretrained(job.record.run.task.model)
    tokenizer = AutoTokenizer.from_pretrained(job.fetch())
    before = sum(says(model, tokenizer, row["prompt"], row["completion"]) for row in rows)
    assert before <= 4


def test_what_is_published_is_adapters_alone(executed):
    _, job = executed
    names = {path.name: path.stat().st_size for path in job.fetch().iterdir()}
    assert "adapter_model.safetensors" in names
    assert "model.safetensors" not in names
    assert sum(names.values()) < 1_000_000
    stored = [item.key for item in open_store(job.record.store).list(f"{job.name}/")]
    assert not [key for key in stored if key.endswith("/model.safetensors")]


def test_the_merged_model_says_what_the_model_with_its_adapters_says(executed, tmp_path, capsys):
    _, job = executed
    adapters, merged = job.fetch(), tmp_path / "merged"
    assert main(["fetch", job.name, "merged", "--to", str(merged)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(merged)
    assert job.fetch("merged", to=tmp_path / "merged") == merged
    base = AutoModelForCausalLM.from_pretrained(job.record.run.task.model)
    both = PeftModel.from_pretrained(base, adapters).eval()
    whole = AutoModelForCausalLM.from_pretrained(merged).eval()
    ids = torch.arange(2, 66).reshape(2, 32)
    with torch.no_grad():
        found, expected = (model(ids).logits.softmax(-1) for model in (whole, both))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    with pytest.raises(InvalidInput):
        job.fetch("merged", to=adapters)


def test_a_model_that_has_changed_since_is_refused_by_name(executed, tmp_path, monkeypatch):
    _, job = executed
    other = {**job.record.fingerprints, "model": "0" * 64}
    monkeypatch.setattr(job, "record", dataclasses.replace(job.record, fingerprints=other))
    with pytest.raises(InvalidInput) as refused:
        job.load()
    assert refused.value.cause == "model"
