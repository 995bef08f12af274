"""How data was split is read from row ids alone."""

import re

import numpy as np

from tests.messages import refuses
from train_func.wire.events import RowsAudited
from train_func.worker.rank import reporting
from train_func.worker.training.audit import check_epoch, count


def test_coverage_counts_every_kind_of_use():
    coverage = count(np.asarray([10, 11, 12, 13]), [np.asarray([10, 11]), np.asarray([11, 99])])
    assert coverage.counts("used_once") == {"rows": 4, "used_once": 1, "missing": 2, "repeated": 1}
    assert not coverage.exact
    assert re.findall(r"\((row ids [^)]+)\)", str(coverage)) == ["row ids 12, 13", "row ids 11", "row ids 99"]


def test_coverage_of_every_row_once_is_exact():
    coverage = count(np.arange(5), [np.asarray([4, 0]), np.asarray([2, 1, 3])])
    assert coverage.exact
    assert str(coverage) == "of 5 rows 5 once"


def test_an_epoch_whose_steps_left_rows_out_or_repeated_them_is_told_and_fails_the_run(monkeypatch):
    monkeypatch.setattr(reporting, "_sink", [(told := []).append])
    with refuses("Epoch 1", "row ids 2, 3", "row ids 1", cause="code"):
        check_epoch(1, np.arange(4), np.asarray([0, 1, 1]))
    (audited,) = told
    assert isinstance(audited, RowsAudited)
    assert (audited.what, audited.counts) == ("epoch=1", {"rows": 4, "used_once": 1, "missing": 2, "repeated": 1})
