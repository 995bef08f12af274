"""A state is tensors and plain values: what else is in it is refused by its place, at the first checkpoint."""

from dataclasses import dataclass

import pytest
import torch
from datasets.distributed import split_dataset_by_node
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import ExportableState

from tests.distributed import small
from tests.faults.trainings import record_of
from tests.messages import unnamed
from train_func.errors import InvalidInput
from train_func.storage import open_store
from train_func.wire.exits import CODE, exit_of
from train_func.worker import Session, Trainer
from train_func.worker.checkpoint.state import State


@dataclass
class Point:
    x: float = 0.5


class Several(int):
    pass


REFUSED = {
    "a set": {1, 2},
    "an object": Point(),
    "a class": Point,
    "a number of a class of its own": Several(3),
    "a sparse tensor": torch.eye(3).to_sparse(),
}
# Where it is, and how that is called.
PLACES = {
    "state": lambda of: of,
    "state.kept": lambda of: {"whole": [1], "kept": of},
    "state.layers.1.2.kept": lambda of: {"layers": [0, (torch.ones(3), None, {"kept": of})]},
    "state.('layer', 1)": lambda of: {("layer", 1): of, 2: 3},
}


@pytest.mark.parametrize("place", [*PLACES])
@pytest.mark.parametrize("what", sorted(REFUSED))
def test_what_is_neither_a_tensor_nor_plain_is_refused_by_its_place_and_kind(what, place):
    with pytest.raises(InvalidInput) as refused:
        State.of(PLACES[place](REFUSED[what]), "state")
    (fault,) = refused.value.faults
    assert fault.startswith(f"{place} is a ")
    assert type(REFUSED[what]).__name__ in fault
    assert exit_of(refused.value).code == CODE


def test_all_that_cannot_be_kept_is_named_at_once():
    with pytest.raises(InvalidInput) as refused:
        State.of({"a": {1}, "b": [Point()], "c": 7, ("key", 3): {2}}, "state")
    places = [fault.split(" is a ")[0] for fault in refused.value.faults]
    assert sorted(places) == ["state.('key', 3)", "state.a", "state.b.0"]


def test_the_header_of_a_file_which_may_have_100_mb_does_not_grow_with_plain_values(tmp_path):
    """As a history of all steps, or the texts that are the ids of rows."""
    state = State.of({"ids": "x" * 1_000_000, "weight": torch.ones(3)}, "state")
    state.write(tmp_path / "state.safetensors")
    assert int.from_bytes((tmp_path / "state.safetensors").read_bytes()[:8], "little") < 1000
    for again in (State.read(tmp_path / "state.safetensors", "a state"), State.from_bytes(state.to_bytes())):
        assert again.plain == state.plain
        assert torch.equal(again.whole()["weight"], torch.ones(3))
        assert [*again.tensors] == [*state.tensors]


class Keeps(TrainerCallback, ExportableState):
    """A callback whose state transformers can save, and a checkpoint cannot."""

    def state(self):
        return {"args": {}, "attributes": {"num": 3, "points": [Point()]}}


class Holds:
    """An object of an own loop whose state is not plain."""

    def state_dict(self):
        return {"num": 3, "seen": {1, 2}}

    def load_state_dict(self, state):
        raise AssertionError("nothing was saved")


def with_trainer(session, plan, steps):
    class Tells(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)

    arguments = TrainingArguments(**{**session.arguments(), "bf16": False})
    parts = {"data_collator": small.collate_and_mask, "callbacks": [Tells(), Keeps()]}
    Trainer(model=small.model(dropout=0.1), args=arguments, train_dataset=plan, **parts).train()


def with_own_loop(session, plan, steps):
    model = small.model(dropout=0.1)
    session.checkpoint(model, holds=Holds())
    for step in session.steps(plan, small.collate_and_mask):
        for batch, weight in step:
            (weight * model(**batch).loss).backward()
        steps.append(step.number)


@pytest.mark.parametrize(
    ("trains", "done", "named"),
    [
        (with_trainer, [1], ("callbacks.Keeps[", ".points.0 is a ", "Point")),
        (with_own_loop, [], ("holds.seen is a ", "set")),
    ],
)
def test_a_training_whose_state_cannot_be_kept_is_refused_at_its_first_step(tmp_path, monkeypatch, trains, done, named):
    monkeypatch.chdir(tmp_path)
    record, steps = record_of(tmp_path, workers=1), []
    (tmp_path / "store").mkdir()
    with pytest.raises(InvalidInput) as refused, Session({"train_func": record.to_dict()}) as session:
        trains(session, split_dataset_by_node(session.plan(small.rows(101)), 0, 1), steps)
    assert steps == done
    assert refused.value.cause == "code"
    assert unnamed(refused.value, *named, "leave it out of the state") == []
    assert not [of for of in open_store(record.store).list("a-run/") if of.key.endswith("manifest.json")]
