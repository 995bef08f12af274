"""A callback whose counts no checkpoint keeps is named once, when they have changed; others are not named."""

from transformers import TrainerCallback
from transformers.trainer_callback import EarlyStoppingCallback, ExportableState

from train_func.worker.training.callback_state import UnsavedState


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
