"""The shipped example data: 400 different messages in balanced topics, of which no two are near duplicates."""

import csv
import re
from collections import Counter
from itertools import combinations
from pathlib import Path

import pytest
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # words that carry no subject

MESSAGES = Path(__file__).parents[2] / "notebooks/data/shop_messages.csv"


@pytest.fixture(scope="module")
def rows():
    with MESSAGES.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def words(text):
    """Lower-case words; an apostrophe stays inside its word, so that "don't" is one."""
    return set(re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower())) - ENGLISH_STOP_WORDS


def test_four_hundred_messages_in_three_topics_of_nearly_the_same_size(rows):
    counted = Counter(row["topic"] for row in rows)
    assert sorted(counted) == ["delivery", "payment", "product"]
    assert counted.total() == 400
    assert max(counted.values()) - min(counted.values()) <= 1


def test_no_two_messages_are_near_duplicates_so_that_the_held_out_rows_are_new(rows):
    found = {row["text"]: words(row["text"]) for row in rows}
    assert len(found) == 400
    close = [
        (one, other)
        for one, other in combinations(found, 2)
        if len(found[one] & found[other]) > 0.3 * len(found[one] | found[other])
    ]
    assert close == []
