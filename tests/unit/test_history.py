"""The history of a training is in the store while it runs, and reads as one over all attempts."""

import math
import threading

import numpy as np
import pytest
import torch

from tests.messages import unnamed
from tests.recorded_jobs import a_record
from train_func.client.display.history import joined_history, read_rows
from train_func.errors import InvalidInput, StorageFailed
from train_func.wire import events
from train_func.wire.layout import RunKeys
from train_func.wire.metrics import Row, from_csv, row_of, to_csv
from train_func.worker.rank.json_values import report_arguments
from train_func.worker.supervisor import uploads
from train_func.worker.supervisor.uploads import HistoryUpload

KEYS = RunKeys("job-a").attempt(1)


def at(second):
    return f"2026-01-02T03:{second // 60:02}:{second % 60:02}.000000+00:00"


def progress(step, **fields):
    return events.StepProgress(
        **{"step": step, "num_steps": 101, "epoch": step / 40, "loss": 1 / step, "rows_per_second": 7.5} | fields,
        seconds_left=1,
        time=at(step),
    )


def evaluated(step, prefix="eval", **metrics):
    return events.Evaluated(step=step, epoch=step / 40, prefix=prefix, metrics=metrics, time=at(step))


def test_rows_are_read_as_they_were_written():
    said = [progress(1), evaluated(40, accuracy=0.5, best='a,\n"b"', rows=101), progress(41, loss=float("inf"))]
    rows = [row_of(event) for event in said]
    assert from_csv(to_csv(rows)) == rows
    assert to_csv(rows).decode().splitlines()[0] == (
        "step,timestamp,training number,epoch,loss,rows_per_second,eval_accuracy,eval_best,eval_rows"
    )
    assert row_of(events.Note(text="step=1")) is None
    assert from_csv(to_csv([])) == []


@pytest.mark.parametrize("data", [b"", b"a,b\n1,2\n", b"step,timestamp\nx,y\n", b"\xff\xfe"])
def test_a_file_that_is_no_history_is_refused(store, data):
    store.put(KEYS.metrics_csv(1), data)
    with pytest.raises(StorageFailed, match=r"\bmetrics\.csv\b") as refused:
        read_rows(store, a_record().keys)
    assert refused.value.reason == "damaged"


def kept(store, told, **options):
    made = HistoryUpload(KEYS, store.put, interval=3600, **options)
    made.start()
    for event in told:
        made.hear(event)
        made.flush(30)
    return made


def test_what_was_reported_is_in_the_store(store):
    kept(store, [progress(1), events.Note(text="no row"), evaluated(7, accuracy=0.25), progress(40)])
    assert read_rows(store, a_record().keys) == [
        {"step": 1, "timestamp": at(1), "attempt": 1, "epoch": 0.025, "loss": 1, "rows_per_second": 7.5},
        {"step": 7, "timestamp": at(7), "attempt": 1, "epoch": 0.175, "eval_accuracy": 0.25},
        {"step": 40, "timestamp": at(40), "attempt": 1, "epoch": 1, "loss": 0.025, "rows_per_second": 7.5},
    ]


def test_a_loss_that_diverges_is_shown_and_kept(store):
    diverged = {"loss": torch.tensor(float("nan")), "norm": np.float32("inf"), "low": float("-inf")}
    step, metrics = report_arguments(3, diverged)
    said = events.line(events.Reported(step=step, metrics=metrics, time=at(3)))
    assert unnamed(events.readable(said), "loss=nan", "norm=inf", "low=-inf") == []
    kept(store, [events.parse(said)])
    (row,) = read_rows(store, a_record().keys)
    assert math.isnan(row.pop("loss"))
    assert row == {"step": 3, "timestamp": at(3), "attempt": 1, "norm": math.inf, "low": -math.inf}


def test_a_metric_that_no_cell_holds_costs_no_other_one(store):
    kept(store, [evaluated(7, accuracy=0.25, odd=None, shape=[8, 2])])
    assert [row["eval_accuracy"] for row in read_rows(store, a_record().keys)] == [0.25]


def test_metrics_called_like_the_columns_of_every_row_leave_those_alone(store):
    metrics = {"attempt": 0.5, "timestamp": 7.0}
    kept(store, [events.Reported(step=3, metrics={**metrics, "training_number": 7.5}, time=at(3))])
    (row,) = read_rows(store, a_record().keys)
    assert row == {"step": 3, "timestamp": at(3), "attempt": 1, "training_number": 7.5}


def test_a_run_without_history_has_an_empty_one(store):
    assert read_rows(store, a_record().keys) == []
    store.put(KEYS.lease, b"{}")
    assert read_rows(store, a_record().keys) == []


