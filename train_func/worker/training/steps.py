"""Steps: the one way in which a training goes through its plan, whether a Trainer trains or a loop of one's own.

A step of the optimizer is one global batch, of which every rank has some micro-batches. Between two steps nothing of a
step is under way, so there, and only there, a training is saved, stopped and gone on with:

- Before a step each rank loads its micro-batches and counts their items. One all-reduce adds the counts up over the
  ranks, and with them the votes of the ranks: to save, to stop, and what the training itself wants to be counted. All
  ranks know the sums, so they all save or stop between the same two steps, and no exchange is made for that alone. In
  front of the first step of an epoch nothing is decided: the end of the epoch before has its own exchange.
- Each micro-batch has a weight: its items (labels, or rows) over those of the global batch. The sum of the weighted
  means is the mean over the global batch, however it is cut and dealt, and its gradients are added in one order, so
  that they are the same bits at any number of ranks (see sums).
- What is drawn in a forward pass is seeded by the place of the micro-batch, and BatchNorm's statistics are merged in
  the order of the plan, so neither depends on the number of ranks.
- The ids of the rows are noted where a micro-batch is used, not where it is loaded. After an epoch the ranks count
  them together: every row once, or the training ends.
- A checkpoint holds the place (the epoch, how many of its steps are done), the rows used in the epoch, and every
  generator of random numbers as it is behind the loading of the next step. Going on means to load from that place, in
  constant time, and to put the generators back behind that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from datasets import Dataset
from torch import nn

from train_func.errors import InvalidInput, TrainFuncError
from train_func.worker.checkpoint.checkpointing import Checkpointing, Parts, Resumption
from train_func.worker.rank import end, marks, world
from train_func.worker.rank.marks import Phase
from train_func.worker.training import audit, weights
from train_func.worker.training.audit import Coverage
from train_func.worker.training.batch_norm import BatchStatistics
from train_func.worker.training.loader import PlanLoader, random_state, restore_random, seed_for
from train_func.worker.training.plan import Place, PlanFacts, row_ids_of, rows_of
from train_func.worker.training.sums import Node, Sums
from train_func.worker.training.weighing import Items


class Control(Protocol):
    """How a training is ended before its plan is; transformers' TrainerControl is one. Each rank sets its own flags."""

    should_training_stop: bool
    should_epoch_stop: bool


@dataclass(frozen=True)
class MicroBatch:
    """A batch of this rank, as the loop gets it, and what the step knows of it."""

    batch: Any
    place: Place
    num_items: int
    """Number of items of the loss, those of a filler included."""

    @property
    def weight(self) -> int:
        """Items that count in the step; none of a row that only fills a rank's place in a small batch."""
        return self.num_items if self.place.row_ids else 0


def micro_batch_of(place: Place, batch: Any, items: Items) -> MicroBatch:
    """Counts the items of a batch, which may be of any class. Raises what the collator has raised in its place."""
    if isinstance(batch, TrainFuncError):
        raise batch
    inputs = batch if isinstance(batch, Mapping) else {}
    return MicroBatch(batch, place, items.count(inputs, num_rows=len(place.row_ids) or 1))


