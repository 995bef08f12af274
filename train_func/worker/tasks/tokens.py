"""Tokenises a data set once per machine; the cache holds it by content, and every process maps it into memory.

Ids are stored without padding, cut at the run's length; a batch adds its own padding.

The workers of a run share the work on a large data set by the store that they have in common, without waiting for one
another: each goes through the parts of the rows in an order of its own, and fetches a part, or encodes and puts it
there. So a worker that takes the place of a lost one encodes nothing.
"""

import contextlib
import hashlib
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import tokenizers
from datasets import Dataset

from train_func.errors import StorageFailed
from train_func.storage import Store, find, put_new
from train_func.wire.layout import TOKENS
from train_func.worker.inputs.cache import load_entry, remove
from train_func.worker.tasks.columns import TEXTS

VERSION = 4  # of what is stored; to be raised when the same input gives something else
BATCH = 1000  # rows
PART = 5_000  # rows that one worker encodes for all, in a second or two
KEPT = ("label", "row_id")
Encode = Callable[[pa.RecordBatch], pa.RecordBatch]
_TYPES = {
    "input_ids": pa.list_(pa.int32()),
    "token_type_ids": pa.list_(pa.int8()),
    "attention_mask": pa.list_(pa.int8()),
}
_PLACES = ("name_or_path", "is_local", "local_files_only")  # where a tokenizer is from
NO_TAG = -100  # of special tokens, and of all but the first token of a word: the loss leaves them out


def tokenise(dataset: Dataset, tokenizer: Any, max_length: int, cache: Path, store: Store | None = None) -> Dataset:
    """Returns ``text``, or pairs with ``text_pair``, as token ids, with ``label`` and ``row_id``.

    Args:
        dataset: columns text, text_pair for pairs, label and row_id, as TextClassifier divides them.
        tokenizer: a tokenizer of transformers.
        max_length: tokens after which a text is cut, special ones included; of a pair the longer text is cut first.
        cache: of this machine.
        store: by which workers on several machines share the work; None: there is none that they have in common.

    Returns:
        Columns input_ids, attention_mask and, if the model has them, token_type_ids (lists of integers as long as
        the text), label and row_id; rows in the same order.
    """
    texts = [name for name in TEXTS if name in dataset.column_names]

    def encoded(rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = [rows[name].to_pylist() for name in texts]
        tokens = tokenizer(
            *columns, truncation="longest_first", max_length=max_length, padding=False, return_attention_mask=True
        )
        return pa.record_batch({**id_columns(tokens), **{name: rows[name] for name in KEPT}})

    table = dataset.data.table.select([*texts, *KEPT])
    return cached(table, encoded, key_of(dataset, tokenizer, max_length), cache, store)


def id_columns(encoded: Any) -> dict[str, pa.Array]:
    """Returns the output of a tokenizer for several texts as columns."""
    return {name: pa.array(encoded[name], type=kind) for name, kind in _TYPES.items() if name in encoded}


def cached(table: pa.Table, encoded: Encode, key: str, cache: Path, store: Store | None) -> Dataset:
    """Returns the rows of ``table`` as ``encoded`` makes them; one process of a machine works, the others wait."""

    def make(path: Path) -> None:
        if store is None or table.num_rows <= PART:
            _write(_encode(table, encoded), str(path))
            return
        folder = path.with_suffix(".parts")
        remove(folder)  # what a killed process has left
        folder.mkdir()
        try:
            files = _parts(table, encoded, f"{TOKENS}/{key}", store, folder)
            _write(itertools.chain.from_iterable(map(pa.ipc.open_stream, files)), str(path))
        finally:
            remove(folder)

    return load_entry(cache, f"{TOKENS}/{key}.arrow", make, lambda path: Dataset.from_file(str(path)))


def _encode(table: pa.Table, encoded: Encode) -> Iterator[pa.RecordBatch]:
    return map(encoded, table.combine_chunks().to_batches(max_chunksize=BATCH))


def _parts(table: pa.Table, encoded: Encode, prefix: str, store: Store, folder: Path) -> list[Path]:
    """Writes the parts of the rows to files, in their order: those below ``prefix``, and what is not there yet."""
    starts = range(0, table.num_rows, PART)
    files = [folder / f"{number}.arrow" for number in range(len(starts))]
    is_reachable = True
    for number in random.SystemRandom().sample(range(len(starts)), len(starts)):  # the training's generator stays
        key, stored = f"{prefix}/{number}.arrow", None
        if is_reachable:
            try:
                stored = find(store, key)
            except StorageFailed:  # the training says so, where it needs the store
                is_reachable = False
        if stored:
            files[number].write_bytes(stored.data)
            continue
        part = pa.BufferOutputStream()
        _write(_encode(table.slice(starts[number], PART), encoded), part, compression="zstd")
        files[number].write_bytes(part.getvalue())
        if is_reachable:
            with contextlib.suppress(StorageFailed):
                put_new(store, key, files[number].read_bytes())
    return files


def _write(batches: Iterable[pa.RecordBatch], sink: Any, compression: str | None = None) -> None:
    batches = iter(batches)
    first = next(batches)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, first.schema, options=options) as writer:
        for batch in itertools.chain([first], batches):
            writer.write_batch(batch)