@pytest.mark.parametrize(("most_rows", "longest_file"), [(20_000, 500), (7, 2**20)], ids=["bytes", "rows"])
def test_a_file_that_is_long_is_followed_by_the_next(store, monkeypatch, most_rows, longest_file):
    monkeypatch.setattr(uploads, "MOST_ROWS", most_rows)
    kept(store, [progress(step) for step in range(1, 102)], longest_file=longest_file)
    assert len(store.names(KEYS.metrics)) > 5
    assert all(entry.size < 800 for entry in store.list(f"{KEYS.metrics}/"))
    assert [row["step"] for row in read_rows(store, a_record().keys)] == list(range(1, 102))


def test_a_store_that_fails_in_any_way_for_a_while_fails_nothing_and_has_all_of_it_later(store, monkeypatch):
    put, left = store.put, [RuntimeError("no answer")] * 7

    def fails_first(*args):
        if left:
            raise left.pop()
        put(*args)

    monkeypatch.setattr(store, "put", fails_first)
    kept(store, [progress(step) for step in range(1, 41)])
    assert [row["step"] for row in read_rows(store, a_record().keys)] == list(range(1, 41))


def test_a_store_that_never_answers_keeps_no_reader_waiting():
    hangs = threading.Event()
    made = HistoryUpload(KEYS, lambda key, data: hangs.wait(), interval=0.01)
    made.start()
    for step in range(1, 40_000):
        made.hear(progress(step))
    made.flush(0.2)
    assert len(made._new) <= 20_000
    hangs.set()


def a_row(step, second):
    return Row(step, at(second), {})


def steps(**attempts):
    numbered = {int(name[1:]): of for name, of in attempts.items()}
    rows = {number: [a_row(step, 60 * number + step) for step in of] for number, of in numbered.items()}
    return [(number, row.step) for number, row in joined_history(rows)]


def test_of_a_step_that_was_repeated_the_later_attempt_counts():
    assert steps(a1=[1, 20, 40], a2=[21, 30, 101]) == [(1, 1), (1, 20), (2, 21), (2, 30), (2, 101)]
    assert steps(a1=[1, 20, 40], a2=[1, 7]) == [(2, 1), (2, 7), (1, 20), (1, 40)]
    assert steps(a1=[1, 40], a2=[], a3=[1, 40, 41]) == [(3, 1), (3, 40), (3, 41)]
    assert steps(a10=[1, 9], a9=[1, 10]) == [(10, 1), (10, 9), (9, 10)]


def test_of_one_step_that_was_trained_and_evaluated_both_count():
    assert steps(a1=[40, 40]) == [(1, 40), (1, 40)]


def test_steps_of_one_training_replace_none_of_another_training_of_the_function(store):
    for attempt, trainings in ((1, {0: range(1, 101), 1: range(1, 61)}), (2, {1: range(51, 101)})):
        made = HistoryUpload(RunKeys("job-a").attempt(attempt), store.put, interval=3600)
        for number, numbers in trainings.items():
            made.hear(events.Stage(text="", training=number))
            for step in numbers:
                made.hear(progress(step))
        made.start()
        made.flush(30)
    rows = read_rows(store, a_record().keys)
    assert [row["step"] for row in rows] == [*range(1, 101)] * 2
    assert [row["attempt"] for row in rows] == [1] * 150 + [2] * 50
    assert [row["training number"] for row in rows] == [0] * 100 + [1] * 100
    assert read_rows(store, a_record().keys, since=90) == rows[190:]


def test_what_is_behind_a_step_is_what_the_whole_history_has_behind_it(store):
    for number, numbers in ((1, range(1, 60)), (2, range(41, 51))):
        rows = [Row(step, at(step), {"loss": float(number)}) for step in numbers]
        store.put(RunKeys("job-a").attempt(number).metrics_csv(1), to_csv(rows))
    whole = read_rows(store, a_record().keys)
    for step in (0, 30, 45, 55, 59):
        assert read_rows(store, a_record().keys, step) == [row for row in whole if row["step"] > step]
    with pytest.raises(InvalidInput, match="since=1.5"):
        read_rows(store, a_record().keys, 1.5)


def test_a_step_that_a_later_attempt_only_evaluated_keeps_its_loss():
    trained, evaluated = Row(27, at(1), {"epoch": 1.0, "loss": 0.5}), {"epoch": 1.0, "eval_loss": 0.4}
    later = [Row(27, at(3), evaluated), Row(28, at(4), {"epoch": 1.1, "loss": 0.3})]
    rows = {1: [trained, Row(27, at(2), evaluated), Row(28, at(2), {"epoch": 1.1, "loss": 0.4})], 2: later}
    assert joined_history(rows) == [(1, trained), *((2, row) for row in later)]


def test_with_each_checkpoint_the_history_is_kept_at_once(store):
    """What goes on from it would miss the steps before."""
    kept = threading.Event()

    def put(key, data):
        store.put(key, data)
        kept.set()

    made = HistoryUpload(KEYS, put, interval=3600)
    made.start()
    made.hear(progress(7))
    assert not kept.wait(0.2)
    made.hear(events.CheckpointSaved(step=7, size=101, seconds=0.1))
    assert kept.wait(60)
    made.end()
