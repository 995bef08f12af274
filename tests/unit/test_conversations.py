"""Conversations: what is refused before a worker starts, and what becomes of prompts, contexts and answers."""

import json

import pytest

from tests.halves import divided
from tests.messages import unnamed
from tests.tiny_llama import questions
from train_func.errors import InvalidInput
from train_func.tasks import CausalLM
from train_func.worker.tasks.causal_lm import CausalLMTuner
from train_func.worker.tasks.conversations import answers_of


def written(tmp_path, rows):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def split_with_notes(tmp_path, rows, **fields):
    task = CausalLM(model="m", dataset=written(tmp_path, rows), **fields)
    assert not task.all_faults()
    return divided(CausalLMTuner(task, 0, None, tmp_path / "cache"))


def split(tmp_path, rows, **fields):
    return split_with_notes(tmp_path, rows, **fields)[0]


def notes(tmp_path, rows, **fields):
    return split_with_notes(tmp_path, rows, **fields)[1]


def faults(tmp_path, rows, **fields):
    with pytest.raises(InvalidInput) as refused:
        split(tmp_path, rows, **fields)
    assert refused.value.cause == "data"
    return refused.value.faults


def said(user, assistant):
    return [{"role": "user", "content": user}, {"role": "assistant", "content": assistant}]


@pytest.mark.parametrize("num_rows", [101, 40, 7])
def test_a_prompt_and_its_answer_are_a_conversation_of_two(tmp_path, num_rows):
    rows = questions(num_rows)
    found = split(tmp_path, rows)
    assert found.train.num_rows + found.held_out.num_rows == num_rows
    for side in (found.train, found.held_out):
        for row in side.to_pylist():
            assert row["roles"] == ["user", "assistant"]
            assert row["contents"] == [rows[row["row_id"]]["prompt"], rows[row["row_id"]]["completion"]]


def test_a_context_stands_behind_the_prompt_where_there_is_one(tmp_path):
    rows = [{"prompt": f"ask {n}", "input": f"about {n}" if n % 2 else None, "completion": str(n)} for n in range(40)]
    found = split(tmp_path, rows, context="input")
    for row in found.train.to_pylist():
        number = row["row_id"]
        assert row["contents"][0] == (f"ask {number}\n\nabout {number}" if number % 2 else f"ask {number}")


def test_empty_prompts_are_noted_with_their_rows(tmp_path):
    rows = [{"prompt": "" if n == 6 else f"ask {n}", "completion": str(n)} for n in range(40)]
    (note,) = notes(tmp_path, rows)
    assert "row 7" in note


def test_whole_conversations_are_read_from_one_column(tmp_path):
    system = {"role": "system", "content": "be brief"}
    rows = [{"chat": [system, *said(f"a {n}", f"b {n}"), *said(f"c {n}", f"d {n}")]} for n in range(40)]
    found = split(tmp_path, rows, messages="chat")
    row = found.train.to_pylist()[0]
    assert row["roles"] == ["system", "user", "assistant", "user", "assistant"]
    assert set(answers_of(found.train).to_pylist()) == {
        f"{letter} {n}" for letter in "bd" for n in found.train["row_id"].to_pylist()
    }


def weighed(number, *weights):
    turns = [turn for at in range(len(weights)) for turn in said(f"ask {number} {at}", f"say {number} {at}")]
    for turn, weight in zip(turns[1::2], weights, strict=True):
        turn |= {} if weight == "none" else {"weight": weight}
    return turns


def test_an_answer_of_weight_0_is_kept_and_not_learnt(tmp_path):
    kinds = [(0, 1), (1, "none"), (None, 0.0), (0, 0, 1.0)]
    found = split(tmp_path, [{"chat": weighed(n, *kinds[n % 4])} for n in range(40)], messages="chat")
    expected = {0: [False, True], 1: [True, True], 2: [True, False], 3: [False, False, True]}
    for row in found.train.to_pylist():
        assert row["learnt"][1::2] == expected[row["row_id"] % 4]
        assert not any(row["learnt"][::2])
        assert len(row["contents"]) == len(row["roles"]) == len(row["learnt"])
    learnt = [sum(expected[number % 4]) for number in found.train["row_id"].to_pylist()]
    assert len(answers_of(found.train)) == sum(learnt)


