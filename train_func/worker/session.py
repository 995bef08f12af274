"""Session: what train_func works with: the ranks, the store, the model, the data, the plan, and publishing.

Every method is to be called on every rank. What loads, plans, restores or publishes a Trainer succeeds on all ranks or
raises on all of them. A fault of one rank alone, as in ``report`` or in the rows of a step, is raised there, and the
supervisor ends the others. A function that was not submitted, as one that is called in a notebook, has a Session too:
its run is made of its call.
"""

import inspect
import itertools
import os
import shutil
import socket
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from datasets import Dataset
from torch import nn

from train_func.errors import InvalidInput
from train_func.run import RECORD_KEY
from train_func.storage import Store, open_store
from train_func.wire.events import Reported, Resumes, Stage
from train_func.wire.layout import RUN, home
from train_func.wire.records import Numerics, RunRecord
from train_func.wire.result import complete
from train_func.worker import context, numerics
from train_func.worker.checkpoint.checkpointing import Checkpointing
from train_func.worker.context import Context
from train_func.worker.hf_trainer_guard import guard, is_trainer
from train_func.worker.inputs.cache import machine_cache
from train_func.worker.ledger import Ledger
from train_func.worker.loading import Loading
from train_func.worker.publish import module
from train_func.worker.publish.publication import Publication, delete_checkpoints
from train_func.worker.rank import end, folders, marks, reporting, world
from train_func.worker.rank.json_values import report_arguments
from train_func.worker.rank.marks import Phase
from train_func.worker.store_wait import RECORD_SECONDS
from train_func.worker.training import audit, own_loop
from train_func.worker.training.loader import seed_all
from train_func.worker.training.own_loop import OwnState
from train_func.worker.training.plan import build_plan, lengths_of
from train_func.worker.training.steps import Step

if TYPE_CHECKING:
    from train_func.worker.trainers import Trainers

TENSORBOARD = "TENSORBOARD_LOGGING_DIR"  # by which transformers asks where to write
ATTEMPT = 1  # of every call, which is a generation of its own


