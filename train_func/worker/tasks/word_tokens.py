"""Tokenises words: the first token of each has the word's tag, the others none."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from datasets import Dataset

from train_func.worker.tasks.tokens import cached, id_columns, key_of

NO_TAG = -100  # of special tokens, and of all but the first token of a word: the loss leaves them out


def tokenise_words(dataset: Dataset, tokenizer: Any, max_length: int, cache: Path) -> Dataset:
    """``tokens`` as token ids, beside ``labels``, a tag or NO_TAG for each of them, and ``row_id``.

    Args:
        dataset: columns tokens, tags, row_id, as ``split_tagged_rows`` makes them.
        tokenizer: of transformers, one that tells which word a token comes from.
        max_length: tokens after which a sentence is cut, special ones included.
    """

    def encoded(rows: pa.RecordBatch) -> pa.RecordBatch:
        found = tokenizer(
            rows["tokens"].to_pylist(),
            is_split_into_words=True,
            truncation=True,
            max_length=max_length,
            padding=False,
            return_attention_mask=True,
        )
        labels = [_labels(found.word_ids(at), tags) for at, tags in enumerate(rows["tags"].to_pylist())]
        return pa.record_batch(
            {**id_columns(found), "labels": pa.array(labels, pa.list_(pa.int64())), "row_id": rows["row_id"]}
        )

    table = dataset.data.table.select(["tokens", "tags", "row_id"])
    return cached(table, encoded, key_of(table, tokenizer, max_length), cache)


def _labels(words: list[int | None], tags: list[int]) -> list[int]:
    """``words``: which word each token is of, None for special tokens."""
    before = [None, *words[:-1]]
    return [NO_TAG if word is None or word == last else tags[word] for word, last in zip(words, before, strict=True)]