def test_keys_of_messages_that_are_not_read_are_noted_once(tmp_path):
    of_log = {"id": 7, "timestamp": "2024-03-01"}
    rows = [{"chat": [{**turn, **of_log} for turn in said(f"a {n}", f"b {n}")]} for n in range(47)]
    held_out = tmp_path / "held_out.jsonl"
    held_out.write_text("".join(json.dumps(row) + "\n" for row in rows[40:]))
    for fields in ({}, {"held_out": str(held_out)}):
        (note,) = notes(tmp_path, rows[:40], messages="chat", **fields)
        assert unnamed(note, "'chat'", *map(repr, of_log)) == []


def test_a_column_of_conversations_that_no_field_names_is_offered(tmp_path):
    rows = [{"id": n, "chat": said(f"a {n}", f"b {n}")} for n in range(40)]
    assert "messages='chat'" in "\n".join(faults(tmp_path, rows))
    without = [{"id": n, "chat": ["a"], "made": [{"role": "user"}]} for n in range(40)]
    assert "messages=" not in "\n".join(faults(tmp_path, without))


def test_every_fault_of_messages_is_told_with_its_rows(tmp_path):
    rows = [{"chat": said(f"a {n}", f"b {n}")} for n in range(40)]
    rows[3]["chat"][0]["role"] = "human"
    rows[5]["chat"][1]["content"] = "  "
    rows[7]["chat"] = rows[7]["chat"][:1]
    rows[9]["chat"][0]["content"] = None
    rows[11]["chat"] = rows[11]["chat"][1:] + said("c", "d")
    rows[13]["chat"] = []
    found = "\n".join(faults(tmp_path, rows, messages="chat"))
    for rows_told in ("row 4", "row 6", "rows 8, 14", "row 10", "row 12"):
        assert f"in {rows_told} " in found
    assert "'human'" in found


def chats(turns_of):
    return [{"chat": turns_of(n)} for n in range(40)]


def with_key(key):
    return chats(lambda n: [{**turn, key: "false"} for turn in said(f"a {n}", f"b {n}")])


CHAT = {"messages": "chat"}


@pytest.mark.parametrize(
    ("rows", "fields", "facts"),
    [
        (chats(lambda n: weighed(n, "none", 2 if n in (4, 7) else "none")), CHAT, ["'chat'", "'weight'", "rows 5, 8"]),
        (chats(lambda n: weighed(n, "none", "0" if n == 4 else "none")), CHAT, ["'chat'", "'weight'", "row 5"]),
        (chats(lambda n: weighed(n, 0, 0 if n == 4 else 1)), CHAT, ["'chat'", "row 5"]),
        (with_key("train"), CHAT, ["'chat'", "'train'"]),
        (chats(lambda n: f"text {n}"), CHAT, ["'chat'"]),
        (chats(lambda n: [{"from": "user", "value": f"{n}"}]), CHAT, ["'chat'"]),
        ([{"question": f"a {n}", "completion": "b"} for n in range(20)], {}, ["'prompt'", "question"]),
        ([{"prompt": f"a {n}", "completion": n} for n in range(20)], {}, ["'completion'", "int64"]),
        ([{"prompt": f"a {n}", "completion": "" if n == 4 else f"b {n}"} for n in range(30)], {}, ["row 5"]),
        ([{"prompt": "the same", "completion": "answer"} for _ in range(20)], {}, ["4 of 4"]),
    ],
)
def test_what_cannot_be_trained_on_is_refused_with_column_key_or_row(tmp_path, rows, fields, facts):
    assert unnamed("\n".join(faults(tmp_path, rows, **fields)), *facts) == []


def test_fields_that_exclude_each_other_are_refused():
    task = CausalLM(model="m", dataset="d", messages="chat", completion="x", lora_alpha=3, lora_layers=("q",))
    found = "\n".join(task.all_faults())
    for name in ("completion=", "lora_alpha=", "lora_layers="):
        assert name in found
    assert CausalLM(model="m", dataset="d", prompt="a", completion="a").all_faults()
    assert CausalLM(model="m", dataset="d", lora_rank=0).all_faults()
    assert CausalLM(model="m", dataset="d", lora_rank=4, lora_dropout=1.0).all_faults()
