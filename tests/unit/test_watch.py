"""A person who watches sees what matters, once."""

import re
import threading

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import Clock, RecordedJob, a_record
from train_func import events
from train_func.client import watch
from train_func.client.diagnose import Diagnosis, JobMonitor
from train_func.client.logs import Attempt, AttemptLine
from train_func.client.watch import LOADING, MOST_PRINTED, PROGRESS_SECONDS, STARTING, Display
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
OPENED = events.SessionOpened(run="a-run", attempt=1, world_size=2, device="cpu", num_threads=1)


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
def test_ranks_that_lost_their_peers_are_told_in_a_line_each_behind_the_end_that_they_followed_from(
    display, shown, is_late
):
    one, root = attempt(), ends(1, 70, "rank 1: ValueError: nan")
    lost = [events.LostPeers(error=f"RuntimeError: {rank}", traceback="at", rank=rank) for rank in (0, 2)]
    told = [lines(one, root, worker=1), lines(one, *lost)]
    tell(display, [line for of in (told if is_late else reversed(told)) for line in of])
    assert shown() == [str(root), *(f"rank {of.rank} {of}" for of in lost)]


def test_where_ranks_start_again_in_the_same_pods_their_reason_comes_before_who_only_lost_a_peer(display, shown):
    lost = events.LostPeers(error="RuntimeError: closed", traceback="at", rank=0)
    root = events.RanksRestart(worker=1, attempt=2, message="rank 1 was killed by SIGKILL", follows=1)
    follower = events.RanksRestart(worker=0, attempt=2, message="worker 1 had ended", follows=1)
    tell(display, lines(attempt(), lost, follower) + lines(attempt(2), begins(2, 2)) + lines(attempt(), root, worker=1))
    assert [line for line in shown() if "attempt 2 of" not in line] == [str(root), f"rank 0 {lost}"]


def test_ranks_whose_peers_left_no_word_are_told_in_the_end(display, shown):
    lost = events.LostPeers(error="RuntimeError: closed", traceback="at", rank=0)
    tell(display, lines(attempt(), lost))
    assert shown() == []
    display.finish("a-run", "Failed")
    assert shown() == [f"rank 0 {lost}", "a-run: Failed"]


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


class Ended:
    """A job that is over."""

    name, state = "a-run", "Failed"

    def wait(self):
        return self.state


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
    watch.watch(
        Ended(),
        lambda: iter(told),
        lambda: "newest",
        JobMonitor(a_record(), RecordedJob("exit_1")),
        threading.Event(),
        str,
    )
    shown = capsys.readouterr().out
    assert "attempts 1:" in shown
    assert [number for number in (1, 2, 3) if f"told by {number}" in shown] == [2, 3]


def test_a_silence_is_told_of_soon_and_then_less_and_less_often(display, clock, shown):
    display.state("a-run", "Created")
    display.idle()
    for _ in range(200):
        clock.seconds += 1
        display.idle()
    assert [re.findall(r"Created|\d+ s", line) for line in shown()[2:]] == [
        ["Created", f"{seconds} s"] for seconds in (12, 36, 84, 180)
    ]


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
