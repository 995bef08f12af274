"""A person who watches sees what matters, once."""

import re
import threading
from dataclasses import replace

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import Clock, RecordedJob, a_record
from train_func import events
from train_func.client import watch
from train_func.client.diagnose import Diagnosis, JobMonitor
from train_func.client.display import LOADING, MOST_PRINTED, PROGRESS_SECONDS, STARTING, Display
from train_func.client.logs import Attempt, AttemptLine
from train_func.events import Event


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def display(clock):
    return Display(clock=clock)


@pytest.fixture
def shown(capsys):
    return lambda: [re.sub(r"^ *[\d.]+ s  ", "", line) for line in capsys.readouterr().out.splitlines()]


def attempt(number=1):
    return Attempt(number, "", "", first=True)


def lines(of, *told, worker=0):
    """Each an event, or a text that was printed."""
    return [
        AttemptLine(of, worker, str(one), late=False, event=one if isinstance(one, Event) else None) for one in told
    ]


STARTS = events.WorkerStarts(worker=0, num_workers=2, pod="p", pod_uid="u")
OPENED = events.Stage(text="session run=a-run attempt=1 world_size=2 device=cpu threads=1")


def begins(number=1, position=1):
    return events.AttemptStarts(attempt=number, position=position, at_most=3, num_workers=2, num_ranks=2, num_threads=1)


def progress(step, num_steps=20):
    return events.StepProgress(step=step, num_steps=num_steps, epoch=1, loss=0.5, rows_per_second=8, seconds_left=60)


def ends(worker, code, message, follows=None):
    return events.WorkerEnds(worker=worker, exit_code=code, cause="killed", message=message, follows=follows)


def tell(display, told):
    for line in told:
        display.tell(line)


def test_the_start_is_told_once_by_its_stages(display, shown):
    one = attempt()
    display.state("a-run", "Running")
    display.idle()
    display.idle()
    tell(display, lines(one, STARTS, begins()))
    display.idle()
    display.idle()
    tell(display, lines(one, OPENED))
    display.idle()
    assert shown() == [
        "a-run: Running",
        STARTING,
        str(begins()),
        LOADING,
        str(OPENED),
    ]


def test_progress_is_told_every_five_seconds_and_at_its_end(display, clock, shown):
    one = attempt()
    for step in range(1, 21):
        clock.seconds += 1
        tell(display, lines(one, progress(step)))
    assert [int(re.search(r"step=(\d+)", line)[1]) for line in shown()] == [1, 6, 11, 16, 20]


def test_progress_that_came_too_soon_is_told_when_nothing_follows(display, clock, shown):
    tell(display, lines(attempt(), *(progress(step, 99) for step in range(1, 50))))
    display.idle()
    clock.seconds += 5
    display.idle()
    assert shown() == [str(progress(1, 99)), str(progress(49, 99))]


def test_what_only_follows_from_the_first_end_is_not_told(display, shown):
    one = attempt()
    first = ends(1, 147, "rank 1 was killed by SIGKILL")
    tell(display, lines(one, first, worker=1))
    tell(display, lines(one, ends(0, 145, "worker 1 had ended: rank 1 was killed by SIGKILL", follows=1)))
    tell(display, lines(one, ends(0, 0, "all ranks ended")))
    assert shown() == [str(first)]


@pytest.mark.parametrize("is_late", [False, True])
def test_ranks_that_lost_their_peers_are_told_in_a_few_words_behind_the_end_that_they_followed_from(
    display, shown, is_late
):
    one, root = attempt(), ends(1, 70, "rank 1: ValueError: nan")
    lost = [events.LostPeers(error=f"RuntimeError: {rank}", traceback="at", rank=rank) for rank in (0, 2)]
    told = [lines(one, root, worker=1), lines(one, *lost)]
    tell(display, [line for of in (told if is_late else reversed(told)) for line in of])
    first, *others = shown()
    assert first == str(root)
    assert [re.findall(r"rank \d|RuntimeError", line) for line in others] == [["rank 0"], ["rank 2"]]


def test_where_ranks_start_again_in_the_same_pods_their_reason_comes_first_and_once(display, shown):
    one, two = attempt(), attempt(2)
    lost = events.LostPeers(error="RuntimeError: closed", traceback="at", rank=0)
    same, root = (
        events.RanksRestart(worker=worker, attempt=2, message="rank 1 was killed by SIGKILL", follows=1)
        for worker in (0, 1)
    )
    tell(display, lines(one, lost) + lines(two, same, begins(2, 2)) + lines(one, root, worker=1))
    reason, lost_its_peers, starts = shown()
    assert (reason, starts) == (str(same), str(begins(2, 2)))
    assert unnamed(reason, "worker 1", root.message) == []
    assert "rank 0" in lost_its_peers


