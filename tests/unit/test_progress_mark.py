"""What a rank marks is what its supervisor reads."""

import subprocess
import sys
import threading
import time

import pytest

from train_func.worker.pod import progress_mark
from train_func.worker.pod.progress_mark import Mark, Phase, SharedMark


@pytest.fixture
def shared(monkeypatch):
    """Read here, written by this process as if it were a rank."""
    made = SharedMark()
    monkeypatch.setattr(progress_mark, "_own", own := progress_mark._Marker())
    monkeypatch.setattr(progress_mark, "mark", own.write)
    progress_mark.open_memory(made.path)
    yield made
    own.forget()
    made.close()


def test_a_supervisor_reads_what_another_process_marks():
    shared = SharedMark()
    assert shared.read() == Mark()
    program = (
        "import sys; from train_func.worker.pod import progress_mark as p\n"
        "p.open_memory(sys.argv[1]); p.begin(); p.step_done(7); p.mark(p.Phase.EVALUATION); p.batch_evaluated()"
    )
    before = time.monotonic()
    subprocess.run([sys.executable, "-c", program, shared.path], check=True)
    found = shared.read()
    assert (found.phase, found.step, found.num_steps, found.num_batches) == (Phase.EVALUATION, 7, 1, 1)
    assert (found.number, before < found.time < time.monotonic()) == (5, True)
    shared.close()


def test_without_memory_nothing_is_marked_and_nothing_fails():
    progress_mark.mark(Phase.STEP)
    progress_mark.step_done(1)
    progress_mark.touch()
    with progress_mark.within(Phase.STEP), progress_mark.exchange():
        pass
    progress_mark.mark(Phase.OUTSIDE)


def test_a_phase_within_another_ends_with_a_sign_of_progress_in_the_outer_one(shared):
    progress_mark.mark(Phase.BETWEEN)
    with progress_mark.within(Phase.SAVING):
        inner = shared.read()
    outer = shared.read()
    assert [inner.phase, outer.phase] == [Phase.SAVING, Phase.BETWEEN]
    assert outer.number > inner.number


@pytest.mark.parametrize(
    ("phase", "within"),
    [(Phase.STEP, Phase.EXCHANGE), (Phase.OUTSIDE, Phase.OUTSIDE), (Phase.SAVING, Phase.SAVING)],
)
def test_an_exchange_is_one_only_where_progress_is_watched(shared, phase, within):
    progress_mark.mark(phase)
    with progress_mark.exchange():
        assert shared.read().phase is within
    assert shared.read().phase is phase


def test_another_thread_is_no_sign_of_life_of_the_one_that_trains(shared):
    progress_mark.mark(Phase.STEP)
    number = shared.read().number
    thread = threading.Thread(target=progress_mark.touch)
    thread.start()
    thread.join()
    assert shared.read().number == number
    progress_mark.touch()
    assert shared.read().number == number + 1


def test_a_new_training_counts_its_steps_from_the_beginning(shared):
    progress_mark.step_done(9)
    progress_mark.begin()
    assert (shared.read().num_steps, shared.read().phase) == (0, Phase.OUTSIDE)


def test_a_mark_that_is_being_written_is_not_read_as_none(shared):
    progress_mark.step_done(9)
    assert shared.read().step == 9
    progress_mark._own.memory[:] = bytes(len(progress_mark._own.memory))  # as struct begins to write
    assert (shared.read().step, shared.read().phase) == (9, Phase.BETWEEN)


def test_a_training_that_goes_on_is_behind_its_step_from_the_beginning(shared):
    progress_mark.begin(7)
    assert (shared.read().step, shared.read().num_steps) == (7, 0)
