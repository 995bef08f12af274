"""Runs are compared: what was asked for differently, their curves in one picture, their results, and their predictions;
what one run predicts is a table, and in its report."""

import re
from html import unescape

import pytest

from tests.messages import refuses, unnamed
from tests.runs import a_run
from tests.stored_runs import put_predictions, put_run
from train_func import Run, attach, compare
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire.metrics import Row, to_csv
from train_func.wire.predictions import Predictions
from train_func.worker.tasks.protocol import split

NOON = "2026-01-02T12:00:00+00:00"


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRAIN_FUNC_STORE", (tmp_path / "store").as_uri())
    return open_store((tmp_path / "store").as_uri())


def reported(store, record, losses):
    rows = [Row(step, NOON, {"loss": loss, "epoch": 1.0}, training=1) for step, loss in enumerate(losses, 1)]
    rows.insert(0, Row(1, NOON, {"loss": 99, "epoch": 1.0}))  # of an earlier training of the function
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


def test_each_picture_names_its_metric_and_a_run_has_the_same_colour_in_all_of_them(store, two):
    rows = [Row(step, NOON, {"eval_accuracy": 0.25 * step}) for step in (1, 2)]
    more = put_run(store, Run(name="own", epochs=7))
    store.put(more.keys.attempt(1).metrics_csv(1), to_csv(rows))
    pictures = re.findall(r"<svg.*?</svg>", compare(*two, more.name)._repr_html_(), re.DOTALL)
    legends = [re.findall(r'font-weight="600">([^<]+)<', picture) for picture in pictures]
    assert legends == [["A loss 0.002", "B 0.02"], ["C eval_accuracy 0.5"]]
    colours = [re.findall(r'<polyline [^>]*stroke="(#\w+)"', picture) for picture in pictures]
    assert len({*colours[0], *colours[1]}) == 3


@pytest.mark.parametrize("width", [80, 300])
def test_the_table_fits_into_the_terminal_and_leaves_out_no_value(store, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    words = [letter * 60 for letter in "xy"]
    names = [put_run(store, Run(name="own", parameters={"words": each}), metrics={"rows": 7}).name for each in words]
    text = str(compare(*names))
    assert max(map(len, text.splitlines())) <= width
    assert unnamed(text, *names, *words, "parameters.words") == []
    assert re.search(r"^rows +7 +7$", text, re.MULTILINE)


def test_a_run_that_has_reported_nothing_is_compared_by_what_was_asked(store, two):
    bare = put_run(store, Run(name="own", epochs=7)).name
    compared = compare(*two, bare)
    assert compared.to_dict()["curves"]["loss"][2] == []
    assert re.search(r"^epochs +3 +3 +7$", str(compared), re.MULTILINE)


def predicted(classes, **others):
    """Of four rows of class 0, in the order of their ids, with growing confidence."""
    columns = {
        "row": [7, 8, 9, 12],
        "expected": [0] * 4,
        "predicted": classes,
        "confidence": [0.6, 0.7, 0.8, 0.9],
    }
    return Predictions(
        **{"step": 1, "num_rows": 4, "held_out_sha256": "7", "labels": ("x", "y"), **others}, columns=columns
    )


@pytest.fixture
def predicting(store):
    def put(*of_runs):
        records = [put_run(store, Run(name="own", seed=seed)) for seed in range(len(of_runs))]
        for record, predictions in zip(records, of_runs, strict=True):
            if predictions:
                put_predictions(store, record, predictions)
        return compare(*(record.name for record in records))

    return put


def test_of_the_same_held_out_rows_it_is_told_what_each_run_is_right_about_and_which_rows_changed(predicting):
    compared = predicting(predicted([0, 0, 1, 0]), predicted([0, 1, 1, 1]))
    found = compared.to_dict()["held_out"]
    assert found["counts"] == [
        {"are_right": [True, True], "rows": 1},
        {"are_right": [True, False], "rows": 2},
        {"are_right": [False, False], "rows": 1},
    ]
    assert [(each["row"], each["predicted"], each["right"]) for each in found["changes"]] == [
        (12, ["x", "y"], ["right", "wrong"]),
        (8, ["x", "y"], ["right", "wrong"]),
    ]
    assert re.search(r"^2 held-out rows +right +wrong$", str(compared), re.MULTILINE)
    assert re.search(r"^row 12, x +x 90% +y 90%$", str(compared), re.MULTILINE)


@pytest.mark.parametrize(
    "other",
    [None, predicted([0] * 4, held_out_sha256="8"), predicted([0] * 4, held_out_sha256="")],
    ids=["none", "other rows", "unknown rows"],
)
def test_rows_are_compared_only_where_all_runs_have_predicted_the_same(predicting, other):
    assert predicting(predicted([0] * 4), other).to_dict()["held_out"] is None


def test_rows_are_not_compared_where_one_run_has_predicted_classes_and_another_tags(predicting):
    columns = {"row": [7, 8, 9, 12], "tokens": [5] * 4, "right": [5, 4, 3, 2]}
    tags = Predictions(step=1, num_rows=4, held_out_sha256="7", columns=columns)
    for runs in ([predicted([0] * 4), tags], [tags, predicted([0] * 4)]):
        assert predicting(*runs).to_dict()["held_out"] is None


def test_rows_that_changed_are_shown_with_the_beginnings_of_their_texts_where_the_data_are(
    store, tiny_bert, tmp_path, capsys, monkeypatch
):
    path = tmp_path / "reviews.csv"
    path.write_text("text,label\n" + "".join(f'"dish {i}\nwas {"very " * 20}good",{i % 2}\n' for i in range(9)))
    runs = [a_run(model=str(tiny_bert), dataset=str(path), held_out=0.5, seed=7, epochs=epochs) for epochs in (1, 2)]
    ids = sorted(split(runs[0]).held_out["row_id"])
    records = [put_run(store, run) for run in runs]
    for record, number in zip(records, (0, 1), strict=True):
        columns = {"row": ids, "expected": [0] * 4, "predicted": [0, number, 0, 0], "confidence": [0.75] * 4}
        put_predictions(store, record, Predictions(step=1, num_rows=4, held_out_sha256="7", columns=columns))
    names = [record.name for record in records]
    monkeypatch.setenv("COLUMNS", "200")
    text = f"dish {ids[1]} was {'very ' * 20}"[:80]
    (line,) = [line for line in str(compare(*names)).splitlines() if line.startswith(f"row {ids[1]}, 0")]
    assert line.endswith(f"  {text} ...")
    assert compare(*names, texts=False).to_dict()["held_out"]["changes"][0]["text"] == ""
    assert capsys.readouterr().out == ""
    path.unlink()
    assert compare(*names).to_dict()["held_out"]["changes"][0]["row"] == ids[1]
    assert "without the texts" in capsys.readouterr().out


def test_of_tags_it_is_told_how_many_of_a_row_are_right(predicting):
    tags = [
        Predictions(step=1, num_rows=2, held_out_sha256="7", columns={"row": [3, 4], "tokens": [5, 6], "right": right})
        for right in ([5, 6], [5, 2])
    ]
    assert re.search(r"^row 4 +6 of 6 +2 of 6$", str(predicting(*tags)), re.MULTILINE)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (("x", "y<"), ["y&lt;", "67%", "33%"]),
        (tuple(f"of {number}" for number in range(30)), ["mistaken most often", "1 of 3", "33%"]),
    ],
    ids=["few classes", "many classes"],
)
def test_the_report_shows_which_classes_are_mistaken_and_the_surest_mistakes(store, tmp_path, labels, words):
    record = put_run(store, Run(name="own"))
    columns = {"row": [7, 8, 9], "expected": [0, 0, 0], "predicted": [0, 1, 0], "confidence": [0.6, 0.987, 0.8]}
    put_predictions(store, record, Predictions(step=1, num_rows=3, labels=labels, columns=columns))
    page = attach(record.name).report(tmp_path).read_text()
    assert [word for word in [*words, "Surest mistakes", "98.7%"] if word not in page] == []


