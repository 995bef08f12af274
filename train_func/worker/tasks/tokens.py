"""Tokenises a data set once per machine: kept in the cache by content, and memory-mapped by every process.

Ids are stored as they are, without padding, cut at the run's length; padding belongs to the batch they end up in.
"""

import hashlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tokenizers
from datasets import Dataset

from train_func.worker.inputs.cache import entry, remove
from train_func.worker.tasks.columns import TEXTS, is_text

VERSION = 2  # of what is stored; to be raised when the same input gives something else
BATCH = 1000  # rows
KEPT = ("label", "row_id")
_TYPES = {
    "input_ids": pa.list_(pa.int32()),
    "token_type_ids": pa.list_(pa.int8()),
    "attention_mask": pa.list_(pa.int8()),
}
NO_TAG = -100  # of special tokens, and of all but the first token of a word: the loss leaves them out


def tokenise(dataset: Dataset, tokenizer: Any, max_length: int, cache: Path) -> Dataset:
    """``text``, or pairs of it and ``text_pair``, as token ids, beside ``label`` and ``row_id``.

    Args:
        dataset: columns text, text_pair where there are pairs, label, row_id, as ``split_rows`` makes them.
        tokenizer: of transformers.
        max_length: tokens after which a text is cut, special ones included; of a pair the longer text is cut first.

    Returns:
        Columns input_ids, attention_mask and, where the model has them, token_type_ids (lists of integers as long as
        the text), label and row_id; rows in the same order.
    """
    texts = [name for name in TEXTS if name in dataset.column_names]

    def encoded(rows: pa.RecordBatch) -> pa.RecordBatch:
        given = [rows[name].to_pylist() for name in texts]
        found = tokenizer(
            *given, truncation="longest_first", max_length=max_length, padding=False, return_attention_mask=True
        )
        return pa.record_batch({**id_columns(found), **{name: rows[name] for name in KEPT}})

    table = dataset.data.table.select([*texts, *KEPT])
    return cached(table, encoded, key_of(table, tokenizer, max_length), cache)


def id_columns(encoded: Any) -> dict[str, pa.Array]:
    """What a tokenizer returned for several texts, as columns."""
    return {name: pa.array(encoded[name], type=kind) for name, kind in _TYPES.items() if name in encoded}


def cached(table: pa.Table, encoded: Callable[[pa.RecordBatch], pa.RecordBatch], key: str, cache: Path) -> Dataset:
    """The rows of ``table`` as ``encoded`` makes them; of the processes of a machine one works, the others wait."""
    name = f"tokens/{key}.arrow"
    path = entry(cache, name, lambda part: _write(table, encoded, part))
    try:
        return Dataset.from_file(str(path))
    except (pa.ArrowInvalid, OSError) as error:  # cut short by something outside this program
        if isinstance(error, OSError) and error.errno is not None:
            raise
        remove(path)
        return Dataset.from_file(str(entry(cache, name, lambda part: _write(table, encoded, part))))


def _write(table: pa.Table, encoded: Callable[[pa.RecordBatch], pa.RecordBatch], path: Path) -> None:
    batches = map(encoded, table.combine_chunks().to_batches(max_chunksize=BATCH))
    first = next(batches)
    with pa.ipc.new_stream(str(path), first.schema) as writer:
        for batch in itertools.chain([first], batches):
            writer.write_batch(batch)


def key_of(table: pa.Table, tokenizer: Any, max_length: int) -> str:
    """SHA-256 over everything that decides what is stored: rows without nulls, tokenizer and length."""
    made_by = [VERSION, tokenizers.__version__, max_length, type(tokenizer).__name__, tokenizer.truncation_side]
    digest = hashlib.sha256(json.dumps([*made_by, table.column_names]).encode() + _state(tokenizer).encode())
    for column in table.columns:
        digest.update(str(column.type).encode())
        for chunk in column.chunks:
            _add(chunk, digest.update)
    return digest.hexdigest()


def _add(values: pa.Array, update: Callable[[Any], None]) -> None:
    """The contents of an array, whatever the table that it is a part of."""
    if is_text(values.type):
        whole = values.cast(pa.large_string())
        offsets = np.frombuffer(whole.buffers()[1], np.int64)[whole.offset : whole.offset + len(whole) + 1]
        update(np.diff(offsets).tobytes())
        update(memoryview(whole.buffers()[2] or b"")[offsets[0] : offsets[-1]])
    elif pa.types.is_nested(values.type):
        update(values.value_lengths().to_numpy(zero_copy_only=False).tobytes())
        _add(values.flatten(), update)
    else:
        update(values.to_numpy(zero_copy_only=False).tobytes())


def _state(tokenizer: Any) -> str:
    """What turns text into ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return json.dumps(sorted(tokenizer.get_vocab().items()))
    # Before the tokens stand truncation and padding, in which a tokenizer remembers how it was last called.
    text: str = backend.to_str()
    return text[text.index('"added_tokens"') :]


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
        labels = [_word_labels(found.word_ids(at), tags) for at, tags in enumerate(rows["tags"].to_pylist())]
        return pa.record_batch(
            {**id_columns(found), "labels": pa.array(labels, pa.list_(pa.int64())), "row_id": rows["row_id"]}
        )

    table = dataset.data.table.select(["tokens", "tags", "row_id"])
    return cached(table, encoded, key_of(table, tokenizer, max_length), cache)


def _word_labels(words: list[int | None], tags: list[int]) -> list[int]:
    """``words``: which word each token is of, None for special tokens."""
    before = [None, *words[:-1]]
    return [NO_TAG if word is None or word == last else tags[word] for word, last in zip(words, before, strict=True)]
