"""The Trainers of a session: checked before their first step, and published."""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from datasets import Dataset
from torch import nn
from transformers import DataCollatorWithPadding
from transformers.trainer_callback import TrainerCallback

from train_func.errors import InvalidInput
from train_func.storage import Store
from train_func.wire.predictions import Predictions
from train_func.wire.records import RunRecord
from train_func.worker.attempt_records import versions
from train_func.worker.hf_trainer_guard import check_trainer
from train_func.worker.loading import Loading
from train_func.worker.publish import model as model_module
from train_func.worker.publish import reloading
from train_func.worker.publish.card import render
from train_func.worker.publish.publication import Publication, check_unpublished
from train_func.worker.rank import end, world
from train_func.worker.training import evaluation, weights
from train_func.worker.training.arguments import learning_rate_note
from train_func.worker.training.loader import undisturbed
from train_func.worker.training.trainer import Trainer


class Trainers:
    """All that a function makes while its session is open."""

    def __init__(
        self, store: Store, record: RunRecord, attempt: int, work: Path, loading: Loading, publication: Publication
    ) -> None:
        """``work``: folder of this rank."""
        self._store, self._record, self._attempt, self._work = store, record, attempt, work
        self._loading, self._publication = loading, publication
        self._ended: list[Trainer] = []

    def before_training(self, trainer: Trainer) -> None:
        """Collective. Whatever would keep the result from being published is found now."""
        self._ended = [ended for ended in self._ended if ended is not trainer]
        if note := learning_rate_note(trainer, self._record.run):
            world.note(note)

        def rehearse() -> list[str]:
            check_unpublished(self._store, self._record, self._attempt)
            tokenizer, use = self._tokenizer_of(trainer), self._loading.use()
            if card := self._loading.card_part():
                render(self._record, card, {}, self._attempt, versions())
            given = (trainer, tokenizer, self._record, use, self._store)
            differs = partial(self._difference, trainer) if self._attempt == 1 else lambda folder: None
            return model_module.rehearse(self._work / "rehearsal", *given, differs)

        for note in world.on_rank_zero(rehearse):
            world.note(note)
        _Rehearsal(trainer, evaluation.rows_measured(trainer.eval_dataset, self._loading.held_out))

    def after_training(self, trainer: Trainer) -> None:
        """Collective. Raises InvalidInput (cause "divergence") where the trained weights are not finite."""
        if trainer.args.load_best_model_at_end:
            evaluation.tell_best(trainer)
        model = trainer.accelerator.unwrap_model(trainer.model)
        after = f"After step {trainer.state.global_step}, "
        world.on_all_ranks(partial(weights.check_finite, [model], after, whole=True))
        self._ended.append(trainer)
        end.here.trained = True

    def _difference(self, trainer: Trainer, folder: Path) -> str | None:
        """Returns how the model that is loaded from a folder differs from the Trainer's, which was saved there."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        rows = next(iter(evaluation.rows_measured(trainer.eval_dataset, self._loading.held_out).values()), None)
        inputs = reloading.batch_of(trainer.collator("evaluation"), rows)
        return reloading.difference(model, folder, inputs, self._loading.base)

    def difference_of_module(self, module: nn.Module) -> str | None:
        """Compares the module that a loop of the function's own has published; None also where there is none."""
        if self._loading.held_out is None or not callable(getattr(module, "save_pretrained", None)):
            return None
        try:
            collate = self._loading.collator(self._loading.held_out) or DataCollatorWithPadding(self._loading.processor)
        except InvalidInput:  # it was given no processor, and makes its batches itself
            return None
        inputs = reloading.batch_of(collate, self._loading.held_out)
        try:
            return reloading.difference(module, self._publication.folder, inputs, self._loading.base)
        except reloading.NotLoaded as unknown:
            return f"whether the published model is the trained one is not known: {unknown}"

    def _tokenizer_of(self, trainer: Trainer) -> Any:
        return trainer.processing_class or self._loading.processor

    def publish(self, trainer: Trainer, metrics: Mapping[str, Any] | None) -> None:
        """Collective: what ``Session.publish`` does with a Trainer, and with metrics of the function's own."""
        check_trainer(trainer)
        state = trainer.state

        def check_ended() -> None:  # at its last step, or where a callback ended it
            if state.global_step == 0 or not any(ended is trainer for ended in self._ended):
                raise InvalidInput(
                    f"session.publish was called after step {state.global_step} of {state.max_steps or 'none'}: a "
                    "model is published when its training has come to an end; call trainer.train() first and let it "
                    "return",
                    cause="code",
                )

        world.on_all_ranks(check_ended)
        model = trainer.accelerator.unwrap_model(trainer.model)
        weights.agree(model, state.global_step)  # what is published is what every rank has trained
        begun = model_module.report_unmeasured(trainer)

        def keep() -> None:
            tokenizer, use = self._tokenizer_of(trainer), self._loading.use()
            given = {"trainer": trainer, "tokenizer": tokenizer, "record": self._record, "use": use}
            write = partial(model_module.write_publication, **given)
            self._publication.add(write, is_model=True, card=self._loading.card_part())
            self._publication.report(begun)

        world.on_rank_zero(keep)
        whole = model_module.report_measured(begun, trainer, self._loading.held_out)

        def fault_of_published() -> str | None:
            try:
                return self._difference(trainer, self._publication.folder)
            except reloading.NotLoaded:  # which the rehearsal has told
                return None

        if fault := world.on_rank_zero(fault_of_published):
            whole = {**begun, "note": f"no metrics are published: {fault}"}

        predictions = whole.pop("predictions", None)

        def report() -> None:
            self._publication.report({"note": "", **whole})
            if predictions is not None:
                self._publication.add_predictions(
                    Predictions(
                        step=trainer.weights_step,
                        num_rows=whole["audit"]["held_out"]["rows"],
                        held_out_sha256=self._record.held_out_sha256 if self._loading.held_out is not None else "",
                        labels=self._loading.labels,
                        columns=model_module.plain_columns(predictions),
                    )
                )
            if metrics:
                self._publication.add_metrics(metrics)
            self._publication.finish()

        world.on_rank_zero(report)
        end.here.may_leave()


