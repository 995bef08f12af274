"""What `watch` prints, told from snapshots made by hand: what matters, once, in order."""

import contextlib
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tests.messages import unnamed
from tests.recorded_jobs import Clock, RecordedBackend, RecordedJob, a_record
from train_func.client.display.lines import LONGEST_REASON, MOST_PRINTED, PROGRESS_SECONDS, Lines
from train_func.client.display.screen import PaintedPanel
from train_func.client.display.terminal import Terminal
from train_func.client.job import Job
from train_func.client.logs import Attempt, AttemptLine
from train_func.client.status import Condition, Diagnosis, JobStatus, LogLine, LogPosition, Pod, Snapshot
from train_func.client.watch import JobLooks, News
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire import events
from train_func.wire.events import Event
from train_func.wire.result import Result


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def display(clock):
    return Lines("a-run", clock=clock)


@pytest.fixture
def shown(capsys):
    return lambda: [re.sub(r"^ *[\d.]+ s  ", "", line) for line in capsys.readouterr().out.splitlines()]


def attempt(number=1, submitted=""):
    return Attempt(number, submitted, "", first=True)


def tell(display, of, *told, worker=0, late=False):
    for one in told:
        event = one if isinstance(one, Event) else None
        display.show_line(AttemptLine(of, worker, str(one), late=late, event=event))


def progress(step, num_steps=99):
    return events.StepProgress(step=step, num_steps=num_steps, epoch=1, loss=0.5, rows_per_second=8, seconds_left=60)


def reported(step, **metrics):
    return events.Reported(step=step, metrics=metrics)


def evaluated(step):
    return events.Evaluated(step=step, epoch=1, metrics={"eval_loss": 0.5})


def saved(step):
    return events.CheckpointSaved(step=step, size=7, seconds=1)


def audit(what="epoch=1", missing=0):
    counts = {"rows": 7, "used_once": 7 - missing, "missing": missing}
    return events.RowsAudited(what=what, counts=counts, world_size=2)


def ends(worker, code, message, cause="killed", follows=None):
    return events.WorkerEnds(worker=worker, exit_code=code, cause=cause, message=message, follows=follows)


def waits(purpose):
    return events.WaitsForStore(seconds_left=880, message="no answer", purpose=purpose)


def alert(kind):
    return events.Alert(kind=kind, message=f"a case of {kind}")


STARTS = events.WorkerStarts(worker=0, num_workers=2, pod="p", pod_uid="u")
BEGINS = events.AttemptStarts(attempt=1, position=1, at_most=3, num_workers=2, num_ranks=2, num_threads=1)
PUBLISHED = events.Published(attempt=1, model="s3://b/model")
NOTE = events.Note(text="40 of the 101 rows are used")
LOST = events.LostPeers(error="RuntimeError: closed", traceback="at", rank=0)
KILLED = ends(1, 147, "rank 1 was killed by SIGKILL")


@pytest.mark.parametrize(
    ("told", "order"),
    [
        ([STARTS, BEGINS, "[rank 0] mine", "[rank 1] not mine", NOTE], [1, "mine", 4]),
        ([progress(1), progress(2), saved(3), progress(4), saved(5)], [1, 2, 4]),
        ([progress(1), progress(2), evaluated(3), progress(4), evaluated(5)], [1, 2, 4]),
        ([progress(1), progress(3), evaluated(3), progress(5), evaluated(5)], [1, 2, 3, 4]),
        ([progress(1), progress(3), audit(missing=7)], [1, 2]),
        ([progress(1), progress(3), PUBLISHED], [1, 2]),
        ([progress(1), progress(2), KILLED], [1, 2]),
        ([reported(1, loss=0.5), reported(1, speed=7), reported(2, loss=0.4)], [1, 2]),
        ([audit("epoch=2", missing=1), audit(missing=7), audit(missing=7)], [0, 1]),
        ([waits(""), waits("publish what was trained")], [0, 1]),
        ([KILLED, LOST, ends(0, 145, "worker 1 had ended", follows=1), ends(0, 0, "all ranks ended")], [0]),
        ([ends(n, 70, f"rank {n}: ValueError: row {n}", "code") for n in (0, 1)], [0, 1]),
        ([ends(n, 147, f"rank {n} was killed by SIGKILL") for n in (0, 1)], [0, 1]),
        ([alert("loss_rises"), alert("restart"), alert("stall"), alert("failed")], [0, 2]),
        ([events.RanksRestart(worker=w, attempt=2, message="a rank was killed", follows=1) for w in (0, 1)], [0]),
    ],
)
def test_what_matters_of_the_lines_is_shown_once_and_behind_nothing_newer(display, shown, told, order):
    tell(display, attempt(), *told)
    display.end("Succeeded")
    expected = [one if isinstance(one, str) else str(told[one]) for one in order]
    assert shown() == [*expected, "a-run: Succeeded"]


