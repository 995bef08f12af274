"""A callback that asks one rank alone to stop, as one does that looks at the clock."""

from transformers import TrainerCallback

# The event, and after how many steps it is that the flag is set.
ASKED = {"on_epoch_begin": 0, "on_step_end": 2, "on_substep_end": 2, "on_evaluate": 6}
# A vote within a step counts after it; one before an epoch, after its first step.
LAST_STEPS = {"on_epoch_begin": 1, "on_step_end": 2, "on_substep_end": 3, "on_evaluate": 6}


class AsksToStop(TrainerCallback):
    def __init__(self, event, after, is_asked):
        setattr(self, event, self.ask)
        self.after, self.is_asked = after, is_asked

    def ask(self, args, state, control, **kwargs):
        control.should_training_stop |= self.is_asked and state.global_step == self.after
