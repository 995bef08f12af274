"""The numbers of a training belong to RESULT_VERSION: the same name never stands for other numbers.

TRAIN_FUNC_REWRITE_GOLDEN=1 writes the losses of now, once RESULT_VERSION is raised.
"""

import dataclasses
import json
import os
from pathlib import Path

import pytest

from tests.tiny_session import opened
from train_func.run import RESULT_VERSION
from train_func.worker.numerics import numerics_here

GOLDEN = Path(__file__).parents[1] / "golden/losses.json"
TOLERANCE = 1e-3  # relative; kernels of different processors differ by less, another order of rows by more
IS_REWRITTEN = os.environ.get("TRAIN_FUNC_REWRITE_GOLDEN") == "1"


@pytest.fixture
def losses(a_record, store, monkeypatch):
    """Of every step of a tiny run on one rank, in float32, and of its evaluation."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    record = a_record(learning_rate=0.03, batch_size=8)
    numerics = dataclasses.replace(numerics_here(None, 2, ["any"]), precision="fp32")
    store.put(record.keys.numerics, numerics.to_json())
    with opened(record, logging_strategy="steps", logging_steps=1, eval_strategy="epoch") as (_, trainer):
        trainer.train()
    return [entry[name] for entry in trainer.state.log_history for name in ("loss", "eval_loss") if name in entry]


def test_the_losses_of_a_result_version_stay(losses):
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"result_version": 0, "losses": []}
    same = losses == pytest.approx(golden["losses"], rel=TOLERANCE)
    raised = golden["result_version"] != RESULT_VERSION
    if IS_REWRITTEN:
        assert same or raised, "other numbers under the same name: raise RESULT_VERSION in train_func/run.py first"
        GOLDEN.write_text(json.dumps({"result_version": RESULT_VERSION, "losses": losses}, indent=1) + "\n")
        return
    assert not raised, "RESULT_VERSION was raised: record its losses with TRAIN_FUNC_REWRITE_GOLDEN=1"
    assert same, "the numbers of a training have changed: raise RESULT_VERSION in train_func/run.py, then record them"
