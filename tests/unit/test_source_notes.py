"""What is noted of a function that works, and may do something else than was meant."""

import pytest

from tests.messages import unnamed
from tests.shipping import imported
from train_func import Run, TextClassification
from train_func.client.source import notes, pack

PLAIN = "def train_func(lr=0.1):\n    return {'lr': lr}\n"
LOOP = """
def train_func(parameters):
    import torch
    from datasets.distributed import split_dataset_by_node
    from train_func.worker import Session

    with Session(parameters) as session:
        plan = split_dataset_by_node(session.plan(rows()), session.rank, session.world_size)
        net = torch.nn.Linear(1, 1)
        for step in session.steps(plan):
            for batch, weight in step:
                (weight * net(batch["x"]).mean()).backward()
        session.publish(net)


def rows():
    from datasets import Dataset

    return Dataset.from_dict({"x": [[1.0]]})
"""
IN_STEP = "            for batch, weight in step:\n                (weight * net("


def noted(folder, text, *, whole=None, **fields):
    """All notes on the function of that text and its Run."""
    with imported(folder, text) as module:
        source = pack(module.train_func, parameters=None if fields.get("task") else fields.get("parameters", whole))
    return " ".join(notes(source, Run(**fields)))


def test_fields_that_a_function_without_a_session_cannot_read_are_noted_with_who_reads_them(tmp_path):
    text = noted(tmp_path, PLAIN, whole={}, epochs=5, batch_size=64, learning_rate=0.01, seed=1)
    given = ["epochs=5", "batch_size=64", "learning_rate=0.01", "seed=1"]
    assert unnamed(text, "train_func", *given, "session.plan", "session.arguments", "parameters") == []


@pytest.mark.parametrize(
    ("line", "unused"),
    [
        ("", ["learning_rate"]),
        ("print(session.run.learning_rate)", []),
        ("print(session.arguments())", []),
        ("run = session.run", []),  # which may be read anywhere
        ("print(session)", []),
    ],
)
def test_of_the_fields_that_a_session_offers_those_are_noted_that_the_function_does_not_read(tmp_path, line, unused):
    given = {"epochs": 5, "batch_size": 64, "learning_rate": 0.01, "seed": 1}
    text = noted(tmp_path, LOOP.replace("        net =", f"        {line}\n        net ="), **given)
    assert [name for name in given if f"{name}=" in text] == unused


@pytest.mark.parametrize("fields", [{}, {"epochs": 3}, {"workers": 2, "deadline": 60, "max_attempts": 1}], ids=str)
def test_fields_that_are_used_anyway_or_have_their_defaults_are_not_noted(tmp_path, fields):
    assert noted(tmp_path, PLAIN, whole={}, **fields) == ""


def test_with_a_task_no_field_is_noted_as_unused(tmp_path):
    task = TextClassification(model="m", dataset="d.csv")
    assert noted(tmp_path, LOOP, task=task, learning_rate=0.01) == ""


@pytest.mark.parametrize(
    ("inner", "is_noted"),
    [
        (IN_STEP, False),
        ("            for batch, w in step:\n                (w * net(", False),
        ("            for batch, weight in step:\n                (net(", True),
        ("            for batch, _ in step:\n                (net(", True),
        ("            for batch, weight in step:\n                print(weight)\n                (net(", False),
    ],
)
def test_a_weight_that_nothing_in_a_loop_over_steps_reads_is_noted_with_its_line_and_what_to_write(
    tmp_path, inner, is_noted
):
    text = noted(tmp_path, LOOP.replace(IN_STEP, inner))
    assert bool(text) == is_noted
    if is_noted:
        line = inner.partition("\n")[0].strip()
        assert unnamed(text, f"line 11: `{line}`", "(weight * loss).backward()") == []


def test_pairs_of_another_library_have_no_weight(tmp_path):
    other = "def train_func(game):\n    for step in game.steps():\n        for key, _ in step:\n            key()\n"
    assert noted(tmp_path, other, parameters={"game": 1}) == ""
