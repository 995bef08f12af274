"""Reads, checks and divides sentences whose words have tags."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.counted import counted, listed
from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.tasks import TokenClassification
from train_func.worker.inputs.reader import class_names
from train_func.worker.inputs.row_numbers import COUNTED, MAX_SHOWN, in_rows
from train_func.worker.inputs.spelling import is_spelled
from train_func.worker.tasks.columns import is_text, missing_columns
from train_func.worker.tasks.labels import Labels, encode
from train_func.worker.tasks.sources import find_sources, where
from train_func.worker.tasks.span_tags import in_bio
from train_func.worker.tasks.texts import overlap
from train_func.worker.tasks.train_eval_split import TrainEvalSplit, divide


def split_tagged_rows(task: TokenClassification, seed: int, store: Store | None, cache: Path) -> TrainEvalSplit:
    """Tables with the columns ``tokens`` (lists of texts), ``tags`` (lists of indices into ``labels``) and ``row_id``.

    Raises:
        InvalidInput: with every fault of the data at once.
        StorageFailed: the store is away or denies.
    """
    sources = find_sources(task, (task.tokens, task.tags), store, cache, classes=(task.tags,))
    lists = _lists(task, sources.tables)
    encoded = _encoded(task, {part: tagged for part, (_, tagged) in lists.items()}, sources.tables)
    lengths = {part: pc.list_value_length(tagged).to_numpy() for part, (_, tagged) in lists.items()}
    tags = in_bio(encoded, task.tags, lengths)
    tables = {}
    for part, (tokens, tagged) in lists.items():
        codes = pa.LargeListArray.from_arrays(_offsets(tagged), pa.array(tags.codes[part]))
        tables[part] = pa.table({"tokens": tokens, "tags": codes})
    strata = {part: np.zeros(table.num_rows, dtype=np.int64) for part, table in tables.items()}
    divided = divide(task, seed, tables, strata, num_rows=sources.num_rows, each_stratum=False)
    compared = overlap(texts_of(divided.train), texts_of(divided.held_out), divided.held_rows)
    repeated = [note for notes in compared for note in notes]  # no faults: short sentences often are repeated
    one_sided = _one_sided(divided.train["tags"], divided.held_out["tags"], tags.names)
    notes = [*sources.notes, *tags.notes, *repeated, *one_sided, *divided.notes]
    return TrainEvalSplit(divided.train, divided.held_out, tags.names, notes, sources)


def texts_of(rows: pa.Table) -> pa.ChunkedArray:
    """The sentences as texts."""
    return pc.binary_join(rows["tokens"], pa.scalar(" ", pa.large_string()))


def _lists(
    task: TokenClassification, tables: Mapping[str, pa.Table]
) -> dict[str, tuple[pa.LargeListArray, pa.LargeListArray]]:
    """Words and tags of each part; raises InvalidInput with all that is wrong in any."""
    faults: list[str] = []
    found = {}
    for part, table in tables.items():
        here = where(task, part)
        columns = {"tokens": task.tokens, "tags": task.tags}
        wrong = missing_columns(table, here, columns.items())
        if not table.num_rows:
            wrong.append(f"{here}: 0 rows; the {part} rows are expected there")
        if not wrong:
            wrong = [fault for name in columns.values() if (fault := _type_fault(table[name], name, part))]
        if not wrong:
            tokens, tags = (_large(table[name]) for name in columns.values())
            wrong = [*_word_faults(tokens, task.tokens, part), *_pairing_faults(task, tokens, tags, part)]
            found[part] = tokens, tags
        faults += wrong
    if faults:
        raise InvalidInput(faults, cause="data")
    return found


def _type_fault(values: pa.ChunkedArray, column: str, part: str) -> str | None:
    kind = values.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if is_list and not pa.types.is_null(kind.value_type):
        return None
    return (
        f"column {column!r}: {part} rows hold {kind}; a list is expected in each row, with an item for each word: "
        "a jsonl or parquet file has such columns, and a .conll file one word and its tag per line"
    )


def _large(values: pa.ChunkedArray) -> pa.LargeListArray:
    inner = pa.large_string() if is_text(values.type.value_type) else values.type.value_type
    return pa.concat_arrays(values.cast(pa.large_list(inner)).chunks)


def _word_faults(tokens: pa.LargeListArray, column: str, part: str) -> list[str]:
    words = tokens.flatten()
    if not is_text(words.type):
        return [f"column {column!r}: the lists of the {part} rows hold {words.type}; words are expected, as texts"]
    faults = []
    empty = np.flatnonzero(pc.fill_null(pc.less(pc.list_value_length(tokens), 1), True).to_numpy(zero_copy_only=False))
    if len(empty):
        faults.append(
            f"column {column!r}: {counted(len(empty), 'row')} without any word, {in_rows(empty)}; remove them"
        )
    blank = pc.fill_null(pc.equal(pc.utf8_trim_whitespace(words), ""), True).to_numpy(zero_copy_only=False)
    if blank.any():
        rows = np.unique(tokens.value_parent_indices().to_numpy()[blank])
        faults.append(
            f"column {column!r}: {counted(int(blank.sum()), 'word')} of the {part} rows null or empty, {in_rows(rows)}"
            "; remove them, with their tags"
        )
    return faults


def _pairing_faults(
    task: TokenClassification, tokens: pa.LargeListArray, tags: pa.LargeListArray, part: str
) -> list[str]:
    lengths = [pc.fill_null(pc.list_value_length(lists), -1).to_numpy() for lists in (tokens, tags)]
    wrong = np.flatnonzero(lengths[0] != lengths[1])
    if not len(wrong):
        return []
    shown = "; ".join(
        f"row {row + 1} has {counted(int(lengths[0][row]), 'word')} and "
        f"{counted(int(lengths[1][row]), 'tag') if lengths[1][row] >= 0 else 'null'}"
        for row in wrong[:MAX_SHOWN].tolist()
    )
    differing = f"in {counted(len(wrong), 'row')} of the {part} rows words and tags differ in number: {shown}"
    expected = f"{COUNTED}; one tag for each word is expected"
    return [f"columns {task.tokens!r} and {task.tags!r}: {differing} {expected}"]


def _encoded(
    task: TokenClassification, tags: Mapping[str, pa.LargeListArray], tables: Mapping[str, pa.Table]
) -> Labels:
    kept = next((names for table in tables.values() if (names := class_names(table, task.tags))), ())
    each = {part: pa.chunked_array([lists.flatten()]) for part, lists in tags.items()}
    rows = {part: lists.value_parent_indices().to_numpy() for part, lists in tags.items()}
    spelled = any(is_spelled(table, task.tags) for table in tables.values())
    return encode(each, task.tags, given=task.labels, kept=kept, rows=rows, spelled=spelled)


def _offsets(lists: pa.LargeListArray) -> pa.Array:
    return pa.array(np.append(0, np.cumsum(pc.list_value_length(lists).to_numpy())))


def _one_sided(train: pa.ChunkedArray, held_out: pa.ChunkedArray, names: tuple[str, ...]) -> list[str]:
    """Notes on tags that only the rows of one side have."""
    trained, measured = (set(pc.unique(pc.list_flatten(side)).to_pylist()) for side in (train, held_out))
    sides = {"no training row has": measured - trained, "no held-out row has": trained - measured}
    return [
        f"{what} the tags {listed([names[code] for code in sorted(codes)], show=repr)}"
        for what, codes in sides.items()
        if codes
    ]