def key_of(rows: Dataset, tokenizer: Any, max_length: int) -> str:
    """Returns the SHA-256 of everything that decides the result: fingerprint of the rows, tokenizer and length."""
    made_by = [VERSION, tokenizers.__version__, max_length, type(tokenizer).__name__, tokenizer.truncation_side]
    columns = [tokenizer.model_input_names, tokenizer.split_special_tokens]
    known_by = json.dumps([*made_by, *columns, rows.column_names, rows._fingerprint])
    return hashlib.sha256(known_by.encode() + _state(tokenizer).encode()).hexdigest()


def _state(tokenizer: Any) -> str:
    """Returns the parts of a tokenizer that decide its ids."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        options = {name: value for name, value in tokenizer.init_kwargs.items() if name not in _PLACES}
        contents = {name: _content(value) for name, value in options.items() if name.endswith("_file")}
        return json.dumps([tokenizer.get_vocab(), {**options, **contents}], sort_keys=True, default=_plain)
    # Before the tokens stand truncation and padding, in which a tokenizer remembers how it was last called.
    text: str = backend.to_str()
    return text[text.index('"added_tokens"') :]


def _content(path: Any) -> str | None:
    """Returns the SHA-256 of a file, the same wherever it lies; None where there is none."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path and Path(path).is_file() else None


def _plain(value: Any) -> Any:
    """Returns a value that is no JSON as one that is the same in every process."""
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def tokenise_words(
    dataset: Dataset, tokenizer: Any, max_length: int, cache: Path, store: Store | None = None
) -> Dataset:
    """Returns ``tokens`` as token ids, with ``labels``, a tag or NO_TAG for each id, and ``row_id``.

    Args:
        dataset: columns tokens, tags and row_id, as TokenClassifier divides them.
        tokenizer: a fast tokenizer of transformers.
        max_length: tokens after which a sentence is cut, special ones included.
        cache: of this machine.
        store: as ``tokenise`` takes it.
    """

    def encoded(rows: pa.RecordBatch) -> pa.RecordBatch:
        tokens = tokenizer(
            rows["tokens"].to_pylist(),
            is_split_into_words=True,
            truncation=True,
            max_length=max_length,
            padding=False,
            return_attention_mask=True,
        )
        labels = []
        for at, tags in enumerate(rows["tags"].to_pylist()):
            words = tokens.word_ids(at)  # of each token; None for special ones
            pairs = zip(words, [None, *words[:-1]], strict=True)
            labels.append([NO_TAG if word is None or word == last else tags[word] for word, last in pairs])
        return pa.record_batch(
            {**id_columns(tokens), "labels": pa.array(labels, pa.list_(pa.int64())), "row_id": rows["row_id"]}
        )

    table = dataset.data.table.select(["tokens", "tags", "row_id"])
    return cached(table, encoded, key_of(dataset, tokenizer, max_length), cache, store)
