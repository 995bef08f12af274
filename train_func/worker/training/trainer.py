"""Trainer: transformers' own, trained on a part of the plan, every row once per epoch, at any world size.

Unlike transformers.Trainer it never distributes data over the ranks: the plan has done so. A step is the mean over the
items of the global batch (its rows, or its labelled tokens), whichever ranks they are on and however it is cut. A loss,
the model's own or a user's, is a mean over the items of one micro-batch; what it counts in the step is decided where
its gradients are computed, outside of all that users override.

A line of progress comes by the clock, a row of the history by the number of its step: the same run has the same rows on
a fast machine and on a slow one.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.utils.data import DataLoader
from transformers.trainer_callback import PrinterCallback, ProgressCallback, TrainerCallback
from transformers.trainer_utils import PredictionOutput

from train_func.errors import InvalidInput
from train_func.events import Evaluated, StepProgress, TrainingStarts
from train_func.failpoint import reach
from train_func.text import listed
from train_func.worker.rank import marks, world
from train_func.worker.rank.marks import Phase
from train_func.worker.tasks.metrics import Accuracy
from train_func.worker.tasks.protocol import Metric, WorkerTask
from train_func.worker.training import arguments, audit, evaluation, weights
from train_func.worker.training.arguments import argument_faults, fitted, logging_steps_of
from train_func.worker.training.batch_norm import BatchStatistics, check_layers
from train_func.worker.training.loader import Collator, Place, PlanLoader, padded, seed_for
from train_func.worker.training.plan import PlanFacts, facts_of, row_ids_of, rows_of
from train_func.worker.training.resuming import ResumingTrainer
from train_func.worker.training.state import Actions
from train_func.worker.training.weighing import MicroBatch, Step, divisor, items_of

INTERVAL = 5.0  # seconds between two lines, at least
MOST_ROWS = 1000  # of the history of a training, about; more where logging_steps asks for them


class Progress:
    """Times the training steps, evaluations left out, and says now and then where it is."""

    def __init__(
        self,
        num_steps: int,
        steps_per_epoch: int,
        logging_steps: int = 0,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``logging_steps``: there is a row for every so many steps at least; 0: for as many as make MOST_ROWS."""
        self.num_steps, self.steps_per_epoch = num_steps, steps_per_epoch
        thinned = math.ceil(num_steps / MOST_ROWS)
        self._every = min(thinned, logging_steps or thinned)
        self._interval, self._clock = interval, clock
        self._started = self._said = clock()
        self._steps = self._rows = 0
        self._row_losses: list[float] = []
        self._line_losses: list[float] = []

    def leave_out(self, seconds: float) -> None:
        """Time that was no training."""
        self._started += seconds

    def step(self, step: int, num_rows: int, loss: float) -> None:
        """After step number ``step``, from 1, over ``num_rows`` rows of all ranks with this mean loss."""
        now = self._clock()
        self._steps += 1
        self._rows += num_rows
        self._row_losses.append(loss)
        self._line_losses.append(loss)
        is_line = now - self._said >= self._interval or self._steps == 1 or step == self.num_steps
        is_row = step in (1, self.num_steps) or step % self._every == 0
        if is_line or is_row:
            losses = self._row_losses if is_row else self._line_losses
            self._say(step, now - self._started, sum(losses) / len(losses), is_line=is_line, is_row=is_row)
        if is_line:
            self._said = now
            self._line_losses = []
        if is_row:
            self._row_losses = []

    def _say(self, step: int, seconds: float, loss: float, *, is_line: bool, is_row: bool) -> None:
        left = seconds / self._steps * (self.num_steps - step)
        world.log_rank0(
            StepProgress(
                step=step,
                num_steps=self.num_steps,
                epoch=step / self.steps_per_epoch,
                loss=loss,
                rows_per_second=self._rows / max(seconds, 1e-9),
                seconds_left=left,
                is_line=is_line,
                is_row=is_row,
            )
        )


