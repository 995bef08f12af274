"""What all tests share: real review sentences from beside the checkout, when they are there."""

import os
from pathlib import Path

import pytest

collect_ignore = ["cluster", "install"]  # unless named: they need a cluster; `make test-cluster`
SENTENCES = (
    Path(os.environ.get("TRAIN_FUNC_TEST_DATA", Path(__file__).parents[2] / "shared/data")) / "yelp_sentences.tsv"
)


@pytest.fixture(scope="session")
def sentences() -> Path:
    """1,000 real review sentences, tab-separated, columns text and label (0 or 1)."""
    if not SENTENCES.is_file():
        pytest.skip(f"the real review sentences are not here: {SENTENCES}; TRAIN_FUNC_TEST_DATA names their folder")
    return SENTENCES
