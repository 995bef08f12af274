"""Weights and metrics that are no finite numbers: neither is saved or published without a word."""

import copy
import json

import pytest
import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from transformers import TrainerCallback

from tests.messages import unnamed
from tests.tiny_session import opened, result_of
from train_func.errors import InvalidInput
from train_func.run import Run
from train_func.wire.exits import exit_of, retryable
from train_func.wire.records import RunRecord
from train_func.worker import Session
from train_func.worker.rank import end

NAN, INFINITY = float("nan"), float("inf")
STEPS = 6  # of 7 rows in batches of 3, over two epochs


class Net(torch.nn.Module):
    """With what may hold infinity on purpose: a mask, and a weight that is not trained."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)
        self.register_buffer("mask", torch.full((3, 3), -INFINITY).triu(1))
        self.fixed = torch.nn.Parameter(torch.tensor([-INFINITY, 0.0]), requires_grad=False)
        self.register_buffer("counts", torch.arange(3))
        self.scale = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))

    def forward(self, x):
        return self.norm(self.layer(x)) * self.scale


BREAKS = {
    "a weight": ("layer.weight", NAN, lambda net: net.layer.weight),
    "one of bfloat16": ("scale", -INFINITY, lambda net: net.scale),
    "a running variance": ("norm.running_var", INFINITY, lambda net: net.norm.running_var),
}


@pytest.fixture
def a_loop(plain_process, store, tmp_path, monkeypatch):
    """A loop of its own over 7 rows that saves before every step, or ``every`` so many seconds; ``broken``: by the
    update of that step."""
    fields = {"name": "loop", "epochs": 2, "batch_size": 3, "micro_batch_size": 3}
    of_run = {"name": "loop-1", "generation": 1, "store": store.address, "function": "f", "source_sha256": ""}
    monkeypatch.setenv("TRAIN_FUNC_JOB_DIR", str(tmp_path))
    reached = []

    def run(
        broken=0,
        value=NAN,
        tensor_of=None,
        publish=True,
        start=lambda net: None,
        every=0,
        added=lambda net: 0.0,
        scale=None,
        fused=False,
    ):
        reached.clear()
        record = RunRecord(run=Run(**fields, checkpoint_every=every), **of_run)
        (tmp_path / "run.json").write_text(json.dumps(record.to_dict()))
        monkeypatch.setattr(end, "here", end.Sessions())  # as in another process
        with Session(record.parameters()) as session:
            rows = Dataset.from_dict({"x": [[i / 7, 1.0] for i in range(7)]})
            plan = split_dataset_by_node(session.plan(rows), 0, 1)
            torch.manual_seed(0)
            net = Net()
            start(net)
            optimizer = torch.optim.SGD(net.parameters(), lr=0.01, fused=fused)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
            session.checkpoint(net, optimizer)
            for step in session.steps(plan):
                reached.append(step.number)
                for batch, weight in step:
                    loss = net(batch["x"]).square().mean()
                    if step.number == broken:
                        loss = loss + added(net)
                        assert loss.isfinite()
                    scaler.scale(weight * loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                if step.number == broken and tensor_of:
                    tensor_of(net).detach().view(-1)[-1] = value
            if publish:
                session.publish(net)

    run.reached = reached
    return run


@pytest.mark.parametrize("broken", [2, STEPS])
@pytest.mark.parametrize("which", BREAKS)
def test_a_loop_ends_before_weights_that_are_not_finite_are_saved_and_none_goes_on_from_them(
    a_loop, store, which, broken
):
    name, value, tensor_of = BREAKS[which]
    with pytest.raises(InvalidInput) as refused:
        a_loop(broken, value, tensor_of, publish=False)  # found at the next save, or when the loop ends
    assert refused.value.cause == "divergence"
    assert not retryable(exit_of(refused.value).code)
    assert unnamed(refused.value, "step", name) == []
    if broken == STEPS:  # else infinity may have become nan before a save was due
        assert f"{name} ({'nan' if value != value else 'infinity'})" in str(refused.value)
    a_loop()  # the same again, without what broke it
    assert 1 < a_loop.reached[0] <= broken
    assert json.loads(store.get("loop-1/result.json").data)["files"]["model.safetensors"]


def root_of_zero(net):
    """It is 0, and its gradient is infinite."""
    difference = net.layer.weight - net.layer.weight.detach()
    return difference.sum().sqrt()


@pytest.mark.parametrize("every", [0, 3600])
@pytest.mark.parametrize("broken", [2, STEPS])
def test_a_loop_ends_at_the_step_whose_gradients_are_infinite_though_its_loss_is_not(a_loop, store, broken, every):
    with pytest.raises(InvalidInput) as refused:
        a_loop(broken, added=root_of_zero, every=every)
    assert refused.value.cause == "divergence"
    assert unnamed(refused.value, "gradients", f"step {broken}", "rank 0", "layer.weight") == []
    assert a_loop.reached[-1] == broken
    assert not store.list("loop-1/result.json")


def test_a_loop_that_diverges_ends_though_it_neither_saves_nor_publishes(a_record):
    reached = []
    diverges = pytest.raises(InvalidInput)
    with diverges as refused, Session(a_record(epochs=20, batch_size=4).parameters()) as session:
        rows = Dataset.from_dict({"x": [[i / 8, 1.0] for i in range(8)]})
        net = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(net.parameters(), lr=1e6)
        for step in session.steps(split_dataset_by_node(session.plan(rows), 0, 1)):
            for batch, weight in step:
                loss = net(batch["x"]).square().mean()
                (weight * loss).backward()
            session.report(step.number, loss=loss.item())
            optimizer.step()
            optimizer.zero_grad()
            reached.append(step.number)
    assert refused.value.cause == "divergence"
    assert unnamed(refused.value, "gradients", f"step {reached[-1]}", "rank 0") == []
    assert reached[-1] < 20


@pytest.mark.parametrize("fused", [False, True])
def test_gradients_that_overflow_below_a_scaler_which_leaves_out_the_step_end_nothing(a_loop, store, fused):
    a_loop(scale=1e38, fused=fused)
    assert a_loop.reached == [*range(1, STEPS + 1)]
    assert store.list("loop-1/result.json")


def test_infinite_gradients_that_the_loop_does_not_use_end_nothing(a_loop, store, monkeypatch):
    monkeypatch.setattr(torch.optim.SGD, "step", lambda *_: None)
    a_loop(2, added=root_of_zero)
    assert store.list("loop-1/result.json")


def test_a_trainer_whose_weights_are_not_finite_is_refused_before_its_first_step_though_none_trains_them(a_record):
    broken = pytest.raises(InvalidInput, match=r"word_embeddings.*nan")
    with broken as refused, opened(a_record()) as (_, trainer):
        frozen = trainer.model.base_model.embeddings.word_embeddings.weight.requires_grad_(False)
        frozen.data[-1] = NAN  # of a token that stands in no row
        trainer.train()
    assert refused.value.cause == "divergence"
    assert trainer.state.global_step == 0


@pytest.mark.parametrize("given", ["module", "not trained", "wrapped", "state dict"])
def test_what_is_published_of_weights_is_finite(a_record, store, given):
    net = torch.nn.Linear(3, 101)
    net.weight.data[100, 2] = NAN
    values = {
        "module": net,
        "wrapped": torch.nn.DataParallel(net),
        "state dict": net.state_dict(),
        "not trained": copy.deepcopy(net).requires_grad_(False),
    }
    with Session(a_record().parameters()) as session:
        with pytest.raises(InvalidInput, match=r"weight.*nan") as refused:
            session.publish(values[given])
        assert refused.value.cause == "divergence"
    assert not store.list("tiny-reviews-0123/model/")


def test_infinity_in_a_state_dict_which_does_not_tell_masks_from_weights_is_told(a_record, store, capsys):
    with Session(a_record().parameters()) as session:
        session.publish({"mask": torch.full((3, 3), -INFINITY).triu(1), "weight": torch.ones(3)})
    assert store.list("tiny-reviews-0123/model/")
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.endswith("mask"))
    assert note.startswith("note:")


class Breaks(TrainerCallback):
    """As an update does whose gradients are not finite though the loss is."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, model=None, **others):
        if state.global_step == self.step:
            model.classifier.bias.data[1] = NAN


