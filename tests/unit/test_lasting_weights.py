"""Which tensors may be copied while a step is computed: none where a callback may change weights within it."""

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerCallback

from train_func.worker.training.trainer_state import lasting


class Tells(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        pass


class Clips(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        for weight in model.parameters():
            weight.data.clamp_(-1, 1)  # which raises no version


class Averages(TrainerCallback):
    on_substep_end = Clips.on_step_begin


@pytest.mark.parametrize(("callback", "lasts"), [(Tells, True), (Clips, False), (Averages, False)])
def test_weights_last_until_the_optimizers_step_unless_a_callback_may_change_them_before(callback, lasts):
    model = torch.nn.Linear(3, 2)
    trainer = SimpleNamespace(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        accelerator=SimpleNamespace(unwrap_model=lambda model: model),
        callback_handler=SimpleNamespace(callbacks=[callback()]),
    )
    found = lasting(trainer)
    assert found == ({of.data_ptr() for of in model.parameters()} if lasts else frozenset())