def record_of(parameters: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[RunRecord, bool]:
    """The record inside the parameters of train_func, and whether it was called without a launcher.

    Raises:
        InvalidInput: when ``parameters`` are no Run, or several processes, or a pod, have no store to publish to.
    """
    if (job := environment.get("TRAIN_FUNC_JOB_DIR")) and RECORD_KEY not in parameters:
        return RunRecord.from_json(Path(job, RUN).read_bytes(), RUN), False  # it gave its parameters as they are
    record = RunRecord.from_parameters(parameters, environment.get("TRAIN_FUNC_STORE", ""))
    launched = "RANK" in environment or "TRAIN_FUNC_ATTEMPT" in environment
    if not record.store and launched:
        raise InvalidInput(
            "session.publish needs a store, and this run has none: submit it, or set TRAIN_FUNC_STORE for every "
            "process, for example to file:///tmp/models (a folder inside a pod is gone with the pod)"
        )
    is_call = not launched and (not record.source_sha256 or not record.store)
    return (record if record.store else replace(record, store=(home(environment) / "store").as_uri())), is_call


def begin_call(store: Store, record: RunRecord, *, is_call: bool) -> tuple[RunRecord, int]:
    """The record and the number of an attempt that no supervisor has begun.

    Raises:
        InvalidInput: the run has a result already.
    """
    if is_call:
        return claim_attempt(store, record), ATTEMPT
    if complete(store, record):
        raise InvalidInput(
            f"{record.name} has a result in {store.address} already: fetch the model from {record.keys.model} there, "
            "or train a new generation with fresh=True"
        )
    return record, Ledger(store, record, worker=0, pod=socket.gethostname()).claim().attempt


def claim_attempt(store: Store, record: RunRecord) -> RunRecord:
    """The record with the next unused generation, so that a call neither finds nor replaces a result."""
    for generation in itertools.count(1):
        own = replace(record, generation=generation)
        if store.names(own.keys.prefix):
            continue
        if Ledger(store, own, worker=0, pod=socket.gethostname()).claim().attempt == ATTEMPT:
            reporting.note(
                f"train_func was called without a launcher: one rank, generation {generation}; it publishes to "
                f"{store.address}/{own.keys.model}"
            )
            return own
    raise AssertionError("numbers do not end")


class Session:
    """``with Session(parameters) as session:`` inside train_func, on every rank.

    Without a launcher it is a world of one rank, so that the function can be called as it is:
    ``train_func({**run.to_dict(), **run.parameters})``. Each such call is a generation of its own, and says where it
    publishes: in the store that TRAIN_FUNC_STORE names, else in the folder ``store`` of TRAIN_FUNC_HOME.
    """

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        """Raises InvalidInput when these are not the parameters that train_func was called with.

        Under another launcher, such as torchrun, they may be a plain dict of Run's fields; TRAIN_FUNC_STORE then names
        the store, and has to.
        """
        self.record, self._is_call = record_of(parameters or {}, world.environment())
        run = self.record.run
        self.run = replace(run, task=run.task and run.task.load())
        self._own_state: OwnState | None = None
        self._of_loop: dict[str, Any] = {}  # what is published with a model of the last loop over the steps
        self._own_loop: weakref.ref[Generator[Any, Any, Any]] | None = None  # not held: to end where it is left

    def __enter__(self) -> Self:
        end.here.opened = True
        with ExitStack() as opening:  # what is open already is closed again when the rest cannot be
            self._enter(opening, world.environment())
            self._open = opening.pop_all()
        opened = f"session run={self.record.name} attempt={self.attempt} world_size={self.world_size}"
        world.log_rank0(Stage(text=f"{opened} device={self.device} threads={torch.get_num_threads()}"))
        return self

    def _enter(self, opening: ExitStack, environment: Mapping[str, str]) -> None:
        self.world = world.World.from_environment(environment)
        if self.world.init_process_group():
            opening.callback(world.destroy_process_group)
        if threads := environment.get("OMP_NUM_THREADS"):
            torch.set_num_threads(int(threads))
        self._work = Path(tempfile.mkdtemp(prefix="session-", dir=environment.get("TRAIN_FUNC_WORK_DIR")))
        opening.callback(shutil.rmtree, self._work, ignore_errors=True)
        if TENSORBOARD not in environment:
            os.environ[TENSORBOARD] = str(Path(environment.get("TRAIN_FUNC_WORK_DIR", ""), folders.RUNS))
            opening.callback(os.environ.pop, TENSORBOARD)
        cache = machine_cache(environment)
        cache.mkdir(parents=True, exist_ok=True)
        self.store: Store = open_store(self.record.store)

        def attempt() -> int:
            if given := environment.get("TRAIN_FUNC_ATTEMPT"):
                return int(given)
            self.record, number = begin_call(self.store, self.record, is_call=self._is_call)
            return number

        self.attempt: int = world.on_rank_zero(attempt)
        folder = Path(environment.get("TRAIN_FUNC_WORK_DIR") or self._work)
        is_supervised = "TRAIN_FUNC_OUTCOME_FILE" in environment
        self._publication = Publication(folder, self.store, self.record, self.attempt, is_supervised=is_supervised)
        self._loading = Loading(self.record, self.store, cache)
        num_ranks = max(self.run.workers * self.world.local_size, self.world_size)
        devices = world.gather(numerics.device_here())
        self.numerics: Numerics = world.on_rank_zero(
            lambda: numerics.numerics_of(self.record, self.store, self.attempt, devices, num_ranks)
        )
        context.here = Context(
            world.on_all_ranks(lambda: self._loading.task if self.run.task else None),
            None if self._is_call else self._begin_training,  # of a call none would be found again
            lambda: self._trainers,
        )
        opening.callback(setattr, context, "here", Context())
        opening.enter_context(guard())
        opening.callback(marks.mark, Phase.OUTSIDE)  # also where an error has left the steps
        seed_all(self.run.seed)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._open:  # closes it in any case, and waits for no other rank, which may have failed
            if self.rank == 0 and error is None:
                self._publication.finish()
            if self._is_call:  # none finds its checkpoints again
                if self._own_loop and (loop := self._own_loop()):
                    loop.close()  # the function holds it: it would save what it has begun
                delete_checkpoints(self.store, self.record, RECORD_SECONDS)

    @cached_property
    def _trainers(self) -> "Trainers":
        """Made when a Trainer trains or is published: a loop of one's own does not wait for transformers' import."""
        from train_func.worker.trainers import Trainers

        return Trainers(self.store, self.record, self.attempt, self._work, self._loading, self._publication)

    def _begin_training(self, made_of: Mapping[str, Any]) -> Checkpointing:
        """Collective. Trainings are numbered over all sessions of a function: each has its own checkpoints."""
        number, end.here.num_trainings = end.here.num_trainings, end.here.num_trainings + 1
        if number:
            world.log_rank0(Stage(text=f"training {number + 1} of the function", training=number))
        return Checkpointing(
            self.store,
            self.record,
            self.attempt,
            number=number,
            made_of={**made_of, "precision": self.numerics.precision},  # not the cut: a finer one goes on as well
            folder=self._work / "checkpoint" / str(number),
        )

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
        """Returns the model, with a head for the labels of the data, and its tokenizer or processor.

        The model is the same on all ranks. It is None if the task names none, because the function makes its own.
        """
        return self._loading.model(self.numerics.precision)

    def data(self, tokenizer: Any) -> tuple[Dataset, Dataset]:
        """Returns all training and all held-out rows, tokenised, the same on all ranks. ``row_id`` identifies a row."""
        return self._loading.data(tokenizer)

    def input(self, name: str) -> Path:
        """Returns the path of the input of that name in ``inputs`` of the Run."""
        return self._loading.input(name, world.environment(), self._work)

    def plan(self, train: Dataset) -> Dataset:
        """Returns the micro-batches of all epochs over ``train``, any ``datasets.Dataset``. Split it by rank once.

        Epochs, batch size and seed are those of the Run.

        Raises:
            InvalidInput: (cause "code", on every rank) when the ranks hold different rows, or none by number, or a
                global batch has too few for all ranks.
        """
        numerics.check_ranks(self.record, self.world_size)
        audit.check_rows_alike(train, self._loading.train_ids, "training")
        lengths, batch_size = lengths_of(train), self.run.batch_size
        return build_plan(
            train,
            lengths,
            seed=self.run.seed,
            num_epochs=self.run.epochs,
            batch_size=batch_size,
            micro_batch_size=self.numerics.micro_batch_size or batch_size,
            num_micro_batches=numerics.num_micro_batches(self.numerics, lengths, batch_size, self.world_size),
            world_size=self.world_size,
        )

    def steps(
        self,
        plan: Dataset,
        collate: Callable[[list[dict[str, Any]]], Any] | None = None,
        *,
        shifts_labels: bool | None = None,
    ) -> Iterable[Step]:
        """The optimizer's steps of a loop of your own over this rank's part of a plan::

            plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
            for step in session.steps(plan):
                for batch, weight in step:
                    (weight * loss_of(model, batch)).backward()
                optimizer.step(), optimizer.zero_grad()  # every gradient is the sum over all ranks

        After every epoch each row has been given once. A batch is a dict of columns, of which those of
        numbers, and of lists of one length, are tensors; of the rows of ``session.data`` it may be what the task makes.
        ``collate`` makes another batch of rows, which are dicts. BatchNorm layers of models that ``session.checkpoint``
        was given keep the running statistics of all ranks, the same at any number of them.

        ``shifts_labels``: whether the loss compares each token with the label of the next, as that of a causal language
        model does; the first label of a row does not count then. The models of transformers that
        ``session.checkpoint`` was given tell it by themselves, where the labels are the tokens.

        Raises:
            InvalidInput: (cause "code", on every rank) when ``plan`` was not split once, is not the one that the
                checkpoint was saved with, rows were left out, or labels may be shifted and nothing tells whether they
                are; on one rank, when rows cannot be made a batch. (cause "divergence", on every rank) when the
                optimizer has updated weights with gradients that are not finite; names the step and the ranks.
        """
        state, self._own_state = self._own_state, None
        if state is None and self.run.min_workers is not None:
            raise InvalidInput(
                f"min_workers={self.run.min_workers}: nothing saves this loop, so it would begin anew whenever a "
                "worker is lost or comes: call session.checkpoint(model, optimizer) before session.steps",
                cause="code",
            )
        if state is None and self.attempt > 1:
            why = "no attempt saves this loop, because session.checkpoint was not called before it"
            world.log_resumption(Resumes(step=0, attempt=self.attempt, why=why))

        def begin() -> Generator[Step, None, None]:
            of_task, report = self._loading.collator, self._of_loop.update
            loop = own_loop.steps(
                plan, self.device, collate, state, of_task, shifts_labels=shifts_labels, report=report
            )
            self._own_loop = weakref.ref(loop)
            return loop

        return own_loop.Loop(begin)

    def checkpoint(self, *objects: Any, **named: Any) -> None:
        """Names what the next ``session.steps`` saves, and restores it from the newest checkpoint.

        Give models, optimizers, schedulers, and whatever else has ``state_dict`` and ``load_state_dict``. After a
        restart the loop goes on with the step behind that checkpoint::

            session.checkpoint(model, optimizer)
            for step in session.steps(plan):

        Gradients that no optimizer has used are saved too, for a loop that updates its weights every few steps: also
        where it updates them by hand, which takes the room of another model unless they are None behind each step.
        Gradients that an optimizer has used are not: a loop that adds to them all the same goes on with other bits.

        Raises:
            InvalidInput: (cause "code", on every rank) naming those without such methods; (on the rank that calls it)
                when it is called within the loop, or again before it.
            StorageFailed: reason "damaged" when there are checkpoints, and none can be used.
        """
        loop = self._own_loop() if self._own_loop else None
        state = inspect.getgeneratorstate(loop) if loop else None
        del loop  # a traceback would keep it
        if state in (inspect.GEN_SUSPENDED, inspect.GEN_RUNNING):
            raise InvalidInput(
                "session.checkpoint was called within the loop of session.steps: call it before the loop, with what is "
                "to be saved; the loop saves it as often as Run(checkpoint_every=...) says",
                cause="code",
            )
        if self._own_state:
            raise InvalidInput(
                "session.checkpoint was called again before session.steps, which saves the objects of one call: give "
                "all of them to one, as in session.checkpoint(model, optimizer)",
                cause="code",
            )
        numbered = {str(number): of for number, of in enumerate(objects)}
        self._own_state = OwnState(self._begin_training, {**numbered, **named}, self.device)

    def report(self, step: int, **metrics: Any) -> None:
        """Reports the metrics of a step: ``watch`` shows them and ``job.history()`` keeps them. Only rank 0 counts.

        Args:
            step: number of the step, from 1.
            metrics: numbers, or tensors and arrays that hold one; nan and inf too.

        Raises:
            InvalidInput: (cause "code") naming all that are no numbers.
        """
        number, found = report_arguments(step, metrics)
        world.log_rank0(Reported(step=number, metrics=found))

    def arguments(self, **own: Any) -> dict[str, Any]:
        """Returns the arguments that the run, the plan and the machine decide, together with ``own``.

        Use it as in ``TrainingArguments(**session.arguments(save_strategy="epoch", ...))``.

        Raises:
            InvalidInput: (cause "code") naming each of ``own`` that is decided already.
        """
        from train_func.worker.training.arguments import session_arguments

        return session_arguments(self._work, self.run, self.numerics, own, is_launched=self.world.launched)

    @marks.within(Phase.OUTSIDE)
    def publish(self, what: Any, metrics: Mapping[str, Any] | None = None) -> None:
        """Publishes files as the result of the run; called again, it adds further ones.

        They go to the store at once, and are the result when the function has ended on all ranks. A store that is away
        is waited for, up to 15 minutes or the deadline.

        Publish a Trainer on every rank, after ``trainer.train()`` has returned. From then on the model is not lost
        however the function ends. If its metrics cannot be computed, the model is published without them, and a note
        says why.

        Args:
            what: a Trainer; or, of rank 0, a ``torch.nn.Module``, a state dict, an object with ``save_pretrained``, a
                file, a folder, or a list of those. A model replaces the one that was published before it, and what
                was measured of it.
            metrics: plain JSON, published beside those of a Trainer. They stay where another model replaces this one.

        Raises:
            InvalidInput: when it cannot be published, training has not come to its end, or the ranks have not trained
                one model; on rank 0 alone where it is no Trainer.
            StorageFailed: what the store says.
        """
        is_model = True
        if is_trainer(what):
            self._trainers.publish(what, metrics)
        elif self.rank == 0:
            write, is_model = module.writer(what, self.record)
            self._publication.add(write, is_model=is_model, card=self._loading.card_part())
            if is_model:
                self._publication.report(self._of_loop)
            if isinstance(what, nn.Module):
                is_measurable = self._loading.held_out is not None
                note = self._trainers.difference_of_module(module.bare(what)) if is_measurable else None
                self._publication.report({"note": note or ""})
            if metrics:
                self._publication.add_metrics(metrics)
        end.here.note_published(is_model=is_model)
