"""Tokenizer and model load from a folder, a package or a store, with a head that only the seed decides."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from tests import shelf_store
from tests.halves import find_text_model, load_classifier
from tests.messages import unnamed
from tests.tiny_model import VOCABULARY
from train_func import TextClassification
from train_func.errors import InvalidInput
from train_func.storage import open_store

LABELS = ("bad", "so so", "good")


@pytest.fixture
def folder(tiny_bert, tmp_path):
    return Path(shutil.copytree(tiny_bert, tmp_path / "tiny"))


def a_task(model, **fields):
    return TextClassification(model=str(model), dataset="any", **fields)


def loaded(model, cache, labels=LABELS, store=None, seed=42, **fields):
    return load_classifier(find_text_model(a_task(model, **fields), store, cache), labels, seed)[0]


def refusal(model, cache, **fields):
    with pytest.raises(InvalidInput) as caught:
        find_text_model(a_task(model, **fields), None, cache)
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


def test_a_model_in_a_store_loads_without_what_is_beside_it(folder, tmp_path, monkeypatch):
    (folder / "checkpoint-1").mkdir()
    (folder / "checkpoint-1/config.json").write_text("{}")
    (folder / "training_args.bin").write_bytes(b"pickle")
    shelf_store.install(tmp_path, monkeypatch)
    store = open_store("shelf://name/run")
    for path in folder.rglob("*"):
        if path.is_file():
            store.upload(f"model/{path.relative_to(folder).as_posix()}", path)
    found = find_text_model(a_task(f"{store.address}/model"), store, tmp_path / "cache")
    expected = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in found.folder.iterdir()} == expected
    assert equal(loaded(folder, tmp_path), loaded(f"{store.address}/model", tmp_path / "cache", store=store))
    with pytest.raises(InvalidInput) as caught:
        find_text_model(a_task("shelf://name/run"), store, tmp_path / "cache")
    assert unnamed(caught.value, "model='shelf://name/run'", "model/") == []


@pytest.mark.parametrize("is_recorded", [True, False])
def test_the_weights_of_a_stored_model_stay_there_until_they_are_loaded_if_their_sum_is_recorded(
    folder, tmp_path, monkeypatch, is_recorded
):
    shelf_store.install(tmp_path, monkeypatch)
    store = open_store("shelf://name/run")
    for path in folder.iterdir():
        store.upload(f"model/{path.name}", path)
    if not is_recorded:  # another program has put them there
        monkeypatch.setattr(store, "checksum", lambda key: None)
    task, here = a_task(f"{store.address}/model"), find_text_model(a_task(folder), None, tmp_path)
    judged = find_text_model(task, store, tmp_path / "cache", weights=False)
    assert (judged.folder / "config.json").is_file()
    assert (judged.folder / "model.safetensors").exists() is not is_recorded
    whole = find_text_model(task, store, tmp_path / "cache")
    assert (whole.folder / "model.safetensors").is_file()
    assert judged.fingerprint == whole.fingerprint == here.fingerprint
    assert judged.num_bytes == whole.num_bytes == here.num_bytes


def test_the_fingerprint_follows_what_is_loaded_and_nothing_else(folder, tmp_path):
    first = find_text_model(a_task(folder), None, tmp_path).fingerprint
    (folder / "README.md").write_text("hello")
    assert find_text_model(a_task(folder), None, tmp_path).fingerprint == first
    change(folder / "config.json", hidden_dropout_prob=0.1)
    assert find_text_model(a_task(folder), None, tmp_path).fingerprint != first


def test_a_tokenizer_without_padding_pads_with_its_end_of_text(folder, tmp_path):
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    assert loaded(folder, tmp_path).config.pad_token_id == VOCABULARY.index("[SEP]")


def test_positions_are_counted_as_the_type_of_the_model_has_them(folder, tmp_path):
    change(folder / "config.json", max_position_embeddings=64)
    assert find_text_model(a_task(folder, max_length=64), None, tmp_path).folder == folder
    change(folder / "config.json", model_type="t5")
    assert find_text_model(a_task(folder, max_length=5000), None, tmp_path).folder == folder


def empty(folder):
    for path in folder.iterdir():
        path.unlink()


def cut_short(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


ROBERTA = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}  # counts from behind the padding
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


@pytest.mark.parametrize(
    ("damage", "fields", "facts"),
    [
        (empty, {}, ["3 faults", "tiny: no config.json", "tokenizer.json", "model.safetensors"]),
        (
            lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
            {},
            ["pytorch_model.bin", "pickle", "save_pretrained(folder)"],
        ),
        (cut_short, {}, ["tiny/model.safetensors: damaged"]),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), {}, ["tiny/model.safetensors: damaged"]),
        (lambda folder: (folder / "model.safetensors").write_text(POINTER), {}, ["damaged", "`git lfs pull`"]),
        (
            lambda folder: change(folder / "config.json", max_position_embeddings=64),
            {"max_length": 65},
            ["max_length=65", "tiny", "max_length=64"],
        ),
        (lambda folder: change(folder / "config.json", **ROBERTA), {"max_length": 513}, [512]),
        (
            lambda folder: change(folder / "config.json", vocab_size=100),
            {},
            [repr(VOCABULARY[-1]), len(VOCABULARY) - 1, "vocab_size", 100],
        ),
        (lambda folder: (folder / "tokenizer.json").write_text("{}"), {}, ["tiny/tokenizer.json"]),
        (lambda folder: None, {"model_revision": "v2"}, ["model_revision='v2'"]),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused_with_file_or_field(folder, tmp_path, damage, fields, facts):
    damage(folder)
    assert unnamed(refusal(folder, tmp_path, **fields), folder, *facts) == []


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("config.json", {"model_type": "vit"}, "AutoModelForSequenceClassification"),
        ("config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}, "custom code"),
        ("config.json", {"num_hidden_layers": 3}, r"config\.json: \d+ "),  # never filled up with random weights
        ("config.json", {"intermediate_size": 96}, r"config\.json: \d+ "),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": None}, "padding token"),
    ],
)
def test_what_transformers_cannot_load_for_the_task_is_refused_when_it_is_loaded(
    folder, tmp_path, name, values, reason
):
    change(folder / name, **values)
    with pytest.raises(InvalidInput, match=reason) as refused:
        loaded(folder, tmp_path)
    assert refused.value.cause == "model"


@pytest.mark.parametrize("is_divided", [False, True])
def test_weights_are_those_that_are_loaded_and_a_missing_part_is_named(folder, tmp_path, is_divided):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="50KB" if is_divided else "5GB")
    parts = sorted(folder.glob("*.safetensors"))
    assert (len(parts) > 1) == is_divided
    num_bytes = sum(path.stat().st_size for path in parts)
    save_file({"x": torch.zeros(1000)}, folder / "model.fp16.safetensors")
    (folder / "pytorch_model.bin").write_bytes(b"x" * 1000)
    assert find_text_model(a_task(folder), None, tmp_path).num_bytes == num_bytes
    assert equal(loaded(folder, tmp_path).bert, model.bert)
    parts[-1].unlink()
    with pytest.raises(InvalidInput, match=parts[-1].name if is_divided else "no weights|pickle"):
        find_text_model(a_task(folder), None, tmp_path)
