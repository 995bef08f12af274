"""A ResNet-18 with random weights, trained on made-up images: the stock Trainer, and train_func."""

import io
import random
from pathlib import Path
from typing import Any

import torch

from benchmarks.pace import Pace
from benchmarks.texts import NUM_CLASSES, common

SHAPES = {
    "resnet-18": {
        "embedding_size": 64,
        "hidden_sizes": [64, 128, 256, 512],
        "depths": [2, 2, 2, 2],
        "layer_type": "basic",
    }
}
SIZE, BATCH_SIZE, LEARNING_RATE = 112, 32, 1e-3
ONCE: tuple[str, ...] = ()
CHOICES = [{"per_device": size, "bf16": bf16} for size in (8, 16, 32) for bf16 in (False, True)]
"""What B is tuned over."""
MEAN = DEVIATION = 0.5


def write(folder: Path, shape: str, lengths: str, num_rows: int, seed: int = 0) -> None:
    """Writes the model to ``folder``/model, and rows.parquet and held_out.parquet beside it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from PIL import Image
    from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessorPil

    torch.manual_seed(seed)
    ResNetForImageClassification(ResNetConfig(num_labels=NUM_CLASSES, **SHAPES[shape])).save_pretrained(
        folder / "model"
    )
    size = {"height": SIZE, "width": SIZE}
    ViTImageProcessorPil(size=size, image_mean=[MEAN] * 3, image_std=[DEVIATION] * 3).save_pretrained(folder / "model")
    chance, noise = random.Random(seed), np.random.default_rng(seed)
    for name, count in (("rows", num_rows), ("held_out", 10)):
        rows = []
        for number in range(count):
            label = chance.randrange(NUM_CLASSES) if name == "rows" else number % NUM_CLASSES
            pixels = noise.integers(0, 200, (SIZE, SIZE, 3), dtype=np.uint8)
            pixels[:, label * 20 : label * 20 + 20, label % 3] += 55
            mark = number if name == "rows" else 4095 - number
            pixels[0, 0] = mark // 16, mark % 16 * 16, 0
            file = io.BytesIO()
            Image.fromarray(pixels).save(file, "PNG")
            rows.append({"image": {"bytes": file.getvalue(), "path": None}, "label": f"class {label}"})
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")


def labels(folder: str) -> torch.Tensor:
    """The class of every row."""
    import pyarrow.parquet as pq

    return torch.tensor([int(name[-1]) for name in pq.read_table(f"{folder}/rows.parquet")["label"].to_pylist()])


def numbers_of(given: dict[str, Any]) -> torch.Tensor:
    """The numbers of the rows of a batch, in the first pixel of each image."""
    pixels = ((given["pixel_values"][:, :2, 0, 0].float() * DEVIATION + MEAN) * 255).round().long()
    return pixels[:, 0] * 16 + pixels[:, 1] // 16


def tuned(pace: Pace, folder: str, rank: int, size: int, num_steps: int, *, per_device: int, bf16: bool) -> None:
    """B."""
    from datasets import Image, load_dataset
    from transformers import AutoModelForImageClassification, Trainer, TrainingArguments, ViTImageProcessorPil

    processor = ViTImageProcessorPil.from_pretrained(f"{folder}/model")
    model = AutoModelForImageClassification.from_pretrained(f"{folder}/model")
    pace.watch(model)
    rows = load_dataset("parquet", data_files=f"{folder}/rows.parquet", split="train").cast_column("image", Image())

    def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        images = processor([row["image"] for row in batch], return_tensors="pt")["pixel_values"]
        return {"pixel_values": images, "labels": torch.tensor([int(row["label"][-1]) for row in batch])}

    per_device = min(per_device, BATCH_SIZE // size)
    arguments = TrainingArguments(
        f"{folder}/of-tuned-{rank}",
        bf16=bf16,
        remove_unused_columns=False,
        ddp_find_unused_parameters=False,
        per_device_train_batch_size=per_device,
        gradient_accumulation_steps=BATCH_SIZE // per_device // size,
        **{**common(num_steps), "learning_rate": LEARNING_RATE},
    )
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate, callbacks=[pace]).train()


def task(folder: Path) -> Any:
    """What D is asked for."""
    from train_func import ImageClassification

    return ImageClassification(
        model=str(folder / "model"),
        dataset=str(folder / "rows.parquet"),
        held_out=str(folder / "held_out.parquet"),
        augment=False,
    )


def work_of_rows(shape: str, folder: Path) -> list[float]:
    """The same for each."""
    return [1.0] * len(labels(str(folder)))


ARMS = {"B": tuned}
