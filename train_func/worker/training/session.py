"""Session: what train_func works with: the ranks, the store, the model, the data, the plan, and publishing.

Every method is to be called on every rank, and succeeds on all of them or raises on all of them.
"""

import math
import shutil
import socket
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import transformers
from datasets import Dataset

from train_func.errors import InvalidInput
from train_func.events import Published, SessionOpened
from train_func.records import Numerics
from train_func.storage import Store, open_store
from train_func.worker.attempt_setup import write_setup
from train_func.worker.inputs.cache import machine_cache
from train_func.worker.pod import sessions
from train_func.worker.pod.attempt_store import Attempts
from train_func.worker.pod.pending import PUBLISH_SECONDS, Pending
from train_func.worker.pod.publish import check_unpublished, complete
from train_func.worker.pod.stop import Stop
from train_func.worker.training import (
    audit,
    calling,
    hf_trainer_checks,
    hf_trainer_guard,
    publication,
    rehearsal,
    tracking,
    weights,
    world,
)
from train_func.worker.training.arguments import Arguments, check_run
from train_func.worker.training.audit import Coverage, RowIds
from train_func.worker.training.loading import Loading
from train_func.worker.training.numerics import measure_numerics, recorded
from train_func.worker.training.plan import build_plan, num_micro_batches, row_ids_of
from train_func.worker.training.trainer import Trainer

TRACKING_SECONDS, STOPPED_SECONDS = 60.0, 5.0  # for files of report_to, at the end and after a signal


