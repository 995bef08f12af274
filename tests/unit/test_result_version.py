"""The numbers of a training belong to RESULT_VERSION: the same name never stands for other numbers.

TRAIN_FUNC_REWRITE_GOLDEN=1 writes the losses of now, once RESULT_VERSION is raised.
"""

import json
import os
from pathlib import Path

import pytest
from datasets.distributed import split_dataset_by_node
from transformers import TrainingArguments

from tests.runs import a_run
from tests.tiny_model import write_tiny_model
from train_func.run import RESULT_VERSION
from train_func.storage import open_store
from train_func.wire.records import Numerics, RunRecord
from train_func.worker import Session, Trainer

GOLDEN = Path(__file__).parents[1] / "golden/losses.json"
TOLERANCE = 1e-3  # relative; kernels of different processors differ by less, another order of rows by more
WORDS = {"bad": "terrible cold rude", "good": "tasty fresh friendly"}


@pytest.fixture
def losses(tmp_path, monkeypatch):
    """Of every step of a tiny run on one rank, in float32, and of its evaluation."""
    for name in [name for name in os.environ if name.startswith("TRAIN_FUNC_")]:
        if name != "TRAIN_FUNC_REWRITE_GOLDEN":
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRAIN_FUNC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    texts = [(number, ("bad", "good")[number % 2]) for number in range(40)]
    lines = [
        f"the food was {'really ' * (number % 7)}{WORDS[label]} number {number},{label}" for number, label in texts
    ]
    (tmp_path / "rows.csv").write_text("\n".join(["text,label", *lines]))
    model = write_tiny_model(tmp_path / "tiny")
    run = a_run(model=str(model), dataset=str(tmp_path / "rows.csv"), epochs=2, learning_rate=0.03, batch_size=8)
    store = open_store((tmp_path / "store").as_uri())
    record = RunRecord(run=run, name="golden", generation=1, store=store.address, function="f", source_sha256="")
    numerics = Numerics(precision="fp32", num_micro_batches=2, micro_batch_size=8, device="any")
    store.put(record.keys.numerics, numerics.to_json())
    with Session(record.parameters()) as session:
        model, tokenizer = session.model()
        train, held_out = session.data(tokenizer)
        arguments = session.arguments(logging_strategy="steps", logging_steps=1, eval_strategy="epoch")
        trainer = Trainer(
            model=model,
            args=TrainingArguments(**arguments),
            train_dataset=split_dataset_by_node(session.plan(train), session.rank, session.world_size),
            eval_dataset=held_out,
            processing_class=tokenizer,
        )
        trainer.train()
    return [entry[name] for entry in trainer.state.log_history for name in ("loss", "eval_loss") if name in entry]


def test_the_losses_of_a_result_version_stay(losses):
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {"result_version": 0, "losses": []}
    same = losses == pytest.approx(golden["losses"], rel=TOLERANCE)
    raised = golden["result_version"] != RESULT_VERSION
    if os.environ.get("TRAIN_FUNC_REWRITE_GOLDEN") == "1":
        assert same or raised, "other numbers under the same name: raise RESULT_VERSION in train_func/run.py first"
        GOLDEN.write_text(json.dumps({"result_version": RESULT_VERSION, "losses": losses}, indent=1) + "\n")
        return
    assert not raised, "RESULT_VERSION was raised: record its losses with TRAIN_FUNC_REWRITE_GOLDEN=1"
    assert same, "the numbers of a training have changed: raise RESULT_VERSION in train_func/run.py, then record them"
