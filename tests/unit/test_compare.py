"""Runs are compared: what was asked for differently, their curves in one picture, their results."""

import re
from html import unescape

import pytest

from tests.messages import refuses
from tests.stored_runs import put_run
from train_func import Run, compare
from train_func.storage import open_store
from train_func.wire.metrics import Row, to_csv

NOON = "2026-01-02T12:00:00+00:00"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAIN_FUNC_STORE", (tmp_path / "store").as_uri())
    return open_store((tmp_path / "store").as_uri())


def reported(store, record, losses):
    rows = [Row(step, NOON, {"loss": loss, "epoch": 1.0}) for step, loss in enumerate(losses, 1)]
    store.put(record.keys.attempt(1).metrics_csv(1), to_csv(rows))


@pytest.fixture
def two(store):
    """The names of two runs."""
    records = []
    for rate, accuracy in ((0.001, 0.5), (0.01, 0.75)):
        record = put_run(store, Run(name="own", learning_rate=rate), metrics={"accuracy": accuracy})
        reported(store, record, [rate, float("nan"), 2 * rate])
        records.append(record)
    return [record.name for record in records]


def test_what_was_asked_differently_and_the_results_stand_side_by_side(two):
    shown = str(compare(*two))
    assert re.search(r"^learning_rate +0.001 +0.01$", shown, re.MULTILINE)
    assert re.search(r"^accuracy +0.5 +0.75$", shown, re.MULTILINE)
    assert all(name in shown for name in two)
    assert "epochs" not in shown


def test_the_curves_of_all_runs_are_in_one_picture_for_each_metric(two):
    compared = compare(*two)
    assert compared.to_dict()["curves"] == {"loss": [[(1, 0.001), (3, 0.002)], [(1, 0.01), (3, 0.02)]]}
    html = compared._repr_html_()
    assert (html.count("<svg"), html.count("<polyline")) == (1, 2)
    assert all(name in unescape(html) for name in two)


def test_a_run_that_has_reported_nothing_is_compared_by_what_was_asked(store, two):
    bare = put_run(store, Run(name="own", epochs=7)).name
    compared = compare(*two, bare)
    assert compared.to_dict()["curves"]["loss"][2] == []
    assert re.search(r"^epochs +3 +3 +7$", str(compared), re.MULTILINE)


def test_fewer_than_two_runs_are_refused(two):
    with refuses("1 run", "two"):
        compare(two[0])
