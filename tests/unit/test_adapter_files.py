"""The files of published adapters: what they call their base, and that nothing else was trained beside them."""

import json
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open

from tests.job_folder import write_job_folder
from tests.tiny_llama import write_tiny_llama
from train_func.errors import InvalidInput
from train_func.storage import open_store
from train_func.tasks import CausalLM
from train_func.worker.publish import adapters
from train_func.worker.publish import model as model_module
from train_func.worker.tasks.causal_lm import CausalLMTuner


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("made") / "llama")


@pytest.fixture
def task(llama):
    return CausalLM(model=llama, dataset="d", lora_rank=4, max_length=256)


@pytest.fixture
def model(task, tmp_path):
    tuner = CausalLMTuner(task, 0, None, tmp_path / "cache")
    tuner.fetch()
    return tuner.load((), "fp32")[0]


@pytest.fixture
def record(task, tmp_path):
    record = write_job_folder(tmp_path / "job", "def train_func(): ...", store=(tmp_path / "store").as_uri())
    return replace(record, run=replace(record.run, task=task), fingerprints={"model": "3d" * 32})


def saved(model, folder, record):
    adapters.save_adapters(model, folder, record)
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
        return json.loads((folder / "adapter_config.json").read_text()), set(file.keys())


@pytest.mark.parametrize(
    ("given", "fingerprint", "expected"),
    [
        ("/home/someone/llama", "3d" * 32, "./llama"),
        (f"s3://bucket/runs/inputs/{'0' * 64}/llama", "3d" * 32, "./llama"),
        ("s3://bucket/llama", "3d" * 32, "s3://bucket/llama"),
        ("owner/llama", "1f" * 20, "owner/llama"),
        ("hf://owner/llama@main", "1f" * 20, "owner/llama"),
    ],
)
def test_adapters_name_their_base_as_others_may_find_it(model, record, tmp_path, given, fingerprint, expected):
    model.peft_config["default"].base_model_name_or_path = given
    of_run = replace(record.run, task=replace(record.run.task, model=given))
    config, _ = saved(model, tmp_path / "out", replace(record, run=of_run, fingerprints={"model": fingerprint}))
    assert config["base_model_name_or_path"] == expected
    assert model.peft_config["default"].base_model_name_or_path == given


def test_a_vocabulary_is_compared_with_the_files_that_were_loaded_and_never_with_the_hubs(
    model, record, tmp_path, monkeypatch
):
    asked = []
    monkeypatch.setattr("peft.utils.save_and_load.check_file_exists_on_hf_hub", lambda *of: asked.append(of))
    model.peft_config["default"].base_model_name_or_path = "owner/llama"
    adapters.check_all_published(model)
    _, names = saved(model, tmp_path / "as it was", record)
    assert all("lora_" in name for name in names)
    model.resize_token_embeddings(model.config.vocab_size + 3)
    _, names = saved(model, tmp_path / "larger", record)
    assert any("embed_tokens" in name for name in names)
    assert asked == []


def rehearsed(model, record, tmp_path):
    trainer = SimpleNamespace(model=model, accelerator=SimpleNamespace(unwrap_model=lambda of: of))
    store = open_store(record.store)
    return model_module.rehearse(tmp_path / "rehearsal", trainer, None, record, {}, store, lambda folder: None)


def test_weights_that_are_trained_beside_the_adapters_keep_the_training_from_its_first_step(model, record, tmp_path):
    model.get_base_model().model.norm.weight.requires_grad_(True)
    with pytest.raises(InvalidInput) as refused:
        rehearsed(model, record, tmp_path)
    assert refused.value.cause == "code"
    assert "model.norm.weight" in str(refused.value)


@pytest.mark.parametrize(
    "settings", [{"modules_to_save": ["norm"]}, {"bias": "lora_only"}, {"use_dora": True}], ids=str
)
def test_all_that_peft_publishes_with_adapters_may_be_trained(model, settings):
    base = model.unload()
    for layer in base.model.layers:
        layer.mlp.down_proj.bias = torch.nn.Parameter(torch.zeros(layer.mlp.down_proj.out_features))
    adapted = get_peft_model(
        base, LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "down_proj"], **settings)
    )
    adapters.check_all_published(adapted)


@pytest.mark.parametrize(("layers", "is_published"), [(["lm_head"], False), (["lm_head", "embed_tokens"], True)])
def test_new_tokens_whose_weights_would_be_lost_are_refused(model, layers, is_published):
    base = model.unload()
    base.resize_token_embeddings(base.config.vocab_size + 3)
    adapted = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", target_modules=layers))
    with nullcontext() if is_published else pytest.raises(InvalidInput, match="embed_tokens"):
        adapters.check_all_published(adapted)
