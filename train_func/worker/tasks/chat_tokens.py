"""Tokenises conversations by the chat template of their model; only tokens of answers to learn have labels."""

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
from jinja2 import TemplateError

from train_func.errors import Cause, InvalidInput
from train_func.text import counted, in_rows
from train_func.worker.tasks.conversations import ASSISTANT, USER
from train_func.worker.tasks.tokens import BATCH, cached, id_columns, key_of

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
Write = Callable[[Turns], str]
Written = tuple[str, list[tuple[int, int]]]  # a text, and where in it each answer begins and ends
QUESTION, ANSWER = "How many are there?", "Seventeen"


def tokenise_chats(
    dataset: Dataset, tokenizer: Any, max_length: int, cache: Path, *, first_held_out: int | None = None
) -> Dataset:
    """Conversations as token ids, beside ``labels``, the id of an answer's token or NO_LABEL, and ``row_id``.

    Args:
        dataset: columns roles, contents, learnt, row_id, as ``split_conversations`` makes them.
        tokenizer: of transformers, with a chat template, one that tells which letters a token stands for.
        max_length: tokens after which a conversation is cut.
        first_held_out: row_id of the first held-out row, where these are a file or split of their own.

    Raises:
        InvalidInput: (cause "data") the template refuses conversations, or no token of an answer lies within that
            length; (cause "model") as ``template`` and ``written``.
    """
    asked, until = template(tokenizer, add_generation_prompt=True), template(tokenizer)

    def encoded(rows: pa.RecordBatch) -> pa.RecordBatch:
        texts, answers = zip(*_all_written(rows, asked, until, first_held_out), strict=True)
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

    table = dataset.data.table.select(["roles", "contents", "learnt", "row_id"])
    written_by = f"{tokenizer.chat_template} {tokenizer.special_tokens_map} {DAY}"
    key = hashlib.sha256(f"{key_of(dataset, tokenizer, max_length)} {written_by}".encode()).hexdigest()
    made = cached(table, encoded, key, cache)
    _refuse_unlabelled(made, max_length, first_held_out)
    return made


def template(tokenizer: Any, **options: Any) -> Callable[[Turns], str]:
    """Returns what writes conversations as the tokenizer's template has it, as of one and the same day.

    Raises:
        InvalidInput: (cause "model") the tokenizer lacks what ends an answer; what is returned raises it (cause "data")
            where the template refuses a conversation.
    """
    own = tokenizer.get_chat_template()
    if own == TEMPLATE and tokenizer.eos_token is None:
        raise InvalidInput(
            "the model's tokenizer has no chat template and no end-of-text token, so that no answer would end: set its "
            "eos_token and save it, or take another model",
            cause="model",
        )
    of_day = TODAY.sub(lambda call: repr(DAY.strftime(call["format"])), own)

    def write(turns: Turns) -> str:
        try:
            text: str = tokenizer.apply_chat_template(
                turns, chat_template=of_day, tokenize=False, date_string=f"{DAY:%d %b %Y}", **options
            )
        except (TemplateError, ValueError, TypeError) as error:
            said = " ".join(str(error).split())[:300]
            raise InvalidInput(
                f"the model's chat template refuses the conversation: {said}; change these rows, or take a model with "
                "another template",
                cause="data",
            ) from error
        return text

    return write


def _all_written(rows: pa.RecordBatch, asked: Write, until: Write, first_held_out: int | None) -> list[Written]:
    """Raises InvalidInput as ``written``, with the rows."""
    made: list[Written] = []
    refused: dict[tuple[str, Cause], list[int]] = {}
    columns = (rows[name].to_pylist() for name in ("row_id", "learnt", "roles", "contents"))
    for row_id, learnt, *said in zip(*columns, strict=True):
        turns = [{"role": role, "content": content} for role, content in zip(*said, strict=True)]
        try:
            made.append(written(turns, learnt, asked, until))
        except InvalidInput as error:
            refused.setdefault((str(error), error.cause), []).append(row_id)
    if refused:
        faults = [
            f"{counted(len(of), 'conversation')} {_places(of, first_held_out)}: {said}"
            for (said, _), of in refused.items()
        ]
        raise InvalidInput(faults, cause=next(iter(refused))[1])
    return made


