"""Callbacks that ask one rank alone to stop, log, evaluate or save, as one does that looks at the clock."""

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


# Rank 1 alone asks for each of these: the event, after how many steps, and the flag. Asked for a log or an evaluation,
# it asks for more.
ACTIONS = (
    ("on_step_end", 2, "should_log"),
    ("on_log", 2, "should_evaluate"),
    ("on_evaluate", 2, "should_save"),
    ("on_step_end", 3, "should_save"),
    ("on_substep_end", 3, "should_evaluate"),  # of step 4, since step 3 has been counted
    ("on_step_end", 5, "should_log"),
    ("on_epoch_end", 6, "should_save"),
)
ACTED = [["log", 2], ["evaluate", 2], ["save", 2], ["save", 3], ["evaluate", 4], ["log", 5], ["save", 6]]


class AsksToAct(TrainerCallback):
    """Keeps what was done on this rank, each with its step."""

    def __init__(self, is_asked):
        self.is_asked, self.acted = is_asked, []

    def ask(self, event, state, control):
        for at, after, flag in ACTIONS:
            if self.is_asked and (at, after) == (event, state.global_step):
                setattr(control, flag, True)

    def on_substep_end(self, args, state, control, **kwargs):
        self.ask("on_substep_end", state, control)

    def on_step_end(self, args, state, control, **kwargs):
        self.ask("on_step_end", state, control)

    def on_epoch_end(self, args, state, control, **kwargs):
        self.ask("on_epoch_end", state, control)

    def on_log(self, args, state, control, logs, **kwargs):
        if "grad_norm" in logs:  # those of a training step
            self.acted.append(["log", state.global_step])
            self.ask("on_log", state, control)

    def on_evaluate(self, args, state, control, **kwargs):
        self.acted.append(["evaluate", state.global_step])
        self.ask("on_evaluate", state, control)

    def on_save(self, args, state, control, **kwargs):
        self.acted.append(["save", state.global_step])
