"""A loop of one's own: the batches that session.steps gives, and the state that session.checkpoint keeps."""

import copy
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from datasets import Dataset
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ConstantLR,
    CosineAnnealingLR,
    LambdaLR,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)
from transformers import BatchEncoding, LlamaConfig, LlamaForCausalLM

from tests.distributed import small
from tests.distributed.weighing import state_of
from tests.messages import refuses, unnamed
from train_func import InvalidInput
from train_func.worker.rank import end, reporting
from train_func.worker.training import own_loop
from train_func.worker.training.loader import seed_all
from train_func.worker.training.own_loop import OwnState
from train_func.worker.training.plan import ROW_ID, build_plan, facts_of, lengths_of

NUM_ROWS = 7
COLUMNS = {
    "x": [[i / 4, 1.0] for i in range(NUM_ROWS)],
    "grid": [[[i, 0], [0, i]] for i in range(NUM_ROWS)],
    "y": [float(i) for i in range(NUM_ROWS)],
    "label": list(range(NUM_ROWS)),
    "text": [f"row {i}" for i in range(NUM_ROWS)],
}


@pytest.fixture(autouse=True)
def told(monkeypatch):
    """What was said."""
    told = []
    monkeypatch.setattr(reporting, "_sink", [told.append])
    return told


def plan_of(rows):
    return small.plan(rows, 3, 2, 2, seed=1)


def saved(state, *, is_own=True):
    """What another attempt restores of it, or another run."""
    return SimpleNamespace(training=copy.deepcopy(state.parts().training), is_own=is_own)


def test_an_optimizer_that_accelerate_has_prepared_is_kept_and_restored():
    """It is an Optimizer by its class, and none by what it holds."""
    accelerator, kept, kinds = Accelerator(cpu=True), {}, []

    def trained(make=torch.optim.Adam):
        model = torch.nn.Linear(2, 1)
        optimizer = accelerator.prepare(make(model.parameters()))
        checkpointing = SimpleNamespace(restore=lambda device: kept.get("restored"))
        objects = {"model": model, "optimizer": optimizer}

        def begin(made):
            kinds.append(made)
            return checkpointing

        return model, optimizer, OwnState(begin, objects, torch.device("cpu"))

    trained(torch.optim.AdamW)
    model, optimizer, state = trained()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    kept["restored"] = saved(state)
    other, again, _ = trained()
    assert torch.equal(other.weight, model.weight)
    assert again.state_dict()["state"][0]["step"] == 1
    assert kinds[0] != kinds[1] == kinds[2]  # so that a run is refused the checkpoint of another kind by name


def falls(step):
    return (10 - step) / 10


def prepared(optimizer):
    return Accelerator(cpu=True).prepare(optimizer, LambdaLR(optimizer, falls))[1]


def rate_of(optimizer):
    return optimizer.param_groups[0]["lr"]


class ByHand:
    """Lowers the rate without a schedule of torch."""

    def __init__(self, optimizer):
        self._optimizer = optimizer

    def step(self):
        self._optimizer.param_groups[0]["lr"] *= 0.9

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Plateau(ReduceLROnPlateau):
    """Of a loss that does not fall."""

    def step(self):
        super().step(1.0)


SCHEDULES = {
    "linear": lambda optimizer: LambdaLR(optimizer, falls),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 10, rate_of(optimizer) / 5),
    "plateau": lambda optimizer: Plateau(optimizer, factor=0.7, patience=0, min_lr=rate_of(optimizer) / 5),
    "by hand": ByHand,
    "one cycle": lambda optimizer: OneCycleLR(optimizer, rate_of(optimizer), total_steps=11),
    "two deep": lambda optimizer: ChainedScheduler(
        [
            SequentialLR(
                optimizer, [ConstantLR(optimizer, 0.5, 9), CosineAnnealingLR(optimizer, 9, rate_of(optimizer) / 5)], [6]
            )
        ]
    ),
    "one behind another": lambda optimizer: SequentialLR(
        optimizer, [ConstantLR(optimizer, 0.5, 9), LambdaLR(optimizer, falls)], [6]
    ),
    "of accelerate": prepared,
}