def test_a_trainer_whose_last_update_breaks_the_weights_has_not_trained_to_its_end(a_record, store):
    broken = pytest.raises(InvalidInput, match=r"classifier\.bias \(nan\)")
    with broken as refused, opened(a_record()) as (_, trainer):
        trainer.add_callback(Breaks(4))
        trainer.train()
    assert refused.value.cause == "divergence"
    assert "step 4" in str(refused.value)
    assert not store.list("tiny-reviews-0123/result.json")


def test_a_loss_that_follows_from_broken_weights_says_so(a_record):
    rarely = a_record(checkpoint_every=3600)  # a save would find them first
    with pytest.raises(InvalidInput, match="loss of step 3") as refused, opened(rarely) as (_, trainer):
        trainer.add_callback(Breaks(2))
        trainer.train()
    assert refused.value.cause == "divergence"
    assert "classifier.bias" in str(refused.value)


def test_a_metric_that_is_not_finite_is_told_with_the_result_and_in_the_card(a_record, store):
    with opened(a_record()) as (session, trainer):
        trainer.compute_metrics = lambda prediction: {"hits": 0.5, "correlation": NAN, "of": {"best": INFINITY}}
        trainer.train()
        session.publish(trainer)
    result = result_of(store)
    assert result["metrics"]["correlation"] is None
    assert unnamed(result["note"], "correlation (nan)", "of.best (inf)") == []
    assert "hits" not in result["note"]
    assert "correlation (nan)" in store.get("tiny-reviews-0123/model/README.md").data.decode()
