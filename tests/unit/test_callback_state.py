"""A callback whose counts no checkpoint keeps is named once, when they have changed; others are not named."""

from transformers import TrainerCallback
from transformers.trainer_callback import EarlyStoppingCallback, ExportableState

from tests.messages import unnamed
from train_func.worker.pod import sessions
from train_func.worker.training.callback_state import UnsavedState, begun_anew


class Patience(TrainerCallback):
    def __init__(self):
        self.limit, self.misses, self.seen = 3, 0, []


class Saved(Patience, ExportableState):
    def state(self):
        return {"args": {}, "attributes": {"misses": self.misses}}


def test_attributes_that_have_changed_are_named_once():
    callback = Patience()
    unsaved = UnsavedState([callback])
    assert unsaved.note() is None
    callback.misses, callback.later = 1, None
    callback.seen.append(7)
    text = unsaved.note()
    assert [f"Patience.{name}" in text for name in ("misses", "seen", "later", "limit")] == [True, True, True, False]
    callback.misses = 2
    assert unsaved.note() is None


def test_what_transformers_saves_and_its_own_callbacks_are_not_named():
    saved, early = Saved(), EarlyStoppingCallback()
    unsaved = UnsavedState([saved, early])
    saved.misses = early.early_stopping_patience_counter = 2
    assert unsaved.note() is None


def test_what_a_checkpoint_does_not_keep_is_told_with_the_result_of_what_goes_on_from_it(monkeypatch):
    monkeypatch.setattr(sessions, "here", sessions.Sessions())
    callback = Patience()
    unsaved = UnsavedState([callback])
    assert unsaved.lost_behind() == []
    callback.misses = 1
    assert begun_anew(7, {"unsaved": unsaved.lost_behind()}) == ["Patience.misses"]
    (note,) = sessions.here.notes
    assert unnamed(note, "step 7", "Patience.misses") == []
    again = UnsavedState([Patience()], ["Patience.misses"])  # the next attempt loses nothing more
    assert again.lost_behind() == ["Patience.misses"]
    assert begun_anew(7, {}) == []
    assert len(sessions.here.notes) == 1