def test_the_report_shows_what_the_function_has_returned_and_what_it_has_measured(store, tmp_path):
    given = {"metrics": {"accuracy": 0.875}, "returned": {"mse": 0.0111432, "layers": [7, 7]}, "note": "ranks <differ>"}
    record = put_run(store, Run(name="own"), **given)
    page = attach(record.name).report(tmp_path).read_text()
    section = re.search(r"<h2>Result</h2>(.*?)<h2>", page, re.DOTALL)[1]
    assert unnamed(section, "accuracy", "0.875", "mse", "0.0111432", "layers", "[7, 7]", "ranks &lt;differ&gt;") == []
    failed = put_run(store, Run(name="own", epochs=7), code=65)
    assert "<h2>Result</h2>" not in attach(failed.name).report(tmp_path).read_text()


def test_the_predictions_are_a_table_and_no_other_ones_than_were_published(store, capsys):
    record = put_run(store, Run(name="own"))
    with pytest.raises(StorageFailed, match=f"{record.name} has published no predictions"):
        attach(record.name).predictions()
    put_predictions(store, record, predicted([0, 1, 0, 0]))
    table = attach(record.name).predictions()
    assert list(table.columns) == ["row", "expected", "predicted", "confidence"]
    assert list(table.predicted) == ["x", "y", "x", "x"]
    assert "without the texts" in capsys.readouterr().out
    key = f"{record.keys.attempt(1).model}/held_out_predictions.json"
    store.put(key, store.get(key).data.replace(b"0.6", b"0.7"))
    with pytest.raises(StorageFailed, match=r"SHA-256.*fresh=True"):
        attach(record.name).predictions()


def test_fewer_than_two_runs_and_more_than_there_are_letters_are_refused(two):
    with refuses("1 run", 2, 26):
        compare(two[0])
    with refuses("27 runs", 2, 26):
        compare(*two[:1] * 27)
    assert f"Z: {two[1]}" in str(compare(*two * 13))