def loop_at(rate, schedule, restored=None):
    """The state of a loop with this learning rate; and what trains some steps, and gives rate and momentum of each."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9, weight_decay=rate)
    objects = {"schedule": SCHEDULES[schedule](optimizer)} if schedule else {}
    objects |= {"model": model, "optimizer": optimizer}
    state = OwnState(lambda made: SimpleNamespace(restore=lambda device: restored), objects, torch.device("cpu"))

    def steps(num):
        rates = []
        for _ in range(num):
            model(torch.ones(1, 2)).sum().backward()
            rates += rate_of(optimizer), optimizer.param_groups[0]["momentum"]
            assert optimizer.param_groups[0]["weight_decay"] == weight_decay
            optimizer.step()
            if schedule:
                objects["schedule"].step()
        return rates

    weight_decay = optimizer.param_groups[0]["weight_decay"]
    return state, steps


@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("is_own", [True, False])
def test_a_loop_goes_on_with_its_own_rate_where_the_checkpoint_is_of_another_run(schedule, is_own):
    before, steps = loop_at(1.0, schedule)
    steps(4)
    rate = 1.0 if is_own else 0.1
    _, undisturbed = loop_at(rate, schedule)
    state, steps = loop_at(rate, schedule, saved(before, is_own=is_own))
    assert steps(5) == pytest.approx(undisturbed(9)[8:])
    assert "momentum_buffer" in state.parts().training["objects"]["optimizer"]["state"][0]


def test_a_schedule_that_is_made_behind_session_checkpoint_begins_with_the_rate_of_that_moment():
    optimizer, restored = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0), None
    for rate in (0.1, 0.01):
        state = OwnState(
            lambda made: SimpleNamespace(restore=lambda device: restored),  # noqa: B023
            {"optimizer": optimizer},
            torch.device("cpu"),
        )
        optimizer.param_groups[0]["lr"] = rate
        assert LambdaLR(copy.deepcopy(optimizer), falls).base_lrs == [rate]
        restored = saved(state)


class Checkpoints:
    """Keeps the state behind each step."""

    def __init__(self, restored=None):
        self._restored, self.saved = restored, {}

    def restore(self, device):
        return self._restored

    def votes(self):
        return [1]

    def decide(self, counts, step, take, *, is_over=False):
        parts = copy.deepcopy(take())
        known = {"step": step, "lost": [], "run": "sums-1", "is_own": True}
        self.saved[step] = SimpleNamespace(training=parts.training, rank=parts.rank, **known)

    def before_update(self):
        pass

    def close(self, seconds=0.0):
        pass


def accumulated(restored=None):
    """The checkpoints, and the weights, of a loop that updates them every second step."""
    torch.manual_seed(0)
    model, checkpoints = torch.nn.Linear(2, 1), Checkpoints(copy.deepcopy(restored))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = OwnState(lambda made: checkpoints, {"model": model, "optimizer": optimizer}, torch.device("cpu"))
    plan = small.plan(Dataset.from_dict({"x": COLUMNS["x"]}), 3, 2, 2, seed=1, num_epochs=2)
    for step in own_loop.steps(plan, torch.device("cpu"), None, state):
        for batch, weight in step:
            (weight * model(batch["x"]).square().mean()).backward()
        if step.number % 2 == 0:
            optimizer.step()
            if step.number % 4:  # else they are left there, and used
                optimizer.zero_grad()
    return checkpoints.saved, model.weight


def test_gradients_that_no_optimizer_has_used_yet_are_saved_and_added_to():
    checkpoints, undisturbed = accumulated()
    assert [*checkpoints] == [1, 2, 3, 4, 5, 6]
    gradients = {step: of.training["gradients"]["model"] for step, of in checkpoints.items()}
    assert [step for step, of in gradients.items() if of] == [1, 3, 5]
    for step in (1, 2, 3, 5, 6):
        assert torch.equal(accumulated(checkpoints[step])[1], undisturbed)


def test_a_loop_that_goes_on_behind_its_last_step_says_that_its_body_does_not_run_again(told, monkeypatch):
    monkeypatch.setattr(end, "here", end.Sessions())
    checkpoints, _ = accumulated()
    for step, is_told in ((5, False), (6, True), (6, True)):
        accumulated(checkpoints[step])
        assert [unnamed(note, "state_dict") for note in end.here.notes] == [[]] * is_told


@pytest.mark.parametrize("publishes", ["nowhere", "before the loop", "in its body"])
def test_a_loop_that_goes_on_behind_what_its_body_has_published_says_so_and_lacks_it(monkeypatch, publishes):
    monkeypatch.setattr(end, "here", end.Sessions())
    if publishes != "nowhere":
        end.here.loops += [end.Loop(6, 3)] if publishes == "in its body" else []
        end.here.note_published(is_model=True)
    lacks = {"a model"} if publishes == "in its body" else set()
    checkpoints, _ = accumulated()
    monkeypatch.setattr(end, "here", end.Sessions())
    end.here.note_published(is_model=False)
    again, _ = accumulated(checkpoints[3])
    assert (end.here.lacks, {*again[6].training["published_in_loop"]}) == (lacks, lacks)
    assert [unnamed(note, "session.publish", "step 3") for note in end.here.notes] == [[]] * len(lacks)


class Groups:
    """Has groups as an optimizer has them; ``state``: what is saved of it."""

    def __init__(self, state):
        self.param_groups, self._state = [{"lr": 1.0}, {"lr": 2.0}], state

    def state_dict(self):
        return self._state(self.param_groups)

    def load_state_dict(self, state):
        pass


def test_the_groups_of_any_object_are_saved_with_their_first_rates_and_left_as_they_are():
    live, none = Groups(lambda groups: {"param_groups": groups}), Groups(lambda groups: {"count": 1})
    state = OwnState(lambda made: Checkpoints(), {"live": live, "none": none}, torch.device("cpu"))
    live.param_groups += [{"lr": 3.0}]
    objects = state.parts().training["objects"]
    assert objects["none"] == {"count": 1}
    assert [of.get("first_lr") for of in objects["live"]["param_groups"]] == [1.0, 2.0, None]
    assert live.param_groups == [{"lr": 1.0}, {"lr": 2.0}, {"lr": 3.0}]


SAVED = {"rows": list(range(NUM_ROWS)), "batch_size": 3, "num_epochs": 2, "seed": 1}


def begun_from(entry, **now):
    """The step that a state goes on from whose checkpoint has a plan with this entry; ``now``: its own plan."""
    restored = SimpleNamespace(training={"objects": {"0": {}}, **entry}, rank={"used": []}, lost=(), step=4)
    restored.run, restored.is_own = "sums-1", True
    kept = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
    keeping = SimpleNamespace(restore=lambda device: restored)
    state = OwnState(lambda made: keeping, {"0": kept}, torch.device("cpu"))
    return state.take_restored(facts_with(**now)).step


def facts_with(rows=SAVED["rows"], micro=2, world_size=1, lengths=None, **given):
    columns = {ROW_ID: rows} | ({"input_ids": [[0] * length for length in lengths]} if lengths else {})
    settings = {**{name: SAVED[name] for name in ("seed", "num_epochs", "batch_size")}, **given}
    cut = {"micro_batch_size": micro, "num_micro_batches": max(2, world_size), "world_size": world_size}
    rows = Dataset.from_dict(columns)
    return facts_of(build_plan(rows, lengths_of(rows), **cut, **settings))


@pytest.mark.parametrize("now", [{}, {"micro": 1}, {"world_size": 3}], ids=str)
def test_a_loop_goes_on_with_the_same_plan_however_it_is_cut_and_dealt(now):
    assert begun_from({"plan": facts_with().identity}, **now) == 4


@pytest.mark.parametrize(
    ("now", "named"),
    [
        ({"batch_size": 4}, "batch_size 3, now 4"),
        ({"batch_size": 6}, "steps per epoch 3, now 2"),
        ({"num_epochs": 1}, "epochs 2, now 1"),
        ({"seed": 2}, "seed 1, now 2"),
        ({"rows": list(range(9))}, "rows 7, now 9"),
        ({"rows": SAVED["rows"][::-1]}, "other row ids"),
        ({"rows": [f"row {i}" for i in range(NUM_ROWS)]}, "other row ids"),
        ({"lengths": list(range(1, 1 + NUM_ROWS))}, "input_ids"),
    ],
    ids=str,
)
def test_a_loop_does_not_go_on_in_another_plan_and_says_what_differs(now, named):
    with refuses("step 4", named, "fresh=True", cause="code"):
        begun_from({"plan": facts_with().identity}, **now)


@pytest.mark.parametrize("zeros", ["never", "before the step", "behind the step", "to zeros"])
def test_gradients_that_a_loop_leaves_there_are_told_once(told, zeros):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in own_loop.steps(plan_of(Dataset.from_dict({"x": COLUMNS["x"]})), torch.device("cpu"), None):
        if zeros == "before the step":
            optimizer.zero_grad()
        for batch, weight in step:
            (weight * model(batch["x"]).square().mean()).backward()
        optimizer.step()
        if zeros in ("behind the step", "to zeros"):
            optimizer.zero_grad(set_to_none=zeros == "behind the step")
    notes = [str(event) for event in told if "zero_grad" in str(event)]
    assert len(notes) == (zeros == "never")


@pytest.mark.parametrize("is_left", [False, True])
def test_what_is_drawn_behind_a_loop_depends_on_what_was_drawn_before_it_alone(is_left):
    drawn = []
    for has_loop in (False, True):
        seed_all(5)
        for step in own_loop.steps(plan_of(Dataset.from_dict(COLUMNS)), torch.device("cpu"), None) if has_loop else ():
            for _ in step:
                torch.nn.Dropout()(torch.ones(3))
            if is_left:
                break
        drawn.append((torch.rand(2).tolist(), np.random.random(), random.random()))
    assert drawn[0] == drawn[1]


def batches(rows, collate=None):
    steps = own_loop.steps(plan_of(rows), torch.device("cpu"), collate)
    return [(batch, weight) for step in steps for batch, weight in step]


@pytest.mark.parametrize("form", [None, "torch", "numpy"])
@pytest.mark.parametrize("extra", [{}, {ROW_ID: [10 * i for i in range(NUM_ROWS)]}])
def test_a_batch_has_a_tensor_for_each_column_of_numbers_in_any_format(form, extra):
    seen = []
    for batch, weight in batches(Dataset.from_dict({**COLUMNS, **extra}).with_format(form)):
        num_rows = len(batch["text"])
        shapes = {name: tuple(of.shape) for name, of in batch.items() if isinstance(of, torch.Tensor)}
        assert shapes == {"x": (num_rows, 2), "grid": (num_rows, 2, 2), "y": (num_rows,), "label": (num_rows,)}
        assert (batch["x"][:, 0] * 4).tolist() == batch["label"].tolist() == batch["grid"][:, 1, 1].tolist()
        if weight:
            seen += batch["text"]
    assert sorted(seen) == COLUMNS["text"]


def test_a_collate_of_the_function_gets_the_rows_as_they_are():
    kinds = []
    batches(Dataset.from_dict(COLUMNS), lambda rows: kinds.extend(type(row["x"]) for row in rows) or {"rows": rows})
    assert {*kinds} == {list}


@pytest.mark.parametrize(
    ("name", "column", "named"),
    [
        ("odd", [[1] * (1 + i % 2) for i in range(NUM_ROWS)], "(2,)"),
        ("odd", ["a", None] * 3 + ["b"], "NoneType"),
        ("pixel_values", [{"bytes": b"none", "path": None}] * NUM_ROWS, "session.data"),
    ],
    ids=["ragged", "null", "files that are not decoded"],
)
def test_a_column_that_cannot_be_stacked_is_named_with_the_remedy(name, column, named):
    with refuses(repr(name), "collate", named, cause="code"):
        batches(Dataset.from_dict({"y": COLUMNS["y"], name: column}))


@pytest.mark.parametrize(
    "given",
    [plan_of(Dataset.from_dict(COLUMNS)).shuffle(seed=1), Dataset.from_dict(COLUMNS), None],
    ids=["a plan in another order", "rows", "nothing"],
)
def test_a_plan_that_was_not_split_once_is_told_of_in_the_words_of_the_loop(given):
    with pytest.raises(InvalidInput) as refused:
        next(own_loop.steps(given, torch.device("cpu"), list))
    assert unnamed(str(refused.value), "session.steps(split_dataset_by_node(session.plan(") == []
    assert "rainer" not in str(refused.value) and "train_dataset" not in str(refused.value)


@pytest.mark.parametrize("shifts", [True, False])
def test_the_weights_of_a_step_are_shares_of_the_labels_that_the_loss_looks_at(shifts):
    def ragged(features):
        longest = max(2 + feature["label"] for feature in features)
        ids = [[1] * (2 + feature["label"]) + [-100] * (longest - 2 - feature["label"]) for feature in features]
        labels = torch.tensor(ids)
        return BatchEncoding({"input_ids": labels.clamp(min=0), "labels": labels})  # as transformers' collators do it

    plan, state = plan_of(Dataset.from_dict(COLUMNS)), state_of(language_model())
    for step in own_loop.steps(plan, torch.device("cpu"), ragged, state, shifts_labels=shifts):
        found = [(weight, (batch["labels"][:, int(shifts) :] >= 0).sum().item()) for batch, weight in step]
        found = [(weight, of) for weight, of in found if weight]  # not of one that only fills a rank's place
        total = sum(of for _, of in found)
        assert [weight for weight, _ in found] == pytest.approx([of / total for _, of in found])


def language_model():
    """Its own loss shifts the labels."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=11, **sizes))


