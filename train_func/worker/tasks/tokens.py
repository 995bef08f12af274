"""Tokenises a data set once per machine: kept in the cache by content, and memory-mapped by every process.

Ids are stored as they are, without padding, cut at the run's length; padding belongs to the batch they end up in.
"""

import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tokenizers
from datasets import Dataset

from train_func.worker.inputs.cache import entry, remove

VERSION = 1  # of what is stored; to be raised when the same input gives something else
BATCH = 1000  # rows
KEPT = ("label", "row_id")
_TYPES = {
    "input_ids": pa.list_(pa.int32()),
    "token_type_ids": pa.list_(pa.int8()),
    "attention_mask": pa.list_(pa.int8()),
}


def tokenise(dataset: Dataset, tokenizer: Any, max_length: int, cache: Path) -> Dataset:
    """``text`` as token ids, beside ``label`` and ``row_id``; of the processes of a machine one works, the others wait.

    Args:
        dataset: columns text, label, row_id, as ``split_rows`` makes them.
        tokenizer: of transformers.
        max_length: tokens after which a text is cut, special ones included.

    Returns:
        Columns input_ids, attention_mask and, where the model has them, token_type_ids (lists of integers as long as
        the text), label and row_id; rows in the same order.
    """
    table = dataset.data.table.select(["text", *KEPT])
    key = f"tokens/{_key(table, tokenizer, max_length)}.arrow"
    path = entry(cache, key, lambda part: _write(table, tokenizer, max_length, part))
    try:
        return Dataset.from_file(str(path))
    except (pa.ArrowInvalid, OSError) as error:  # cut short by something outside this program
        if isinstance(error, OSError) and error.errno is not None:
            raise
        remove(path)
        return Dataset.from_file(str(entry(cache, key, lambda part: _write(table, tokenizer, max_length, part))))


def _write(table: pa.Table, tokenizer: Any, max_length: int, path: Path) -> None:
    rows = table.combine_chunks().to_batches(max_chunksize=BATCH)
    batches = (_tokenised(batch, tokenizer, max_length) for batch in rows)
    first = next(batches)
    with pa.ipc.new_stream(str(path), first.schema) as writer:
        for batch in itertools.chain([first], batches):
            writer.write_batch(batch)


def _tokenised(rows: pa.RecordBatch, tokenizer: Any, max_length: int) -> pa.RecordBatch:
    encoded = tokenizer(
        rows["text"].to_pylist(), truncation=True, max_length=max_length, padding=False, return_attention_mask=True
    )
    columns = {name: pa.array(encoded[name], type=kind) for name, kind in _TYPES.items() if name in encoded}
    return pa.record_batch({**columns, **{name: rows[name] for name in KEPT}})


def _key(table: pa.Table, tokenizer: Any, max_length: int) -> str:
    """SHA-256 over everything that decides what is stored."""
    made_by = [VERSION, tokenizers.__version__, max_length, type(tokenizer).__name__, tokenizer.truncation_side]
    digest = hashlib.sha256(json.dumps(made_by).encode() + _state(tokenizer).encode())
    for name in KEPT:
        digest.update(table[name].to_numpy().astype(np.int64).tobytes())
    for chunk in table["text"].cast(pa.large_string()).chunks:
        offsets = np.frombuffer(chunk.buffers()[1], np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
        digest.update(np.diff(offsets).tobytes())
        digest.update(memoryview(chunk.buffers()[2] or b"")[offsets[0] : offsets[-1]])
    return digest.hexdigest()


def _state(tokenizer: Any) -> str:
    """What turns text into ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return json.dumps(sorted(tokenizer.get_vocab().items()))
    # Before the tokens stand truncation and padding, in which a tokenizer remembers how it was last called.
    text: str = backend.to_str()
    return text[text.index('"added_tokens"') :]