class Trainer(ResumingTrainer):
    """Takes what transformers.Trainer takes; ``train_dataset`` is this rank's part of ``session.plan(train)``.

    ``eval_dataset`` is given whole on every rank; ``compute_metrics``, when given, gets all its rows in their order.
    """

    data_collator: Any
    task: ClassVar[WorkerTask | None] = None
    """Of the session that is open in this process: the function makes its Trainer without naming it."""

    def __init__(self, model: Any = None, args: Any = None, **others: Any) -> None:
        """Raises InvalidInput naming what transformers' Trainer would use of this class and its arguments, and this one
        would not."""
        faults = arguments.faults_of(self, Trainer) + arguments.parameter_faults(others)
        if faults := faults + (arguments.unused_argument_faults(args) if args else []):
            raise InvalidInput(faults, cause="code")
        super().__init__(model, fitted(args), **others)
        self._of_task: tuple[Any, Any] = (None, None)
        if others.get("data_collator") is None:
            made = [self.task and self.task.collator(self.processing_class, training=is_on) for is_on in (True, False)]
            training, held_out = (padded(of or self.data_collator) for of in made)
            self.data_collator, self._of_task = training, (training, held_out)
        for printing in (PrinterCallback, ProgressCallback):
            self.remove_callback(printing)
        self.add_callback(_AfterEpoch(self._audit_epoch))
        self.evaluations: list[evaluation.Measured] = []
        """In their order."""
        self._actions = Actions(self.callback_handler)
        own = self.task.num_items if self.task else None
        self.items = items_of(self.model, shifts_labels=self._loss_shifts_labels, own=own)
        self.metric: Metric | None = self.task.metric() if self.task else Accuracy()
        self.rows_evaluated = 0
        """Of the batch that an evaluation has come to."""
        self._ignore_keys: list[str] | None = None
        self._progress: Progress | None = None
        self._epoch, self._is_broken_off = 0, False
        self._losses: list[tuple[MicroBatch, torch.Tensor]] = []

    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: list[str] | None = None
    ) -> Any:
        """Raises InvalidInput before the first step when the plan, the loader or the arguments do not fit together,
        at a step whose loss is not finite, and after an epoch that did not use every row once."""
        if trial is not None:
            self.hyperparameter_search()
        self._facts = world.on_all_ranks(self._checked_facts)
        audit.check_plan_part(self.train_dataset, self._facts)
        audit.check_loader(self.get_train_dataloader(), self._facts.steps_per_epoch * self._facts.accumulation)
        self._expected = row_ids_of(rows_of(self.train_dataset))
        num_steps = self._facts.num_epochs * self._facts.steps_per_epoch
        self._progress = Progress(num_steps, self._facts.steps_per_epoch, logging_steps_of(self.args, num_steps))
        self._losses = []
        self._ignore_keys = ignore_keys_for_eval
        precision = next((of for of in ("bf16", "fp16") if getattr(self.args, of)), "fp32")
        self._statistics = BatchStatistics([self.model], self._facts.accumulation)
        world.log_rank0(TrainingStarts(num_steps=num_steps, precision=precision))
        with self._statistics.watched():
            return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Raises InvalidInput: the second training of a search would go on from the checkpoint of the first."""
        raise InvalidInput(f"trainer.hyperparameter_search: {arguments.SEARCH}", cause="code")

    def end(self) -> None:
        """Raises InvalidInput: without the process group no rank knows the others, and each would publish."""
        raise InvalidInput(f"trainer.end: {arguments.END}", cause="code")

    def _checked_facts(self) -> PlanFacts:
        facts = facts_of(self.train_dataset)
        rows_of(self.train_dataset)
        check_layers(self.model)
        faults = argument_faults(self.args, facts) + evaluation.saving_faults(self.args)
        faults += arguments.unused_argument_faults(self.args)
        faults += arguments.smoothing_faults(self.args, self.model)
        if faults := faults + arguments.faults_of(self, Trainer):
            raise InvalidInput(faults, cause="code")
        return facts

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The loader of this rank's micro-batches, never handed to Accelerate, which would deal them again."""
        return PlanLoader(
            self.train_dataset,
            facts_of(self.train_dataset),
            self.collator("training"),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
        )

    def collator(self, description: str) -> Collator:
        """Makes tensors of the columns that the model takes; "training": as rows to train on may be changed."""
        training, held_out = self._of_task
        of = held_out if description != "training" and self.data_collator is training else self.data_collator
        return self._get_collator_with_removed_columns(of, description)  # type: ignore[no-any-return]

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Rows of all ranks in an epoch."""
        return facts_of(dataloader.dataset).num_rows

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> Any:
        """This rank's micro-batches of a step, and no number of items: each micro-batch has its own.

        No micro-batches where the ranks have voted to stop; votes from before an epoch count after its first step.
        """
        step = Step(islice(epoch_iterator, num_batches), self.items, device, self._votes())
        epoch, num_steps = divmod(step.now.place.step, self._facts.steps_per_epoch)
        self._place = (epoch, num_steps)
        if self._decide(step.votes, epoch, num_steps):
            self._is_broken_off = True
            return [], None
        self._step, self._place = step, (epoch, num_steps + 1)  # as soon as it is done
        return step, None

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        self._epoch, self._is_broken_off = kwargs["epoch"] + 1, False
        self._actions.begin(self.args.device)
        super()._run_epoch(*args, **kwargs)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        self._actions.agree(self.control, self.args.device)
        logs = self.control.should_log
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if logs:  # and callbacks that were told of it may have asked for more
            self._actions.agree(self.control, self.args.device)
            super()._maybe_log_save_evaluate(*args, **kwargs)

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics: dict[str, float] = super()._evaluate(*args, **kwargs)
        self._actions.agree(self.control, self.args.device)
        return metrics

    def _load_best_model(self) -> None:
        """What was measured at the step of the best was measured of the weights that are loaded here."""
        super()._load_best_model()
        for number, of in enumerate(self.evaluations):
            mark = weights.after_loading(of.weights, self.model, self.weights_step)
            self.evaluations[number] = dataclasses.replace(of, weights=mark)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor:
        """What losses of these batches are to be divided by, were they sums; transformers asks in evaluations."""
        return divisor(sum(self.items.count(inputs, self.rows_evaluated) for inputs in batch_samples), device)

    def _build_accelerator_args(self, **kwargs: Any) -> dict[str, Any]:
        built: dict[str, Any] = super()._build_accelerator_args(**kwargs)
        ddp = built["kwargs_handlers"][0]
        ddp.gradient_as_bucket_view = True
        ddp.find_unused_parameters = bool(self.args.ddp_find_unused_parameters)  # transformers takes None for yes
        return built

    def create_accelerator_and_postprocess(self) -> None:
        """Every loss, the model's or the user's, goes through the accelerator's backward, and gets its weight there."""
        super().create_accelerator_and_postprocess()
        backward = self.accelerator.backward

        def of_micro_batch(loss: torch.Tensor, **others: Any) -> None:
            if self.accelerator.sync_gradients:
                marks.mark(Phase.BACKWARD)
            backward(loss * self._share, **others)

        self.accelerator.backward = of_micro_batch

    @property
    def _share(self) -> float:
        """Of the micro-batch's mean in the mean over the global batch, times the ranks that DDP divides by."""
        return self._step.now.weight / self._step.weight * world.size()

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward over one micro-batch. The last of a step returns the loss of the whole step, the same
        on every rank; those before it return 0.

        ``num_items_in_batch``, which compute_loss, compute_loss_func and models get, is that of the micro-batch: a sum
        divided by it is the mean, as a loss that does not look at it is.
        """
        marks.mark(Phase.STEP)
        part = self._step.now
        self._exchanged.check(part.place.step + 1)
        is_last: bool = self.accelerator.sync_gradients
        self._used.append(part.place.row_ids)
        if not part.weight and not is_last:
            return torch.zeros((), device=self.args.device)  # nothing to do, and no rank waits for it
        seed_for("forward", self._facts.seed, part.place.step, part.place.micro)
        self.current_gradient_accumulation_steps = 1  # what transformers divides some losses by, and the weights do
        inputs = inputs if part.num_items else self.items.with_labels(inputs)
        reach("forward")
        with self._statistics.micro_batch(part.place.micro, counts=bool(part.weight)):
            loss = super().training_step(model, inputs, divisor(part.num_items, self.args.device))
        if part.weight:
            self._losses.append((part, loss))
        if not is_last:
            return torch.zeros((), device=self.args.device)
        weights.check_gradients_exchanged(model)
        reach("backward")
        return self._finish_step(part.place)

    def _finish_step(self, place: Place) -> torch.Tensor:
        own = sum((loss * part.weight for part, loss in self._losses), torch.zeros((), device=self.args.device))
        total = world.total(own) / self._step.weight
        self._statistics.merge()
        loss = total.item()
        if not math.isfinite(loss):
            raise self._not_finite(place.step, loss)
        self._losses.clear()
        marks.step_done(place.step + 1)
        assert self._progress is not None  # train made it
        self._progress.step(place.step + 1, place.batch_rows, loss)
        return total

    def _not_finite(self, step: int, loss: float) -> InvalidInput:
        bad = [row for part, value in self._losses if not torch.isfinite(value) for row in part.place.row_ids]
        row_ids = sorted(row for of_rank in world.gather(bad) for row in of_rank)
        model = self.accelerator.unwrap_model(self.model)
        faults = weights.infinite_faults(model, whole=True)
        before = f". Before that step, {weights.told(faults, type(model).__name__)}" if faults else ""
        return InvalidInput(
            f"The loss of step {step + 1} of {self.state.max_steps} is {loss}, and so it is for micro-batches of these "
            f"row ids: {listed(row_ids, 50)}{before}. learning_rate={self.args.learning_rate:g} may be too "
            "high (fine-tuning usually takes 1e-5 to 1e-4): lower it, or look in those rows for what is not finite",
            cause="divergence",
        )

    def _audit_epoch(self) -> None:
        if self._is_broken_off:
            world.note(f"a callback ended epoch {self._epoch} early, so its rows are not counted")
            return
        used = np.asarray([row for row_ids in self._used for row in row_ids], dtype=self._expected.dtype)
        self.coverage.append(audit.check_epoch(self._epoch, self._expected, used))

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """The metrics over every row of the held-out data once, the same on all ranks; accuracy unless
        ``compute_metrics`` was given. Raises InvalidInput when ranks were given different rows."""
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(rows, dict):
            named = [self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}") for name, part in rows.items()]
            return {name: value for metrics in named for name, value in metrics.items()}
        return self._measure(rows, ignore_keys, metric_key_prefix)

    def _measure(self, rows: Any, ignore_keys: list[str] | None, prefix: str) -> dict[str, Any]:
        started = time.monotonic()
        reach("evaluation")
        measured = evaluation.measure(self, rows, ignore_keys, prefix)
        self.evaluations.append(measured)
        metrics = {**measured.named}
        self.log(metrics)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        world.log_rank0(
            Evaluated(
                step=self.state.global_step, epoch=self.state.epoch or 0, prefix=prefix, metrics=measured.reported
            )
        )
        if self._progress:
            self._progress.leave_out(time.monotonic() - started)
        return metrics

    def measured_on(self, rows: Dataset) -> evaluation.Measured:
        """Collective: the evaluation of these rows with the weights that the model has now; made when there is none."""
        used = weights.mark_of(self.accelerator.unwrap_model(self.model), self.weights_step)

        def found() -> evaluation.Measured | None:
            made = (of for of in reversed(self.evaluations) if (of.rows, of.weights) == (rows._fingerprint, used))
            return next(made, None)

        if world.on_rank_zero(lambda: found() is None):
            self._measure(rows, self._ignore_keys, "eval")
        return found() or self.evaluations[-1]

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions for rows that every rank has whole, each row once and in their order, the same on all ranks.

        With labels also their metrics. Raises InvalidInput when ranks were given different rows.
        """
        started = time.monotonic()
        output = evaluation.predict(self, test_dataset, ignore_keys, metric_key_prefix)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, output.metrics)
        if self._progress:
            self._progress.leave_out(time.monotonic() - started)
        return output


class _AfterEpoch(TrainerCallback):
    def __init__(self, audit_epoch: Callable[[], None]) -> None:
        self.audit_epoch = audit_epoch

    def on_epoch_end(self, *args: Any, **kwargs: Any) -> None:
        self.audit_epoch()
