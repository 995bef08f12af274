"""Session: what train_func works with: the ranks, the store, the model, the data, the plan, and publishing.

Every method is to be called on every rank, and succeeds on all of them or raises on all of them.
"""

import math
import shutil
import socket
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
import transformers
from datasets import Dataset

from train_func.errors import InvalidInput
from train_func.run import RunRecord
from train_func.storage import Store, open_store
from train_func.worker.data import split, tokens
from train_func.worker.model import loading as models
from train_func.worker.pod.attempts import Attempts
from train_func.worker.training import audit, stock, world
from train_func.worker.training.coverage import Coverage, RowIds
from train_func.worker.training.plan import build_plan, num_micro_batches, row_ids_of
from train_func.worker.training.probe import Probe, probe, recorded
from train_func.worker.training.publication import write_publication
from train_func.worker.training.publish import complete, publish
from train_func.worker.training.trainer import Trainer

_was = {"opened": False, "published": False}


def opened() -> bool:
    """Whether this process has opened a Session."""
    return _was["opened"]


def published() -> bool:
    """Whether a Session of this process has published its result."""
    return _was["published"]


class Session:
    """``with Session(parameters) as session:`` inside train_func, on every rank.

    Without a launcher it is a world of one rank, so that the function can be called as it is.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        """Raises InvalidInput when these are not the parameters that train_func was called with.

        Under another launcher, such as torchrun, they may be a plain dict of Run's fields; TRAIN_FUNC_STORE then names
        the store.
        """
        self.record = RunRecord.from_parameters(parameters, world.environment().get("TRAIN_FUNC_STORE", ""))
        self.run = self.record.run
        self._tokenizer: Any = None
        self._train_ids: RowIds | None = None
        self._held_out: Dataset | None = None
        self._stock_coverage: Coverage | None = None

    def __enter__(self) -> Self:
        _was["opened"] = True
        with ExitStack() as opening:  # what is open already is closed again when the rest cannot be
            self._enter(opening, world.environment())
            self._open = opening.pop_all()
        world.say(
            f"session run={self.record.name} attempt={self.attempt} world_size={self.world_size} "
            f"device={self.device} precision={self.probe.precision} threads={torch.get_num_threads()}"
        )
        return self

    def _enter(self, opening: ExitStack, environment: Mapping[str, str]) -> None:
        self.world = world.World.from_environment(environment)
        if self.world.meet():
            opening.callback(world.part)
        if threads := environment.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
        self._work = Path(tempfile.mkdtemp(prefix="session-", dir=environment.get("TRAIN_FUNC_WORK_DIR")))
        opening.callback(shutil.rmtree, self._work, ignore_errors=True)
        home = Path(environment.get("TRAIN_FUNC_HOME") or Path.home() / ".train_func")
        self._cache = Path(environment.get("TRAIN_FUNC_CACHE_DIR") or home / "cache")
        self._cache.mkdir(parents=True, exist_ok=True)
        self.store: Store | None = open_store(self.record.store) if self.record.store else None
        self.attempt: int = world.on_rank_zero(lambda: self._attempt(environment.get("TRAIN_FUNC_ATTEMPT")))
        self.probe: Probe = world.on_rank_zero(self._probe)
        opening.enter_context(stock.watched(self._watch))
        transformers.set_seed(self.run.seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()  # waits for no other rank, which may have failed

    def _attempt(self, given: str | None) -> int:
        if given:
            return int(given)
        if self.store is None:
            return 1
        if complete(self.store, self.record):
            raise InvalidInput(
                f"{self.record.name} has a result in {self.store.address} already: fetch the model from "
                f"{self.record.model_prefix} there, or train a new generation with fresh=True"
            )
        return Attempts(self.store, self.record, worker=0, pod=socket.gethostname()).claim().attempt

    def _probe(self) -> Probe:
        # As many ranks as the run asked for: what it has at the moment must not decide how a batch is cut.
        num_ranks = self.run.workers * self.world.local_size
        cut = num_micro_batches(self.run.batch_size, self.run.micro_batch_size, num_ranks)
        if self.store is None:
            return probe(cut)
        return recorded(self.store, f"{self.record.prefix}/probe.json", lambda: probe(cut))

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
        return self._prepared.labels

    @property
    def _prepared(self) -> split.Prepared:
        if not hasattr(self, "_prepared_once"):
            self._prepared_once = world.together(self._prepare)
            for note in self._prepared_once.notes:
                world.say(f"note: {note}")
        return self._prepared_once

    def _prepare(self) -> split.Prepared:
        prepared = split.prepare(self.run, self.store, self._cache)
        if self.record.data_fingerprint not in ("", prepared.fingerprint):
            raise InvalidInput(
                f"{self.run.dataset} has changed since {self.record.name} was submitted: its fingerprint was "
                f"{self.record.data_fingerprint} and is {prepared.fingerprint}; submit again, as a new run",
                cause="data",
            )
        return prepared

    def model(self) -> tuple[Any, Any]:
        """The model with a head for the labels of the data, the same on all ranks, and its tokenizer."""
        labels = self.labels
        self._tokenizer = world.together(lambda: models.load_tokenizer(self.run, self.store, self._cache))
        return world.together(lambda: models.load_model(self.run, labels, self.store, self._cache)), self._tokenizer

    def data(self, tokenizer: Any) -> tuple[Dataset, Dataset]:
        """All training and all held-out rows, tokenised, the same on all ranks; ``row_id`` tells them apart."""
        prepared = self._prepared

        def tokenise(rows: Dataset) -> Dataset:
            return tokens.tokenise(rows, tokenizer, self.run.max_length, self._cache)

        train, self._held_out = world.together(lambda: (tokenise(prepared.train), tokenise(prepared.held_out)))
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
            micro_batch_size=self.run.micro_batch_size,
            num_micro_batches=self.probe.num_micro_batches,
            world_size=self.world_size,
        )

    @property
    def arguments(self) -> dict[str, Any]:
        """What TrainingArguments needs and the run, the plan and the machine decide."""
        has_gpu = torch.cuda.is_available()
        return {
            "output_dir": str(self._work),
            "seed": self.run.seed,
            "use_cpu": not has_gpu,
            "bf16": self.probe.precision == "bf16",
            "ddp_backend": torch.distributed.get_backend() if has_gpu and self.world.launched else None,
            "dataloader_pin_memory": has_gpu,
            "per_device_train_batch_size": self.run.micro_batch_size,
            "per_device_eval_batch_size": 4 * self.run.micro_batch_size,
            "gradient_accumulation_steps": math.ceil(self.probe.num_micro_batches / self.world_size),
            "report_to": "none",
            "logging_strategy": "no",
            "save_strategy": "no",
            "disable_tqdm": True,
        }

    def _watch(self, trainer: transformers.Trainer) -> None:
        self._stock_coverage = stock.check_stock_trainer(trainer, self._train_ids)

    def publish(self, trainer: transformers.Trainer) -> None:
        """Publishes the trained model as the result of the run; all ranks return when that is done.

        Raises:
            InvalidInput: when training has not come to its end, or there is no store.
            StorageFailed: reason "conflict" when another attempt has published, or what the store says.
        """
        store, state = world.together(lambda: self._publishable(trainer)), trainer.state
        report = {"step": state.global_step, "num_steps": state.max_steps, **self._report(trainer)}

        def write() -> list[str]:
            folder = self._work / "model"
            tokenizer = trainer.processing_class or self._tokenizer
            notes = write_publication(folder, trainer, tokenizer, self.record, store, report["metrics"])
            publish(store, self.record, self.attempt, folder, report)
            return notes

        for note in world.on_rank_zero(write):
            world.say(f"note: {note}")
        _was["published"] = True
        world.say(f"published attempt={self.attempt} model={store.address}/{self.record.model_prefix}")

    def _publishable(self, trainer: transformers.Trainer) -> Store:
        state = trainer.state
        faults = []
        if self.store is None:
            faults.append(
                "session.publish needs a store, and the run has none: submit it, or give its record a store such as "
                "file:///tmp/models"
            )
        if not 0 < state.max_steps == state.global_step:
            faults.append(
                f"session.publish was called after step {state.global_step} of {state.max_steps or 'none'}: a model is "
                "published when its training has come to the end; call trainer.train() first and let it finish"
            )
        if faults or self.store is None:
            raise InvalidInput(faults, cause="code")
        return self.store

    def _report(self, trainer: transformers.Trainer) -> dict[str, Any]:
        """Metrics and audit, as they are published."""
        audited = {"world_size": self.world_size}
        if not isinstance(trainer, Trainer):
            history = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
            metrics = _plain({name.removeprefix("eval_"): value for name, value in (history or [{}])[-1].items()})
            training = [self._stock_coverage.counts("used_once")] if self._stock_coverage else []
            return {"metrics": metrics, "audit": {**audited, "trainer": "transformers", "training": training}}
        measured = trainer.measured
        rows, step = self._held_out, trainer.state.global_step
        if rows is not None and not (measured and measured.covers(rows, step)):
            trainer.evaluate(rows)
            measured = trainer.measured
        return {
            "metrics": _plain(measured.metrics) if measured else {},
            "audit": {
                **audited,
                "training": [coverage.counts("used_once") for coverage in trainer.coverage],
                "held_out": measured.coverage.counts("in_metric_once") if measured else None,
            },
        }


def _plain(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON has it: what is not finite becomes null, what is no number becomes text."""
    return {name: _plain_value(value) for name, value in metrics.items()}


def _plain_value(value: Any) -> float | str | None:
    if isinstance(value, (int, float)):
        return value if math.isfinite(value) else None
    return None if value is None else str(value)
