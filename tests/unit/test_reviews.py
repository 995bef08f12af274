"""The shipped example data: 600 different reviews, balanced, varied, and read alike by strict readers."""

import csv
import re
from collections import Counter
from itertools import combinations
from pathlib import Path
from statistics import mean

import pyarrow as pa
import pytest
from pyarrow import csv as arrow_csv

REVIEWS = Path(__file__).parents[2] / "notebooks/data/restaurant_reviews.csv"
NEGATION = frozenset(["no", "not", "never", "nothing", "nobody", "none", "neither", "nor", "without", "cannot"])

Row = tuple[str, int]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    with REVIEWS.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        return [(row["text"], int(row["stars"])) for row in reader]


@pytest.fixture(scope="module")
def texts(rows: list[Row]) -> list[str]:
    return [text for text, _ in rows]


def words(text: str) -> list[str]:
    """Lower-case words; an apostrophe stays inside its word, so that "don't" is one."""
    return re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower())


def four_grams(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[start : start + 4]) for start in range(len(found) - 3)}


def similarity(one: set[tuple[str, ...]], other: set[tuple[str, ...]]) -> float:
    return len(one & other) / len(one | other)


def test_six_hundred_reviews_no_two_of_them_alike_but_for_case_and_punctuation(texts):
    assert len(texts) == 600
    assert len({" ".join(words(text)) for text in texts}) == 600


def test_each_number_of_stars_comes_one_hundred_and_twenty_times(rows):
    assert Counter(stars for _, stars in rows) == dict.fromkeys((1, 2, 3, 4, 5), 120)


def test_the_order_is_shuffled_so_that_any_hundred_rows_hold_every_number_of_stars_often(rows):
    for start in range(0, 600, 100):
        counted = Counter(stars for _, stars in rows[start : start + 100])
        assert min(counted[stars] for stars in (1, 2, 3, 4, 5)) >= 10


def test_no_two_reviews_are_near_duplicates(texts):
    grams = {text: four_grams(text) for text in texts}
    assert all(grams.values())
    close = [(one, other) for one, other in combinations(texts, 2) if similarity(grams[one], grams[other]) > 0.3]
    assert close == []


def test_the_first_four_words_are_shared_by_two_reviews_at_most(texts):
    openings = Counter(tuple(words(text)[:4]) for text in texts)
    assert {opening: count for opening, count in openings.items() if count > 2} == {}


def test_lengths_go_from_five_words_to_a_hundred_and_twenty_around_forty(texts):
    lengths = [len(text.split()) for text in texts]
    assert min(lengths) >= 5
    assert max(lengths) <= 120
    assert 35 <= mean(lengths) <= 45
    assert sum(length <= 12 for length in lengths) >= 40
    assert sum(length >= 60 for length in lengths) >= 60


def test_the_length_of_a_review_does_not_give_its_stars_away(rows):
    means = [mean(len(text.split()) for text, stars in rows if stars == wanted) for wanted in (1, 2, 3, 4, 5)]
    assert max(means) < 1.25 * min(means)


def test_negation_is_common_in_good_reviews_as_well_as_in_bad_ones(rows):
    for wanted in (1, 2, 3, 4, 5):
        found = [set(words(text)) for text, stars in rows if stars == wanted]
        negated = sum(bool(NEGATION & one) or any(word.endswith(("n't", "n’t")) for word in one) for one in found)
        assert 0.35 <= negated / len(found) <= 0.85


def test_the_file_is_utf8_without_a_mark_and_its_lines_end_in_a_line_feed():
    data = REVIEWS.read_bytes()
    assert data.startswith(b"text,stars\n")
    assert data.endswith(b"\n")
    assert b"\r" not in data
    assert data.decode("utf-8").count("\n") == 601


def test_quotes_and_commas_inside_a_review_survive_both_readers(rows, texts):
    table = arrow_csv.read_csv(REVIEWS)
    assert table.schema == pa.schema([("text", pa.string()), ("stars", pa.int64())])
    assert list(zip(table["text"].to_pylist(), table["stars"].to_pylist(), strict=True)) == rows
    assert sum('"' in text for text in texts) >= 50
    assert sum("," in text for text in texts) >= 300


def test_each_review_is_one_line_without_space_around_it(texts):
    assert [text for text in texts if text != text.strip() or not text.isprintable()] == []
