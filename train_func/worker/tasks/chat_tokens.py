"""Tokenises conversations by the chat template of their model; only tokens of answers have labels."""

import datetime
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset

from train_func.counted import counted
from train_func.errors import InvalidInput
from train_func.worker.inputs.row_numbers import in_rows
from train_func.worker.tasks.conversations import ASSISTANT
from train_func.worker.tasks.tokens import cached, id_columns, key_of

NO_LABEL = -100  # of tokens that no answer has: the loss leaves them out
# For a tokenizer that has no template. It is published with it, so that the model is asked as it was trained.
TEMPLATE = (
    "{{ bos_token or '' }}{% for message in messages %}{% if not loop.first %}{{ '\\n\\n' }}{% endif %}"
    "{% if message['role'] == 'user' %}{{ '### Question:\\n' + message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ '### Answer:\\n' + message['content'] + eos_token }}"
    "{% else %}{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n\\n### Answer:\\n' }}{% endif %}"
)
# Templates that write today's date would make other tokens on another day, in the middle of a training.
DAY = datetime.date(2024, 7, 26)
TODAY = re.compile(r"""strftime_now\(\s*(?P<quote>['"])(?P<format>.*?)(?P=quote)\s*\)""")
Turns = list[dict[str, str]]


def tokenise_chats(dataset: Dataset, tokenizer: Any, max_length: int, cache: Path) -> Dataset:
    """Conversations as token ids, beside ``labels``, the id of an answer's token or NO_LABEL, and ``row_id``.

    Args:
        dataset: columns roles, contents, row_id, as ``split_conversations`` makes them.
        tokenizer: of transformers, with a chat template, one that tells which letters a token stands for.
        max_length: tokens after which a conversation is cut.

    Raises:
        InvalidInput: (cause "data") no token of an answer lies within that length; (cause "model") a conversation
            that goes on does not begin, by the template, as it did before.
    """

    def encoded(rows: pa.RecordBatch) -> pa.RecordBatch:
        pairs = zip(rows["roles"].to_pylist(), rows["contents"].to_pylist(), strict=True)
        turns = [[{"role": r, "content": c} for r, c in zip(*of, strict=True)] for of in pairs]
        texts, answers = zip(*(written(of, tokenizer) for of in turns), strict=True)
        found = tokenizer(
            list(texts),
            add_special_tokens=False,  # the template has written them
            return_offsets_mapping=True,
            return_attention_mask=True,
            truncation=True,
            max_length=max_length,
            padding=False,
        )
        each = zip(found["input_ids"], found["offset_mapping"], answers, strict=True)
        labels = pa.array([_labels(*of) for of in each], pa.list_(pa.int64()))
        return pa.record_batch({**id_columns(found), "labels": labels, "row_id": rows["row_id"]})

    table = dataset.data.table.select(["roles", "contents", "row_id"])
    key = hashlib.sha256(f"{key_of(table, tokenizer, max_length)} {tokenizer.chat_template} {DAY}".encode()).hexdigest()
    made = cached(table, encoded, key, cache)
    _refuse_unlabelled(made, max_length)
    return made


def template(tokenizer: Any, **options: Any) -> Callable[[Turns], str]:
    """What writes conversations as the tokenizer's template has it, as of one and the same day."""
    of_day = TODAY.sub(lambda call: repr(DAY.strftime(call["format"])), tokenizer.chat_template)

    def write(turns: Turns) -> str:
        text: str = tokenizer.apply_chat_template(
            turns, chat_template=of_day, tokenize=False, date_string=f"{DAY:%d %b %Y}", **options
        )
        return text

    return write


def written(turns: Turns, tokenizer: Any) -> tuple[str, list[tuple[int, int]]]:
    """A conversation as text, and where in it each answer begins and ends, with what the template ends it with.

    Raises:
        InvalidInput: (cause "model") the text of a part is not the beginning of the whole.
    """
    before, until = template(tokenizer, add_generation_prompt=True), template(tokenizer)
    text = until(turns)
    answers = []
    for number, turn in enumerate(turns):
        if turn["role"] != ASSISTANT:
            continue
        asked, answered = before(turns[:number]), until(turns[: number + 1])
        if not (text.startswith(answered) and answered.startswith(asked)):
            raise InvalidInput(
                "the model's chat template writes the beginning of a conversation in another way once it goes on, so "
                f"that what the model is asked would not be what it is trained on: message {number + 1} of "
                f"{len(turns)}, which begins {turn['content'][:40]!r}; give conversations of one question and one "
                "answer, or a model with another template",
                cause="model",
            )
        answers.append((len(asked), len(answered)))
    return text, answers


def _labels(ids: list[int], offsets: list[tuple[int, int]], answers: list[tuple[int, int]]) -> list[int]:
    begin, end = np.asarray(offsets, dtype=np.int64).reshape(-1, 2).T
    is_answer = np.zeros(len(ids), dtype=bool)
    for first, last in answers:
        is_answer |= (end > first) & (begin < last)
    labels: list[int] = np.where(is_answer, ids, NO_LABEL).tolist()
    return labels


def _refuse_unlabelled(rows: Dataset, max_length: int) -> None:
    """The first token of a row is predicted of nothing, so its label counts for nothing."""
    table = rows.data.table
    labels = pc.list_slice(table["labels"], 1).combine_chunks()
    row_of = pc.list_parent_indices(labels).to_numpy(zero_copy_only=False)
    has = np.unique(row_of[pc.list_flatten(labels).to_numpy(zero_copy_only=False) != NO_LABEL])
    without = np.setdiff1d(np.arange(len(rows)), has)
    if len(without):
        where = in_rows(np.sort(table["row_id"].to_numpy()[without]))
        raise InvalidInput(
            f"max_length={max_length}: {counted(len(without), 'conversation')} without any token of an answer within "
            f"it, {where}; give a larger max_length, or remove these rows",
            cause="data",
        )
