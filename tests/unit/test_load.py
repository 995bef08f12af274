"""What was fetched is loaded as a worker loads: no code out of the model's folder, no pickle, nothing made up."""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests.messages import refuses, unnamed
from tests.runs import a_run
from tests.tiny_model import write_tiny_classifier, write_tiny_model
from train_func.client.backend import provisional
from train_func.client.model.load import check_loadable, ready
from train_func.errors import InvalidInput
from train_func.run import Run
from train_func.wire.layout import PIPELINE
from train_func.wire.result import FileEntry, Result


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    files = write_tiny_classifier(tmp_path_factory.mktemp("published"))
    return {**files, PIPELINE: b'{"task": "text-classification", "truncation": true}'}


@pytest.fixture
def folder(published, tmp_path):
    for name, data in published.items():
        (tmp_path / name).write_bytes(data)
    return tmp_path


@pytest.fixture
def yes(monkeypatch):
    """A person who answers yes, and how often that was asked."""
    asked = []
    monkeypatch.setattr("builtins.input", lambda *_: asked.append("asked") or "y")
    return asked


def alter(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_published_classifier_is_ready(folder):
    assert ready(folder)("good food")[0]["label"] in ("LABEL_0", "LABEL_1")


def test_a_config_that_brings_code_is_refused_without_a_question(folder, yes):
    ran = folder / "it ran"
    code = f"from pathlib import Path\nPath({str(ran)!r}).touch()\nfrom transformers import BertConfig as Own\n"
    (folder / "own.py").write_text(code)
    alter(folder / "config.json", model_type="its-own", auto_map={"AutoConfig": "own.Own"})
    with refuses(cause="model"):
        ready(folder)
    assert not ran.exists()
    assert not yes


def test_a_tokenizer_that_brings_code_is_not_asked_about(folder, yes):
    ran = folder / "it ran"
    (folder / "own.py").write_text(f"from pathlib import Path\nPath({str(ran)!r}).touch()\nclass Own: pass\n")
    alter(folder / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", "own.Own"]})
    ready(folder)  # transformers has a tokenizer of its own for it
    assert not ran.exists()
    assert not yes


def test_a_pickle_is_refused_where_there_are_no_safetensors(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with refuses(cause="model"):
        ready(folder)


def test_a_model_without_a_head_is_not_given_a_random_one(folder):
    write_tiny_model(folder)
    with pytest.raises(InvalidInput, match="classifier"):
        ready(folder)


def refusal(run, **sizes):
    files = {name: FileEntry(size, "0" * 64) for name, size in sizes.items()}
    published = Result.read(Result.write(1, 1, {}, files), "result.json")
    with pytest.raises(InvalidInput) as refused:
        check_loadable(provisional(run, "file:///store"), published)
    assert refused.value.cause == "model"
    return refused.value


def test_without_a_task_it_is_said_what_was_published_and_how_to_get_it():
    refused = refusal(Run(), **{"model.pt": 2 * 2**20, "curve.svg": 101})
    assert unnamed(refused, "model.pt (2.1 MB)", "curve.svg (101 bytes)", "fetch()") == []
    assert unnamed(refusal(Run()), "no files", "result()") == []


def test_files_of_the_functions_own_beside_a_task_are_no_model_of_it():
    assert unnamed(refusal(a_run(), **{"table.csv": 7}), "table.csv (7 bytes)", "fetch()") == []
