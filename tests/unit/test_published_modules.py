"""What an own loop publishes of a module loads back; what cannot be is told when the module is first given."""

import json

import pytest
import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from safetensors.torch import load_file, load_model
from torch import nn

from tests.messages import refuses
from train_func.errors import InvalidInput
from train_func.wire.layout import MODEL_MANIFEST
from train_func.worker import Session


class Counts(nn.Module):
    """With a state beside its tensors, as layers that count or quantise have it."""

    def __init__(self, state=None):
        super().__init__()
        self.inner, self.state = nn.Linear(3, 1), state

    def get_extra_state(self):
        return self.state

    def set_extra_state(self, state):
        self.state = state


class Parts(nn.Module):
    """Two weights that are parts of one tensor, which is itself none of the model's."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(7, 3)
        self.first, self.rest = nn.Parameter(whole[:2]), nn.Parameter(whole[2:])


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 3), nn.Linear(3, 11, bias=False)
        self.head.weight = self.embedding.weight


def published(session, store, tmp_path, what):
    with session:
        session.publish(what)
    for name in ("model.safetensors", "extra_state.json"):
        if store.list(f"tiny-reviews-0123/model/{name}"):
            store.download(f"tiny-reviews-0123/model/{name}", tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("state", [{"seen": 40, "by": {"a": [1, 2.5, None]}}, 7, None, [True, "x"]], ids=str)
def test_an_extra_state_that_is_plain_is_published_beside_the_weights_and_loads_back(a_record, store, tmp_path, state):
    net = nn.Sequential(Counts(state), nn.ReLU())
    folder = published(Session(a_record().parameters()), store, tmp_path, net)
    again = nn.Sequential(Counts("other"), nn.ReLU())
    again.load_state_dict(
        {**load_file(folder / "model.safetensors"), **json.loads((folder / "extra_state.json").read_text())}
    )
    assert again[0].state == state
    assert torch.equal(again[0].inner.weight, net[0].inner.weight)


def test_an_extra_state_that_is_a_tensor_is_among_the_weights(a_record, store, tmp_path):
    folder = published(Session(a_record().parameters()), store, tmp_path, Counts(torch.arange(5)))
    again = Counts(torch.zeros(1))
    load_model(again, folder / "model.safetensors")
    assert again.state.tolist() == [0, 1, 2, 3, 4]
    assert not (folder / "extra_state.json").exists()


@pytest.mark.parametrize("kind", [Parts, Tied])
def test_weights_that_share_memory_load_back(a_record, store, tmp_path, kind):
    net = kind()
    folder = published(Session(a_record().parameters()), store, tmp_path, net)
    again, names = kind(), set(load_file(folder / "model.safetensors"))
    assert len(names) == (2 if kind is Parts else 1)  # what is tied is stored once
    if kind is Parts:
        again.load_state_dict(load_file(folder / "model.safetensors"))
    else:
        load_model(again, folder / "model.safetensors")
    assert all(torch.equal(of, net.state_dict()[name]) for name, of in again.state_dict().items())


def test_a_module_is_published_with_the_steps_that_trained_it_and_their_audit(a_record, store):
    net, rows = nn.Linear(1, 1), Dataset.from_dict({"x": [[float(number)] for number in range(7)]})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with Session(a_record(epochs=3, batch_size=4).parameters()) as session:
        for step in session.steps(split_dataset_by_node(session.plan(rows), 0, 1)):
            for batch, weight in step:
                (weight * net(batch["x"]).square().mean()).backward()
            optimizer.step(), optimizer.zero_grad()
        session.publish(net)
    manifest = json.loads(store.get(f"tiny-reviews-0123/model/{MODEL_MANIFEST}").data)
    assert (manifest["step"], manifest["num_steps"]) == (6, 6)
    assert manifest["audit"]["training"] == [{"rows": 7, "used_once": 7, "missing": 0, "repeated": 0}] * 3


class Anything:
    pass


REFUSED = {
    "an object": (lambda: Counts(Anything()), "_extra_state", "Anything"),
    "a tensor in a dict": (lambda: Counts({"scale": torch.ones(1)}), "_extra_state", "dict"),
    "a sparse weight": (lambda: sparse(), "weight", "sparse"),
    "a quantised weight": (lambda: quantised(), "weight", "quantised"),
}


def sparse():
    module = nn.Module()
    module.register_buffer("weight", torch.eye(7).to_sparse())
    return module


def quantised():
    module = nn.Module()
    module.register_buffer("weight", torch.quantize_per_tensor(torch.ones(7), 0.1, 0, torch.qint8))
    return module


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_published_is_told_before_the_first_step_and_refused_in_words(a_record, capsys, which):
    make, *named = REFUSED[which]
    with Session(a_record().parameters()) as session:
        module = make()
        with refuses(*named, "state dict", cause="code"):
            session.publish(module)
        try:
            session.checkpoint(module, torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0))
        except InvalidInput as error:  # no checkpoint could hold it either
            assert named[0] in str(error)
        else:
            (note,) = (line for line in capsys.readouterr().out.splitlines() if "publish" in line and named[0] in line)
            assert note.startswith("note: ")


def test_of_a_state_dict_too_what_cannot_be_published_is_refused_in_words(a_record):
    with Session(a_record().parameters()) as session, pytest.raises(InvalidInput, match="sparse.*to_dense") as refused:
        session.publish({"weight": torch.eye(7).to_sparse()})
    assert refused.value.cause == "code"