def test_that_each_row_was_used_once_is_told_once_in_the_end(display, shown):
    tell(display, attempt(), audit(), audit("epoch=2"), audit("epoch=3"))
    assert shown() == []
    display.end("Succeeded")
    audited, _ = shown()
    assert unnamed(audited, "each of 7 rows", "epochs 1 to 3") == []


def test_a_note_is_told_once_and_not_where_the_submission_has_told_it(clock, shown):
    display = Lines("a-run", printed_notes=["3 held-out texts are rows to train on too"], clock=clock)
    for of in (attempt(), attempt(2)):
        tell(display, of, NOTE, events.Note(text="3 held-out texts are rows to train on too"))
    assert shown() == [str(NOTE)]


def test_a_line_has_the_seconds_since_the_submission_also_of_what_happened_before_the_watching(clock, capsys):
    submitted = datetime(2026, 11, 27, 12, tzinfo=UTC)
    display = Lines("a-run", submitted=submitted, clock=lambda: submitted.timestamp() + 600)
    for seconds in (3, 65.5):
        tell(display, attempt(), replace(saved(7), time=(submitted + timedelta(seconds=seconds)).isoformat()))
    display.show_state("Running")
    assert re.findall(r"[\d.]+(?= s  )", capsys.readouterr().out) == ["3.0", "65.5", "65.5"]
    display.take(News("Running", Snapshot(), [], [], [], None))
    display.show_state("Failed")
    assert "600.0 s" in capsys.readouterr().out


def test_what_several_workers_and_the_backend_tell_is_shown_in_the_order_of_its_times(clock, capsys):
    submitted = datetime(2026, 11, 27, 12, tzinfo=UTC)
    display = Lines("a-run", submitted=submitted, clock=lambda: submitted.timestamp() + clock.seconds)

    def at(event, seconds):
        return replace(event, time=(submitted + timedelta(seconds=seconds)).isoformat())

    told = [(0, at(BEGINS, 1)), (0, at(saved(2), 9)), (1, at(events.Note(text="of worker 1"), 4)), (1, at(KILLED, 12))]
    of = attempt()
    clock.seconds = 20
    lines = [AttemptLine(of, worker, str(event), late=False, event=event) for worker, event in told]
    display.take(News("Running", Snapshot(), lines, [], [], None))
    tell(display, of, at(progress(3), 21), at(progress(4), 22), at(NOTE, 24))
    clock.seconds += PROGRESS_SECONDS
    display.idle()
    tell(display, of, at(saved(5), 23))  # by a clock that is slow
    printed = [line.split(" s  ") for line in capsys.readouterr().out.splitlines()]
    assert " ".join(words.split()[0] for _, words in printed) == (
        "attempt note: saved worker a-run: progress note: saved"
    )
    seconds = [float(second) for second, _ in printed]
    assert seconds == sorted(seconds)
    assert seconds[:5] == [1, 4, 9, 12, 20]


def test_how_the_workers_are_is_shown_only_where_one_of_them_is_slow_that_was_not_before(display, shown):
    well = events.WorkersMeasured(seconds=10, num_workers=2, workers={})
    slow = [
        replace(well, slow_part=part, slow_worker=worker, message=f"{part} of {worker}", remedy="look")
        for part, worker in [("data", 1), ("data", 1), ("compute", 1), ("data", 1), ("data", 0)]
    ]
    tell(display, attempt(), well, *slow, well)
    assert shown() == [line for n in (0, 2, 4) for line in (f"slow: {slow[n].message}", "  next: look")]


def test_progress_is_shown_every_five_seconds_and_at_its_end(display, clock, shown):
    of = attempt()
    for step in range(1, 21):
        clock.seconds += 1
        tell(display, of, progress(step, 20))
        display.idle()
    assert [int(re.search(r"step=(\d+)", line)[1]) for line in shown()] == [1, 6, 11, 16, 20]


def test_the_progress_that_is_shown_is_the_newest_that_a_look_has_brought(watch, shown):
    watch(snapshot(), snapshot("Running", *map(progress, range(1, 8))), snapshot("Failed"))
    assert [line for line in shown() if "step=" in line] == [str(progress(7))]


def test_of_an_earlier_attempt_only_its_end_and_what_lasts_of_it_are_shown_when_a_later_one_has_begun(display, shown):
    tell(display, attempt(2), evaluated(20))
    tell(display, attempt(), progress(7), evaluated(7), saved(7), audit(), late=True)
    tell(display, attempt(), KILLED, late=True, worker=1)
    assert shown() == [str(of) for of in (evaluated(20), evaluated(7), saved(7), KILLED)]


