"""Images are trained on, measured, published, loaded and classified: by a model of transformers, and by one's own."""

import json
import re

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor

from tests.jobs import functions, image_functions
from tests.tiny_images import CLASSES, image_of, write_image_folder, write_tiny_resnet
from train_func import ImageClassification, InvalidInput, Local, Run, submit
from train_func.worker import split

LIMIT = 300.0
RUN = {"epochs": 10, "learning_rate": 1e-2, "workers": 2}


@pytest.fixture
def images(tmp_path):
    return str(write_image_folder(tmp_path / "images", 101))


@pytest.mark.slow
def test_two_workers_learn_the_classes_and_the_pipeline_names_them(home, images, tmp_path):
    task = ImageClassification(model=str(write_tiny_resnet(tmp_path / "resnet")), dataset=images)
    job = submit(functions.fine_tunes, Run(task=task, **RUN), on=Local())
    assert job.wait(LIMIT) == "Succeeded", "\n".join(job.logs())
    metrics = job.result()
    assert set(metrics) == {"accuracy", "loss", "rows"}
    assert metrics["rows"] == 20
    assert metrics["accuracy"] > 0.6
    answers = job.load()(image_of(500)[0])
    assert {answer["label"] for answer in answers} == set(CLASSES)
    assert sum(answer["score"] for answer in answers) == pytest.approx(1, abs=1e-3)
    card = (job.fetch("model") / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card
    assert all(f"- {name}" in card for name in CLASSES)


@pytest.mark.slow
def test_a_module_of_the_functions_own_is_trained_measured_and_loaded_by_its_class(home, images):
    task = ImageClassification(model=None, dataset=images, size=24)
    run = Run(task=task, **RUN)
    job = submit(image_functions.trains_a_module, run, on=Local())
    assert job.wait(LIMIT) == "Succeeded", "\n".join(job.logs())
    folder, held_out = job.fetch("model"), split(run).held_out
    model = image_functions.Net.from_pretrained(folder).eval()
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    with torch.no_grad():
        answers = model(**processor(images=list(held_out["image"]), return_tensors="pt"))["logits"].argmax(-1)
    labels = json.loads((folder / "labels.json").read_text())
    assert labels == list(CLASSES)
    right = float(np.mean(answers.numpy() == held_out["label"][:]))
    assert job.result()["accuracy"] == pytest.approx(right)
    card = (folder / "README.md").read_text()
    assert "pipeline_tag: image-classification" in card
    assert ".fetch()" in card
    (code,) = re.findall(r"```python\n(from pathlib .*?)```", card, re.DOTALL)
    named = {"net": image_functions.Net(len(CLASSES))}
    exec(code.replace("THIS FOLDER", str(folder)).replace("net = ...", "net"), named)
    assert all(torch.equal(of, model.state_dict()[name]) for name, of in named["net"].state_dict().items())
    with pytest.raises(InvalidInput) as caught:
        job.load()
    assert caught.value.cause == "model"
    assert "labels.json" in str(caught.value)
