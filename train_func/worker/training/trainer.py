"""Trainer: transformers' own, trained on a part of the plan, every row once per epoch, at any world size.

Unlike transformers.Trainer it never distributes data over the ranks: the plan has done so. Its loop is one over Steps,
in which transformers' callbacks, schedules, logs and evaluations have the places that they have in transformers' own. A
loss, the model's own or a user's, is a mean over the items of one micro-batch; what it counts in the step is decided
where its gradients are computed, outside of all that users override.
"""

import contextlib
import inspect
import math
import time
from functools import partial
from typing import Any

import torch
import transformers
from accelerate.utils.memory import clear_device_cache
from datasets import Dataset
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers.integrations.integration_utils import KubeflowCallback
from transformers.integrations.neftune import deactivate_neftune
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import PredictionOutput, TrainOutput, speed_metrics
from transformers.training_args import OptimizerNames

from train_func.errors import InvalidInput
from train_func.process.failpoint import reach
from train_func.wire.events import Evaluated, Stage
from train_func.worker import context
from train_func.worker.checkpoint.checkpointing import LAST_SECONDS, Checkpointing, Parts, Resumption
from train_func.worker.rank import marks, reporting, stop_flag, world
from train_func.worker.rank.marks import Phase
from train_func.worker.tasks.protocol import StreamingMetric
from train_func.worker.tasks.streaming_metrics import Accuracy
from train_func.worker.training import arguments, audit, evaluation, trainer_state, weights
from train_func.worker.training.arguments import leave_to_plan, logging_steps_of, plan_faults
from train_func.worker.training.attention import attention_of_steps
from train_func.worker.training.audit import Coverage, check_same_plan
from train_func.worker.training.batch_norm import BatchStatistics, check_layers
from train_func.worker.training.loader import Collator, PlanLoader, padded
from train_func.worker.training.plan import PlanFacts, facts_of
from train_func.worker.training.progress import Losses, Progress
from train_func.worker.training.steps import MicroBatch, Step, Steps
from train_func.worker.training.sums import Sums, memory_of_steps, parameters_of
from train_func.worker.training.trainer_state import ACTIONS, Actions, flags_of, set_flags
from train_func.worker.training.weighing import divisor, items_of