def test_a_fault_that_came_to_every_rank_is_shown_once_in_a_short_line(display, shown):
    one = attempt()
    for worker in range(3):
        tell(display, one, ends(worker, 65, f"rank {worker}: no checkpoint can be used:\n  - step 2: worn", "storage"))
    (line,) = shown()
    assert ("no checkpoint can be used" in line, "worn" in line) == (True, False)
    tell(display, attempt(2), ends(0, 65, "x" * 5000))
    assert len(shown()[0]) < LONGEST_REASON + 100


def test_of_many_lines_at_once_only_the_first_are_shown_and_the_others_counted(display, clock, shown):
    of = attempt()
    tell(display, of, *[f"[rank 0] {number}" for number in range(101)])
    assert shown() == [str(number) for number in range(MOST_PRINTED)]
    clock.seconds += PROGRESS_SECONDS
    tell(display, of, "[rank 0] later")
    counted, later = shown()
    assert (str(101 - MOST_PRINTED) in counted, later) == (True, "later")


def test_what_the_cluster_says_of_an_end_that_its_worker_has_told_is_not_shown(display, shown):
    tell(display, attempt(), KILLED, worker=1)
    display.show_diagnoses([Diagnosis("killed", f"worker 1 ended: {KILLED.message}", worker_message=KILLED.message)])
    display.show_diagnoses([Diagnosis("killed", "worker 0 was killed by SIGKILL")])
    assert len(shown()) == 2


def test_a_silence_is_told_after_a_minute_and_then_less_and_less_often(clock, shown):
    display = Lines("a-run", how_to_look=lambda: "kill -QUIT 7", clock=clock)
    display.show_state("Running")
    for _ in range(400):
        clock.seconds += 1
        display.idle()
    assert [re.findall(r"Running|\d+ s|QUIT", line) for line in shown()[1:]] == [
        ["Running", f"{seconds} s", "QUIT"] for seconds in (60, 120, 240)
    ]


POD = Pod("p", "uid", 0, "Running", None, "", "", None, None, deleted=False)


class Played(RecordedJob):
    """Shows these snapshots, the last one again and again; an exception is raised."""

    def __init__(self, *snapshots):
        super().__init__("exit_1")
        self.snapshots = list(snapshots)

    def status(self):
        if isinstance(first := self.snapshots[0], BaseException):
            raise first
        return first.status

    def look(self, since=None, *, worker=None, with_logs=True):
        snapshot = self.snapshots.pop(0) if len(self.snapshots) > 1 else self.snapshots[0]
        if isinstance(snapshot, BaseException):
            raise snapshot
        return snapshot


def snapshot(state="Running", *told, **other):
    texts = [events.line(one) if isinstance(one, Event) else one for one in told]
    lines = tuple(LogLine(0, "uid", text) for text in texts)
    done = LogPosition(is_complete=state != "Running")
    return Snapshot(
        JobStatus((Condition(state, "True", "", ""),)), (POD,), lines=lines, positions={"uid": done}, **other
    )


@pytest.fixture
def watch(tmp_path):
    def run(*snapshots, **options):
        job = Job(a_record(), RecordedBackend(Played(*snapshots)), open_store((tmp_path / "store").as_uri()))
        return job.watch(**options)

    return run


def test_a_job_that_is_deleted_runs_until_its_workers_have_ended(watch):
    deleting = replace(snapshot().status, deleting=True)
    assert watch(replace(snapshot(), status=deleting), snapshot("Failed")) == "Failed"


def test_the_end_is_shown_behind_the_last_line(watch, shown):
    assert watch(snapshot(), snapshot("Failed", NOTE)) == "Failed"
    assert shown() == ["job-a: Running", str(NOTE), "job-a: Failed"]


@pytest.mark.parametrize("before", [(), (snapshot(),)], ids=["it had failed before", "it fails"])
def test_why_a_job_has_no_result_is_shown_once(watch, painted, capsys, before):
    watch(*before, snapshot("Failed"))
    out, err = capsys.readouterr()
    assert [text.count("the whole log: ") for text in (out, err)] == [0, 1]
    painted(*before, snapshot("Failed"), on=Terminal())
    assert "".join(capsys.readouterr()).count("the whole log: ") == 1


def of_three(state, phase):
    """As ``snapshot``, of a job that should have three workers; the last one is in this phase."""
    made = snapshot(state)
    pods = tuple(replace(POD, uid=f"{n}", worker=n, phase=phase if n == 2 else POD.phase) for n in range(3))
    return replace(made, status=replace(made.status, workers=3), pods=pods, positions={"2": LogPosition()})


def test_how_many_workers_a_job_has_is_shown_until_it_has_all(watch, shown):
    played = [of_three("Running", phase) for phase in ("Running", "Pending", "Pending", "Running")]
    assert watch(*played, snapshot("Failed")) == "Failed"
    states = "Running", "Running, 2 of 3 workers", "Running", "Failed"
    assert shown() == [f"job-a: {state}" for state in states]


