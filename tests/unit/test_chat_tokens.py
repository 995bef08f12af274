"""Chat tokens: only tokens of answers have labels, by any template, and the same ones on any day."""

import pyarrow as pa
import pytest
from datasets import Dataset
from transformers import AutoTokenizer

from tests.messages import unnamed
from tests.tiny_llama import CHATML, write_tiny_llama
from train_func.errors import InvalidInput
from train_func.worker.tasks.chat_tokens import NO_LABEL, TEMPLATE, template, tokenise_chats

DATED = "{{ strftime_now('%d %b %Y') }} {{ date_string }}" + CHATML
FORGETFUL = (  # an answer is written in another way once the conversation goes on
    "{% for m in messages %}{% if m['role'] == 'assistant' and not loop.last %}{{ 'answer: -\\n' }}{% else %}"
    "{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
ALTERNATING = (  # as Gemma has it
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles alternate') }}{% endif %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
THINKING = CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'")  # the model is asked to think, no answer has it


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_llama(tmp_path_factory.mktemp("made") / "llama")


@pytest.fixture
def tokenizer(folder):
    found = AutoTokenizer.from_pretrained(folder)
    found.chat_template = TEMPLATE
    return found


def rows_of(*conversations):
    return messages_of(*([*zip(["user", "assistant"] * (len(of) // 2), of, strict=True)] for of in conversations))


def messages_of(*conversations):
    """Rows of conversations that are given as pairs of role and content."""
    roles, contents = ([[message[at] for message in of] for of in conversations] for at in (0, 1))
    learnt = [[role == "assistant" for role in of] for of in roles]
    numbers = [*range(len(conversations))]
    return Dataset.from_dict({"roles": roles, "contents": contents, "learnt": learnt, "row_id": numbers})


def labelled(row, tokenizer):
    return tokenizer.decode([label for label in row["labels"] if label != NO_LABEL])


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (TEMPLATE, "a node<|end|>two pods<|end|>"),
        (CHATML, "a node<|im_end|>\ntwo pods<|im_end|>\n"),
        (DATED, "a node<|im_end|>\ntwo pods<|im_end|>\n"),
    ],
)
def test_labels_are_the_tokens_of_all_answers_with_what_ends_them_on_any_day(tokenizer, tmp_path, written, expected):
    tokenizer.chat_template = written
    rows = rows_of(["what is it?", "a node", "how many?", "two pods"])
    (row,) = tokenise_chats(rows, tokenizer, 256, tmp_path)
    assert labelled(row, tokenizer) == expected
    assert len(row["labels"]) == len(row["input_ids"]) == len(row["attention_mask"])
    asked = template(tokenizer, add_generation_prompt=True)([{"role": "user", "content": "what is it?"}])
    assert tokenizer.decode(row["input_ids"]).startswith(asked)
    assert asked.startswith("26 Jul 2024 26 Jul 2024") == (written == DATED)


def test_an_answer_that_is_not_learnt_is_read_and_has_no_label(tokenizer, tmp_path):
    tokenizer.chat_template = CHATML
    rows = rows_of(["what is it?", "a node", "sure?", "two pods"])
    rows = rows.remove_columns("learnt").add_column("learnt", [[False, False, False, True]])
    (row,) = tokenise_chats(rows, tokenizer, 256, tmp_path)
    assert labelled(row, tokenizer) == "two pods<|im_end|>\n"
    assert "a node<|im_end|>" in tokenizer.decode(row["input_ids"])


@pytest.mark.parametrize(
    ("written", "turns"),
    [
        (FORGETFUL, ["what?", "a node", "which?", "that one"]),
        (THINKING, ["what?", "a node"]),
        (TEMPLATE, ["what?", "a node"]),
    ],
    ids=["rewrites earlier answers", "asks with what no answer begins with", "neither template nor end of text"],
)
def test_a_template_by_which_answers_cannot_be_told_is_refused(tokenizer, tmp_path, written, turns):
    tokenizer.chat_template = written
    if written == TEMPLATE:
        tokenizer.eos_token = None
    with pytest.raises(InvalidInput, match="template") as refused:
        tokenise_chats(rows_of(turns), tokenizer, 256, tmp_path)
    assert refused.value.cause == "model"


def test_conversations_that_the_template_refuses_are_faults_of_the_data_with_their_rows(tokenizer, tmp_path):
    tokenizer.chat_template = ALTERNATING
    good = [("user", "what?"), ("assistant", "a node")]
    rows = messages_of(good, [("system", "be brief"), *good], good, [("user", "so"), *good], [("system", "hm"), *good])
    with pytest.raises(InvalidInput) as refused:
        tokenise_chats(rows, tokenizer, 256, tmp_path)
    assert refused.value.cause == "data"
    system, alternating = refused.value.faults
    assert unnamed(system, "rows 2, 5", "no system message") == []
    assert unnamed(alternating, "row 4", "roles alternate") == []
    assert len(tokenise_chats(messages_of(good), tokenizer, 256, tmp_path)) == 1


def test_of_several_templates_the_default_one_is_used_and_without_one_their_names_are_told(tokenizer, tmp_path):
    rows = rows_of(["what?", "a node"])
    tokenizer.chat_template = {"default": CHATML, "rag": TEMPLATE}
    assert labelled(tokenise_chats(rows, tokenizer, 256, tmp_path)[0], tokenizer) == "a node<|im_end|>\n"
    tokenizer.chat_template = {"tool_use": CHATML, "rag": TEMPLATE}
    with pytest.raises(ValueError, match="tool_use"):
        tokenise_chats(rows, tokenizer, 256, tmp_path)


def test_a_conversation_without_an_answer_within_the_length_is_refused_with_its_row(tokenizer, tmp_path):
    rows = rows_of(["short?", "yes"], ["very long " * 40, "no"], ["short?", "also a node " * 40])
    with pytest.raises(InvalidInput) as refused:
        tokenise_chats(rows, tokenizer, 60, tmp_path)
    assert refused.value.cause == "data"
    assert "row 2" in str(refused.value)
    cut = tokenise_chats(rows_of(["short?", "yes"], ["short?", "also a node " * 40]), tokenizer, 60, tmp_path)
    assert [len(row["input_ids"]) <= 60 for row in cut] == [True, True]


def test_another_template_or_end_of_text_gives_other_tokens_than_those_in_the_cache(tokenizer, tmp_path):
    rows = rows_of(["what?", "a node"])
    first = tokenise_chats(rows, tokenizer, 256, tmp_path)
    tokenizer.eos_token = tokenizer.pad_token
    assert first[0]["input_ids"] != tokenise_chats(rows, tokenizer, 256, tmp_path)[0]["input_ids"]
    tokenizer.chat_template = CHATML
    assert first[0]["input_ids"] != tokenise_chats(rows, tokenizer, 256, tmp_path)[0]["input_ids"]
    assert pa.types.is_list(first.data.table.schema.field("labels").type)