def test_progress_that_was_held_back_is_told_before_the_end_or_the_next_attempt_and_not_after(display, shown):
    one, killed = attempt(), ends(1, 147, "rank 1 was killed by SIGKILL")
    tell(display, lines(one, progress(1), progress(2)) + lines(one, killed, worker=1))
    tell(display, lines(attempt(2), progress(3), progress(4)))
    tell(display, lines(attempt(3), begins(3, 3)))
    late = [replace(line, late=True) for line in lines(one, progress(5), progress(6))]
    tell(display, late)
    display.finish("a-run", "Failed")
    steps = [re.search(r"step=(\d+)|SIGKILL|attempt 3|Failed", line)[0] for line in shown()]
    assert steps == ["step=1", "step=2", "SIGKILL", "step=4", "attempt 3", "Failed"]


def test_an_audit_of_the_same_rows_is_told_once_unless_it_finds_something_else(display, shown):
    def audit(what, missing=0):
        return events.RowsAudited(what=what, counts={"rows": 101, "missing": missing}, world_size=2)

    told = [audit("held_out"), audit("epoch=1"), audit("held_out"), audit("epoch=2"), audit("held_out", missing=7)]
    tell(display, lines(attempt(), *told))
    assert shown() == [str(one) for number, one in enumerate(told) if number != 2]


def test_ranks_whose_peers_left_no_word_are_told_in_the_end(display, shown):
    lost = events.LostPeers(error="RuntimeError: closed", traceback="at", rank=0)
    tell(display, lines(attempt(), lost))
    assert shown() == []
    display.finish("a-run", "Failed")
    told, state = shown()
    assert ("rank 0" in told, state) == (True, "a-run: Failed")


def test_what_the_cluster_says_of_an_end_that_its_worker_has_told_is_not_told(display, shown):
    killed = "rank 1 was killed by SIGKILL"
    tell(display, lines(attempt(), ends(1, 147, killed), worker=1))
    display.diagnoses([Diagnosis("killed", f"worker 1 ended with exit code 147: {killed}", said=killed)])
    display.diagnoses([Diagnosis("killed", "worker 0 was killed by SIGKILL")])
    assert len(shown()) == 2


def test_that_a_trained_model_waits_for_the_store_is_told_of_one_worker(display, shown):
    told = {"seconds_left": 880, "fault": "s3://b: no answer", "is_unknown_host": False, "message": "no answer"}
    waits = events.WaitsForStore(**told, purpose="publish what was trained")
    tell(display, lines(attempt(), waits, events.WaitsForStore(**told)))
    tell(display, lines(attempt(), waits, worker=1))
    assert shown() == [str(waits)]


def test_earlier_submissions_are_one_line(display, shown):
    for number in (1, 2, 2):
        display.pass_over(attempt(number))
    tell(display, lines(attempt(3), begins(3)))
    earlier, told = shown()
    assert unnamed(earlier, "attempts 1, 2", "logs()") == []
    assert told == str(begins(3))


def test_what_rank_0_prints_is_told_and_what_others_print_is_left_to_the_logs(display, shown):
    tell(display, lines(attempt(), STARTS, "[rank 0] mine", "[rank 1] not mine", "the supervisor's"))
    assert shown() == ["mine"]


def test_of_many_lines_at_once_only_the_first_are_told_and_the_others_counted(display, clock, shown):
    of = attempt()
    tell(display, lines(of, *[f"[rank 0] {number}" for number in range(101)]))
    assert shown() == [str(number) for number in range(MOST_PRINTED)]
    clock.seconds += PROGRESS_SECONDS
    tell(display, lines(of, "[rank 0] later"))
    counted, later = shown()
    assert (str(101 - MOST_PRINTED) in counted, later) == (True, "later")


class Runs:
    """A job that is over after as many looks at its state as are given here."""

    name, attach_expression = "a-run", "attach(...)"

    def __init__(self, looks, end="Failed"):
        self.looks, self.end = looks, end

    @property
    def state(self):
        self.looks -= 1
        return "Running" if self.looks >= 0 else self.end

    def wait(self):
        return self.end


def watched(job, told):
    monitor = JobMonitor(a_record(), RecordedJob("exit_1"))
    return watch.watch(job, lambda: iter(told), lambda: "newest", monitor, threading.Event(), str)


class Interrupted:
    name, attach_expression, asked = "a-run", "attach(...)", 0

    @property
    def state(self):
        self.asked += 1
        if self.asked == 2:
            raise KeyboardInterrupt
        return "Running"


def interrupted():
    raise KeyboardInterrupt


