"""The history of a run as a DataFrame, and what its picture shows."""

import re
from xml.etree import ElementTree

import matplotlib
import pandas as pd

from tests.messages import refuses
from tests.recorded_jobs import a_record
from train_func import Local
from train_func.client.display.history import history_of
from train_func.client.job import Job
from train_func.storage import open_store
from train_func.wire.metrics import Row, to_csv

RECORD = a_record()


def row(attempt, step, **values):
    return {"step": step, "timestamp": f"2026-01-02T03:04:{step % 60:02}.5+00:00", "attempt": attempt, **values}


def trained(first, last, attempt=1):
    return [row(attempt, step, epoch=step / 40, loss=1 / step, rows_per_second=7.5) for step in range(first, last)]


def charts_of(rows):
    """The charts that ``plot()`` draws of these rows, as SVG."""
    return re.findall(
        r"<svg [^>]*viewBox.*?</svg>", history_of(rows, "reviews-0123456789ab").plot().partition("</style>")[2]
    )


def lines_in(chart):
    return [line.split() for line in re.findall(r'<polyline [^>]*points="([^"]+)"', chart)]


def names_in(chart):
    return re.findall(r'font-weight="600">(\w+) ', chart)


def test_a_job_gives_it_as_a_dataframe_with_a_row_for_each_step(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path))
    store = open_store((tmp_path / "store").as_uri())
    rows = [
        Row(1, "2026-01-02T03:04:05.678+00:00", {"loss": 0.5}),
        Row(7, "2026-01-02T03:04:06+00:00", {"eval_accuracy": 0.25, "eval_best": "text"}),
    ]
    store.put(RECORD.keys.attempt(2).metrics_csv(1), to_csv(rows))
    table = Job(RECORD, Local(store=store.address), store).history()
    assert isinstance(table, pd.DataFrame)
    assert [*table.columns] == ["step", "timestamp", "attempt", "loss", "eval_accuracy", "eval_best"]
    assert [*table["step"]] == [1, 7]
    assert [*table["attempt"]] == [2, 2]
    assert [*table["timestamp"]] == [pd.Timestamp(row.timestamp) for row in rows]
    assert table["loss"].isna().tolist() == [False, True]


def test_a_step_and_its_evaluation_are_one_row_and_what_two_attempts_or_two_reports_tell_is_not():
    rows = [{"step": 7, "timestamp": f"2026-01-02T03:04:0{second}+00:00", "attempt": 1} for second in range(5)]
    rows[0] |= {"epoch": 1.0, "loss": 0.5}
    rows[1] |= {"epoch": 1.0, "eval_loss": 0.4}
    rows[2] |= {"epoch": 1.0, "loss": 0.3}
    rows[3] |= {"eval_loss": 0.2, "attempt": 2}
    table = history_of(rows[:4], "a-run")
    assert table[["attempt", "loss", "eval_loss"]].fillna(0).values.tolist() == [
        [1, 0.5, 0.4],
        [1, 0.3, 0],
        [2, 0, 0.2],
    ]
    assert table["timestamp"][0] == pd.Timestamp(rows[0]["timestamp"])


def test_without_a_report_it_is_empty_and_has_its_columns():
    table = history_of([], "a-run")
    assert (len(table), [*table.columns]) == (0, ["step", "timestamp", "attempt"])


def test_what_is_selected_from_it_is_a_plain_dataframe():
    table = history_of(trained(1, 8), "n")
    assert type(table[["step", "loss"]]) is type(table.query("step > 3")) is pd.DataFrame


def test_each_metric_has_a_chart_which_training_and_evaluation_share():
    rows = [*trained(1, 41), row(1, 40, epoch=1.0, eval_loss=0.3, eval_accuracy=0.5, eval_best="text")]
    loss, accuracy = charts_of(rows)
    assert (names_in(loss), names_in(accuracy)) == (["loss", "eval_loss"], ["eval_accuracy"])
    assert [len(line) for line in lines_in(loss)] == [40, 1]
    heights = [float(point.split(",")[1]) for point in lines_in(loss)[0]]  # from the top, of losses that fall
    assert heights == sorted(heights) and heights[0] < heights[1] < heights[-1]
    assert "<circle" in accuracy  # a single point would be no line


def test_of_several_trainings_the_rows_have_numbers_and_the_newest_is_drawn_with_the_restarts_in_it():
    parts = [(0, 1, 1), (0, 5, 2), (1, 1, 2), (1, 5, 3)]  # training, first step, attempt
    rows = [row | {"training number": of} for of, first, number in parts for row in trained(first, first + 4, number)]
    assert [*history_of(rows, "n").columns][:4] == ["step", "timestamp", "attempt", "training number"]
    (loss,) = charts_of(rows)
    assert [len(line) for line in lines_in(loss)] == [8]
    assert (names_in(loss), re.findall("<title>([^<]+)", loss)) == (["loss"], ["attempt 3"])


def test_it_shows_where_a_later_attempt_begins():
    (loss,) = charts_of([*trained(1, 21), *trained(21, 102, attempt=2)])
    assert re.findall("<title>([^<]+)", loss) == ["attempt 2"]


def test_its_picture_is_a_whole_file_that_a_notebook_shows(tmp_path):
    picture = history_of(trained(1, 8), "reviews-<1>").plot()
    path = tmp_path / "curve.svg"
    path.write_text(picture)
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert (picture._repr_svg_(), "reviews-&lt;1&gt;" in picture) == (path.read_text(), True)


def test_no_chart_is_drawn_of_texts_truths_and_what_only_tells_how_far_it_is():
    rest = {"learning_rate": 1e-4, "grad_norm": 2.0, "best": "text", "done": True}
    (chart,) = charts_of([row(1, 1, epoch=0.5, rows_per_second=7.5, f1=0.5, **rest)])
    assert names_in(chart) == ["f1"]


def test_a_history_without_a_number_is_not_drawn():
    with refuses("reviews-0123456789ab", "session.report("):
        charts_of([row(1, 1, best="text")])


def test_plot_with_arguments_is_that_of_pandas_and_draws_a_metric_over_its_steps():
    matplotlib.use("agg")
    table = history_of([*trained(10, 14), row(1, 11, eval_loss=0.5), row(1, 13, eval_loss=0.4)], "n")
    for axes in (table.plot(y="eval_loss"), table.plot.line(y="eval_loss")):
        assert [line.get_xydata().tolist() for line in axes.lines] == [[[11, 0.5], [13, 0.4]]]
    (line,) = table.plot(x="epoch", y="loss").lines
    assert line.get_xdata().tolist() == [step / 40 for step in range(10, 14)]
    assert len(table.plot(kind="hist", y="loss", bins=3).patches) == 3
    matplotlib.pyplot.close("all")
