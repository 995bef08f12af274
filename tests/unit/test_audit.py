"""How data was split is read from row ids alone."""

import re

import numpy as np

from train_func.worker.training.audit import count


def test_coverage_counts_every_kind_of_use():
    coverage = count(np.asarray([10, 11, 12, 13]), [np.asarray([10, 11]), np.asarray([11, 99])])
    assert coverage.counts("used_once") == {"rows": 4, "used_once": 1, "missing": 2, "repeated": 1}
    assert not coverage.exact
    assert re.findall(r"\((row ids [^)]+)\)", str(coverage)) == ["row ids 12, 13", "row ids 11", "row ids 99"]


def test_coverage_of_every_row_once_is_exact():
    coverage = count(np.arange(5), [np.asarray([4, 0]), np.asarray([2, 1, 3])])
    assert coverage.exact
    assert str(coverage) == "of 5 rows 5 once"