class _Rehearsal(TrainerCallback):
    """Measures few rows of all that is going to be measured, before the first step, and forgets the results.

    It does so once, when a training has begun: the state, the device and the trackers of an evaluation are there then.
    Collective. Whatever measuring all rows raises keeps the training from its first step, on every rank.
    """

    def __init__(self, trainer: Trainer, published: Mapping[str, Dataset]) -> None:
        """``published``: the sets whose metrics are published; beside them are those that the training evaluates."""
        self._trainer, self._published = trainer, published
        trainer.pop_callback(_Rehearsal)
        trainer.add_callback(self)  # behind all others, which have begun then

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        """Raises InvalidInput (cause "code") too when no evaluation has the metric by which the best is chosen."""
        self._trainer.remove_callback(self)
        with undisturbed():
            self.measure()

    def measure(self) -> None:
        """Measures few rows of each set."""
        trainer, args, sets = self._trainer, self._trainer.args, self._trainer.eval_dataset
        evaluated: dict[str, Any] = {}  # while the model trains, by the prefix of their metrics
        if args.eval_strategy != "no" or args.save_strategy == "best" or args.load_best_model_at_end:
            if isinstance(sets, dict):
                evaluated = {f"eval_{name}": rows for name, rows in sets.items()}
            elif sets is not None:
                evaluated = {"eval": sets}
        for rows in self._published.values():
            if not any(rows is of_training for of_training in evaluated.values()):
                self._names(rows, "eval")
        names = {name for prefix, rows in evaluated.items() for name in self._names(rows, prefix)}
        best = args.metric_for_best_model
        wanted = f"eval_{str(best).removeprefix('eval_')}"
        if best is None or not evaluated or wanted in names:
            return
        names = {name for prefix, rows in evaluated.items() for name in self._names(rows, prefix, whole=True)}
        if wanted in names:
            return
        known = ", ".join(sorted(name.removeprefix("eval_") for name in names))
        fault = f"TrainingArguments(metric_for_best_model={best!r}): the metrics are {known}"
        callbacks = trainer.callback_handler.callbacks
        by_users = [callback for callback in callbacks if not type(callback).__module__.startswith("transformers.")]
        hooks = [getattr(callback.on_evaluate, "__func__", None) for callback in by_users]
        adds_metrics = any(hook is not TrainerCallback.on_evaluate for hook in hooks)
        if adds_metrics or getattr(trainer.evaluate, "__func__", None) is not Trainer.evaluate:
            world.note(f"{fault}, unless the training's own evaluate or on_evaluate adds it")
        else:
            compute = ", or give Trainer compute_metrics" if trainer.compute_metrics is None else ""
            raise InvalidInput(f"{fault}; name one of these{compute}", cause="code")

    def _names(self, rows: Dataset, prefix: str, *, whole: bool = False) -> set[str]:
        """Names of the metrics of the batch with the longest rows.

        A metric that cannot be computed of so few, such as one that needs every class, is tried on all rows.
        """
        few = rows if whole else evaluation.longest_batch(self._trainer, rows)
        if len(few) < len(rows):
            with suppress(Exception):
                return evaluation.names(self._trainer, few, prefix)
        # Not while the other error is handled: the lines of the function would be shown once for each.
        return evaluation.names(self._trainer, rows, prefix)
