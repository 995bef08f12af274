"""The Trainers of a session: checked before their first step, watched to their end, published, their trackers kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import transformers
from datasets import Dataset
from torch import nn
from transformers import DataCollatorWithPadding

from train_func.errors import InvalidInput
from train_func.records import RunRecord
from train_func.storage import Store
from train_func.worker.attempt_setup import versions
from train_func.worker.pod import sessions
from train_func.worker.pod.card import render
from train_func.worker.pod.publish import check_unpublished
from train_func.worker.training import (
    hf_trainer_checks,
    hf_trainer_guard,
    publication,
    rehearsal,
    reloading,
    tracking,
    weights,
    world,
)
from train_func.worker.training.arguments import check_run
from train_func.worker.training.audit import Coverage, RowIds
from train_func.worker.training.loading import Loading
from train_func.worker.training.publishing import Publishing
from train_func.worker.training.trainer import Trainer

TRACKING_SECONDS, STOPPED_SECONDS = 60.0, 5.0  # for files of report_to, at the end and after a signal


class Trainers:
    """All that a function makes while its session is open, transformers' own too."""

    def __init__(
        self, store: Store, record: RunRecord, attempt: int, work: Path, loading: Loading, publishing: Publishing
    ) -> None:
        """``work``: folder of this rank."""
        self._store, self._record, self._attempt, self._work = store, record, attempt, work
        self._loading, self._publishing = loading, publishing
        self.train_ids: RowIds | None = None
        """Of the rows that the session gave to train on."""
        self.held_out: Dataset | None = None
        self._stock_coverage: Coverage | None = None
        self._begun: list[transformers.Trainer] = []
        self._watch = hf_trainer_guard.Watch(self._before, self._after, lambda: self.held_out)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Within, no Trainer of this process trains unchecked."""
        with self._watch.lasts(), tracking.writes_to(self._work):
            yield

    def _before(self, trainer: transformers.Trainer) -> None:
        """Whatever would keep the result from being published is found now."""
        self._begun.append(trainer)
        world.on_all_ranks(lambda: check_run(trainer, self._record.run))
        if not isinstance(trainer, Trainer):
            self._stock_coverage = hf_trainer_checks.check_stock_trainer(trainer, self.train_ids)

        def rehearse() -> list[str]:
            check_unpublished(self._store, self._record, self._attempt)
            tokenizer, use = self._tokenizer_of(trainer), self._loading.use()
            if card := self._loading.card_part():
                render(self._record, card, {}, self._attempt, versions())
            given = (trainer, tokenizer, self._record, use, self._store)
            differs = partial(self._difference, trainer) if self._attempt == 1 else lambda folder: None
            return publication.rehearse(self._work / "rehearsal", *given, differs)

        for note in world.on_rank_zero(rehearse):
            world.note(note)
        if isinstance(trainer, Trainer):
            rehearsal.Rehearsal(trainer, publication.rows_measured(trainer, self.held_out))

    @staticmethod
    def _after() -> None:
        sessions.here.trained = True

    def _difference(self, trainer: transformers.Trainer, folder: Path) -> str | None:
        """How the model that is loaded from a folder differs from that of the Trainer, which was saved there."""
        model = trainer.accelerator.unwrap_model(trainer.model)
        inputs = reloading.inputs_of(trainer, self.held_out)
        return reloading.difference(model, folder, inputs, self._loading.base)

    def difference_of_module(self, module: nn.Module) -> str | None:
        """The same of a module that a loop of the function's own has published; None also where there is none."""
        if self.held_out is None or not callable(getattr(module, "save_pretrained", None)):
            return None
        try:
            collate = self._loading.collator(self.held_out) or DataCollatorWithPadding(self._loading.processor)
        except InvalidInput:  # it was given no processor, and makes its batches itself
            return None
        inputs = reloading.batch_of(collate, self.held_out)
        try:
            return reloading.difference(module, self._publishing.folder, inputs, self._loading.base)
        except reloading.NotLoaded as unknown:
            return f"whether the published model is the trained one is not known: {unknown}"

    def _tokenizer_of(self, trainer: transformers.Trainer) -> Any:
        return trainer.processing_class or self._loading.processor

    def publish(self, trainer: transformers.Trainer) -> None:
        """Collective: what ``Session.publish`` does with a Trainer."""
        world.on_all_ranks(lambda: self._watch.check_ended(trainer))
        weights.agree(trainer)  # what is published is what every rank has trained
        begun = publication.report_unmeasured(trainer, self._stock_coverage)

        def keep() -> None:
            tokenizer, use = self._tokenizer_of(trainer), self._loading.use()
            given = {"trainer": trainer, "tokenizer": tokenizer, "record": self._record, "use": use}
            write = partial(publication.write_publication, **given)
            self._publishing.keep(write, begun, self._loading.card_part())

        world.on_rank_zero(keep)
        whole = publication.report_measured(begun, trainer, self.held_out, self._watch.metrics_of)
        if fault := world.on_rank_zero(lambda: self._fault_of_published(trainer)):
            whole = {**begun, "note": f"no metrics are published: {fault}"}
        world.on_rank_zero(lambda: self._publishing.measured(whole))
        sessions.here.may_leave()

    def _fault_of_published(self, trainer: transformers.Trainer) -> str | None:
        try:
            return self._difference(trainer, self._publishing.folder)
        except reloading.NotLoaded:  # which the rehearsal has told
            return None

    def keep_tracked(self, error: BaseException | None) -> None:
        """On rank 0, at the end, which ``error`` may have brought: what trackers wrote goes to the store."""
        if world.rank() or not self._begun:
            return
        seconds = TRACKING_SECONDS if error is None or isinstance(error, Exception) else STOPPED_SECONDS
        if line := tracking.keep(self._work, self._begun, self._store, self._record, self._attempt, seconds):
            world.note(line)
