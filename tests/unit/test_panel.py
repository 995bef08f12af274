"""What the panel shows of a job, drawn from news made by hand, read as a person reads it: by its words."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import unescape
from xml.dom import minidom

import pytest

from tests.messages import unnamed
from train_func.client.display.chart import LEFT
from train_func.client.display.html import draw
from train_func.client.display.panel import Subject, panel_of
from train_func.client.display.trace import Trace
from train_func.client.logs import Attempt, AttemptLine
from train_func.client.status import Condition, ContainerEnd, Diagnosis, JobEvent, JobStatus, Pod, Snapshot
from train_func.client.watch import News
from train_func.errors import JobFailed
from train_func.wire import events
from train_func.wire.events import Event

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
SUBJECT = Subject("a-run", "train_func", "Local()", NOW - timedelta(seconds=200), 2)
POD = Pod("p", "uid", 0, "Running", None, "", "", NOW, None, deleted=False, node="here")


def pods(*phases, **fields):
    return tuple(replace(POD, uid=f"{n}", worker=n, phase=phase, **fields) for n, phase in enumerate(phases))


def news(state="Running", *told, of=POD, attempt=1, **fields):
    """What a look has brought: events, and lines that worker 0 has printed."""
    snapshot = Snapshot(JobStatus((Condition(state, "True", "", ""),)), (of,) if isinstance(of, Pod) else of)
    here = Attempt(attempt, "", "", first=True)
    lines = [AttemptLine(here, 0, str(one), late=False, event=one if isinstance(one, Event) else None) for one in told]
    given = {"state": state, "snapshot": snapshot, "lines": lines, "diagnoses": (), "hindrances": (), "failure": None}
    return News(**{**given, **fields})


def html_of(*all_news, explanation="", **options):
    trace = Trace()
    for one in all_news:
        trace.take(one)
    return draw(panel_of(SUBJECT, trace, explanation, now=NOW, **options))


def words(html):
    """The panel without its marks, white space joined."""
    body = re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)
    assert minidom.parseString(f"<body>{body}</body>")  # it is well-formed, so that no output can break a page
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", body)))


def marks_of(trace):
    return [mark.step for mark in panel_of(SUBJECT, trace, now=NOW).marks]


def progress(step, num_steps=40, **fields):
    given = {"epoch": 1.0, "loss": 0.5, "rows_per_second": 81.5, "seconds_left": 130, **fields}
    return events.StepProgress(step=step, num_steps=num_steps, **given)


def begins(attempt=1, workers=2, **fields):
    return events.AttemptStarts(
        attempt=attempt, position=1, at_most=3, num_workers=workers, num_ranks=workers, num_threads=1, **fields
    )


def resumes(step):
    return events.Resumes(step=step, attempt=2, why="the newest")


def audit(what="epoch=1", **counts):
    return events.RowsAudited(what=what, counts={"rows": 101, "used_once": 101, "missing": 0, **counts}, world_size=2)


def test_a_running_job_shows_how_far_it_is_how_fast_and_how_long_it_will_take():
    text = words(html_of(news("Running", begins(), progress(10), of=pods("Running", "Running"))))
    for fact in ("● Running", "a-run", "train_func() on Local()", "2 workers", "25%", "step 10 of 40", "81.5 rows/s"):
        assert fact in text
    assert ("2 min 10 s left" in text, "3 min 20 s" in text) == (True, True)


@pytest.mark.parametrize("state", ["Failed", "Succeeded"])
def test_a_job_that_has_ended_lasted_until_its_last_event_whenever_it_is_looked_at(state):
    last = progress(10, time=(NOW - timedelta(seconds=165)).isoformat())
    assert "35 s" in words(html_of(news("Running", last), news(state, is_last=True)))


def test_a_job_without_all_its_workers_says_how_many_and_what_it_waits_for():
    waits = Diagnosis("scheduling", "worker 1 is Pending: no node has 64 cpu", "ask for less cpu")
    text = words(html_of(news("Running", of=pods("Running", "Pending"), hindrances=[waits])))
    for fact in ("1 of 2 workers", "no node has 64 cpu", "ask for less cpu", "◌ Pending"):
        assert fact in text
    assert "Waiting" in text  # it does not train, whatever the backend calls that
    goes_on = news("Running", progress(3), of=pods("Running", "Pending"), hindrances=[waits])
    assert "Waiting" not in words(html_of(goes_on))


def test_each_worker_is_a_row_and_of_many_those_first_that_need_a_look():
    phases = ["Running"] * 199 + ["Failed"]
    text = words(html_of(news("Running", of=pods(*phases, node="node-7"))))
    assert ("✗ Failed" in text, "and 188 more" in text, text.count("node-7")) == (True, True, 12)


def test_a_worker_that_came_again_has_its_restarts_counted():
    first = replace(POD, uid="old", phase="Failed", exit_code=137, deleted=True)
    text = words(html_of(news("Running", of=(first, replace(POD, restarts=1)))))
    assert re.search(r"0 ● Running here 2 ", text)


def test_workers_whose_ranks_alone_began_again_have_as_many_restarts_as_their_attempts_say():
    again = [events.RanksRestart(worker=n, attempt=2, message="rank 1 was killed", follows=1) for n in (0, 1)]
    text = words(html_of(news("Running", begins(), *again, begins(2), of=pods("Running", "Running"))))
    assert ("attempt 2" in text, re.findall(r"[01] ● Running here (\S+)", text)) == (True, ["1", "1"])
    assert re.findall(r"([01]) ● Running here \d+ \(the cause\)", text) == ["1"]  # of which a rank was killed


def measured(slow=False, **ranks):
    """What the lead says of worker 0, with 1.2 GB of 4, whose ranks have these shares, and of worker 1."""
    workers = {"0": {"memory": 1_200_000_000, "limit": 4_000_000_000, "ranks": ranks}}
    workers["1"] = {"memory": 700_000_000, "limit": 0, "ranks": {"9": [0] * 6}}
    why = {"slow_part": "data", "slow_rank": 1, "slow_worker": 1, "message": "rank 1 is slow", "remedy": "see its disk"}
    return events.WorkersMeasured(seconds=10, num_workers=2, workers=workers, **(why if slow else {}))


def test_each_worker_has_its_memory_and_how_its_ranks_spend_their_time():
    told = measured(a=[9, 70, 21, 0, 0, 0], b=[9, 72, 19, 0, 0, 0])
    text = words(html_of(news("Running", begins(), progress(3), told, of=pods("Running", "Running"))))
    assert "1.2 GB of 4.0 GB trains: 71 % compute, 20 % exchange, 9 % data 1 ●" in text
    assert "other" not in text
    assert "700.0 MB trains" in text
    again = words(html_of(news("Running", begins(), progress(3), told, begins(2), of=pods("Running", "Running"))))
    assert ("1.2 GB" in again, "trains: " in again) == (False, False)  # ranks of another attempt


def test_the_shares_of_the_time_that_are_told_add_up_to_all_of_it():
    told = measured(a=[0, 11, 0, 0, 25, 0])
    text = words(html_of(news("Running", begins(), progress(3), told, of=pods("Running", "Running"))))
    assert "25 % evaluation, 11 % compute, 64 % other" in text


DOES = ("starts:", "runs the function", "loads model and data")  # a worker, before its first step


@pytest.mark.parametrize(
    ("told", "does"),
    [
        ((), {"starts:"}),
        (("printed by the supervisor",), {"starts:"}),
        (("[rank 0] printed",), {"runs the function", "starts:"}),  # of worker 0; the other one has said nothing
        ((events.Stage(text="session"),), {"loads model and data"}),
        (("[rank 0] printed", events.Stage(text="session"), "[rank 0] more"), {"loads model and data"}),
    ],
)
def test_a_worker_starts_until_one_of_its_ranks_says_more_and_loads_when_its_session_is_open(told, does):
    now = datetime.now(UTC).isoformat()
    text = words(html_of(news("Running", begins(time=now), *told, of=pods("Running", "Running"))))
    assert {word for word in DOES if word in text} == does


def test_a_function_that_says_nothing_runs_after_a_while():
    before = (datetime.now(UTC) - timedelta(minutes=5)).isoformat()
    text = words(html_of(news("Running", begins(time=before), of=pods("Running", "Running"))))
    assert [word in text for word in DOES] == [False, True, False]


def test_after_a_cancel_a_worker_was_stopped_by_it_and_one_that_had_failed_by_itself_has_failed():
    ends = [replace(POD, worker=0, uid="0", phase="Failed", exit_code=143), replace(POD, uid="1", worker=1)]
    ends[1] = replace(ends[1], phase="Failed", exit_code=70, reason="Error")
    rows = words(html_of(news("Cancelled", of=tuple(ends), is_last=True))).partition("does ")[2]
    first, second = re.split(r" 1 (?=✗)", rows)
    assert ("cancel" in first, "143" in first, "Failed" in first) == (True, False, False)
    assert unnamed(second, "✗ Failed", "exit code 70") == []
    failed = words(html_of(news("Failed", of=tuple(ends), is_last=True)))
    assert ("cancel" in failed, failed.count("✗ Failed")) == (False, 3)  # the job and both workers


def test_a_training_that_is_slow_says_why_and_what_to_do_while_it_is():
    slow = news("Running", begins(), progress(3), measured(slow=True))
    assert "slow: rank 1 is slow next: see its disk" in words(html_of(slow))
    assert "slow" not in words(html_of(slow, news("Running", measured())))
    assert "slow" not in words(html_of(slow, news("Succeeded", is_last=True)))


def alert(kind, step=3):
    return events.Alert(kind=kind, message=f"a case of {kind}", remedy="do something", step=step)


def test_an_alert_warns_while_its_attempt_runs_and_is_a_fact_afterwards():
    rises = news("Running", begins(), progress(3), alert("loss_rises"), alert("failed"))
    assert "alert: a case of loss_rises next: do something" in words(html_of(rises))
    assert "failed" not in words(html_of(rises))  # its end tells that
    for later in (news("Running", begins(2), attempt=2), news("Succeeded", is_last=True)):
        text = words(html_of(rises, later))
        assert ("! a case of loss_rises" in text, "do something" in text) == (True, False)


def test_a_stall_warns_until_a_step_is_done():
    stalls = news("Running", begins(), progress(3), alert("stall"))
    assert "alert: a case of stall" in words(html_of(stalls))
    assert "! a case of stall" in words(html_of(stalls, news("Running", progress(4))))


def test_the_curve_has_no_step_twice_and_what_happened_is_marked_on_it():
    saved = events.CheckpointSaved(step=5, size=2_000_000, seconds=1.5)
    again = events.RanksRestart(worker=0, attempt=2, message="rank 1 was killed by SIGKILL", follows=1)
    resumes = events.Resumes(step=5, attempt=2, saved_by=1, why="the newest", last_step=8)
    trace = Trace()
    trace.take(news("Running", begins(), *(progress(step, loss=1 / step) for step in range(1, 9)), saved))
    trace.take(news("Running", again, begins(2, 1), resumes, *(progress(s, loss=9) for s in range(6, 11)), attempt=2))
    assert [step for step, _ in trace.curves()["loss"]] == [*range(1, 11)]
    assert [loss for _, loss in trace.curves()["loss"]][5:] == [9] * 5
    html = draw(panel_of(SUBJECT, trace, now=NOW))
    told = "↻ attempt 2 (worker 1: rank 1 was killed by SIGKILL) resumed from the checkpoint of step 5"
    for fact in (f"{told}; 3 steps are done again", "2 → 1 worker", "▲ newest checkpoint: step 5, 2.0 MB"):
        assert fact in words(html)
    assert html.count('class="tf-ink"') == 1  # the checkpoint on the axis


def test_the_newest_training_is_drawn_with_its_own_checkpoints_and_restarts():
    trace, second = Trace(), events.Stage(text="training 2", training=1)
    steps = {number: [progress(step) for step in range(1, number + 1)] for number in (2, 3, 10)}
    saved = events.CheckpointSaved(step=7, size=2_000_000, seconds=1.5)
    trace.take(news("Running", begins(), *steps[10], saved, second, *steps[2]))
    assert marks_of(trace) == []
    trace.take(news("Running", begins(2), resumes(10), attempt=2))
    trace.take(news("Running", progress(3)))  # the rest of the log of attempt 1, of another worker
    assert ([step for step, _ in trace.curves()["loss"]], marks_of(trace)) == ([1, 2, 3], [])
    trace.take(news("Running", second, resumes(2), progress(3), progress(4), attempt=2))
    assert ([step for step, _ in trace.curves()["loss"]], marks_of(trace)) == ([1, 2, 3, 4], [2])
    assert trace.last_step == 4
    trace.take(news("Running", events.Stage(text="training 3", training=2), resumes(0), *steps[3], attempt=2))
    assert ([step for step, _ in trace.curves()["loss"]], marks_of(trace)) == ([1, 2, 3], [])


def test_a_restart_stays_where_it_is_when_the_next_training_begins():
    trace, second = Trace(), events.Stage(text="training 2", training=1)
    trace.take(news("Running", begins(), *(progress(step) for step in (1, 2, 3))))
    trace.take(news("Running", begins(2), resumes(2), progress(3), second, resumes(0), attempt=2))
    assert marks_of(trace) == [2]


@pytest.mark.parametrize(("num_steps", "told"), [(40, ""), (200, "thick: means of 5 points")])
def test_a_curve_of_many_points_says_of_how_many_its_thick_line_is_the_mean(num_steps, told):
    text = words(html_of(news("Running", *(progress(step, num_steps=200) for step in range(1, num_steps + 1)))))
    assert (told in text, "thick" in text) == (True, bool(told))


def test_the_chart_of_a_training_that_ended_early_ends_with_its_last_step():
    steps = news("Running", *(progress(step, num_steps=400) for step in range(1, 9)))
    running, done = html_of(steps), html_of(steps, news("Succeeded", is_last=True))
    assert [">400</text>" in html for html in (running, done)] == [True, False]


def test_an_attempt_that_lost_steps_shows_how_far_it_is_itself():
    told = [begins(), *(progress(step, epoch=2.5) for step in range(1, 9))]
    lost = news("Running", begins(2), attempt=2)
    resumes = news("Running", events.Resumes(step=5, attempt=2, saved_by=1, why="the newest"), attempt=2)
    text = words(html_of(news("Running", *told), lost, resumes))
    assert ("step 5 of 40" in text, "12%" in text, "rows/s" in text, "left" in text) == (True, True, False, False)
    text = words(html_of(news("Running", *told), lost, resumes, news("Running", progress(6), attempt=2)))
    assert ("step 6 of 40" in text, "epoch 1.00" in text, "rows/s" in text) == (True, True, True)


def evaluated(step):
    return events.Evaluated(step=step, epoch=1, metrics={"loss": 1 / step})


def test_what_an_attempt_measured_behind_the_step_that_the_next_one_begins_with_is_not_shown():
    measured_before = [*(progress(step) for step in range(1, 9)), evaluated(4), evaluated(8)]
    checked = [audit("epoch=1"), audit("epoch=2")]
    trace = Trace()
    trace.take(news("Running", begins(), *measured_before, *checked))
    trace.take(news("Running", begins(2), attempt=2))
    assert "<title>attempt 2" not in draw(panel_of(SUBJECT, trace, now=NOW))  # where it begins is not known yet
    trace.take(news("Running", progress(6), attempt=2))
    assert [step for step, _ in trace.curves()["eval_loss"]] == [4]
    html = draw(panel_of(SUBJECT, trace, now=NOW))
    assert ("<title>attempt 2" in html, "exactly once in epoch 1 " in words(html)) == (True, True)


def test_the_epoch_is_that_of_the_step_that_is_shown():
    reported = events.Reported(step=30, metrics={"loss": 0.4})
    assert "step 30 of 40 · epoch 1.50" in words(html_of(news("Running", begins(), progress(20, epoch=1.0), reported)))


def test_a_worker_that_was_lost_is_the_reason_of_the_next_attempt_though_it_left_no_word():
    end = events.WorkerEnds(worker=0, exit_code=145, cause="peer", message="stopped, because of worker 1", follows=1)
    begun = events.Resumes(step=0, attempt=2, why="the store has no checkpoint")
    html = html_of(
        news("Running", begins(), progress(7), progress(8), end),
        news("Running", begins(2), begun, progress(1), progress(2), attempt=2),
    )
    assert "↻ attempt 2 (stopped, because of worker 1) began at step 1: the store has no checkpoint" in words(html)
    lines = [float(at) for at in re.findall(r'<line x1="([\d.]+)"[^>]*><title>', html)]
    assert [at >= LEFT for at in lines] == [True]  # within the chart


def test_a_worker_that_was_killed_is_the_reason_of_the_next_attempt_in_the_words_of_the_backend():
    at = [NOW + timedelta(seconds=seconds) for seconds in range(4)]
    killed = JobEvent(at[1], "Warning", "Error", "", "Pod/p1", pod="p1", worker=1, end=ContainerEnd(137, ""))
    end = events.WorkerEnds(worker=0, exit_code=145, cause="peer", message="worker 1 left no record", follows=1)
    first, second = news("Running", replace(begins(), time=at[0].isoformat()), end), replace(begins(2), time=f"{at[3]}")
    trace = Trace()
    for each in (first, news("Running", second, attempt=2)):
        trace.take(replace(each, snapshot=replace(each.snapshot, events=(killed,))))
    assert "↻ attempt 2 (worker 1 was killed by SIGKILL)" in words(draw(panel_of(SUBJECT, trace, now=NOW)))


def test_a_note_stands_once_whichever_attempts_say_it_and_not_where_it_stands_beside_the_panel():
    told = [news("Running", events.Note(text=text), attempt=n) for n in (1, 2) for text in ("of data", "of a worker")]
    trace = Trace()
    for each in told:
        trace.take(each)
    text = words(draw(panel_of(replace(SUBJECT, printed_notes=frozenset({"of data"})), trace, now=NOW)))
    assert re.findall(r"note: (of \w+)", text) == ["of a"]


def test_a_frame_says_when_it_was_drawn_while_the_job_goes_on():
    running, done = news("Running", progress(3)), news("Succeeded", is_last=True)
    when = f"{NOW.astimezone():%d %b %H:%M:%S}"
    assert [f"as of {when}" in words(html_of(each)) for each in (running, done)] == [True, False]


def test_a_frame_that_is_no_longer_updated_says_since_when_and_how_far_the_job_was_then():
    text = words(html_of(news("Running", begins(), progress(10), of=pods("Running", "Running")), is_stopped=True))
    clock = f"{NOW.astimezone():%H:%M:%S}"
    assert unnamed(text, f"stopped watching at {clock}, step 10 of 40", "a-run", "25%", "Running as of") == []
    assert (text.startswith(" ● Running"), "s left" in text) == (False, False)
    assert "stopped watching" in words(html_of(news("Created", of=()), is_stopped=True))


def test_a_training_whose_steps_are_done_says_what_it_still_does():
    text = words(html_of(news("Running", begins(), progress(40), measured(a=[9, 70, 21, 0, 0, 0]), of=pods("Running"))))
    assert ("all steps are done" in text, "compute" in text) == (True, False)


EARLIER = [
    (1, events.WorkerEnds(worker=1, exit_code=137, cause="code", message="rank 1 was killed")),
    (2, events.WorkerStarts(worker=1, num_workers=2, pod="p")),
    (2, events.WaitsForPeers(endpoint="p:1", why="worker 0 is missing")),
]


@pytest.mark.parametrize(("attempt", "event"), EARLIER)
def test_what_a_worker_told_before_the_group_formed_is_not_what_it_does_though_its_log_is_read_later(attempt, event):
    trace = Trace()
    trace.take(news("Running", begins(2), progress(9), attempt=2, of=pods("Running", "Running")))
    (line,) = news("Running", event, attempt=attempt).lines
    trace.take(news("Running", attempt=2, of=pods("Running", "Running"), lines=[replace(line, worker=1)]))
    assert [worker.activity for worker in trace.workers()] == ["trains", "trains"]


def test_metrics_of_one_value_are_numbers_and_those_of_several_are_charts():
    evaluated = [
        events.Evaluated(step=step, epoch=1, metrics={"loss": 1 / step, "accuracy": 0.1 * step}) for step in (4, 8)
    ]
    once = html_of(news("Running", progress(4), progress(5), evaluated[0]))
    assert ("eval_accuracy 0.4" in words(once), once.count("<svg")) == (True, 1)
    assert html_of(news("Running", progress(4), progress(5), *evaluated)).count("<svg") == 2


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), -1e300, 0.0])
def test_whatever_a_loss_is_the_panel_is_drawn(loss):
    assert "step 2 of 40" in words(html_of(news("Running", progress(1), progress(2, loss=loss))))


def test_the_audit_is_one_tick_and_a_row_that_is_missing_is_told():
    exact = words(html_of(news("Running", *(audit(f"epoch={number}") for number in range(1, 4)))))
    assert ("each of 101 rows was used exactly once in epochs 1 to 3" in exact, exact.count("✓")) == (True, 1)
    assert "not counted yet" not in exact
    behind = [progress(40, epoch=4.0), *(audit(f"epoch={number}") for number in range(1, 4))]
    assert "in epochs 1 to 3 (epoch 4 not counted yet)" in words(html_of(news("Running", *behind)))
    assert "not counted yet" not in words(html_of(news("Succeeded", *behind, is_last=True)))
    within = [progress(35, epoch=3.5), *behind[1:]]
    assert "not counted yet" not in words(html_of(news("Running", *within)))
    assert "✗ audit epoch=2" in words(html_of(news("Running", audit(), audit("epoch=2", used_once=94, missing=7))))


def test_the_last_lines_of_rank_0_are_shown_and_the_older_ones_folded():
    html = html_of(news("Running", *(f"[rank 0] line {number}" for number in range(30)), "[rank 1] other"))
    folded, _, after = html.partition("</details>")
    assert [("line 25</pre>" in part, "line 29" in part, "other" in part) for part in (folded, after)] == [
        (True, False, False),
        (False, True, False),
    ]


def test_nothing_that_a_worker_prints_becomes_part_of_the_page():
    evil = "[rank 0] <script>alert(1)</script>\x1b[31mred\x1b[0m\x00 &amp; " + "x" * 100_000
    html = html_of(news("Running", evil, begins()), explanation="ValueError: <b>'a' \u202e</b>")
    text = words(html)
    assert ("<script>" in html, "<b>'a'" in html, "\x1b" in html, "\u202e" in html) == (False, False, False, False)
    assert ("<script>alert(1)</script>red" in text, "&amp;" in text) == (True, True)


def test_a_failure_is_told_with_its_line():
    why = "a-run: KeyError: 'label'\n  cell 3, line 7: `batch['label']`\n  next: fix the function"
    failed = words(html_of(news("Failed", of=replace(POD, phase="Failed", exit_code=70)), explanation=why))
    assert ("✗ Failed" in failed, "cell 3, line 7" in failed, "exit code 70" in failed) == (True, True, True)
    hangs = words(html_of(news("Running", failure=JobFailed("no image of that name", cause="image"))))
    assert "no image of that name" in hangs


def test_the_end_says_where_the_model_is():
    done = events.Published(attempt=1, model="s3://bucket/a-run/model")
    assert "published: s3://bucket/a-run/model" in words(html_of(news("Succeeded", done, is_last=True)))


def test_the_end_says_what_the_result_is_without_its_lists():
    result = {"mse": 0.01114321, "rows": 120, "optimizer": "sgd", "loss": None, "losses": [0.25] * 99, "more": {"a": 7}}
    text = words(html_of(news("Succeeded", is_last=True), result=result))
    assert unnamed(text, "mse 0.01114", "rows 120", "optimizer sgd", "loss None") == []
    assert ("losses" in text, "more" in text) == (False, False)
    long = words(html_of(news("Succeeded", is_last=True), result={f"word{n}": "y" * 9999 for n in range(999)}))
    assert ("word0 y" in long, len(long) < 3000) == (True, True)


def test_the_panel_of_ten_thousand_steps_of_200_workers_is_small():
    told = [progress(n, num_steps=10_000, loss=1 / n) for n in range(1, 10_001)]
    told += [events.Reported(step=n, metrics=dict.fromkeys("abcdefgh", n % 7)) for n in range(1, 10_001)]
    printed = [f"[rank 0] {'y' * 2000}" for _ in range(99)]
    html = html_of(news("Running", begins(1, 200), *told, *printed, of=pods(*["Running"] * 200)))
    assert ("step 10,000 of 10,000" in words(html), len(html.encode()) < 60_000) == (True, True)
