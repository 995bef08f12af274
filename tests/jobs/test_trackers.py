"""The trackers themselves, brought as packages: a training by transformers' Trainer alone reports to each of them."""

import sqlite3

import pytest

from train_func import Local, Run, submit
from train_func.storage import open_store

pytestmark = pytest.mark.slow  # they come from the index of packages
LIMIT = 300
PACKAGES = {
    "mlflow": ["mlflow-skinny==3.17.2"],
    "trackio": ["trackio==0.43.0", "pillow==12.3.0"],  # it takes no newer one
    "wandb": ["wandb==0.31.0"],
}


def reports(parameters):
    import torch
    from datasets import Dataset
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    rows = Dataset.from_list([{"input_ids": [2, 3 + i % 7, 3], "labels": i % 2} for i in range(40)])
    arguments = TrainingArguments(
        "scratch", report_to=parameters["tracker"], logging_steps=1, max_steps=3, save_strategy="no", disable_tqdm=True
    )
    torch.manual_seed(7)
    model = BertForSequenceClassification(BertConfig(vocab_size=101, **sizes))
    return {"loss": Trainer(model=model, args=arguments, train_dataset=rows).train().training_loss}


@pytest.mark.parametrize("tracker", PACKAGES)
def test_every_tracker_keeps_its_steps_with_the_attempt(home, tmp_path, monkeypatch, tracker):
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    run = Run(workers=2, parameters={"tracker": tracker})
    job = submit(reports, run, on=Local(packages=PACKAGES[tracker]))
    assert job.result(LIMIT)["loss"] > 0
    store, prefix = open_store(job.record.store), job.record.keys.attempt(1).trackers
    kept = {entry.key.removeprefix(f"{prefix}/"): store.get(entry.key).data for entry in store.list(prefix)}
    if tracker == "wandb":
        assert len([name for name in kept if name.endswith(".wandb")]) == 1
        return
    (name,) = (name for name in kept if name.endswith(".db"))
    (tmp_path / "kept.db").write_bytes(kept[name])
    with sqlite3.connect(tmp_path / "kept.db") as database:
        steps = {
            "mlflow": "SELECT DISTINCT step FROM metrics WHERE key = 'loss'",
            "trackio": "SELECT DISTINCT step FROM metrics WHERE json_extract(metrics, '$.\"train/loss\"') IS NOT NULL",
        }[tracker]
        assert len(database.execute(steps).fetchall()) == 3
