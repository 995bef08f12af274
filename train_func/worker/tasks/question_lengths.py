"""Refuses conversations whose questions alone fill max_length, so that no token of an answer is left to learn from."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from tokenizers import Tokenizer

from train_func.counted import counted
from train_func.worker.inputs.row_numbers import in_rows
from train_func.worker.tasks.conversations import ASSISTANT, USER
from train_func.worker.tasks.sources import HELD_OUT, TRAINING
from train_func.worker.tasks.texts import SAMPLE, tokenizer_of
from train_func.worker.tasks.train_eval_split import TrainEvalSplit


def question_faults(data: TrainEvalSplit, folder: Path, max_length: int) -> list[str]:
    """Faults of both sides, of which the longest questions are counted, by the tokenizer in a model's folder.

    What a chat template writes beside the questions is not counted: the worker, which has it, may refuse more rows.
    """
    tokenizer = tokenizer_of(folder)
    if tokenizer is None:
        return []
    tables = data.sources.tables
    first = tables[TRAINING].num_rows if HELD_OUT in tables else 0  # row_id of the first held-out row
    found = {
        TRAINING: _too_long(data.train, tokenizer, max_length),
        HELD_OUT: _too_long(data.held_out, tokenizer, max_length) - first,
    }
    return [
        f"max_length={max_length}: the questions of {counted(len(rows), 'conversation')} of the {part} rows have more "
        f"tokens than that, so that none of an answer is left, {in_rows(rows)}; give a larger max_length, or remove "
        "these rows"
        for part, rows in found.items()
        if len(rows)
    ]


def _too_long(rows: pa.Table, tokenizer: Tokenizer, max_length: int) -> np.ndarray:
    """The row_id of those whose questions have more tokens."""
    sizes = _question_bytes(rows)
    longest = np.sort(np.argsort(-sizes, kind="stable")[:SAMPLE])
    longest = longest[sizes[longest] > max_length]  # no token is less than a byte
    num_letters = 8 * max_length  # a token has some 4
    texts = [_question(turns)[:num_letters] for turns in rows.take(pa.array(longest)).to_pylist()]
    encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
    is_longer = np.array([len(one.ids) > max_length for one in encoded], dtype=bool)
    found: np.ndarray = np.sort(rows["row_id"].to_numpy()[longest[is_longer]])
    return found


def _question_bytes(rows: pa.Table) -> np.ndarray:
    """Of what the user says before the first answer, in each row."""
    lists = rows["contents"].combine_chunks()
    begins = np.append(0, np.cumsum(pc.list_value_length(lists).to_numpy()))[:-1]
    roles = pc.list_flatten(rows["roles"].combine_chunks())
    sizes = pc.binary_length(pc.list_flatten(lists)).to_numpy()
    before = np.append(0, np.cumsum(np.where(pc.equal(roles, USER).to_numpy(zero_copy_only=False), sizes, 0)))
    answers = np.flatnonzero(pc.equal(roles, ASSISTANT).to_numpy(zero_copy_only=False))
    first = answers[np.searchsorted(answers, begins)]  # each row has one
    found: np.ndarray = before[first] - before[begins]
    return found


def _question(row: dict[str, list[str]]) -> str:
    """What the user says before the first answer, without the spaces that a template may leave out."""
    turns = zip(row["roles"][: row["roles"].index(ASSISTANT)], row["contents"], strict=False)
    return "\n".join(text.strip() for role, text in turns if role == USER)
