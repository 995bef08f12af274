"""The CoNLL text format becomes a row per sentence, or the line is named that is no word and tag."""

import pytest

from tests.messages import unnamed
from train_func.errors import InvalidInput
from train_func.worker.inputs.delimited import read_conll

ROWS = [
    {"tokens": ["Anna", "lives", "in", "Basel"], "tags": ["B-PER", "O", "O", "B-LOC"]},
    {"tokens": ["No", "#"], "tags": ["O", "O"]},
]


@pytest.mark.parametrize(
    "text",
    [
        "Anna B-PER\nlives O\nin O\nBasel B-LOC\n\nNo O\n# O\n",
        "\ufeffAnna\tB-PER\r\nlives\tO\r\nin\tO\r\nBasel\tB-LOC\r\n\r\n \r\nNo\tO\r\n#\tO",
        "-DOCSTART- -X- O\n\nAnna N B-PER\nlives V O\nin I O\nBasel N B-LOC\n\n-DOCSTART- -X- O\n\nNo D O\n# # O",
    ],
    ids=["spaces", "tabs and Windows line ends", "further columns and documents"],
)
def test_blank_lines_end_sentences_and_the_tag_is_the_last_field(tmp_path, text):
    path = tmp_path / "rows.conll"
    path.write_bytes(text.encode())
    assert read_conll(path).to_pylist() == ROWS


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("Anna B-PER\nlives\n\nin O O\n", ["line 2 has 1 field"]),
        ("Anna\nlives\n", ["line 1 has 1 field"]),
        ("\n \n-DOCSTART- O\n", ["no words"]),
    ],
)
def test_other_lines_are_refused_by_their_number(tmp_path, text, facts):
    path = tmp_path / "rows.conll"
    path.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_conll(path)
    assert caught.value.cause == "data"
    assert unnamed(caught.value, path, *facts) == []
