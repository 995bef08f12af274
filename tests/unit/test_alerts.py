"""What is worth an alert, told from events by hand, and what becomes of it where the service is no help."""

import math
import random
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import Clock
from tests.webhook import SECRET, service
from train_func.wire import events, exits
from train_func.wire.records import Verdict
from train_func.worker import masks
from train_func.worker.rank import reporting
from train_func.worker.rank.marks import Mark, Phase
from train_func.worker.supervisor.alerts.alerter import SEND_SECONDS, Alerter
from train_func.worker.supervisor.alerts.poster import POST_SECONDS
from train_func.worker.supervisor.alerts.rules import SAME_KIND_SECONDS, WAIT_SECONDS, AlertRules

NUM_STEPS = 1000


def falling(step, to=0.05):
    return to + (2.3 - to) * math.exp(-step / 120)


def warm_up(step):
    return falling(step) * (1 + 0.5 * math.exp(-(((step - 40) / 30) ** 2)))


def by_epoch(step):
    return (2.3, 1.2, 0.6, 0.3, 0.15, 0.1)[step // 200] * (1 + step % 200 / 2000)


def of_batches(step):
    return falling(step) * (10 if step % 37 == 0 else 1)


def wandering(step):
    return 1 + 0.25 * math.sin(step / 90)


CURVES = {  # the loss at a step, the factor by which single losses are off, and the steps by which an alert is expected
    "falling": (falling, 1.0, None),
    "falling, noisy": (falling, 1.3, None),
    "falling, very noisy": (falling, 2.2, None),
    "plateau": (lambda step: 0.69, 1.05, None),
    "plateau, noisy": (lambda step: 0.69, 1.6, None),
    "plateau, very noisy": (lambda step: 0.69, 2.7, None),
    "a bump while the learning rate warms up": (warm_up, 1.05, None),
    "lower with each epoch, and a little up within": (by_epoch, 1.1, None),
    "batches that are hard": (of_batches, 1.1, None),
    "below zero, and falling": (lambda step: -5 + falling(step), 1.01, None),
    "wandering by a quarter": (wandering, 1.02, None),
    "wandering by a quarter, noisy": (wandering, 1.15, None),
    "wandering by a quarter while it falls": (lambda step: falling(step, to=0.5) * wandering(step), 1.1, None),
    "close to zero, and doubled": (lambda step: falling(step, to=0.01) if step < 700 else 0.02, 1.1, None),
    "up slowly, after a descent": (lambda step: falling(min(step, 500)) + max(0, step - 500) / 500, 1.1, (510, 720)),
    "up slowly, from the beginning": (lambda step: 1 + step / 500, 1.1, (100, 500)),
    "doubling steadily, after a descent": (
        lambda step: falling(min(step, 500), to=0.3) * 2 ** max(0, step / 500 - 1),
        1.1,
        (900, 1000),
    ),
    "doubling steadily, from the beginning": (lambda step: 2 ** (step / 500), 1.1, (400, 600)),
    "up at once, and staying there": (lambda step: falling(step) if step < 500 else 2.5, 1.1, (500, 550)),
    "exploding": (lambda step: falling(500) * 1.5 ** (step - 500) if step > 500 else falling(step), 1.0, (505, 550)),
    "exploding from the beginning": (lambda step: 2.3 * 1.2 ** min(step, 400), 1.0, (5, 50)),
}


@pytest.mark.parametrize(("loss", "noise", "expected"), CURVES.values(), ids=CURVES)
@pytest.mark.parametrize("per_step", [1, 3], ids=["1000 losses", "3000 losses"])
def test_a_loss_that_rises_plainly_makes_one_alert_and_noise_makes_none(loss, noise, expected, per_step):
    for seed in range(2):
        drawn = random.Random(seed)
        clock = Clock()
        rules, alerts = AlertRules(clock), []
        for step in range(1, NUM_STEPS * per_step + 1):
            clock.seconds += SAME_KIND_SECONDS
            value = loss(step // per_step) * math.exp(drawn.gauss(0, math.log(noise)))
            alerts += rules.hear(progress(step, value, num_steps=NUM_STEPS * per_step))
        assert [alert.kind for alert in alerts] == ["loss_rises"] * (expected is not None)
        if expected:
            assert expected[0] <= alerts[0].step / per_step <= expected[1]
            assert unnamed(alerts[0].remedy, "learning rate") == []


def walks(seed):
    """Losses that wander without an aim, between three quarters and five quarters of a level."""
    drawn, level = random.Random(seed), 1.0
    for _ in range(600):
        level += drawn.gauss(0, 0.03)
        level = 0.75 + abs(level - 0.75)
        level = 1.25 - abs(1.25 - level)
        yield level


def losses_of_a_bert():
    """Those of notebook 01, with six epochs: from 1.1 to 0.0035, and single batches ten times worse."""
    return [float(loss) for loss in (Path(__file__).parents[1] / "recorded" / "losses.txt").read_text().split()]


@pytest.mark.parametrize("losses", [*map(walks, range(20)), losses_of_a_bert()])
def test_a_walk_within_a_quarter_and_a_real_training_make_no_alert(losses):
    rules, losses = AlertRules(Clock()), [*losses]
    for step, loss in enumerate(losses, 1):
        assert rules.hear(progress(step, loss, num_steps=len(losses))) == []


def progress(step, loss=0.5, *, num_steps=NUM_STEPS):
    return events.StepProgress(
        step=step, num_steps=num_steps, epoch=1, loss=loss, rows_per_second=8, seconds_left=60, is_line=False
    )


def begins(attempt=2, position=2, after="worker 1: rank 1 was killed by SIGKILL", step=40):
    return events.AttemptStarts(
        attempt=attempt,
        position=position,
        at_most=3,
        num_workers=2,
        num_ranks=2,
        num_threads=1,
        after=after,
        step=step,
    )


def slow(worker=1, part="data"):
    return events.WorkersMeasured(
        seconds=10,
        num_workers=2,
        workers={},
        slow_part=part,
        slow_rank=worker,
        slow_worker=worker,
        message=f"rank {worker} is slow",
        remedy="see its disk",
    )


def reported(step, **metrics):
    return events.Reported(step=step, metrics=metrics)


def evaluated(step, **metrics):
    return events.Evaluated(step=step, epoch=1, metrics=metrics)


def waits():
    return events.WaitsForPeers(endpoint="a-run-worker-0:23456", why="1 of 2 workers is there")


NAN = float("nan")
EVENTS = {  # events a minute or more apart, and the alerts that they make, each with what it names
    "nothing of note": ([begins(1, 1, ""), progress(1), evaluated(1, loss=0.5), slow(None)], []),
    "a loss that is no number, told once": (
        [begins(1, 1, ""), progress(6), progress(7, NAN), progress(8, NAN)],
        [("loss_not_finite", "loss", "nan", 7)],
    ),
    "a loss of an own loop": ([reported(7, **{"train/loss": math.inf})], [("loss_not_finite", "train/loss", "inf", 7)]),
    "a loss of an evaluation": ([evaluated(7, loss=NAN)], [("loss_not_finite", "eval_loss", 7)]),
    "another metric, or text": ([reported(7, perplexity=math.inf, loss="nan", lossless=NAN)], []),
    "a straggler, named once": ([slow(1), slow(1), slow(2)], [("straggler", "rank 1"), ("straggler", "rank 2")]),
    "a straggler of the next attempt": ([slow(1), begins(), slow(1)], [("straggler", 1), ("restart",), ("straggler",)]),
    "a restart": ([begins()], [("restart", "attempt 2", "step 40", "worker 1", "SIGKILL", "2 of at most 3")]),
    "a restart of which nothing is known": ([begins(after="")], [("restart", "attempt 2", "no record")]),
    "a submission of a run that had attempts": ([begins(3, 1, "")], []),
    "the next training of a function": (
        [progress(step, 1e-3 * step) for step in range(1, 9)] + [progress(step, 1e3) for step in range(1, 9)],
        [],
    ),
    "a wait for others": ([waits()] * 7, [("stall", "worker-0:23456", "1 of 2 workers")]),
}


@pytest.mark.parametrize(("heard", "expected"), EVENTS.values(), ids=EVENTS)
def test_each_occasion_makes_one_alert_that_names_it(heard, expected):
    clock = Clock()
    rules, alerts = AlertRules(clock), []
    for event in heard:
        clock.seconds += SAME_KIND_SECONDS
        alerts += rules.hear(event)
    assert [alert.kind for alert in alerts] == [kind for kind, *_ in expected]
    for alert, (_, *facts) in zip(alerts, expected, strict=True):
        assert unnamed(alert.message, *facts) == []


def test_each_training_of_a_function_has_the_alerts_of_its_own_loss():
    clock = Clock()
    rules, alerts = AlertRules(clock), []
    rising = [1.2**step for step in range(60)]
    for losses in (rising, rising, [NAN, NAN], [NAN]):
        for step, loss in enumerate(losses, 1):
            clock.seconds += SAME_KIND_SECONDS
            alerts += rules.hear(progress(step, loss))
    assert [alert.kind for alert in alerts] == ["loss_rises"] * 2 + ["loss_not_finite"] * 2


def verdict(code, cause, message, **fields):
    return Verdict(code, cause, message, 1, **fields)


STOPPED = verdict(exits.STOPPED, "preemption", "the worker was asked to stop by SIGTERM")
FAULT = verdict(exits.CODE, "code", "rank 1: ValueError: no such label")
PEER = verdict(exits.PEER, "peer", "stopped, because of worker 1", root_cause=False, follows=1)
ENDS = {
    "a signal to this worker": (STOPPED, STOPPED, ("stop", "worker 1", "SIGTERM")),
    "a signal to another worker": (PEER, STOPPED, ("stop", "worker 1", "SIGTERM")),
    "a fault of the run": (FAULT, FAULT, ("failed", "code", "ValueError")),
    "a fault in another worker": (
        replace(FAULT, cause="peer", worker=0, message="stopped, because of worker 1", root_cause=False),
        FAULT,
        ("failed", "code", "ValueError"),
    ),
    "no attempt left": (
        verdict(exits.SPENT, "killed", "3 of 3 attempts"),
        PEER,
        ("failed", "killed", "3 of 3 attempts"),
    ),
    "what another attempt follows": (PEER, verdict(exits.KILLED, "killed", "rank 1 was killed"), None),
    "another job of the run": (FENCED := verdict(exits.FENCED, "code", "submitted again"), FENCED, None),
}


@pytest.mark.parametrize(("own", "root", "expected"), ENDS.values(), ids=ENDS)
def test_a_stop_and_a_final_failure_are_told_and_an_end_that_another_attempt_follows_is_not(own, root, expected):
    alerts = AlertRules(Clock()).end(own, root)
    assert [alert.kind for alert in alerts] == ([expected[0]] if expected else [])
    for alert in alerts:
        assert unnamed(alert.message, *expected[1:]) == []
        assert alert.remedy


def test_a_success_has_the_numbers_of_the_result_and_the_last_step():
    rules = AlertRules(Clock())
    rules.hear(progress(40))
    (alert,) = rules.succeed({"accuracy": 0.912345, "labels": ["a"], "rows": 101})
    assert (alert.kind, alert.step) == ("succeeded", 40)
    assert unnamed(alert.message, "accuracy=0.9123", "rows=101") == []


def test_after_a_stop_it_is_told_when_the_run_has_to_be_submitted_again():
    (alert,) = AlertRules(Clock()).end(STOPPED, STOPPED)
    assert unnamed(alert.remedy, "evicted", "cancel()", "deadline", "submit") == []


def test_a_whole_number_that_no_float_holds_is_told_as_well():
    (alert,) = AlertRules(Clock()).succeed({"combinations": 2**1024, "rows": 101})
    assert unnamed(alert.message, f"combinations={2**1024}", "rows=101") == []


def stall(phase=Phase.STEP, *, num_steps=3, number=7):
    return Mark(number=number, phase=phase, step=40, num_steps=num_steps)


@pytest.mark.parametrize(
    ("mark", "is_stall"),
    [
        (stall(), True),
        (stall(Phase.EXCHANGE), True),
        (stall(num_steps=0), False),
        (stall(Phase.SAVING), False),
        (stall(Phase.OUTSIDE), False),
    ],
)
def test_a_rank_without_progress_is_a_stall_before_it_is_a_hang_and_where_it_would_be_one(mark, is_stall):
    clock = Clock()
    rules, when = AlertRules(clock), []
    while clock.seconds < 59:
        clock.seconds += 0.1
        for alert in rules.look(mark, hang_after=60):
            assert unnamed(alert.message, "rank 0", "step 40", "60 s") == []
            when.append(clock.seconds)
    assert [29 < seconds < 31 for seconds in when] == [True] * is_stall


def test_each_time_that_a_rank_stands_still_makes_an_alert():
    clock = Clock()
    rules, kinds = AlertRules(clock), []
    for number in (7, 8):
        for _ in range(100):
            clock.seconds += 1
            kinds += [alert.kind for alert in rules.look(stall(number=number), hang_after=60)]
    assert kinds == ["stall"] * 2


def test_neither_progress_nor_a_machine_that_stood_still_is_a_stall():
    clock = Clock()
    rules = AlertRules(clock)
    for number in range(100):
        clock.seconds += 20
        assert rules.look(stall(number=number), hang_after=60) == []
    clock.seconds += 3600
    assert rules.look(stall(number=99), hang_after=60) == []


def test_a_job_that_starts_again_and_again_makes_an_alert_a_minute():
    clock = Clock()
    rules, alerts = AlertRules(clock), []
    for attempt in range(2, 122):
        clock.seconds += 5
        alerts += [*rules.hear(begins(attempt)), *rules.hear(progress(1, NAN))]
    per_kind = [[alert.kind for alert in alerts].count(kind) for kind in ("restart", "loss_not_finite")]
    assert per_kind == [600 // SAME_KIND_SECONDS] * 2
    assert WAIT_SECONDS > SAME_KIND_SECONDS


@pytest.fixture
def said(monkeypatch):
    """What the worker says, without its secrets."""
    said = []
    before = reporting._sink[0]
    reporting.report_to(lambda event: said.append(masks.mask(event)))
    yield said
    reporting.report_to(before)
    masks.begin({})


def posted_to(address, said):
    """Three alerts to a service at this address; returns how long they, and waiting for them, took."""
    masks.begin({"TRAIN_FUNC_WEBHOOK": address})
    alerter, begun = Alerter(SimpleNamespace(webhook=address, run_name="a-run", status_server=None)), time.monotonic()
    alerter.hear(begins())
    alerter.hear(progress(40, NAN))
    alerter.succeed({"accuracy": 0.9})
    given = time.monotonic()
    alerter.flush(60)
    kinds = [event.kind for event in said if isinstance(event, events.Alert)]
    assert kinds == ["restart", "loss_not_finite", "succeeded"]
    return given - begun, time.monotonic() - given


def test_a_value_that_no_rule_can_judge_costs_the_training_nothing_and_is_told_once(said):
    alerter = Alerter(SimpleNamespace(webhook="", run_name="a-run", status_server=None))
    for step in (1, 2):
        alerter.hear(reported(step, loss=10**3000))
    alerter.succeed({"accuracy": 0.9})
    note, alert = said
    assert (unnamed(note.text, "alert", "OverflowError"), alert.kind) == ([], "succeeded")


def test_an_alert_is_posted_with_one_line_for_a_person(said):
    with service() as slack:
        posted_to(slack.address, said)
    assert [post["alert"] for post in slack.posts] == ["restart", "loss_not_finite", "succeeded"]
    assert {*slack.posts[0]} == {"text", "run", "alert", "message", "remedy", "step", "time"}
    second = slack.posts[1]
    assert (second["run"], second["step"]) == ("a-run", 40)
    assert unnamed(second["text"], "a-run", "loss is nan", "step 40", second["remedy"]) == []
    assert "\n" not in second["text"]
    assert not [event for event in said if isinstance(event, events.Note)]


@pytest.mark.parametrize("answer", [500, 404, 302, None, "away", "no address", "no ASCII"])
def test_a_service_that_is_no_help_costs_no_time_and_is_told_once_without_its_address(said, answer):
    with service(answer if isinstance(answer, int) else None) as slack:
        away = f"http://127.0.0.1:9/{SECRET}"
        addresses = {"away": away, "no address": f"file:///{SECRET}", "no ASCII": f"{away}ü"}
        address = addresses.get(answer, slack.address)
        given, waited = posted_to(address, said)
    assert given < 1
    assert waited < SEND_SECONDS + 1
    (note,) = [event for event in said if isinstance(event, events.Note)]
    assert "TRAIN_FUNC_WEBHOOK" in note.text
    assert SECRET not in repr(said)
    assert "127.0.0.1" not in repr(said)
    if answer is None:
        assert waited > POST_SECONDS - 1
        assert unnamed(note.text, f"{POST_SECONDS:g} s") == []
    elif isinstance(answer, int):
        assert unnamed(note.text, answer) == []
    elif answer != "away":
        assert unnamed(note.text, {"no address": "https://", "no ASCII": "UnicodeEncodeError"}[answer]) == []
