"""Images are trained on, measured, published and loaded by a module of one's own; notebook 05 has a stock model."""

import json
import re

import numpy as np
import pytest
import torch
from transformers import AutoImageProcessor

from tests.jobs import image_functions
from tests.tiny_images import CLASSES, write_image_folder
from train_func import ImageClassification, InvalidInput, Local, Run, submit
from train_func.worker import split

LIMIT = 300.0


@pytest.mark.slow
def test_a_module_of_the_functions_own_is_trained_measured_and_loaded_by_its_class(home, tmp_path):
    images = str(write_image_folder(tmp_path / "images", 101))
    task = ImageClassification(model=None, dataset=images, size=24)
    run = Run(task=task, epochs=10, learning_rate=1e-2, workers=2)
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
