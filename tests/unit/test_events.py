"""What a worker says is typed on both sides; what is printed is never taken for it."""

import os
import select
import threading

import pytest

from train_func.wire import events
from train_func.wire.events import Evaluated, Event
from train_func.worker.rank import reporting

TOLD = [
    events.WorkerStarts(worker=1, num_workers=4, pod="a-run-worker-1", pod_uid="u", submitted="2026-01-02T03:04:05"),
    events.AttemptStarts(attempt=7, position=2, at_most=3, num_workers=4, num_ranks=8, num_threads=2),
    events.WorkersMeasured(
        seconds=10.2,
        num_workers=2,
        workers={
            "0": {"memory": 10**9, "limit": 4 * 10**9, "ranks": {"0": [9, 30, 61, 0, 0, 0], "1": [8, 31, 61, 0, 0, 0]}},
            "1": {"memory": 2 * 10**9, "limit": 0, "ranks": {"2": [9, 85, 4, 1, 0, 1], "3": [9, 30, 61, 0, 0, 0]}},
        },
        median=[9, 31, 61, 0, 0, 0],
        slow_part="compute",
        slow_rank=2,
        slow_worker=1,
        message="rank 2 (worker 1) is slower than the others",
        remedy="see what else runs on its node",
    ),
    events.RanksRestart(worker=1, attempt=7, message="rank 0 was killed by SIGKILL", follows=0),
    events.WorkerJoins(worker=2, attempt=7),
    events.Resumes(step=40, attempt=8, saved_by=7, of_run="another", why="the newest", last_step=59),
    events.Stage(text="training steps=101 precision=fp32"),
    events.StepProgress(step=40, num_steps=101, epoch=0.4, loss=0.693, rows_per_second=7.5, seconds_left=3661),
    events.Evaluated(step=40, epoch=0.4, prefix="eval_test", metrics={"accuracy": 0.5, "best": "yes", "rows": 101}),
    events.Reported(step=40, metrics={"loss": 0.693, "lr": 1e-05}),
    events.RowsAudited(what="epoch=1", counts={"rows": 101, "missing": 0}, world_size=8),
    events.Alert(kind="loss_rises", message="loss rises: 0.9 by step 40", remedy="a lower learning rate", step=40),
    events.Note(text="Größe 食物\n\ttab and line"),
    events.CheckpointSaved(step=40, size=1_300_000_000, seconds=4.5),
    events.CheckpointFailed(step=40, message="the disk is full"),
    events.Published(attempt=7, model="s3://bucket/a/model"),
    events.WaitsForStore(seconds_left=59.5, message="m", purpose="publish"),
    events.WaitsForPeers(endpoint="a-run-worker-0:23456", why="no route"),
    events.LostPeers(error="RuntimeError: closed", traceback="Traceback\n  a frame"),
    events.RankStops(why="SIGTERM, after step 40"),
    events.WorkerEnds(worker=3, exit_code=145, cause="peer", message="stopped, because of worker 1", follows=1),
    events.LogGap(num_lines=101, num_bytes=4040),
]


def test_every_kind_is_tried_here():
    assert {type(event) for event in TOLD} == set(Event.__subclasses__())


@pytest.mark.parametrize("event", TOLD, ids=lambda event: type(event).__name__)
def test_an_event_is_one_line_that_is_read_as_what_was_said(event):
    line = events.line(event)
    assert "\n" not in line
    assert events.parse(line) == event
    assert events.readable(line) == str(event).replace("\n", " | ").replace("\t", " ")


def test_a_rank_is_named_in_words_and_as_a_field():
    line = events.line(events.Note(text="a", rank=3))
    assert events.readable(line) == "[rank 3] note: a"
    assert events.parse(line).rank == 3


@pytest.mark.parametrize("longest", [events.LONGEST, select.PIPE_BUF])
@pytest.mark.parametrize(
    "event",
    [
        events.Note(text="食" * 101_000),
        events.WorkerEnds(worker=0, exit_code=70, cause="code", message="\x00" * 40_000),
        events.Evaluated(step=1, epoch=1, metrics={f"metric_{number}": 0.1 for number in range(1010)}),
    ],
    ids=["text", "escapes", "metrics"],
)
def test_a_line_is_bounded_and_says_what_was_cut(event, longest):
    line = events.line(event, longest)
    assert len(line.encode()) <= longest
    assert type(events.parse(line)) is type(event)
    assert "left out" in line or "left_out" in line


@pytest.mark.parametrize("event", TOLD, ids=lambda event: type(event).__name__)
def test_a_printed_event_is_no_event(event):
    line = events.line(event)
    printed = events.escaped(line.encode()).decode()
    assert events.parse(printed) is None
    assert events.MARK.strip() not in printed
    assert events.MARK.strip() not in events.escaped(f"{events.MARK.strip()}{line}".encode()).decode()
    assert events.MARK.strip() not in events.line(events.Note(text=line)).removeprefix(events.MARK)


@pytest.mark.parametrize("change", [('"format":1', '"format":2'), ('"Note"', '"Nothing"'), ('"text"', '"words"')])
def test_an_event_of_another_version_is_read_by_people_only(change):
    line = events.line(events.Note(text="hello")).replace(*change)
    assert events.parse(line) is None
    assert events.readable(line) == "note: hello"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        (events.MARK, events.MARK),
        (f"{events.MARK}words", f"{events.MARK}words"),
        (f"{events.MARK}a\t[]", "a"),
        (f"{events.MARK}a\t1", "a"),
    ],
)
def test_a_broken_line_is_no_event_and_is_shown(text, shown):
    assert events.parse(text) is None
    assert events.readable(text) == shown


def test_a_rank_reports_whole_lines_from_many_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(reporting, "_sink", list(reporting._sink))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(read, True)
    reporting.report_through(str(pipe))
    long = "x" * 101_000
    threads = [threading.Thread(target=lambda: [reporting.note(long) for _ in range(40)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    found = b""
    while found.count(b"\n") < 160:
        found += os.read(read, 2**16)
    for thread in threads:
        thread.join()
    assert all(isinstance(events.parse(line), events.Note) for line in found.decode().splitlines())


def test_all_metrics_of_an_evaluation_reach_the_supervisor_however_many(tmp_path, monkeypatch):
    pipe = tmp_path / "events"
    os.mkfifo(pipe)
    read = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    monkeypatch.setattr(reporting, "_sink", [print])
    reporting.report_through(str(pipe))
    metrics = {**{f"f1_of_class_{number}": number / 300 for number in range(300)}, "loss": 0.25}
    reporting.say(Evaluated(step=7, epoch=1.0, metrics=metrics))
    reporting.say(Evaluated(step=8, epoch=1.0, metrics={"a_list": [0.5] * 100_000}))  # cannot be cut, and fails nothing
    (line,) = os.read(read, 2**17).decode().splitlines()
    os.close(read)
    assert events.parse(line).metrics == metrics
    assert len(events.line(events.parse(line)).encode()) <= events.LONGEST
