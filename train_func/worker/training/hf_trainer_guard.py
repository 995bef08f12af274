"""The guard of every Trainer in a Session: checked before training, stopped on all ranks at once, and measured."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import transformers
from datasets import Dataset

from train_func.errors import InvalidInput
from train_func.worker.training import best, evaluation, finite, weights, world
from train_func.worker.training.control_flags import StopVotes
from train_func.worker.training.trainer import Trainer

LOOP = ("_inner_training_loop", "_run_epoch")  # methods that read the flags after every step


class Watch:
    """Checks every Trainer before it trains, and records whether its training has ended and what it has measured.

    ``lasts`` replaces methods of transformers' class meanwhile, because a callback is not given the data set, and a
    function written for transformers creates the Trainer itself.
    """

    def __init__(
        self,
        check: Callable[[transformers.Trainer], None],
        has_trained: Callable[[], None],
        held_out: Callable[[], Dataset | None],
    ) -> None:
        """``check`` is called before a training, which does not start when it raises, ``has_trained`` after it has
        come to its end. ``held_out`` returns the rows whose evaluation counts, also where a Trainer has another
        eval_dataset."""
        self._check = check
        self._has_trained = has_trained
        self._held_out = held_out
        self._ended: list[transformers.Trainer] = []
        self._measured: list[_Measured] = []

    def check_ended(self, trainer: transformers.Trainer) -> None:
        """Raises InvalidInput unless the last training has ended, at its last step or where a callback ended it."""
        state = trainer.state
        if state.global_step == 0 or not any(ended is trainer for ended in self._ended):
            raise InvalidInput(
                f"session.publish was called after step {state.global_step} of {state.max_steps or 'none'}: a model is "
                "published when its training has come to an end; call trainer.train() first and let it return",
                cause="code",
            )

    def metrics_of(self, trainer: transformers.Trainer) -> dict[str, Any] | None:
        """Collective: the metrics of transformers' own Trainer on the held-out rows, with the weights it has now.

        They are measured now when the rows are its eval_dataset, or were measured with other weights. None when the
        function has not given it these rows. Where the session has no held-out rows, the eval_dataset counts.
        """
        own = [measured for measured in self._measured if measured.trainer is trainer]
        rows = own[-1].rows if own else self._given_to(trainer)
        if rows is None:
            return None
        used = _mark_of(trainer)
        found = world.on_rank_zero(lambda: next((of.metrics for of in reversed(own) if of.weights == used), None))
        return _evaluated(trainer, rows) if found is None else found

    @contextmanager
    def lasts(self) -> Iterator[None]:
        """Until the end of the block."""
        kind = transformers.Trainer
        train, evaluate = kind.train, kind.evaluate

        def watched_train(trainer: transformers.Trainer, *args: Any, **kwargs: Any) -> Any:
            self._check(trainer)
            self._ended = [ended for ended in self._ended if ended is not trainer]
            with _voted(trainer):
                output = train(trainer, *args, **kwargs)
            if trainer.args.load_best_model_at_end:
                if not isinstance(trainer, Trainer):
                    self._load_alike(trainer)
                best.tell(trainer)
            model = trainer.accelerator.unwrap_model(trainer.model)
            after = f"After step {trainer.state.global_step}, "
            world.on_all_ranks(partial(finite.check, [model], after, whole=True))
            self._ended.append(trainer)
            self._has_trained()
            return output

        def watched_evaluate(
            trainer: transformers.Trainer,
            eval_dataset: Any = None,
            ignore_keys: list[str] | None = None,
            metric_key_prefix: str = "eval",
        ) -> dict[str, float]:
            metrics: dict[str, float] = evaluate(trainer, eval_dataset, ignore_keys, metric_key_prefix)
            rows = _rows_of(trainer, eval_dataset)
            if self._counts(trainer, rows):
                plain = _without_prefix(metrics, metric_key_prefix)
                self._measured.append(_Measured(trainer, rows, _mark_of(trainer), plain))
            return metrics

        kind.train, kind.evaluate = watched_train, watched_evaluate
        try:
            yield
        finally:
            kind.train, kind.evaluate = train, evaluate

    def _load_alike(self, trainer: transformers.Trainer) -> None:
        """Collective, when each rank has loaded the best weights."""
        model, step = trainer.accelerator.unwrap_model(trainer.model), best.weights_step(trainer)
        weights.take_rank_zeros(model)
        for of in (measured for measured in self._measured if measured.trainer is trainer):
            of.weights = weights.after_loading(of.weights, model, step)

    def _counts(self, trainer: transformers.Trainer, rows: Any) -> bool:
        """Whether the metrics of ``rows`` are those to publish."""
        held_out = self._held_out()
        return rows is trainer.eval_dataset if held_out is None else evaluation.covering(rows, held_out) is rows

    def _given_to(self, trainer: transformers.Trainer) -> Any:
        """The rows to measure of the trainer's eval_dataset, one data set or a dict of them; None when it has none."""
        sets = trainer.eval_dataset
        parts = [sets, *(sets.values() if isinstance(sets, dict) else [])]
        return next((rows for rows in parts if self._counts(trainer, rows)), None)


@dataclass
class _Measured:
    """One evaluation by transformers' own Trainer."""

    trainer: transformers.Trainer
    rows: Any
    """One data set or a dict of them."""
    weights: weights.Mark
    metrics: dict[str, Any]


def _mark_of(trainer: transformers.Trainer) -> weights.Mark:
    return weights.mark_of(trainer.accelerator.unwrap_model(trainer.model), best.weights_step(trainer))


def _rows_of(trainer: transformers.Trainer, given: Any) -> Any:
    """The rows that ``evaluate`` measures; ``given`` may name one data set of the trainer's eval_dataset."""
    if given is None:
        return trainer.eval_dataset
    return trainer.eval_dataset[given] if isinstance(given, str) else given


def _evaluated(trainer: transformers.Trainer, rows: Any) -> dict[str, Any]:
    """Collective: the metrics of one data set or several. A rank that fails on one fails all ranks before the next."""
    sets = {f"eval_{name}": part for name, part in rows.items()} if isinstance(rows, dict) else {"eval": rows}
    made = [
        world.on_all_ranks(partial(trainer.evaluate, part, metric_key_prefix=prefix)) for prefix, part in sets.items()
    ]
    return _without_prefix({name: value for of in made for name, value in of.items()}, "eval")


def _without_prefix(metrics: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(f"{prefix}_"): value for name, value in metrics.items()}


@contextmanager
def _voted(trainer: transformers.Trainer) -> Iterator[None]:
    """Until the end of the block, flags that callbacks set are votes: the ranks count them before each step but an
    epoch's first, and at the end of an epoch.

    A subclass with a training loop of its own, such as train_func's, is left alone: it may read the flags elsewhere.
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
