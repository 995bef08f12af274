"""Texts become token ids once per machine, unpadded, and come back from the cache as they were."""

import datasets
import pytest
from transformers import AutoTokenizer

from tests.tiny_model import write_tiny_tokenizer
from train_func.worker.tasks.tokens import tokenise

COLUMNS = ["input_ids", "token_type_ids", "attention_mask", "label", "row_id"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return folder


@pytest.fixture
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


def rows(num=101, word="food"):
    texts = ["", *("good " * (i % 7) + f"{word} {i}" for i in range(1, num))]
    return datasets.Dataset.from_dict({"text": texts, "label": [i % 3 for i in range(num)], "row_id": [*range(num)]})


def files(cache):
    return sorted(path.name for path in (cache / "tokens").glob("*.arrow"))


@pytest.mark.parametrize("max_length", [512, 5])
def test_ids_are_those_of_the_tokenizer_without_padding_cut_at_the_length(tokenizer, tmp_path, max_length):
    data = rows()
    found = tokenise(data, tokenizer, max_length, tmp_path)
    assert found.column_names == COLUMNS
    for row, text in zip(found, data["text"], strict=True):
        expected = tokenizer(text, truncation=True, max_length=max_length)
        assert {name: row[name] for name in expected} == dict(expected)
    assert found["label"][:] == data["label"][:]
    assert found["row_id"][:] == data["row_id"][:]
    lengths = {len(ids) for ids in found["input_ids"]}
    assert (min(lengths), max(lengths) == max_length) == (2, max_length == 5)  # the empty text has special tokens only


def test_the_second_time_it_comes_from_the_cache_memory_mapped(tokenizer, tmp_path):
    first = tokenise(rows(), tokenizer, 512, tmp_path)
    (name,) = files(tmp_path)
    stamp = (tmp_path / "tokens" / name).stat().st_mtime_ns
    tokenizer("another text", truncation=True, max_length=3)  # what a tokenizer did in between does not matter
    second = tokenise(rows(), tokenizer, 512, tmp_path)
    assert second.to_list() == first.to_list()
    assert files(tmp_path) == [name]
    assert (tmp_path / "tokens" / name).stat().st_mtime_ns == stamp
    assert [file["filename"] for file in second.cache_files] == [str(tmp_path / "tokens" / name)]


def test_other_rows_lengths_or_tokenizers_are_other_entries(tokenizer, folder, tmp_path):
    tokenise(rows(), tokenizer, 512, tmp_path)
    tokenise(rows(word="service"), tokenizer, 512, tmp_path)
    tokenise(rows(), tokenizer, 8, tmp_path)
    other = AutoTokenizer.from_pretrained(folder)
    other.add_tokens(["food"])
    tokenise(rows(), other, 512, tmp_path)
    assert len(files(tmp_path)) == 4


def test_a_file_cut_short_is_made_again(tokenizer, tmp_path):
    expected = tokenise(rows(), tokenizer, 512, tmp_path).to_list()
    (name,) = files(tmp_path)
    path = tmp_path / "tokens" / name
    path.write_bytes(path.read_bytes()[:-100])
    assert tokenise(rows(), tokenizer, 512, tmp_path).to_list() == expected