@pytest.mark.parametrize(("lines", "newest"), [(interrupted, str), (lambda: iter(()), interrupted)])
def test_an_interrupt_before_anything_is_shown_ends_the_watching_and_the_program(capsys, lines, newest):
    stop = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        watch.watch(Interrupted(), lines, newest, JobMonitor(a_record(), RecordedJob("evicted")), stop, str)
    assert stop.is_set()
    assert unnamed(capsys.readouterr().out.splitlines()[-1], "a-run", "attach(...).watch()") == []


def test_an_interrupt_in_ipython_ends_the_watching_with_one_sentence_and_leaves_no_follower_behind(shell, capsys):
    stop, over = threading.Event(), threading.Event()

    def lines():
        yield from ()
        stop.wait()
        over.set()

    state = watch.watch(Interrupted(), lines, str, JobMonitor(a_record(), RecordedJob("evicted")), stop, str)
    assert state == "Running"
    assert over.wait(10)
    first, last = capsys.readouterr().out.splitlines()
    assert first.endswith("a-run: Running")
    assert unnamed(last, "a-run", "attach(...).watch()", ".cancel()") == []


def test_only_what_says_that_it_is_older_belongs_to_an_earlier_submission(capsys):
    said = [Attempt(number, submitted, "", first=True) for number, submitted in [(1, "older"), (2, ""), (3, "newest")]]
    told = [line for one in said for line in lines(one, events.Note(text=f"told by {one.number}"))]
    watched(Runs(1), told)
    shown = capsys.readouterr().out
    assert "attempts 1:" in shown
    assert [number for number in (1, 2, 3) if f"told by {number}" in shown] == [2, 3]


def test_of_a_job_that_had_ended_before_only_its_last_numbers_are_told(shown):
    measured = events.Evaluated(step=20, epoch=1, metrics={"eval_loss": 0.25})
    earlier, newest = Attempt(1, "older", "", first=True), Attempt(2, "newest", "", first=True)
    said = [events.Reported(step=7, metrics={"loss": 1.5})]
    first = [begins(), replace(measured, step=7), progress(1)]
    told = lines(earlier, *said) + lines(newest, *first, progress(20), measured, "[rank 0] printed")
    assert watched(Runs(0, "Succeeded"), told) == "Succeeded"
    *numbers, state, rest = shown()
    assert (numbers, state) == ([str(progress(20)), str(measured)], "a-run: Succeeded")
    assert unnamed(rest, "attach(...).logs()") == []


@pytest.mark.parametrize("looks", [0, 1, 2])
def test_the_end_is_told_behind_the_last_line(shown, looks):
    watched(Runs(looks + 1), lines(attempt(), events.Note(text="the last")))
    assert [line for line in shown() if "last" in line or "Failed" in line] == ["note: the last", "a-run: Failed"]


def test_a_silence_is_told_of_soon_and_then_less_and_less_often(display, clock, shown):
    display.state("a-run", "Created")
    display.idle()
    for _ in range(200):
        clock.seconds += 1
        display.idle()
    assert [re.findall(r"Created|\d+ s", line) for line in shown()[2:]] == [
        ["Created", f"{seconds} s"] for seconds in (12, 36, 84, 180)
    ]


def test_a_long_silence_of_a_running_job_is_told_of_with_what_shows_where_its_ranks_are_once(clock, shown):
    display = Display(clock, lambda: "kill -QUIT 7")

    def silence():
        for _ in range(200):
            clock.seconds += 1
            display.idle()
        return [re.findall(r"\d+ s|QUIT", line) for line in shown() if "still" in line]

    told = [["12 s"], ["36 s", "QUIT"], ["84 s"], ["180 s"]]
    display.state("a-run", "Running")
    display.idle()
    assert silence() == told
    tell(display, lines(attempt(), events.Note(text="a sign")))
    assert silence() == told
    display.state("a-run", "Created")
    assert silence() == [found[:1] for found in told]


def test_that_the_workers_start_is_not_told_again_when_the_first_of_them_speaks(display, shown):
    display.state("a-run", "Running")
    display.idle()
    tell(display, lines(attempt(), STARTS))
    display.idle()
    assert shown() == ["a-run: Running", STARTING]


def test_what_was_told_before_it_turned_out_to_be_permanent_is_not_told_again(display, shown):
    passing = Diagnosis("permission", "worker 0: the Secret is missing", "make it")
    display.diagnoses([passing])
    before = shown()
    display.diagnoses([Diagnosis("permission", passing.message, "make it", permanent=True)])
    assert before == str(passing).splitlines()
    (permanent,) = shown()
    assert passing.message not in permanent
    assert passing.remedy in permanent


def test_a_note_of_a_worker_is_told(display, shown):
    note = events.Note(text="40 of the 101 rows are used")
    tell(display, lines(attempt(), note, "[rank 1] notes of my own"))
    assert shown() == [str(note)]
