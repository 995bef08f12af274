"""What a rank marks is what its supervisor reads."""

import threading
from types import SimpleNamespace

import pytest

from train_func.worker.rank import marks
from train_func.worker.rank.marks import Phase, SharedMark


@pytest.fixture
def shared(monkeypatch):
    """Read here, written by this process as if it were a rank."""
    made = SharedMark()
    monkeypatch.setattr(marks, "_marker", own := marks._Marker())
    monkeypatch.setattr(marks, "mark", own.write)
    marks.open_memory(made.path)
    yield made
    own.forget()
    made.close()


def test_a_phase_within_another_ends_with_a_sign_of_progress_in_the_outer_one(shared):
    marks.mark(Phase.BETWEEN)
    with marks.within(Phase.SAVING):
        inner = shared.read()
    outer = shared.read()
    assert [inner.phase, outer.phase] == [Phase.SAVING, Phase.BETWEEN]
    assert outer.number > inner.number


def test_the_seconds_of_each_phase_add_up_to_the_time_that_has_passed(shared, monkeypatch):
    """Also those of the phase that a rank is in, as one that hangs in the loading of a row."""
    now = marks._marker.time
    monkeypatch.setattr(marks, "time", SimpleNamespace(monotonic=lambda: now))
    for phase, seconds in [
        (Phase.LOADING, 1),
        (Phase.STEP, 5),
        (Phase.EXCHANGE, 3),
        (Phase.STEP, 2),
        (Phase.LOADING, 4),
    ]:
        marks.mark(phase)
        now += seconds
    seconds = shared.read().seconds_at(now)
    spent = {phase.name: seconds[phase] for phase in Phase if seconds[phase] >= 1}
    assert spent == pytest.approx({"LOADING": 5, "STEP": 7, "EXCHANGE": 3})


def test_another_thread_is_no_sign_of_life_of_the_one_that_trains(shared):
    marks.mark(Phase.STEP)
    number = shared.read().number
    thread = threading.Thread(target=marks.touch)
    thread.start()
    thread.join()
    assert shared.read().number == number
    marks.touch()
    assert shared.read().number == number + 1


def test_a_mark_that_is_being_written_is_not_read_as_none(shared):
    marks.step_done(9)
    assert shared.read().step == 9
    marks._marker.memory[:] = bytes(len(marks._marker.memory))  # as struct begins to write
    assert (shared.read().step, shared.read().phase) == (9, Phase.BETWEEN)