class Session:
    """``with Session(parameters) as session:`` inside train_func, on every rank.

    Without a launcher it is a world of one rank, so that the function can be called as it is:
    ``train_func({**run.to_dict(), **run.parameters})``, or without a task, where own values may be named like fields
    of Run, ``train_func({**run.parameters, "train_func": run.to_dict()})``. Each such call is a generation of its own,
    and says where it publishes: in the store that TRAIN_FUNC_STORE names, else in the folder ``store`` of
    TRAIN_FUNC_HOME.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        """Raises InvalidInput when these are not the parameters that train_func was called with.

        Under another launcher, such as torchrun, they may be a plain dict of Run's fields; TRAIN_FUNC_STORE then names
        the store, and has to.
        """
        self.record, self._is_call = calling.record_of(parameters, world.environment())
        run = self.record.run
        self.run = replace(run, task=run.task and run.task.load())
        self._train_ids: RowIds | None = None
        self._held_out: Dataset | None = None
        self._stock_coverage: Coverage | None = None
        self._trainers: list[transformers.Trainer] = []

    def __enter__(self) -> Self:
        sessions.here.opened = True
        with ExitStack() as opening:  # what is open already is closed again when the rest cannot be
            self._enter(opening, world.environment())
            self._open = opening.pop_all()
        opened = partial(SessionOpened, run=self.record.name, attempt=self.attempt, world_size=self.world_size)
        threads = torch.get_num_threads()
        world.log_rank0(opened(device=str(self.device), precision=self.numerics.precision, num_threads=threads))
        return self

    def _enter(self, opening: ExitStack, environment: Mapping[str, str]) -> None:
        self.world = world.World.from_environment(environment)
        if self.world.init_process_group():
            opening.callback(world.destroy_process_group)
        if threads := environment.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
        self._work = Path(tempfile.mkdtemp(prefix="session-", dir=environment.get("TRAIN_FUNC_WORK_DIR")))
        opening.callback(shutil.rmtree, self._work, ignore_errors=True)
        cache = machine_cache(environment)
        cache.mkdir(parents=True, exist_ok=True)
        self.store: Store = open_store(self.record.store)
        self.attempt: int = world.on_rank_zero(lambda: self._attempt(environment.get("TRAIN_FUNC_ATTEMPT")))
        self._loading = Loading(self.record, self.store, cache)
        self.numerics: Numerics = world.on_rank_zero(self._numerics)
        if fault := self.numerics.idle_ranks_fault(self.world_size, is_submitted=bool(self.record.submitted)):
            raise InvalidInput(fault)
        Trainer.task = world.on_all_ranks(self._loading.task_or_none)
        opening.callback(setattr, Trainer, "task", None)
        self._watch = hf_trainer_guard.Watch(self._before_training, lambda: self._held_out)
        opening.enter_context(self._watch.lasts())
        opening.enter_context(tracking.mlflow_writes_to(self._work))
        transformers.set_seed(self.run.seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:  # closes it in any case, and waits for no other rank, which may have failed
            if self.rank == 0 and self._trainers:
                seconds = TRACKING_SECONDS if error is None or isinstance(error, Exception) else STOPPED_SECONDS
                if line := tracking.keep(self._work, self._trainers, self.store, self.record, self.attempt, seconds):
                    world.note(line)

    def _attempt(self, given: str | None) -> int:
        if given:
            return int(given)
        if self._is_call:
            self.record = calling.claim(self.store, self.record)
            return calling.ATTEMPT
        if complete(self.store, self.record):
            raise InvalidInput(
                f"{self.record.name} has a result in {self.store.address} already: fetch the model from "
                f"{self.record.keys.model} there, or train a new generation with fresh=True"
            )
        return Attempts(self.store, self.record, worker=0, pod=socket.gethostname()).claim().attempt

    def _numerics(self) -> Numerics:
        if fault := self.run.ranks_fault(self.world_size):
            raise InvalidInput(fault)
        # As many ranks as the run asked for, or as another launcher has started at first; later attempts keep the cut.
        num_ranks = max(self.run.workers * self.world.local_size, self.world_size)
        cut = num_micro_batches(self.run.batch_size, self.run.micro_batch_size, num_ranks)
        measure = partial(measure_numerics, cut, self.run.micro_batch_size)
        found = recorded(self.store, self.record.keys.numerics, measure)
        write_setup(self.store, self.record, self.attempt, self.world_size, found)
        return found

    @property
    def rank(self) -> int:
        """Number of this process, from 0."""
        return world.rank()

    @property
    def world_size(self) -> int:
        """Number of processes that train together."""
        return world.size()

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of their numbers."""
        return self._loading.rows.labels

    def model(self) -> tuple[Any, Any]:
        """The model with a head for the labels of the data, the same on all ranks, and its tokenizer."""
        return self._loading.model()

    def data(self, tokenizer: Any) -> tuple[Dataset, Dataset]:
        """All training and all held-out rows, tokenised, the same on all ranks; ``row_id`` tells them apart."""
        train, self._held_out = self._loading.data(tokenizer)
        self._train_ids = row_ids_of(train)
        return train, self._held_out

    def plan(self, train: Dataset) -> Dataset:
        """The micro-batches of all epochs over ``train``; split it over the ranks once.

        Raises:
            InvalidInput: (cause "code", on every rank) when the ranks hold different rows.
        """
        audit.check_rows_alike(train, self._train_ids, "training")
        return build_plan(
            train,
            seed=self.run.seed,
            num_epochs=self.run.epochs,
            batch_size=self.run.batch_size,
            micro_batch_size=self.numerics.micro_batch_size,
            num_micro_batches=self.numerics.num_micro_batches,
            world_size=self.world_size,
        )

    @property
    def arguments(self) -> Arguments:
        """What TrainingArguments needs and the run, the plan and the machine decide.

        ``**session.arguments(save_strategy="epoch", ...)`` has others beside them, and epochs and learning rate.
        """
        has_gpu = torch.cuda.is_available()
        given = {
            "output_dir": str(self._work),
            "seed": self.run.seed,
            "use_cpu": not has_gpu,
            "bf16": self.numerics.precision == "bf16",
            "ddp_backend": torch.distributed.get_backend() if has_gpu and self.world.launched else None,
            "dataloader_pin_memory": has_gpu,
            "per_device_train_batch_size": self.numerics.micro_batch_size,
            "per_device_eval_batch_size": 4 * self.numerics.micro_batch_size,
            "gradient_accumulation_steps": math.ceil(self.numerics.num_micro_batches / self.world_size),
            "report_to": "none",
            "logging_strategy": "no",
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        return Arguments(given, self.run)

    def _before_training(self, trainer: transformers.Trainer) -> None:
        """Whatever would keep the result from being published is found now."""
        self._trainers.append(trainer)
        world.on_all_ranks(lambda: check_run(trainer, self.run))
        if not isinstance(trainer, Trainer):
            self._stock_coverage = hf_trainer_checks.check_stock_trainer(trainer, self._train_ids)

        def rehearse() -> list[str]:
            check_unpublished(self.store, self.record, self.attempt)
            return publication.rehearse(
                self._work / "rehearsal",
                trainer,
                self._tokenizer_of(trainer),
                self.record,
                self._loading.use(),
                self.store,
            )

        for note in world.on_rank_zero(rehearse):
            world.note(note)
        if isinstance(trainer, Trainer):
            rehearsal.Rehearsal(trainer, publication.rows_measured(trainer, self._held_out))

    def _tokenizer_of(self, trainer: transformers.Trainer) -> Any:
        return trainer.processing_class or self._loading.processor

    def publish(self, trainer: transformers.Trainer) -> None:
        """Publishes the trained model as the result of the run; all ranks return when that is done.

        Training has come to its end when ``trainer.train()`` has returned, also where a callback ended it early.
        A store that is away is waited for, up to 15 minutes or the deadline. Where its metrics cannot be computed, the
        model is published without them, and with a note that says why.

        Raises:
            InvalidInput: when training has not come to its end, or the ranks have not trained one model.
            StorageFailed: reason "conflict" when another attempt has published, or what the store says.
        """
        world.on_all_ranks(lambda: self._check_ended(trainer))
        weights.agree(trainer)  # what is published is what every rank has trained
        pending = Pending(Path(world.environment().get("TRAIN_FUNC_WORK_DIR") or self._work))
        seconds = min(PUBLISH_SECONDS, self.run.deadline)
        begun = publication.report_unmeasured(trainer, self._stock_coverage)

        def keep() -> None:
            pending.begin()
            tokenizer, use = self._tokenizer_of(trainer), self._loading.use()
            publication.write_publication(pending.folder, trainer, tokenizer, self.record, use)
            pending.seal(self.attempt, {**begun, "note": publication.INTERRUPTED}, seconds)

        def upload() -> None:
            pending.seal(self.attempt, whole, seconds)
            pending.upload(self.store, self.record, Stop())

        world.on_rank_zero(keep)  # first, so that an end while the model is measured does not lose it
        whole = publication.report_measured(begun, trainer, self._held_out, self._watch.metrics_of)
        world.on_rank_zero(upload)
        sessions.here.published = True
        at = f"{self.store.address}/{self.record.keys.model}"
        world.log_rank0(Published(attempt=self.attempt, model=at))

    def _check_ended(self, trainer: transformers.Trainer) -> None:
        state = trainer.state
        if not self._watch.has_ended(trainer) or state.global_step == 0:
            raise InvalidInput(
                f"session.publish was called after step {state.global_step} of {state.max_steps or 'none'}: a model is "
                "published when its training has come to an end; call trainer.train() first and let it return",
                cause="code",
            )