@dataclass(frozen=True)
class Step:
    """One step of the optimizer; iterated over once, it gives this rank's micro-batches and their weights.

    The weights of all ranks together add up to 1. They make the sum of ``weight * loss`` over all micro-batches the
    mean over the global batch, where each loss is the mean over its micro-batch: over its labelled tokens where the
    batch has ``labels`` of tokens, else over its rows. A loss that shifts the labels leaves out the first of each row.
    The weight is 0 for rows that only fill a rank's place in a small batch. Behind the last micro-batch every ``.grad``
    is the sum over all micro-batches of all ranks.
    """

    number: int
    """Number of the step, from 1, over all epochs."""
    epoch: int
    """Epoch, from 1."""
    num_rows: int
    """Number of rows of the global batch."""
    weight: int = field(repr=False)
    """Items of the global batch, over all ranks."""
    runs: Sequence[Node] = field(repr=False)
    """The micro-batches that each rank has."""
    parts: Sequence[MicroBatch] = field(repr=False)
    _steps: "Steps" = field(repr=False)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        if self._steps.begun == self.number:
            raise InvalidInput(
                f"step {self.number} of session.steps is gone through twice. Its rows count once, and its gradients "
                "are summed where `for batch, weight in step` ends: do within that all that needs its batches",
                cause="code",
            )
        self.begin()
        for part in self.parts:
            marks.mark(Phase.OWN)
            self._steps.use(part)
            batch = part.batch
            if not part.num_items and isinstance(batch, Mapping):
                batch = self._steps.items.with_labels(copy(batch))  # whose loss counts nothing, and would be nan
            with self.adding(part), self._steps.computing(part):
                yield batch, self.share(part)
        self._steps.is_infinite = self._steps.sums.is_infinite()
        self.end()

    def begin(self) -> None:
        """Begins the step, before its first micro-batch."""
        self._steps.begun = self.number
        self._steps.sums.begin(self.runs)

    def check_used(self) -> None:
        """Raises InvalidInput (cause "code") when no micro-batch of it was used."""
        if self._steps.begun != self.number:
            raise InvalidInput(
                f"step {self.number} of session.steps was not gone through, and every row counts once per epoch: use "
                "`for batch, weight in step` in each step",
                cause="code",
            )

    def adding(self, part: MicroBatch) -> AbstractContextManager[None]:
        """Surrounds all that gives gradients for a micro-batch."""
        return self._steps.sums.micro_batch(part.place.micro, counts=self.counts(part))

    def is_last(self, part: MicroBatch) -> bool:
        """Returns whether no other micro-batch of this rank comes behind it."""
        return part is self.parts[-1]

    def counts(self, part: MicroBatch) -> bool:
        """Returns whether its gradients count. In a step without any item the first one's do, which are zeros."""
        return bool(part.weight) or (not self.weight and part.place.micro == 0)

    def share(self, part: MicroBatch) -> float:
        """Returns what the mean loss of this micro-batch is multiplied by: its items over those of the global batch."""
        return part.weight / max(self.weight, 1)

    def mean(self, losses: Sequence[tuple[MicroBatch, torch.Tensor]], device: torch.device) -> float:
        """Collective: the mean loss over the global batch, of the means over micro-batches; added up in their order."""
        vector = torch.zeros(max(end for _, end in self.runs), dtype=torch.float64, device=device)
        for part, loss in losses:
            vector[part.place.micro] = loss.double() * part.weight
        losses_of_parts: list[float] = world.total(vector).tolist()
        return sum(losses_of_parts) / max(self.weight, 1)

    def end(self) -> None:
        """Collective, behind the last micro-batch."""
        self._steps.sums.end()
        self._steps.statistics.merge()
        self._steps.count(self)


