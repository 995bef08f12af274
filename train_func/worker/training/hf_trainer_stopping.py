"""Stopping under transformers' own Trainer: its ranks, too, stop after the same step, whichever was asked to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers

from train_func.worker.training import world
from train_func.worker.training.stopping import StopVotes

LOOP = ("_inner_training_loop", "_run_epoch")  # they look at the flags, after every step


@contextmanager
def voted(trainer: transformers.Trainer) -> Iterator[None]:
    """Until the end of the block, flags that callbacks set are votes: counted before each step but an epoch's first,
    and where an epoch has ended.

    Not under a loop of a subclass's own, train_func's among them: it may look at them elsewhere.
    """
    own_loop = any(getattr(type(trainer), name) is not getattr(transformers.Trainer, name) for name in LOOP)
    if world.size() == 1 or own_loop:
        yield
        return
    votes, has_stepped, callbacks = StopVotes(), False, trainer.callback_handler
    call_event, get_batch_samples, run_epoch = callbacks.call_event, trainer.get_batch_samples, trainer._run_epoch

    def decide() -> bool:
        counts = world.total(torch.tensor(votes.cast(), device=trainer.args.device))
        return votes.decide(counts.tolist(), trainer.control)

    def voted_batch_samples(*args: Any, **kwargs: Any) -> Any:
        nonlocal has_stepped
        if has_stepped and decide():
            return [], None
        has_stepped = True
        return get_batch_samples(*args, **kwargs)

    def voted_epoch(*args: Any, **kwargs: Any) -> None:
        nonlocal has_stepped
        has_stepped = False
        run_epoch(*args, **kwargs)
        decide()

    votes.collect(callbacks)
    trainer.get_batch_samples, trainer._run_epoch = voted_batch_samples, voted_epoch
    try:
        yield
    finally:
        callbacks.call_event = call_event
        trainer.get_batch_samples, trainer._run_epoch = get_batch_samples, run_epoch
