"""Texts become token ids once per machine, unpadded, and come back from the cache as they were."""

import os
import re

import datasets
import pytest
from transformers import AutoTokenizer
from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

from tests.tiny_model import write_tiny_tokenizer
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.worker.tasks import tokens
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
    other.model_input_names = ["input_ids", "attention_mask"]
    assert "token_type_ids" not in tokenise(rows(), other, 512, tmp_path).column_names
    other.split_special_tokens = True
    tokenise(rows(), other, 512, tmp_path)
    assert len(files(tmp_path)) == 6


def test_the_options_of_a_tokenizer_in_python_decide_its_entry(folder, tmp_path):
    for lower in (True, False):
        (folder / "vocab.txt").write_text("\n".join(["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]", "food", "Food"]))
        tokenizer = BertTokenizerLegacy(folder / "vocab.txt", do_lower_case=lower)
        tokenise(rows(word="Food"), tokenizer, 512, tmp_path)
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize(
    ("given", "num_entries"),
    [((re.compile("a"), re.compile("b")), 2), ((b"a", b"b"), 2), ((lambda: 0, lambda: 0), 1)],
    ids=["patterns", "bytes", "functions"],
)
def test_an_option_of_a_tokenizer_in_python_that_is_no_json_is_known_by_what_it_is(
    folder, tmp_path, given, num_entries
):
    (folder / "vocab.txt").write_text("\n".join(["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]", "food"]))
    for option in given:
        tokenizer = BertTokenizerLegacy(folder / "vocab.txt")
        tokenizer.init_kwargs |= {"splits": option}
        tokenise(rows(), tokenizer, 512, tmp_path)
    assert len(files(tmp_path)) == num_entries


def test_a_tokenizer_in_python_has_the_same_entry_wherever_it_lies_and_another_one_with_other_files(folder, tmp_path):
    words = ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]", "food"]
    for name, content, num_entries in (("one", words, 1), ("two", words, 1), ("three", [*words, "service"], 2)):
        at = tmp_path / name
        at.mkdir()
        (at / "vocab.txt").write_text("\n".join(content))
        tokenizer = BertTokenizerLegacy.from_pretrained(at)
        tokenizer.init_kwargs |= {"vocab_file": str(at / "vocab.txt"), "kept": {"a", "b"}, "made": object()}
        tokenise(rows(), tokenizer, 512, tmp_path)
        assert len(files(tmp_path)) == num_entries


def test_a_file_cut_short_is_made_again(tokenizer, tmp_path):
    expected = tokenise(rows(), tokenizer, 512, tmp_path).to_list()
    (name,) = files(tmp_path)
    path = tmp_path / "tokens" / name
    path.write_bytes(path.read_bytes()[:-100])
    assert tokenise(rows(), tokenizer, 512, tmp_path).to_list() == expected


class Counting:
    """A tokenizer that counts its texts, and fails after so many."""

    def __init__(self, tokenizer, most=10**9):
        self._tokenizer, self.num_texts, self._most = tokenizer, 0, most

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, texts, **options):
        if self.num_texts + len(texts) > self._most:
            self.stop()
        self.num_texts += len(texts)
        return self._tokenizer(texts, **options)

    def stop(self):
        raise KeyboardInterrupt


@pytest.fixture
def store(tmp_path, monkeypatch):
    """One that workers on several machines have, whose caches are folders; they share parts of 20 rows."""
    monkeypatch.setattr(tokens, "PART", 20)
    return open_store((tmp_path / "store").as_uri())


def test_a_worker_goes_on_where_a_lost_one_was_and_a_third_encodes_nothing(tokenizer, tmp_path, store):
    expected = tokenise(rows(), tokenizer, 512, tmp_path / "alone").to_list()
    lost, second, third = Counting(tokenizer, most=50), Counting(tokenizer), Counting(tokenizer)
    with pytest.raises(KeyboardInterrupt):
        tokenise(rows(), lost, 512, tmp_path / "lost", store)
    assert tokenise(rows(), second, 512, tmp_path / "second", store).to_list() == expected
    assert 0 < lost.num_texts == 101 - second.num_texts
    assert tokenise(rows(), third, 512, tmp_path / "third", store).to_list() == expected
    assert third.num_texts == 0
    assert len(files(tmp_path / "third")) == 1


def test_what_a_killed_worker_has_left_goes_when_the_rows_are_encoded_again(tokenizer, tmp_path, store):
    killed = Counting(tokenizer, most=50)
    killed.stop = lambda: os._exit(9)  # as a signal ends it
    child = os.fork()
    if not child:
        tokenise(rows(), killed, 512, tmp_path, store)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert {path.suffix for path in (tmp_path / "tokens").iterdir()} - {".arrow", ".lock"}
    tokenise(rows(), Counting(tokenizer), 512, tmp_path, store)
    assert {path.suffix for path in (tmp_path / "tokens").iterdir()} == {".arrow", ".lock"}


@pytest.mark.parametrize("fails", ["get", "put"])
def test_a_store_that_is_away_or_denies_leaves_a_worker_to_itself(tokenizer, tmp_path, store, monkeypatch, fails):
    calls = []

    def away(*_, **__):
        calls.append(fails)
        raise StorageFailed("away", reason="unreachable")

    monkeypatch.setattr(store, fails, away)
    alone = Counting(tokenizer)
    expected = tokenise(rows(), tokenizer, 512, tmp_path / "alone").to_list()
    assert tokenise(rows(), alone, 512, tmp_path / "cache", store).to_list() == expected
    assert (alone.num_texts, bool(calls)) == (101, True)


def test_few_rows_are_not_carried_to_the_store(tokenizer, tmp_path, store):
    tokenise(rows(20), tokenizer, 512, tmp_path / "cache", store)
    assert list(store.list("")) == []