class Trainer(transformers.Trainer):
    """Takes what transformers.Trainer takes. ``train_dataset`` is this rank's part of ``session.plan(train)``.

    Give ``eval_dataset`` whole on every rank. ``compute_metrics`` gets all its rows in their order.
    """

    control: Any
    data_collator: Any

    def __init__(self, model: Any = None, args: Any = None, *others: Any, **named: Any) -> None:
        """Raises InvalidInput naming what of this class and its arguments only transformers' Trainer would use."""
        given = inspect.signature(transformers.Trainer).bind(model, args, *others, **named).arguments
        faults = arguments.method_faults(self, Trainer) + arguments.parameter_faults(given)
        if faults := faults + (arguments.refused_argument_faults(vars(args)) if args else []):
            raise InvalidInput(faults, cause="code")
        super().__init__(**{**given, "args": leave_to_plan(args)})
        # As for an evaluation, where Accelerate leaves DistributedDataParallel out: Sums takes its place.
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        self._of_task: tuple[Any, Any] = (None, None)
        task = context.here.task
        if given.get("data_collator") is None:
            made = [task and task.collator(self.processing_class, training=is_on) for is_on in (True, False)]
            is_half = self.args.bf16 or self.args.fp16
            training, held_out = (padded(of or self.data_collator, is_half=is_half) for of in made)
            self.data_collator, self._of_task = training, (training, held_out)
        posting = (KubeflowCallback,) if reporting.is_heard() else ()  # the supervisor posts what it hears
        for callback in (PrinterCallback, ProgressCallback, *posting):
            self.remove_callback(callback)
        self.evaluations: list[evaluation.Measurement] = []
        """All that were made, in their order."""
        count_own = task.num_items if task else None
        self.items = items_of(self.model, shifts_labels=self._loss_shifts_labels, count_own=count_own)
        self.metric: StreamingMetric | None = task.metric() if task else Accuracy()
        self.rows_evaluated = 0
        """How many rows the batch has that is being evaluated."""
        self._ignore_keys: list[str] | None = None
        self._forget()

    def _forget(self) -> None:
        """Leaves nothing of a training that there was."""
        self._steps: Steps | None = None
        self._step: Step | None = None
        """The step that is under way, its micro-batch until that is used, and the losses of those before."""
        self._part: MicroBatch | None = None
        self._of_parts: list[tuple[MicroBatch, torch.Tensor]] = []
        self._mean = math.nan
        """The loss of the step that was computed last."""
        self._progress: Progress | None = None
        self._checkpointing: Checkpointing | None = None
        self._restored: Resumption | None = None
        """What the training resumes from, until all of it has found its place."""
        self._best: tuple[int, dict[str, torch.Tensor]] | None = None
        """On rank 0: the step of the best evaluation and its weights."""
        self._loaded_step: int | None = None
        """When the best weights were loaded at the end, the step that they are of."""
        self._evaluation_seconds = math.inf
        """How long the evaluation before has taken; unknown before the first."""

    @property
    def coverage(self) -> list[Coverage]:
        """How the rows of each epoch were used that was trained to its end."""
        return self._steps.coverage if self._steps else []

    @property
    def weights_step(self) -> int:
        """The step that the model's weights are of, which seeds what is drawn where they are measured."""
        return self.state.global_step if self._loaded_step is None else self._loaded_step

    @marks.within(Phase.OUTSIDE)
    def train(
        self, resume_from_checkpoint: Any = None, trial: Any = None, ignore_keys_for_eval: list[str] | None = None
    ) -> Any:
        """Trains, from the newest verified checkpoint of the run if there is one.

        Raises InvalidInput before the first step when the plan and the arguments do not fit together,
        at a step whose loss is not finite, and after an epoch that did not use every row once."""
        arguments.check_train_call(resume_from_checkpoint, trial)
        self._forget()
        self._ignore_keys = ignore_keys_for_eval

        def checked() -> PlanFacts:
            facts = facts_of(self.train_dataset)
            check_layers(self.model)
            faults = plan_faults(self.args, facts)
            faults += arguments.refused_argument_faults(vars(self.args)) + arguments.method_faults(self, Trainer)
            if faults:
                raise InvalidInput(faults, cause="code")
            return facts

        facts = self._facts = world.on_all_ranks(checked)
        self._base = weights.base_names(self.accelerator.unwrap_model(self.model))
        audit.check_plan_part(self.train_dataset, facts)
        num_steps = facts.num_epochs * facts.steps_per_epoch
        self._progress = Progress(num_steps, logging_steps_of(self.args, num_steps))
        precision = next((of for of in ("bf16", "fp16") if getattr(self.args, of)), "fp32")
        world.log_rank0(Stage(text=f"training steps={num_steps} precision={precision}", precision=precision))
        marks.begin()
        begin, checks = context.here.checkpoints, context.here.checks and context.here.checks()
        with stop_flag.defer() if begin else contextlib.nullcontext():
            if begin:
                self._checkpointing = begin(trainer_state.made_of(self))
                self._restored = self._checkpointing.restore(self.args.device)
            if self._restored:
                world.on_all_ranks(partial(check_same_plan, self._restored, facts))
            if checks:
                checks.before_training(self)
            with arguments.cut_of(facts, self.args):
                result = super().train(None, None, ignore_keys_for_eval)
            if checks:
                checks.after_training(self)
            if self._checkpointing:
                world.on_rank_zero(partial(self._checkpointing.close, LAST_SECONDS))
        return result

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> Any:
        """Raises InvalidInput: the second training of a search would go on from the checkpoint of the first."""
        raise InvalidInput(f"trainer.hyperparameter_search: {arguments.SEARCH}", cause="code")

    def end(self) -> None:
        """Raises InvalidInput: without the process group no rank knows the others, and each would publish."""
        raise InvalidInput(f"trainer.end: {arguments.END}", cause="code")

    def get_train_dataloader(self) -> PlanLoader:
        """The loader of this rank's micro-batches, never handed to Accelerate, which would deal them again."""
        return PlanLoader(
            self.train_dataset,
            self.collator("training"),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory and torch.cuda.is_available(),
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
            multiprocessing_context=self.args.dataloader_multiprocessing_context,
        )

    def collator(self, description: str) -> Collator:
        """Returns what makes tensors of the columns that the model takes; for "training" it may draw at random."""
        training, held_out = self._of_task
        of = held_out if description != "training" and self.data_collator is training else self.data_collator
        return self._get_collator_with_removed_columns(of, description)  # type: ignore[no-any-return]

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """Rows of all ranks in an epoch."""
        return facts_of(self.train_dataset).num_rows

    def _inner_training_loop(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Replaces transformers' own loop: does what that does, with the steps of Steps, and resumes between two."""
        self.accelerator.free_memory()
        loader = self.get_train_dataloader()
        num_epochs, num_steps, _, num_rows, *_, max_steps = self.set_initial_training_values(self.args, loader)
        self._init_training_state(max_steps, num_steps, num_epochs, None, None)
        restored, self._restored = self._restored, None
        if restored:
            trainer_state.restore_progress(self, restored)
            self._best = restored.best
        model, loader = self._prepare_for_training(max_steps, loader, None)
        parallel = [module for module in model.modules() if isinstance(module, DistributedDataParallel)]
        sums = Sums(parameters_of([self.model], [self.optimizer]), parallel)
        sums.check_alike(whole=False)
        weights.take_rank_zeros(self.model)
        weights.keep_first_rates(self.optimizer)
        if restored:
            trainer_state.restore(self, restored)
            reach("training restored")
        statistics = BatchStatistics([self.model], self._facts.accumulation)
        self._steps = steps = Steps(
            self.train_dataset,
            self._facts,
            items=self.items,
            models=[self.model],
            device=self.args.device,
            statistics=statistics,
            sums=sums,
            checkpointing=self._checkpointing,
            parts=self._parts,
            restored=restored,
            control=lambda: self.control,
        )
        self._actions = Actions(self.callback_handler, self.args.device)
        self._losses = Losses(torch.zeros((), device=self.args.device))
        self._started, begun = time.time(), steps.done
        model.zero_grad()
        with memory_of_steps(), attention_of_steps(), statistics.watch():
            self.control = self.callback_handler.on_train_begin(self.args, self.state, self.control)
            if restored:
                self._go_on(restored.training, restored.rank["votes"])
            elif self.args.eval_on_start:
                self._evaluated(skip_scheduler=True)
            del restored
            while not steps.is_over:
                if not steps.num_done:
                    steps.restore_random()
                has_voted = bool(steps.num_done) and self.control.should_epoch_stop
                self.control = self.callback_handler.on_epoch_begin(self.args, self.state, self.control)
                self.control.should_epoch_stop |= has_voted  # transformers takes it back where an epoch begins
                self._actions.begin()
                marks.mark(Phase.OUTSIDE)  # until the first batch is loaded: processes that load may start first
                norm = rate = None
                for step in steps.of_epoch(loader):
                    norm, rate = self._train_step(steps, step, model)
                steps.end_epoch()
                self.control = self.callback_handler.on_epoch_end(self.args, self.state, self.control)
                self._act(norm, rate)
                steps.meet()
                marks.mark(Phase.OUTSIDE)
            steps.restore_random()
        done = steps.done - begun
        metrics = speed_metrics("train", self._started, num_samples=num_rows * done / max(max_steps, 1), num_steps=done)
        self.store_flos()
        metrics |= {"total_flos": self.state.total_flos, "train_loss": self._losses.mean(self.state.global_step)}
        self._memory_tracker.stop_and_update_metrics(metrics)
        self.log(metrics)
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            trained = self.accelerator.unwrap_model(self.model)
            if self._best:
                weights.load_own_weights(trained, self._best[1])
            weights.take_rank_zeros(trained)
            self._loaded_step = evaluation.loaded_step(self)
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        if self.neftune_noise_alpha is not None:
            deactivate_neftune(self.model, self.neftune_hook_handle, self.accelerator)
        self.is_in_train, self._step = False, None
        return TrainOutput(self.state.global_step, metrics["train_loss"], metrics)

    def _go_on(self, training: dict[str, Any], votes: list[str]) -> None:
        """Puts back losses and votes, and does what was to come next behind the checkpoint, such as an evaluation."""
        assert self._steps is not None
        self._losses.restore(training["losses"])
        for flag in votes:
            setattr(self.control, flag, True)
        if not training["pending"]:
            return
        self._steps.restore_random()
        set_flags(self.control, ACTIONS, set(training["pending"]))
        self._act()
        self._steps.keep_random()
        if not self._steps.num_done:
            self._steps.meet()

    def _train_step(self, steps: Steps, step: Step, model: nn.Module) -> tuple[Any, float]:
        """Trains one step; returns the length of its gradient, and its learning rate."""
        self._step = step
        self.control = self.callback_handler.on_step_begin(self.args, self.state, self.control)
        step.begin()
        for part in step.parts:
            self._part, is_last = part, step.is_last(part)
            self.accelerator.gradient_state._set_sync_gradients(is_last)
            with step.adding(part):
                self._losses.since_log += self.training_step(model, part.batch, None)
            if self._part:
                raise InvalidInput(
                    f"{type(self).__name__}.training_step has returned without a call of super().training_step, which "
                    "counts the rows of its inputs and weighs their loss: call that, or override compute_loss",
                    cause="code",
                )
            self.current_flos += float(self.floating_point_ops(part.batch))
            if not is_last:
                self.control = self.callback_handler.on_substep_end(self.args, self.state, self.control)
        step.end()
        marks.step_done(step.number)
        marks.mark(Phase.STEP)  # the update belongs to its work
        norm = self._clip_grad_norm(model) if self.args.max_grad_norm > 0 else None
        norm = self._get_grad_norm(model, grad_norm=norm)
        rate = self._get_learning_rate()
        assert self._progress is not None  # train made it
        self._progress.step(step.number, steps.num_epochs_done, step.num_rows, self._mean, rate, norm)
        reach("update")
        steps.before_update()
        self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)
        self.optimizer.step()
        reach("updated")
        self.control = self.callback_handler.on_optimizer_step(self.args, self.state, self.control)
        rate = self._get_learning_rate()
        takes_metrics = "metrics" in inspect.signature(self.lr_scheduler.step).parameters  # behind an evaluation
        if not (takes_metrics or self.accelerator.optimizer_step_was_skipped):
            self.lr_scheduler.step()
        model.zero_grad()
        self.state.global_step = step.number
        self.state.epoch = steps.num_epochs_done
        marks.mark(Phase.BETWEEN)
        self.control = self.callback_handler.on_step_end(self.args, self.state, self.control)
        self._act(norm, rate)
        return norm, rate

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
        """Forward and backward over one micro-batch. The last of a step returns the loss of the whole step, the same
        on every rank; those before it return 0.

        ``num_items_in_batch``, which compute_loss, compute_loss_func and models get, is that of the micro-batch: a sum
        divided by it is the mean, as a loss that does not look at it is.
        """
        steps, step, part, self._part = self._steps, self._step, self._part, None
        assert steps is not None and step is not None
        if part is None:
            raise InvalidInput(
                f"{type(self).__name__}.training_step has called super().training_step twice for the same inputs, "
                "whose rows count once: call it once, and compute the rest in compute_loss",
                cause="code",
            )
        marks.mark(Phase.STEP)
        steps.use(part)
        is_last = step.is_last(part)
        if step.counts(part):
            inputs = inputs if part.num_items else self.items.with_labels(inputs)
            with steps.computing(part):
                reach("forward")
                loss = self._computed(model, inputs, part, step)
            if part.weight:
                self._of_parts.append((part, loss))
        if not is_last:
            return torch.zeros((), device=self.args.device)
        reach("backward")
        mean = step.mean(self._of_parts, self.args.device)
        if not math.isfinite(mean):
            bad = [row for part, of in self._of_parts if not torch.isfinite(of) for row in part.place.row_ids]
            where = f"step {step.number} of {self.state.max_steps}"
            raise weights.divergence(
                where, mean, bad, self.accelerator.unwrap_model(self.model), self.args.learning_rate
            )
        self._of_parts.clear()
        self._mean = mean
        return torch.tensor(mean, device=self.args.device)

    def _computed(self, model: nn.Module, inputs: Any, part: MicroBatch, step: Step) -> torch.Tensor:
        """The loss, whose gradients count as much as the micro-batch; what transformers does in its training_step."""
        model.train()
        if callable(own := getattr(self.optimizer, "train", None)):
            own()
        self.current_gradient_accumulation_steps = 1  # what transformers divides some losses by, and the weights do
        num_items = divisor(part.num_items, self.args.device)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, self._prepare_inputs(inputs), num_items_in_batch=num_items)
        if (every := self.args.torch_empty_cache_steps) is not None and self.state.global_step % every == 0:
            clear_device_cache()
        takes_rate = self.args.optim in (OptimizerNames.LOMO, OptimizerNames.ADALOMO)
        others = {"learning_rate": self._get_learning_rate()} if takes_rate else {}
        self.accelerator.backward(loss * step.share(part), **others)
        return loss.detach()  # type: ignore[no-any-return]

    def _act(self, norm: Any = None, rate: float | None = None) -> None:
        """Collective: logs, evaluates and saves, where a callback of any rank has asked for it."""
        self._actions.agree(self.control)
        if self.control.should_log and self.state.global_step > self._losses.step:
            logs: dict[str, Any] = {"loss": self._losses.mean_since_log(self.state.global_step)}
            if norm is not None:
                logs["grad_norm"] = norm.item() if isinstance(norm, torch.Tensor) else norm
            logs["learning_rate"] = self._get_learning_rate() if rate is None else rate
            self.store_flos()
            self.log(logs, self._started)
            self._actions.agree(self.control)
        if self.control.should_evaluate:
            is_best = self._determine_best_metric(self._evaluated(), None)
            if self.args.save_strategy == "best":
                self.control.should_save = is_best
        if self.control.should_save:
            if self._checkpointing:  # makes one between this step and the next
                self._checkpointing.ask()
            if self.state.best_global_step == self.state.global_step and self.args.load_best_model_at_end:
                self.state.best_model_checkpoint = evaluation.checkpoint_of(self)
                if world.rank() == 0:
                    best = weights.copy_own_weights(self.accelerator.unwrap_model(self.model), self._base)
                    self._best = (self.state.global_step, best)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)

    def _evaluated(self, *, skip_scheduler: bool = False) -> dict[str, float]:
        """Collective: the metrics of an evaluation, before which is saved what would be lost with it."""
        assert self._steps is not None
        self._steps.save_before(self._evaluation_seconds, sorted(flags_of(self.control, ACTIONS)))
        begun = time.monotonic()
        metrics: dict[str, float] = self._evaluate(None, self._ignore_keys, skip_scheduler=skip_scheduler)
        self._evaluation_seconds = time.monotonic() - begun
        self._actions.agree(self.control)
        return metrics

    def _parts(self) -> Parts:
        training = {**trainer_state.of_training(self, self._base), "losses": self._losses.kept()}
        frozen = weights.frozen(self.model)
        return Parts(training, trainer_state.of_rank(self), trainer_state.lasting(self), frozen, self._best)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> torch.Tensor:
        """Returns what to divide losses of these batches by, were they sums; transformers asks in evaluations."""
        return divisor(sum(self.items.count(inputs, self.rows_evaluated) for inputs in batch_samples), device)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Returns the metrics over all held-out rows, each counted once, the same on all ranks.

        They are those of the task, or of ``compute_metrics``. Raises InvalidInput when ranks were given different rows.
        """
        rows = self.eval_dataset if eval_dataset is None else eval_dataset
        if isinstance(rows, dict):
            named = [self.evaluate(part, ignore_keys, f"{metric_key_prefix}_{name}") for name, part in rows.items()]
            return {name: value for metrics in named for name, value in metrics.items()}
        return self._measure(rows, ignore_keys, metric_key_prefix)

    def _measure(
        self, rows: Any, ignore_keys: list[str] | None, prefix: str, *, is_published: bool = False
    ) -> dict[str, Any]:
        """``is_published``: the training has ended, and no error of a callback keeps the model from the store."""
        started, guard = time.monotonic(), evaluation.printed if is_published else contextlib.nullcontext
        reach("evaluation")
        measured = evaluation.measure(self, rows, ignore_keys, prefix)
        self.evaluations.append(measured)
        metrics = {**measured.named}
        with guard():
            self.log(metrics)
        with guard():
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        world.log_rank0(
            Evaluated(
                step=self.state.global_step, epoch=self.state.epoch or 0, prefix=prefix, metrics=measured.reported
            )
        )
        if self._progress:
            self._progress.leave_out(time.monotonic() - started)
        return metrics

    def measured_on(self, rows: Dataset) -> evaluation.Measurement:
        """Collective: the evaluation of these rows with the weights that the model has now; made when there is none."""
        mark = weights.mark_of(self.accelerator.unwrap_model(self.model))
        find = partial(evaluation.newest_of, self.evaluations, rows, mark)
        if world.on_rank_zero(lambda: find() is None):
            self._measure(rows, self._ignore_keys, "eval", is_published=True)
        return find() or self.evaluations[-1]

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Returns the predictions for all rows, in their order, the same on all ranks; with labels also the metrics.

        Give the rows whole on every rank. Raises InvalidInput when ranks were given different rows.
        """
        started = time.monotonic()
        output = evaluation.predict(self, test_dataset, ignore_keys, metric_key_prefix)
        self.control = self.callback_handler.on_predict(self.args, self.state, self.control, output.metrics)
        if self._progress:
            self._progress.leave_out(time.monotonic() - started)
        return output
