"""Notebook 03 on a cluster: its model, a folder of this machine, reaches the workers, and adapters alone come back."""

import re
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.notebooks.executing import execute
from tests.notebooks.test_lora import NOTEBOOK
from train_func import Cluster, attach
from train_func.storage import open_store

WORKER = {"TRAIN_FUNC_CPU": "800m", "TRAIN_FUNC_MEMORY": "3Gi"}
EPOCHS = 40


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_adapters_are_trained_by_two_workers_and_merge_into_the_model_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)
    shown = execute(NOTEBOOK, tmp_path / "executed.ipynb", where="Cluster", epochs=EPOCHS)
    job = attach(re.findall(r"^(\S+): submitted, 2 workers", shown, re.M)[0], on=Cluster())
    try:
        assert job.state == "Succeeded"
        audited = re.findall(r"audit epoch=(\d+) rows=96 used_once=96 missing=0 repeated=0 world_size=2\b", shown)
        assert set(map(int, audited)) == set(range(1, EPOCHS + 1))
        assert int(re.findall(r"^trained on: (\d+) of 40 answers are word for word", shown, re.M)[0]) >= 32
        stored = [item.key for item in open_store(job.record.store).list(f"{job.name}/")]
        assert [key for key in stored if key.endswith("/adapter_model.safetensors")]
        assert not [key for key in stored if key.endswith("/model.safetensors")]
        base = AutoModelForCausalLM.from_pretrained(Path(NOTEBOOK).parents[1] / "build/stand-in-llama")
        both = PeftModel.from_pretrained(base, job.fetch()).eval()
        whole = AutoModelForCausalLM.from_pretrained(job.fetch("merged", to=tmp_path / "merged")).eval()
        ids = torch.arange(2, 66).reshape(2, 32)
        with torch.no_grad():
            found, expected = (model(ids).logits.softmax(-1) for model in (whole, both))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    finally:
        job.delete()