def tokens_of(features):
    """Rows of 3 tokens."""
    return torch.tensor([[1, 2 + feature["label"], 3] for feature in features])


def tokens_as_labels(features):
    return {"input_ids": tokens_of(features), "labels": tokens_of(features)}


def shifted_by_the_loop(features):
    ids = tokens_of(features)
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


@pytest.mark.parametrize(
    ("collate", "has_model", "remedy"),
    [(tokens_as_labels, False, "shifts_labels=True"), (shifted_by_the_loop, True, "shifts_labels=False")],
    ids=["nothing tells whether the loss shifts them", "the loop has shifted them and its model shifts them again"],
)
def test_labels_are_refused_before_the_first_step_where(collate, has_model, remedy):
    plan, steps = plan_of(Dataset.from_dict(COLUMNS)), []
    state = state_of(language_model()) if has_model else None
    with pytest.raises(InvalidInput, match=remedy) as refused:
        steps += own_loop.steps(plan, torch.device("cpu"), collate, state)
    assert refused.value.cause == "code"
    assert steps == []


def breaks(step, layer):
    for batch, _ in step:
        layer(batch["x"])
        break


@pytest.mark.parametrize("go_through", [breaks, lambda step, layer: None, lambda step, layer: [*step, *step]])
def test_a_step_that_is_not_gone_through_once_to_its_end_is_refused_at_once(go_through):
    rows = Dataset.from_dict({"x": [[float(i), 1.0] for i in range(NUM_ROWS)]})
    plan = small.plan(rows, 4, 2, 2, seed=1, num_epochs=2)

    def go_on(layer):
        for step in own_loop.steps(plan, torch.device("cpu"), None, state_of(layer)):
            go_through(step, layer)

    with refuses("step 1", cause="code"):
        go_on(torch.nn.Linear(2, 1))