def written(turns: Turns, learnt: list[bool], asked: Write, until: Write) -> Written:
    """A conversation as text, and where in it each answer begins and ends, with what the template ends it with.

    ``learnt``: which messages are answers that are trained on. ``asked``, ``until``: write its beginning, with what the
    model is then asked with, and without.

    Raises:
        InvalidInput: (cause "model") the text of a part is not the beginning of the whole.
    """
    text, answers = until(turns), []
    for number in np.flatnonzero(learnt).tolist():
        before = asked(turns[:number])
        after = until(turns[: number + 1]) if number + 1 < len(turns) else text
        if not (text.startswith(after) and after.startswith(before)):
            raise InvalidInput(
                "the model's chat template writes the beginning of a conversation in another way once it is answered "
                f"or goes on, so that it would not be asked as it is trained, at message {number + 1}; give "
                "conversations of one question and one answer, or take a model with another template",
                cause="model",
            )
        answers.append((len(before), len(after)))
    return text, answers


def _labels(ids: list[int], offsets: list[tuple[int, int]], answers: list[tuple[int, int]]) -> list[int]:
    begin, end = np.asarray(offsets, dtype=np.int64).reshape(-1, 2).T
    is_answer = np.zeros(len(ids), dtype=bool)
    for first, last in answers:
        is_answer |= (end > first) & (begin < last)
    labels: list[int] = np.where(is_answer, ids, NO_LABEL).tolist()
    return labels


def _refuse_unlabelled(rows: Dataset, max_length: int, first_held_out: int | None) -> None:
    """Raises InvalidInput where no token of an answer counts; the first of a row does not, as nothing predicts it.

    It reads batch by batch: as one array the labels of a large data set fill the memory, and on every rank.
    """
    without: list[int] = []
    for batch in rows.data.table.select(["labels", "row_id"]).to_batches(max_chunksize=BATCH):
        labels = pc.list_slice(batch["labels"], 1)
        row_of = pc.list_parent_indices(labels).to_numpy(zero_copy_only=False)
        has = row_of[pc.list_flatten(labels).to_numpy(zero_copy_only=False) != NO_LABEL]
        without += np.delete(batch["row_id"].to_numpy(zero_copy_only=False), has).tolist()
    if without:
        raise InvalidInput(
            f"max_length={max_length}: {counted(len(without), 'conversation')} without any token of an answer within "
            f"it, {_places(without, first_held_out)}; the questions fill it: give a larger max_length, or remove "
            "these rows",
            cause="data",
        )


def _places(row_ids: list[int], first_held_out: int | None) -> str:
    """The rows as their files count them."""
    if first_held_out is None:
        return in_rows(sorted(row_ids))
    training = sorted(row_id for row_id in row_ids if row_id < first_held_out)
    held_out = sorted(row_id - first_held_out for row_id in row_ids if row_id >= first_held_out)
    parts = {"training": training, "held-out": held_out}
    return " and ".join(f"{in_rows(rows)} of the {part} rows" for part, rows in parts.items() if rows)


def end_of_answers(tokenizer: Any) -> int | None:
    """The token; None where an answer ends with nothing, or with what could also be text of an answer."""
    turns = [{"role": USER, "content": QUESTION}, {"role": ASSISTANT, "content": ANSWER}]
    try:
        text = template(tokenizer)(turns)
    except InvalidInput:  # the conversations of the run meet the same, which names them
        return None
    _, found, behind = text.rpartition(ANSWER)
    ids: list[int] = tokenizer(behind.strip(), add_special_tokens=False)["input_ids"] if found else []
    return ids[0] if ids and ids[0] in tokenizer.added_tokens_decoder else None


def stop_at(model: Any, token: int) -> list[int] | None:
    """Makes ``model.generate`` stop at the token too; returns all that it stops at, or None if it did so before."""
    stops = model.generation_config.eos_token_id
    stops = [stops] if isinstance(stops, int) else list(stops or ())
    if token in stops:
        return None
    model.generation_config.eos_token_id = [*stops, token]
    return [*stops, token]