def test_the_end_of_a_job_is_shown_at_once_though_a_worker_of_it_still_waits_for_a_node(watch, monkeypatch):
    monkeypatch.setattr("train_func.client.watch.SETTLE_SECONDS", 600)
    assert watch(snapshot(), of_three("Succeeded", "Pending")) == "Succeeded"


def test_of_a_job_that_had_ended_before_only_its_last_numbers_are_shown(watch, shown):
    told = [progress(20, 20), evaluated(20), "[rank 0] printed"]
    assert watch(snapshot("Failed", *told)) == "Failed"
    (line,) = shown()
    assert unnamed(line, "job-a: Failed", "step 20 of 20", " loss=0.5", "eval_eval_loss=0.5") == []


@pytest.mark.parametrize("before", [(), (snapshot(),)], ids=["before anything is shown", "later"])
def test_an_interrupt_ends_the_watching_and_the_program_and_not_the_job(watch, capsys, before):
    with pytest.raises(KeyboardInterrupt):
        watch(*before, KeyboardInterrupt())
    assert unnamed(capsys.readouterr().out.splitlines()[-1], "job-a", "watch", "cancel") == []


def test_an_interrupt_in_ipython_ends_the_cells_behind_it_too_and_shows_one_sentence(watch, shell, capsys):
    shell.user_ns.update(watch=watch, told=(snapshot(), KeyboardInterrupt()))
    assert isinstance(shell.run_cell("watch(*told)").error_in_exec, KeyboardInterrupt)  # as of any interrupt
    first, last = capsys.readouterr().out.splitlines()
    assert first.endswith("job-a: Running")
    assert unnamed(last, "job-a", ".watch()", ".cancel()") == []


def test_a_function_is_called_with_each_alert_and_what_it_raises_is_printed_once_and_ends_nothing(watch, capsys):
    told = [alert("loss_rises"), alert("restart"), alert("failed")]
    calls = []

    def on_alert(event):
        calls.append(event.kind)
        raise ValueError("of the caller")

    assert watch(snapshot("Running", *told[:2], NOTE), snapshot("Failed", told[2]), on_alert=on_alert) == "Failed"
    assert calls == [event.kind for event in told]
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "ValueError" in line]
    assert unnamed(line, "job-a", "on_alert", "of the caller") == []


class Canvas:
    """Where panels are painted; ``state`` and ``words`` are of the last one."""

    is_open = False

    def paint(self, panel):
        self.state, self.words, self.is_open = panel.state, str(panel), True

    def close(self):
        self.is_open = False


@pytest.fixture
def painted(tmp_path):
    """Plays snapshots, and returns what was painted on; ``result``: what the run has published and returned."""

    def play(*snapshots, result=None, on=None):
        record, store, canvas = a_record(), open_store((tmp_path / "store").as_uri()), on or Canvas()
        if result:
            store.put(record.keys.result, Result.write(1, 1, {"returned": result}, {}))
        backend = RecordedBackend(Played(*snapshots))
        looks = JobLooks(record, backend.job(record.job_name), store, backend)
        with contextlib.suppress(KeyboardInterrupt):
            Job(record, backend, store)._show(PaintedPanel(looks, frozenset(), canvas))
        return canvas

    return play


def test_the_last_frame_of_a_job_that_succeeded_has_its_result(painted):
    frame = painted(snapshot(), snapshot("Succeeded"), result={"mse": 0.0111432})
    assert unnamed(frame.words, "✓ Succeeded", "mse 0.01114") == []
    assert "mse" not in painted(snapshot(), snapshot("Failed"), result={"mse": 0.0111432}).words


def test_an_interrupt_leaves_a_frame_that_says_that_it_is_no_longer_updated(painted):
    frame = painted(snapshot(), snapshot("Running", progress(35, 80)), KeyboardInterrupt())
    assert unnamed(frame.state, "stopped watching at", "step 35 of 80") == []
    assert "● Running" not in frame.state
    over = painted(snapshot(), snapshot("Failed"))
    assert over.state == "✗ Failed"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), StorageFailed("away", reason="unreachable")], ids=repr)
def test_whatever_ends_the_watching_gives_the_terminal_back(painted, error):
    canvas = Canvas()
    with contextlib.suppress(StorageFailed):
        painted(snapshot("Running", progress(35, 80)), error, on=canvas)
    assert unnamed(canvas.words, "step 35 of 80") == []
    assert not canvas.is_open


def test_an_interrupt_in_a_terminal_leaves_such_a_frame_too(painted, capsys):
    painted(snapshot("Running", progress(35, 80)), KeyboardInterrupt(), on=Terminal())
    assert unnamed(capsys.readouterr().out, "stopped watching at", "step 35 of 80") == []
