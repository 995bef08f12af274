"""Published adapters and their base: what is put together of them, and what is refused."""

import json
import os
import re
import shutil
import time
from dataclasses import replace

import pytest
import torch
from huggingface_hub import ModelCard
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    DistilBertConfig,
    DistilBertForSequenceClassification,
)

from tests.messages import unnamed
from tests.tiny_llama import write_tiny_llama
from train_func.client import preflight
from train_func.client.model import load
from train_func.client.model.fetch import STAGING, as_fetched
from train_func.errors import InvalidInput
from train_func.run import Run
from train_func.tasks import CausalLM
from train_func.wire.layout import CARD, MODEL_MANIFEST, PIPELINE
from train_func.wire.records import RunRecord


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that was saved in bfloat16, as most are."""
    folder = tmp_path_factory.mktemp("base") / "llama"
    write_tiny_llama(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.to(torch.bfloat16).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["dtype"] == "bfloat16"
    return folder


@pytest.fixture(scope="module")
def published(base, tmp_path_factory):
    """The folder with adapters that were trained a little, as a run publishes it."""
    folder = tmp_path_factory.mktemp("published") / "model"
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear"))
    generator = torch.Generator().manual_seed(3)
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            weights.data.normal_(std=2e-3, generator=generator)
    adapted.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    (folder / MODEL_MANIFEST).write_text(json.dumps({"files": {}}))
    return folder


def record_of(base, tmp_path):
    return RunRecord(
        run=Run(task=CausalLM(model=str(base), dataset="d", lora_rank=4)),
        name="a-run",
        generation=1,
        store=(tmp_path / "store").as_uri(),
        function="train_func",
        source_sha256="0" * 64,
    )


def test_the_merged_model_is_the_trained_one_also_where_the_base_was_saved_in_bfloat16(base, published, tmp_path):
    folder = load.write_merged(record_of(base, tmp_path), published, tmp_path / "merged", is_ours=False)
    trained = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), published)
    ids = torch.arange(2, 66).reshape(2, 32)
    with torch.no_grad():
        expected = trained.eval()(ids).logits.softmax(-1)
        for model in (
            AutoModelForCausalLM.from_pretrained(folder),
            load.merged(AutoModelForCausalLM, base, published),
        ):
            found = model.eval()(ids).logits.softmax(-1)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    """A model whose head shares its weights with its embeddings."""
    folder = tmp_path_factory.mktemp("tied") / "llama"
    write_tiny_llama(folder)
    config = AutoConfig.from_pretrained(folder, tie_word_embeddings=True)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


EMBEDDINGS = ["lm_head", "embed_tokens"]


@pytest.mark.parametrize(
    ("kind", "num_new", "settings"),
    [
        ("tied", 0, {"target_modules": ["lm_head"]}),
        ("tied", 0, {"target_modules": EMBEDDINGS, "ensure_weight_tying": True}),
        ("tied", 0, {"target_modules": ["q_proj"], "trainable_token_indices": [3, 5]}),
        ("tied", 3, {"target_modules": [*EMBEDDINGS, "q_proj"]}),
        ("base", 3, {"target_modules": "all-linear", "use_dora": True}),
        ("base", 3, {"target_modules": ["q_proj", "v_proj"], "rank_pattern": {"q_proj": 2}, "use_rslora": True}),
        ("base", 3, {"target_modules": ["q_proj"], "modules_to_save": ["norm"], "trainable_token_indices": [3, 5]}),
        ("base", 3, {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_adapters_of_any_layers_and_new_tokens_are_the_trained_model_when_they_are_merged(
    request, tmp_path, kind, settings, num_new
):
    folder, published = request.getfixturevalue(kind), tmp_path / "published"
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    num_tokens = model.config.vocab_size + num_new
    if num_new:
        model.resize_token_embeddings(num_tokens)
    trained = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=4, **settings)).eval()
    for weights in trained.parameters():
        if weights.requires_grad:
            weights.data += 0.05 * torch.randn_like(weights)
    trained.save_pretrained(published)
    AutoTokenizer.from_pretrained(folder).save_pretrained(published)
    (published / MODEL_MANIFEST).write_text(json.dumps({"files": {}}))
    written = load.write_merged(record_of(folder, tmp_path), published, tmp_path / "merged", is_ours=False)
    ids = torch.randint(num_tokens, (4, 16))
    with torch.no_grad():
        expected = trained(ids).logits
        for made in (
            load.merged(AutoModelForCausalLM, folder, published),
            AutoModelForCausalLM.from_pretrained(written),
        ):
            torch.testing.assert_close(made.eval()(ids).logits, expected, rtol=0, atol=1e-4)


def refused(*given):
    with pytest.raises(InvalidInput) as caught:
        load.base_of(*given)
    return caught.value


def test_the_merged_model_ends_its_answers_where_the_pipeline_of_the_adapters_does(base, published, tmp_path):
    adapted = shutil.copytree(published, tmp_path / "published")
    (adapted / PIPELINE).write_text('{"task": "text-generation", "eos_token_id": [1, 5]}')
    folder = load.write_merged(record_of(base, tmp_path), adapted, tmp_path / "merged", is_ours=False)
    assert AutoModelForCausalLM.from_pretrained(folder).generation_config.eos_token_id == [1, 5]
    assert {*as_fetched(folder)} == {path.name for path in folder.iterdir()}


def test_a_merged_model_of_other_adapters_gives_way_where_no_one_has_named_its_folder(base, published, tmp_path):
    record, merged = record_of(base, tmp_path), tmp_path / "merged"
    merged.mkdir()  # an empty folder is as good as none
    left = tmp_path / f"{STAGING}left"  # by one that was killed two days ago
    left.mkdir()
    os.utime(left, (time.time() - 48 * 3600,) * 2)
    load.write_merged(record, published, merged, is_ours=False)
    before = (merged / "model.safetensors").stat().st_ino
    assert load.write_merged(record, published, merged, is_ours=True) == merged
    assert (merged / "model.safetensors").stat().st_ino == before
    other = shutil.copytree(published, tmp_path / "published")
    (other / MODEL_MANIFEST).write_text(json.dumps({"files": {"adapter_model.safetensors": "0" * 64}}))
    with pytest.raises(InvalidInput):
        load.write_merged(record, other, merged, is_ours=False)
    assert (merged / "model.safetensors").stat().st_ino == before
    load.write_merged(record, other, merged, is_ours=True)
    assert json.loads((merged / load.MERGED).read_text())["adapters"] == {"adapter_model.safetensors": "0" * 64}
    (merged / load.MERGED).unlink()
    with pytest.raises(InvalidInput):
        load.write_merged(record, published, merged, is_ours=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged", "published"]


def test_the_card_of_a_merged_model_says_how_it_is_used_and_names_no_file_that_is_not_there(base, published, tmp_path):
    adapted = shutil.copytree(published, tmp_path / "published")
    (adapted / CARD).write_text("---\nlibrary_name: peft\nbase_model: a/b\n---\n# a-run\n\n42 rows to train on.\n")
    folder = load.write_merged(record_of(base, tmp_path), adapted, tmp_path / "merged", is_ours=True)
    card = ModelCard.load(folder / CARD)
    assert (card.data.library_name, card.data.base_model, card.data.pipeline_tag) == (
        "transformers",
        "a/b",
        "text-generation",
    )
    (code,) = re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)
    found = {}
    exec(code.replace("THIS FOLDER OR ITS HUB ID", str(folder)), found)
    assert found["use"].task == "text-generation"
    assert "42 rows to train on." in card.text


def test_the_base_that_is_looked_for_is_told_and_one_that_takes_too_long_refused(
    base, published, tmp_path, monkeypatch, capsys
):
    assert load.base_of(record_of(base, tmp_path), published) == base
    assert str(base) in capsys.readouterr().out
    monkeypatch.setattr(preflight, "LIMIT_SECONDS", 0)
    assert str(base) in str(refused(record_of(base, tmp_path), published))


def test_adapters_of_a_run_without_a_task_are_put_on_their_model_by_whoever_has_loaded_it(base, published, tmp_path):
    record = replace(record_of(base, tmp_path), run=Run())
    with pytest.raises(InvalidInput) as refused:
        load.merge(record, published, tmp_path / "merged")
    assert refused.value.cause == "model"
    assert unnamed(refused.value, record.name, "task", "fetch()", "PeftModel.from_pretrained") == []


def test_without_peft_nothing_is_brought_and_the_command_that_installs_it_told(base, published, tmp_path, monkeypatch):
    monkeypatch.setattr(load, "find_spec", lambda name: None)
    assert unnamed(refused(record_of(base, tmp_path), published), "peft", "pip install") == []


def test_adapters_of_another_kind_of_model_that_a_function_has_made_are_refused_by_that(tmp_path):
    small = DistilBertConfig(vocab_size=9, dim=8, hidden_dim=8, n_layers=1, n_heads=2)
    settings = LoraConfig(task_type="SEQ_CLS", target_modules=["q_lin"])
    get_peft_model(DistilBertForSequenceClassification(small), settings).save_pretrained(tmp_path / "published")
    (tmp_path / "published" / PIPELINE).write_text('{"task": "text-classification"}')
    found = refused(record_of("m", tmp_path), tmp_path / "published")
    assert found.cause == "model"
    assert unnamed(found, "SEQ_CLS", "from_pretrained") == []
