"""Reads, checks and divides conversations: lists of messages, or prompts with their answers."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from train_func.tasks import CausalLM
from train_func.text import listed
from train_func.worker.inputs.findings import Findings
from train_func.worker.tasks.columns import is_blank, is_list, is_text, judge_overlap, judge_texts, plain
from train_func.worker.tasks.train_eval_split import Sources, TrainEvalSplit, divide, where

USER, ASSISTANT = "user", "assistant"
ROLES = ("system", USER, ASSISTANT)
WEIGHT = "weight"  # of an answer, as fine-tuning files have it: 0 where it is not to be learnt
READ = ("role", "content", WEIGHT)  # keys of a message
MEANT = ("train", "tool_calls", "reasoning_content", "images")  # other keys, which say what is to be learnt
BETWEEN = "\n\n"  # a prompt and its context


def split_conversations(task: CausalLM, seed: int, sources: Sources, findings: Findings) -> TrainEvalSplit:
    """Returns tables with ``row_id`` and ``roles``, ``contents``, ``learnt``: lists with an item for each message.

    ``learnt``: whether the message is an answer that is trained on.

    Raises:
        InvalidInput: with every fault of the data at once.
    """
    whole = sources.having(*(name for _, name in task.columns))
    for part, table in sources.tables.items():
        if part not in whole and task.messages is None and (name := _with_conversations(table)):
            findings.fault(
                f"{where(task, part)}: conversations stand in the column {name!r}: give messages={name!r} in place of "
                "prompt and completion"
            )
    read = _prompted if task.messages is None else _conversations
    tables = {part: read(task, table, part, findings) for part, table in whole.items()}
    findings.refuse()
    readable = {part: table for part, table in tables.items() if table is not None}
    data = divide(task, seed, sources, readable, findings)
    judge_overlap(texts_of(data.train), texts_of(data.held_out), data.held_rows, findings)
    return data


def texts_of(rows: pa.Table) -> pa.ChunkedArray:
    """Returns the messages of each conversation as one text."""
    return pc.binary_join(rows["contents"], pa.scalar("\n", pa.large_string()))


def answers_of(rows: pa.Table) -> pa.Array:
    """Returns all answers that are trained on."""
    learnt, contents = (pc.list_flatten(rows[name].combine_chunks()) for name in ("learnt", "contents"))
    return contents.filter(learnt)


def _with_conversations(table: pa.Table) -> str | None:
    """Returns the name of the first column with messages of roles and contents."""
    kinds = {column.name: column.type for column in table.schema if is_list(column.type)}
    structs = {name: kind.value_type for name, kind in kinds.items() if pa.types.is_struct(kind.value_type)}
    fits = {name: {"role", "content"} <= {field.name for field in kind} for name, kind in structs.items()}
    return next((name for name, is_conversation in fits.items() if is_conversation), None)


def _prompted(task: CausalLM, table: pa.Table, part: str, findings: Findings) -> pa.Table | None:
    """Returns conversations of one prompt and one answer; None if there are faults."""
    column_findings = Findings()
    for name in (task.prompt, task.completion):
        judge_texts(table, name, part, column_findings)
    if task.context is not None and not is_text(table[task.context].type):
        column_findings.fault(f"column {task.context!r}: {part} rows hold {table[task.context].type}, not texts")
    findings.note(*column_findings.notes)
    findings.fault(*(text for _, text in column_findings.faults))
    if column_findings.faults:
        return None
    answers = plain(table[task.completion]).combine_chunks()
    remedy = "there is nothing to learn from them: remove these rows"
    findings.fault_rows(task.completion, part, np.flatnonzero(is_blank(answers)), "{is} empty", remedy, "answer")
    prompts = plain(table[task.prompt]).combine_chunks()
    if task.context is not None:
        context = pc.fill_null(plain(table[task.context]).combine_chunks(), "")
        both = pc.binary_join_element_wise(prompts, context, pa.scalar(BETWEEN, pa.large_string()))
        prompts = pc.if_else(pa.array(is_blank(context)), prompts, both)
    texts = pa.array(np.arange(2 * len(answers)).reshape(2, -1).T.ravel())  # question, answer, question, answer
    contents = pa.concat_arrays([prompts, answers]).take(texts)
    roles = pa.array([USER, ASSISTANT] * len(answers), pa.large_string())
    return _table(roles, contents, pc.equal(roles, ASSISTANT), np.arange(len(answers) + 1) * 2)


def _conversations(task: CausalLM, table: pa.Table, part: str, findings: Findings) -> pa.Table | None:
    """Returns the conversations of a column of lists; None if it has no lists of messages."""
    name, values = task.messages, table[task.messages].combine_chunks()
    kind = values.type
    expected = 'a list of {"role": "user", "content": "..."} is expected in each row'
    if not is_list(kind) or not pa.types.is_struct(kind.value_type):
        findings.fault(f"column {name!r}: {part} rows hold {kind}; {expected}")
        return None
    fields = [kind.value_type.field(at) for at in range(kind.value_type.num_fields)]
    lacking = [key for key in ("role", "content") if not any(f.name == key and is_text(f.type) for f in fields)]
    if lacking:
        has = listed([f"{f.name} ({f.type})" for f in fields])
        findings.fault(
            f"column {name!r}: messages of the {part} rows have no text {listed(lacking)}, but {has}; {expected}"
        )
        return None
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    messages = values.flatten()
    roles, contents = (plain(pa.chunked_array([messages.field(key)])).combine_chunks() for key in ("role", "content"))
    bounds = np.append(0, np.cumsum(lengths))
    row_of = np.repeat(np.arange(len(bounds) - 1), lengths)
    columns = {field.name: messages.field(at) for at, field in enumerate(fields)}
    weights = columns.get(WEIGHT, pa.nulls(len(messages)))
    is_left_out = _left_out(weights, row_of, name or "", part, findings)
    unread = [key for key, column in columns.items() if key not in READ and column.null_count < len(column)]
    learnt = pc.and_(pc.fill_null(pc.equal(roles, ASSISTANT), False), pa.array(~is_left_out))
    _judge_messages(name or "", part, roles, contents, learnt, bounds, findings)
    if meant := [key for key in unread if key in MEANT]:
        findings.fault(
            f"column {name!r}: messages of the {part} rows have {listed(meant, show=repr)}, which training would "
            f"ignore: remove it from the messages; to leave an answer out of training, give it the {WEIGHT} 0"
        )
    elif unread:
        findings.note(f"column {name!r}: these keys of messages are ignored: {listed(unread, show=repr)}")
    return _table(pc.fill_null(roles, ""), pc.fill_null(contents, ""), learnt, bounds)


def _left_out(weights: pa.Array, row_of: np.ndarray, name: str, part: str, findings: Findings) -> np.ndarray:
    """Returns for each message whether its weight is 0."""
    if pa.types.is_null(weights.type):
        return np.zeros(len(weights), dtype=bool)
    numbers = np.array([1 if number is None else number for number in weights.to_pylist()], dtype=object)
    rows = np.unique(row_of[[number not in (0, 1) for number in numbers]])
    problem = f"with messages whose {WEIGHT!r} is neither 0 nor 1"
    remedy = "an answer of weight 0 is not trained on, one of 1 or without a weight is"
    findings.fault_rows(name, part, rows, problem, remedy)
    return np.array([number == 0 for number in numbers], dtype=bool)


def _judge_messages(
    name: str,
    part: str,
    roles: pa.Array,
    contents: pa.Array,
    learnt: pa.Array,
    bounds: np.ndarray,
    findings: Findings,
) -> None:
    row_of = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))

    def rows(mask: pa.Array) -> np.ndarray:
        return np.unique(row_of[pc.fill_null(mask, False).to_numpy(zero_copy_only=False)])

    is_answer = pc.equal(roles, ASSISTANT)
    known = pc.is_in(roles, value_set=pa.array(ROLES, pa.large_string()))
    unknown = rows(pc.invert(known))
    blank = rows(pc.and_(learnt, pa.array(is_blank(contents))))
    null = rows(pc.and_(pc.invert(learnt), pc.is_null(contents)))
    without = np.setdiff1d(np.arange(len(bounds) - 1), rows(learnt))
    filled = np.flatnonzero(np.diff(bounds))
    unasked = filled[is_answer.take(pa.array(bounds[filled])).fill_null(False).to_numpy(zero_copy_only=False)]
    other_roles = listed(sorted({str(role) for role in pc.unique(roles).to_pylist()} - set(ROLES)), show=repr)
    rows_of_faults = {
        f"a role other than {', '.join(ROLES)} ({other_roles}); rename it, or remove these rows": unknown,
        "an answer that is empty or null; there is nothing to learn from it: remove it": blank,
        "a message whose content is null; write a text": null,
        f"no message of the role {ASSISTANT!r} whose {WEIGHT} is not 0; there is nothing to learn from them: remove "
        "them": without,
        f"a first message of the role {ASSISTANT!r}; put before it what it answers, or remove it": unasked,
    }
    for fault, places in rows_of_faults.items():
        problem, _, remedy = fault.partition("; ")
        findings.fault_rows(name, part, places, f"with {problem}", remedy)


def _table(roles: pa.Array, contents: pa.Array, learnt: pa.Array, bounds: np.ndarray) -> pa.Table:
    """Returns the table; ``bounds``: where each conversation begins in the messages, and where the last one ends."""
    offsets = pa.array(bounds, pa.int64())
    lists = {"roles": roles, "contents": contents, "learnt": learnt}
    return pa.table({name: pa.LargeListArray.from_arrays(offsets, values) for name, values in lists.items()})
