"""A loop of one's own does not wait for transformers; a function that imports it later is guarded all the same."""

import json
import os
import subprocess
import sys

import pytest

LOOP = """
import json, sys
import torch
from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from train_func.worker import Session

with Session({"epochs": 2, "batch_size": 4, "checkpoint_every": 0.01}) as session:
    rows = Dataset.from_dict({"x": [[float(i), 1.0] for i in range(10)], "y": [float(i) for i in range(10)]})
    plan = split_dataset_by_node(session.plan(rows), session.rank, session.world_size)
    model = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(), torch.nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    session.checkpoint(model, optimizer)
    for step in session.steps(plan):
        for batch, weight in step:
            (weight * torch.nn.functional.mse_loss(model(batch["x"]).squeeze(1), batch["y"])).backward()
        optimizer.step()
        optimizer.zero_grad()
        session.report(step.number, rows=step.num_rows)
    session.publish(model, metrics={"steps": step.number})
print(json.dumps({"steps": step.number, "modules": sorted(sys.modules)}))
"""

TRAINER = """
import inspect, json, sys
import torch
from train_func.errors import InvalidInput
from train_func.worker import Session

told = {}
with Session() as session:
    assert "transformers" not in sys.modules
    import transformers

    arguments = transformers.TrainingArguments("out", use_cpu=True, report_to="none")
    rows = [{"x": torch.zeros(1)}]

    class Derived(transformers.Trainer):
        pass

    for kind in (transformers.Trainer, Derived):
        trainer = kind(torch.nn.Linear(1, 1), arguments, train_dataset=rows)
        for act in (trainer.train, lambda: session.publish(trainer)):
            try:
                act()
            except InvalidInput as refusal:
                told.setdefault(kind.__name__, []).append(str(refusal))
    inside = transformers.Trainer.train
told["names"] = [inside.__qualname__, *inspect.signature(inside).parameters]
told["is_restored"] = transformers.Trainer.train is not inside
print(json.dumps(told))
"""


@pytest.fixture
def said(tmp_path):
    """What a program of its own prints last."""

    def run(program):
        environment = {**os.environ, "TRAIN_FUNC_HOME": str(tmp_path / "home")}
        for name in ("TRAIN_FUNC_STORE", "TRAIN_FUNC_JOB_DIR", "RANK"):
            environment.pop(name, None)
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def test_a_loop_of_ones_own_imports_neither_transformers_nor_what_comes_with_it(said):
    ran = said(LOOP)
    assert ran["steps"] == 6
    assert "datasets" in ran["modules"]
    assert not {"transformers", "peft", "accelerate", "scipy", "sklearn"} & set(ran["modules"])


def test_transformers_own_trainer_is_refused_though_the_session_was_open_before_its_import(said):
    told = said(TRAINER)
    for kind in ("Trainer", "Derived"):
        assert len(told[kind]) == 2
        assert all("from train_func.worker import Trainer" in refusal for refusal in told[kind])
    assert told["names"][:3] == ["Trainer.train", "self", "resume_from_checkpoint"]
    assert told["is_restored"]
