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
from train_func.storage import Store
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
    dataset: Dataset,
    tokenizer: Any,
    max_length: int,
    cache: Path,
    store: Store | None = None,
    *,
    first_held_out: int | None = None,
) -> Dataset:
    """Returns conversations as token ids, with ``labels``, the id of an answer's token or NO_LABEL, and ``row_id``.

    Args:
        dataset: columns roles, contents, learnt, row_id, as ``split_conversations`` makes them.
        tokenizer: a fast tokenizer of transformers with a chat template.
        max_length: tokens after which a conversation is cut.
        cache: of this machine.
        store: as ``tokenise`` takes it.
        first_held_out: row_id of the first held-out row, if the held-out rows have a file or split of their own.

    Raises:
        InvalidInput: (cause "data") the template refuses conversations, or no token of an answer lies within that
            length; (cause "model") as ``template`` and ``written``.
    """
    write_question, write_turns = template(tokenizer, add_generation_prompt=True), template(tokenizer)

    def encoded(rows: pa.RecordBatch) -> pa.RecordBatch:
        texts, answers = zip(*_all_written(rows, write_question, write_turns, first_held_out), strict=True)
        tokens = tokenizer(
            list(texts),
            add_special_tokens=False,  # the template has written them
            return_offsets_mapping=True,
            return_attention_mask=True,
            truncation=True,
            max_length=max_length,
            padding=False,
        )
        each = zip(tokens["input_ids"], tokens["offset_mapping"], answers, strict=True)
        labels = pa.array([_labels(*row) for row in each], pa.list_(pa.int64()))
        return pa.record_batch({**id_columns(tokens), "labels": labels, "row_id": rows["row_id"]})

    table = dataset.data.table.select(["roles", "contents", "learnt", "row_id"])
    written_by = f"{tokenizer.chat_template} {tokenizer.special_tokens_map} {DAY}"
    key = hashlib.sha256(f"{key_of(dataset, tokenizer, max_length)} {written_by}".encode()).hexdigest()
    tokenised = cached(table, encoded, key, cache, store)
    _refuse_unlabelled(tokenised, max_length, first_held_out)
    return tokenised


def template(tokenizer: Any, **options: Any) -> Callable[[Turns], str]:
    """Returns a function that writes conversations by the tokenizer's template, always with the same date.

    Raises:
        InvalidInput: (cause "model") the tokenizer has no token that ends an answer. The function raises it (cause
            "data") for a conversation that the template refuses.
    """
    chat_template = tokenizer.get_chat_template()
    if chat_template == TEMPLATE and tokenizer.eos_token is None:
        raise InvalidInput(
            "the model's tokenizer has no chat template and no end-of-text token, so that no answer would end: set its "
            "eos_token and save it, or take another model",
            cause="model",
        )
    of_day = TODAY.sub(lambda call: repr(DAY.strftime(call["format"])), chat_template)

    def write(turns: Turns) -> str:
        try:
            text: str = tokenizer.apply_chat_template(
                turns, chat_template=of_day, tokenize=False, date_string=f"{DAY:%d %b %Y}", **options
            )
        except (TemplateError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())[:300]
            raise InvalidInput(
                f"the model's chat template refuses the conversation: {reason}; change these rows, or take a model "
                "with another template",
                cause="data",
            ) from error
        return text

    return write


def _all_written(
    rows: pa.RecordBatch, write_question: Write, write_turns: Write, first_held_out: int | None
) -> list[Written]:
    """Returns ``written`` of each row; its InvalidInput names the rows."""
    conversations: list[Written] = []
    refused: dict[tuple[str, Cause], list[int]] = {}
    columns = (rows[name].to_pylist() for name in ("row_id", "learnt", "roles", "contents"))
    for row_id, learnt, *message in zip(*columns, strict=True):
        turns = [{"role": role, "content": content} for role, content in zip(*message, strict=True)]
        try:
            conversations.append(written(turns, learnt, write_question, write_turns))
        except InvalidInput as error:
            refused.setdefault((str(error), error.cause), []).append(row_id)
    if refused:
        faults = [
            f"{counted(len(row_ids), 'conversation')} {_places(row_ids, first_held_out)}: {fault}"
            for (fault, _), row_ids in refused.items()
        ]
        raise InvalidInput(faults, cause=next(iter(refused))[1])
    return conversations


def written(turns: Turns, learnt: list[bool], write_question: Write, write_turns: Write) -> Written:
    """Returns a conversation as text, and where in it each answer begins and ends, with the template's end of it.

    Args:
        learnt: which messages are answers that are trained on.
        write_question: writes the beginning of a conversation, and what the template asks the model for an answer with.
        write_turns: writes the beginning of a conversation alone.

    Raises:
        InvalidInput: (cause "model") the text of a part is not the beginning of the whole.
    """
    text, answers = write_turns(turns), []
    for number in np.flatnonzero(learnt).tolist():
        before = write_question(turns[:number])
        after = write_turns(turns[: number + 1]) if number + 1 < len(turns) else text
        if not (text.startswith(after) and after.startswith(before)):
            raise InvalidInput(
                "the model's chat template writes the turns before an answer differently once the answer follows, so "
                f"that it would be trained on other prompts than it is asked with, at message {number + 1}; give "
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
    """Raises InvalidInput for rows without a label; the first token of a row has none, because nothing predicts it.

    Reads batch by batch, because the labels of a large data set as one array would fill the memory of every rank.
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
    """Returns the rows in words, with the numbers that they have in their files."""
    if first_held_out is None:
        return in_rows(sorted(row_ids))
    training = sorted(row_id for row_id in row_ids if row_id < first_held_out)
    held_out = sorted(row_id - first_held_out for row_id in row_ids if row_id >= first_held_out)
    parts = {"training": training, "held-out": held_out}
    return " and ".join(f"{in_rows(rows)} of the {part} rows" for part, rows in parts.items() if rows)


def end_of_answers(tokenizer: Any) -> int | None:
    """Returns the token that ends answers; None if there is none, or if it could also be text of an answer."""
    turns = [{"role": USER, "content": QUESTION}, {"role": ASSISTANT, "content": ANSWER}]
    try:
        text = template(tokenizer)(turns)
    except InvalidInput:  # the conversations of the run meet the same, which names them
        return None
    _, answer, behind = text.rpartition(ANSWER)
    ids: list[int] = tokenizer(behind.strip(), add_special_tokens=False)["input_ids"] if answer else []
    return ids[0] if ids and ids[0] in tokenizer.added_tokens_decoder else None


def stop_at(model: Any, token: int) -> list[int] | None:
    """Makes ``model.generate`` stop at the token too; returns all tokens that stop it, None if nothing changed."""
    stops = model.generation_config.eos_token_id
    stops = [stops] if isinstance(stops, int) else list(stops or ())
    if token in stops:
        return None
    model.generation_config.eos_token_id = [*stops, token]
    return [*stops, token]
