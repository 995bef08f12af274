"""The shipped example data: 400 different messages, balanced and varied, of which no two are near duplicates."""

import csv
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # words that carry no subject

MESSAGES = Path(__file__).parents[2] / "notebooks/data/shop_messages.csv"
TOPICS = ("delivery", "payment", "product")

Row = tuple[str, str]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    with MESSAGES.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["topic"]) for row in csv.DictReader(file, strict=True)]


@pytest.fixture(scope="module")
def texts(rows: list[Row]) -> list[str]:
    return [text for text, _ in rows]


def words(text: str) -> list[str]:
    """Lower-case words; an apostrophe stays inside its word, so that "don't" is one."""
    return re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower())


def overlap(one: set[str], other: set[str]) -> float:
    return len(one & other) / len(one | other)


def test_four_hundred_messages_in_three_topics_of_nearly_the_same_size(rows):
    assert len(rows) == 400
    counted = Counter(topic for _, topic in rows)
    assert sorted(counted) == sorted(TOPICS)
    assert max(counted.values()) - min(counted.values()) <= 1


def test_no_two_messages_are_near_duplicates_so_that_the_held_out_rows_are_new(texts):
    found = {text: set(words(text)) - ENGLISH_STOP_WORDS for text in texts}
    assert len(found) == 400
    assert min(map(len, found.values())) >= 2
    close = [(one, other) for one, other in combinations(texts, 2) if overlap(found[one], found[other]) > 0.3]
    assert close == []


def test_no_word_gives_a_topic_away_in_a_third_of_its_messages(rows):
    """A class that one word tells would be a lookup, and nothing to learn."""
    for wanted in TOPICS:
        found = [set(words(text)) - ENGLISH_STOP_WORDS for text, topic in rows if topic == wanted]
        word, count = Counter(word for one in found for word in one).most_common(1)[0]
        assert count < len(found) / 3, word


def test_quotes_and_commas_inside_a_message_survive_both_readers(rows, texts):
    table = arrow_csv.read_csv(MESSAGES)
    assert table.schema == pa.schema([("text", pa.string()), ("topic", pa.string())])
    assert list(zip(table["text"].to_pylist(), table["topic"].to_pylist(), strict=True)) == rows
    assert sum('"' in text for text in texts) >= 20
    assert sum("," in text for text in texts) >= 100