class Steps:
    """The steps of one training over this rank's part of a plan; see above.

    Collective are ``of_epoch``, ``end_epoch``, ``meet`` and ``save_before``.
    """

    def __init__(
        self,
        part: Dataset,
        facts: PlanFacts,
        *,
        items: Items,
        models: Sequence[nn.Module],
        device: torch.device,
        statistics: BatchStatistics,
        sums: Sums,
        checkpointing: Checkpointing | None,
        parts: Callable[[], Parts] | None,
        restored: Resumption | None,
        control: Callable[[], Control] | None = None,
    ) -> None:
        """``models`` are not saved when they are not finite; ``parts``: the state between two steps, without what is
        known here; ``control``: on which this rank votes, if it can."""
        self.facts, self.statistics, self.items, self.sums = facts, statistics, items, sums
        self._models, self._device = models, device
        self._checkpointing, self._own_parts, self._control = checkpointing, parts, control
        self._expected = row_ids_of(rows_of(part))
        self.loop = end.Loop(facts.num_epochs * facts.steps_per_epoch, 0)
        self.begun = 0
        """The number of the step that was begun last."""
        self.epoch = self.num_done = 0
        """The epoch under way, from 0, and how many steps of it are done."""
        self.is_broken_off = self._is_ended = False
        """Whether a vote has ended the epoch early, and whether one has ended the training."""
        self.coverage: list[Coverage] = []
        """How the rows of each epoch were used that was gone through to its end."""
        self.is_infinite: bool | torch.Tensor = False
        """Whether gradients of this rank in the last step were not finite, if it was looked at."""
        self._used: list[Any] = []
        self._random: Any = None
        if restored:
            training = restored.training
            self.loop.num_done, self.epoch, self.num_done = restored.step, training["epoch"], training["num_steps"]
            self.coverage = [Coverage(**of) for of in training["coverage"]]
            self._used = [row for of in (restored.rank, *restored.lost) for row in of["used"]]
            self._random = restored.rank["random"]
        marks.begin(self.done)

    @property
    def done(self) -> int:
        """Steps, over all epochs."""
        return self.loop.num_done

    @property
    def num_epochs_done(self) -> float:
        """Epochs that were gone through or ended early, with the part of the one that is under way."""
        return self.epoch + self.num_done / self.facts.steps_per_epoch

    @property
    def is_over(self) -> bool:
        """Returns whether no epoch is left."""
        return self.epoch == self.facts.num_epochs

    def restore_random(self) -> None:
        """Puts the generators back as they were saved, once."""
        if self._random:
            restore_random(self._random)
        self._random = None

    def keep_random(self) -> None:
        """Has the generators put back as they are now, where the training goes on."""
        self._random = random_state()

    def of_epoch(self, loader: PlanLoader) -> Iterator[Step]:
        """The steps of the epoch that are left; saves and stops between two of them, where that was voted for."""
        self.is_broken_off = False
        if not self.num_done:
            self.restore_random()
        accumulation = self.facts.accumulation
        loader.sampler.epoch, loader.sampler.skipped = self.epoch, self.num_done * accumulation
        batches = iter(loader)
        while self.num_done < self.facts.steps_per_epoch:
            with marks.loading:
                parts = [micro_batch_of(place, batch, self.items) for place, batch in islice(batches, accumulation)]
            weight, runs, to_save, to_end = self._exchange(parts)
            self.restore_random()
            if self.num_done:
                self._save(to_save)
                self.is_broken_off = self._ends(to_end)
                if self.is_broken_off:  # no optimizer's step comes next, which would wait for the copy
                    self.before_update()
                    return
            step = Step(self.done + 1, self.epoch + 1, parts[0].place.batch_rows, weight, runs, parts, self)
            yield step
            self.count(step)  # also where the loop has left it in its middle

    def _exchange(self, parts: Sequence[MicroBatch] = ()) -> tuple[int, list[Node], list[int], list[int]]:
        """The sums over all ranks: of the weights, of the votes to save and stop, and of those to end; and the run of
        micro-batches that each rank has.

        Raises:
            InvalidInput: (cause "divergence", on every rank) gradients of the last step were not finite, and it has
                made weights of them.
        """
        to_save = self._checkpointing.votes() if self._checkpointing else []
        own = self._control() if self._control else None
        to_end = [int(own.should_training_stop), int(own.should_epoch_stop)] if own else []
        numbers = [part.place.micro for part in parts if part.place.row_ids]
        runs = [0, 0] * world.size()
        runs[2 * world.rank() : 2 * world.rank() + 2] = (numbers[0], numbers[-1] + 1) if numbers else (0, 0)
        infinite = [0] * world.size()
        votes = torch.tensor(
            [*infinite, sum(part.weight for part in parts), *runs, *to_save, *to_end], device=self._device
        )
        if self.is_infinite is not False:
            votes[world.rank()] = self.is_infinite
            self.is_infinite = False
        counts = iter(world.total(votes).tolist())
        ranks = [rank for rank, count in enumerate(islice(counts, len(infinite))) if count]
        if ranks:  # else no weight is looked at
            weights.check_update(self.sums.trained, self.done, ranks)
        weight, runs, to_save = next(counts), [*islice(counts, len(runs))], [*islice(counts, len(to_save))]
        return weight, [*zip(runs[::2], runs[1::2], strict=True)], to_save, [*counts]

    def _ends(self, counts: Sequence[int]) -> bool:
        """Returns whether the epoch ends here: a flag that any rank has set is set on all of them."""
        if self._control is None:
            return False
        control, (training, epoch) = self._control(), map(bool, counts)
        control.should_training_stop, control.should_epoch_stop = training, epoch
        self._is_ended = training
        return training or epoch

    def use(self, part: MicroBatch) -> None:
        """Notes that the rows of a micro-batch are used."""
        self._used.extend(part.place.row_ids)

    def computing(self, part: MicroBatch) -> AbstractContextManager[None]:
        """Surrounds forward and backward of a micro-batch, which are seeded by its place."""
        seed_for("forward", self.facts.seed, part.place.step, part.place.micro)
        return self.statistics.micro_batch(part.place.micro, counts=bool(part.weight))

    def count(self, step: Step) -> None:
        """Says that a step is done."""
        self.loop.num_done = step.number
        self.num_done = step.parts[0].place.step % self.facts.steps_per_epoch + 1

    def end_epoch(self) -> None:
        """Counts the rows of the epoch, behind its last step.

        Raises:
            InvalidInput: (cause "code", on every rank) when not every row was used once.
        """
        self.restore_random()  # where the epoch was gone on with behind its last step
        if self.is_broken_off:
            world.note(f"a callback ended epoch {self.epoch + 1} early, so its rows are not counted")
        else:
            used = np.asarray(self._used, dtype=self._expected.dtype)
            self.coverage.append(audit.check_epoch(self.epoch + 1, self._expected, used))
        self._used = []
        self.epoch, self.num_done = self.facts.num_epochs if self._is_ended else self.epoch + 1, 0

    def meet(self) -> None:
        """Between two epochs: saves and stops, where that was voted for, and in any case saves the end."""
        _, _, to_save, to_end = self._exchange()
        self._ends(to_end)
        if self._is_ended:
            self.epoch = self.facts.num_epochs
        self._save(to_save)
        self.before_update()  # what comes next may change the weights

    def _save(self, counts: Sequence[int]) -> None:
        if self._checkpointing:
            self._checkpointing.decide(counts, self.done, self._parts, is_over=self.is_over)

    def save_before(self, seconds: float, pending: Sequence[str]) -> None:
        """Saves before an evaluation of ``seconds``, where it is worth it.

        ``pending``: the actions that come first when a training resumes from there.
        """
        if self._checkpointing:
            self._checkpointing.save_before(seconds, self.done, partial(self._parts, pending))

    def _parts(self, pending: Sequence[str] = ()) -> Parts:
        weights.check_finite(self._models, f"After step {self.done}, ")
        own = self._own_parts() if self._own_parts else Parts({}, {})
        place = {"plan": self.facts.identity, "epoch": self.epoch, "num_steps": self.num_done, "pending": [*pending]}
        training = {**own.training, **place, "coverage": [asdict(of) for of in self.coverage]}
        used = np.asarray(self._used)  # numbers are kept as an array
        used_ids = used if used.dtype.kind in "iu" else self._used
        rank = {**own.rank, "used": used_ids, "random": random_state()}
        return replace(own, training=training, rank=rank)

    def before_update(self) -> None:
        """Waits until the state that is being saved was copied; called before anything changes the weights."""
        if self._checkpointing:
            self._checkpointing.before_update()
