"""A Trainer that saves its state between two steps, stops there, and goes on from the newest checkpoint by itself.

transformers' own checkpoints are folders of one machine, each rank's stop is its own, and its resume reads batches only
to throw them away. Here ``save_strategy`` asks for a checkpoint in the store, and a plan knows where any step begins.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
import transformers
from transformers.trainer_callback import TrainerCallback

from train_func.errors import InvalidInput
from train_func.failpoint import reach
from train_func.worker.checkpoint.ranks import Checkpointing, Parts, Restored
from train_func.worker.rank import marks, stop_flag, world
from train_func.worker.rank.marks import Phase
from train_func.worker.training import evaluation, state, weights
from train_func.worker.training.audit import Coverage, check_same_plan
from train_func.worker.training.state import ACTIONS, STOPS, StopVotes, flags_of, kept_row_ids, row_ids_in, set_flags
from train_func.worker.training.weights import load_own_weights, own_weights

if TYPE_CHECKING:
    from train_func.worker.training.plan import PlanFacts


class Checks(Protocol):
    """What a session does around a training; both methods are collective, and raise to refuse it."""

    def before_training(self, trainer: Any) -> None:
        """Before the first step of an attempt."""

    def after_training(self, trainer: Any) -> None:
        """After the last step, when the best weights were loaded."""


class ResumingTrainer(transformers.Trainer):
    """Adds to transformers' Trainer what a training needs to be left at one step and taken up again at the next."""

    control: Any
    checkpoints: ClassVar[Callable[[Any], Checkpointing] | None] = None
    """Begins those of one training, told what it is made of; of the session that is open in this process."""
    checks: ClassVar[Checks | None] = None
    """Those of that session."""
    _facts: "PlanFacts"
    _ignore_keys: list[str] | None

    def __init__(self, model: Any = None, args: Any = None, **others: Any) -> None:
        super().__init__(model, args, **others)
        self.coverage: list[Coverage] = []
        """One per epoch that was trained to its end."""
        self._used: list[tuple[Any, ...]] = []
        """Row ids, by micro-batch, in the epoch."""
        self._stop_votes = StopVotes()
        self._stop_votes.collect(self.callback_handler)
        self._checkpointing: Checkpointing | None = None
        self._restored: Restored | None = None
        """Until all of it has found its place."""
        self._begun_at = 0
        """Steps that were done before this attempt."""
        self._best: tuple[int, dict[str, torch.Tensor]] | None = None
        """On rank 0: the step of the best evaluation and its weights."""
        self._loaded_step: int | None = None
        """When the best weights were loaded at the end, the step that they are of."""
        self._place = (0, 0)
        """Where the training goes on from here: the epoch, from 0, and how many steps of it are done."""
        self._evaluation_seconds = math.inf
        """That the evaluation before has taken; nobody knows of the first."""
        self._random: dict[str, Any] | None = None
        """To be put back where the training goes on."""
        self.callback_handler.callbacks.insert(0, _Moments(self))  # before any that draws

    @marks.within(Phase.OUTSIDE)
    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: list[str] | None = None
    ) -> Any:
        """Goes on from the newest verified checkpoint of the run, where there is one."""
        self.coverage, self._used, self._best, self._begun_at, self._loaded_step = [], [], None, 0, None
        self._stop_votes.clear()
        marks.begin()
        world.on_all_ranks(lambda: _check_no_folder(resume_from_checkpoint))
        if (begin := type(self).checkpoints) is None:
            return self._train_checked(trial, ignore_keys_for_eval)
        self._checkpointing = begin(state.made_of(self))
        with stop_flag.deferred():
            self._restored = restored = self._checkpointing.restore(self.args.device)
            if restored:
                world.on_all_ranks(partial(check_same_plan, restored, self._facts))
                del restored
            result = self._train_checked(trial, ignore_keys_for_eval)
            self._restored = None
            world.on_rank_zero(self._checkpointing.close)
        return result

    def _train_checked(self, trial: Any, ignore_keys_for_eval: list[str] | None) -> Any:
        self.pop_callback(_PendingEvaluation)
        self.add_callback(_PendingEvaluation(self))  # behind those of the function, which have begun then
        if checks := type(self).checks:
            checks.before_training(self)
        result = super().train(None, trial, ignore_keys_for_eval)
        if checks:
            checks.after_training(self)
        return result

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        """The epoch to go on with, from 0, and no steps of it: ``_run_epoch`` knows those."""
        begun: tuple[int, int] = super()._init_training_state(*args, **kwargs)
        if self._restored is None:
            return begun
        state.restore_progress(self, self._restored.training, self._restored.rank)
        self.coverage = [Coverage(**of) for of in self._restored.training["coverage"]]
        self._stop_votes.ask(self._restored.rank["votes"])
        self._best, self._begun_at = self._restored.best, self._restored.step
        marks.begin(self._begun_at)
        if self._restored.training["epoch"] == self._facts.num_epochs:
            state.restore_random(self._restored.rank["random"])
        return self._restored.training["epoch"], 0

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        if self._restored and kwargs.get("skip_scheduler"):  # eval_on_start, which the attempt that started has made
            return {}
        if self._checkpointing:
            pending = sorted(flags_of(self.control, ACTIONS))
            take = partial(self._parts, *self._place, pending)
            self._checkpointing.save_before(self._evaluation_seconds, self.state.global_step, take)
        begun = time.monotonic()
        metrics: dict[str, float] = super()._evaluate(*args, **kwargs)
        self._evaluation_seconds = time.monotonic() - begun
        return metrics

    def make_pending_evaluation(self) -> None:
        """Makes the evaluation that came next when the state was saved, and does what follows from it."""
        restored = self._restored
        if restored is None or not restored.training["pending"]:
            return
        state.restore_random(restored.rank["random"])
        set_flags(self.control, ACTIONS, set(restored.training["pending"]))
        given = self.model, None, restored.training["epoch"], self._ignore_keys, time.time()
        self._maybe_log_save_evaluate(self._tr_loss, None, *given)
        restored.rank["random"] = state.random_state()

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        self._exchanged = weights.Exchanged([self.model_wrapped])
        if self._restored:
            state.restore(self, self._restored.training)
            reach("training restored")
        return prepared

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self._ends_before_epoch():
            return
        epoch = kwargs["epoch"]
        kwargs["train_dataloader"].set_epoch(epoch)  # transformers leaves it out where it skips steps
        self._used.clear()
        self._place = (epoch, 0)
        if restored := self._restored:
            self._used.extend(tuple(row_ids_in(of["used"])) for of in (restored.rank, *restored.lost))
            if skipped := restored.training["num_steps"] * self._facts.accumulation:
                self._random = restored.rank["random"]
                kwargs |= {"resume_from_checkpoint": "", "epochs_trained": epoch}
                kwargs |= {"steps_trained_in_current_epoch": skipped}
        self._restored = restored = None
        marks.mark(Phase.OUTSIDE)  # until the first batch is loaded: processes that load may start first
        super()._run_epoch(*args, **kwargs)
        counts = self._counts()
        self._stop_votes.decide(counts[: len(STOPS)], self.control)
        self._save_and_stop(counts, epoch + 1, 0)
        if self._checkpointing:  # what callbacks are told next, and code behind the training, may change the weights
            self._checkpointing.before_update()
        marks.mark(Phase.OUTSIDE)

    def _ends_before_epoch(self) -> bool:
        """Collective: whether the pending evaluation of the epoch before has ended the training."""
        restored = self._restored
        if restored is None or not restored.training["pending"] or restored.training["num_steps"]:
            return False
        self._stop_votes.decide(self._counts()[: len(STOPS)], self.control)
        is_over: bool = self.control.should_training_stop
        return is_over

    def _counts(self) -> list[int]:
        """Collective: the votes of all ranks."""
        counts: list[int] = world.total(torch.tensor(self._votes(), device=self.args.device)).tolist()
        return counts

    def _load_rng_state(self, checkpoint: Any) -> None:
        """transformers asks when it has come to where a restored training goes on."""
        if self._random:
            state.restore_random(self._random)
        self._random = None

    def _votes(self) -> list[int]:
        """Of this rank, to be added up over the ranks, at every step and at the end of every epoch."""
        return [*self._stop_votes.cast(), *(self._checkpointing.votes() if self._checkpointing else ())]

    def _decide(self, counts: Sequence[int], epoch: int, num_steps: int) -> bool:
        """Between two steps of ``epoch``, ``num_steps`` of it done: whether the ranks have voted to break off.

        ``counts``: those of ``_votes``, summed over all ranks. What callbacks voted for counts after the first step.
        """
        if not num_steps:
            return False
        self._save_and_stop(counts, epoch, num_steps)
        is_broken_off = self._stop_votes.decide(counts[: len(STOPS)], self.control)
        if is_broken_off and self._checkpointing:  # no optimizer's step comes next, which would wait for the copy
            self._checkpointing.before_update()
        return is_broken_off

    def _save_and_stop(self, counts: Sequence[int], epoch: int, num_steps: int) -> None:
        is_over = self._is_over(epoch)
        if self._checkpointing:
            place = self._facts.num_epochs if is_over else epoch, num_steps
            take = partial(self._parts, *place)
            self._checkpointing.decide(counts[len(STOPS) :], self.state.global_step, take, is_over=is_over)

    def _is_over(self, epoch: int) -> bool:
        """Whether no step comes after those before ``epoch``."""
        return self.control.should_training_stop or epoch == self._facts.num_epochs

    def end_epoch(self) -> None:
        """What comes next is the evaluation of the epoch, and then another epoch, if there is one."""
        self._load_rng_state(None)  # where the epoch was gone on with behind its last step
        epoch = self._place[0] + 1
        self._place = (self._facts.num_epochs if self._is_over(epoch) else epoch, 0)

    def _parts(self, epoch: int, num_steps: int, pending: Sequence[str] = ()) -> Parts:
        """``pending``: the actions of an evaluation that comes before anything else."""
        weights.check_finite([self.model], f"After step {self.state.global_step}, ")
        place = {
            "plan": self._facts.identity,
            "epoch": epoch,
            "num_steps": num_steps,
            "pending": [*pending],
            "coverage": [dataclasses.asdict(of) for of in self.coverage],
        }
        used = kept_row_ids([row for row_ids in self._used for row in row_ids] if num_steps else [])
        rank = state.of_rank(self, used, self._stop_votes.asked)
        training, frozen = {**state.of_training(self), **place}, state.frozen(self.model)
        return Parts(training, rank, state.lasting(self), frozen, self._best)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """What ``save_strategy`` asks for: a checkpoint between this step and the next, and the best weights kept."""
        if self._checkpointing:
            self._checkpointing.ask()
        if self.state.best_global_step != self.state.global_step or not self.args.load_best_model_at_end:
            return
        self.state.best_model_checkpoint = evaluation.checkpoint_of(self)
        if world.rank() == 0:
            held = own_weights(self.accelerator.unwrap_model(self.model))
            self._best = (self.state.global_step, {name: of.detach().cpu().clone() for name, of in held.items()})

    def _load_best_model(self) -> None:
        if self._checkpointing:
            self._checkpointing.before_update()
        model = self.accelerator.unwrap_model(self.model)
        if self._best:
            load_own_weights(model, self._best[1])
        weights.take_rank_zeros(model)
        self._loaded_step = evaluation.loaded_step(self)

    @property
    def weights_step(self) -> int:
        """The step that the model's weights are of, which seeds what is drawn where they are measured."""
        return self.state.global_step if self._loaded_step is None else self._loaded_step


class _Moments(TrainerCallback):
    """Where the loop of transformers has come to what happens here."""

    def __init__(self, trainer: ResumingTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        if restored := self._trainer._restored:
            state.restore_losses(self._trainer, restored.training)

    def on_epoch_begin(self, *args: Any, **kwargs: Any) -> None:
        restored = self._trainer._restored
        if restored and not restored.training["num_steps"]:  # else when transformers has come to the step
            state.restore_random(restored.rank["random"])

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        self._trainer.end_epoch()

    def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        reach("update")
        if self._trainer._checkpointing:
            self._trainer._checkpointing.before_update()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        reach("updated")


class _PendingEvaluation(TrainerCallback):
    """The evaluation that came next when the state was saved is made before the first step."""

    def __init__(self, trainer: ResumingTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._trainer.make_pending_evaluation()


def _check_no_folder(checkpoint: Any) -> None:
    if isinstance(checkpoint, bool | None):
        return
    raise InvalidInput(
        f"trainer.train(resume_from_checkpoint={checkpoint!r}): the training goes on from the newest checkpoint of its "
        "run by itself: leave the argument out. Weights to begin with belong into the model",
        cause="code",
    )
