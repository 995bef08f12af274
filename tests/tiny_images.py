"""Small images of drawn patterns, as files and as bytes, and a tiny random ResNet: real, and made in a moment."""

import contextlib
import io
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("bars", "dots", "plain")
SIZE = 24


def image_of(number: int, seed: int = 0) -> tuple[Image.Image, str]:
    """The image of a row, of an ugly size of its own, and its class."""
    draw = np.random.RandomState([seed, number])
    name = CLASSES[number % len(CLASSES)]
    height, width = draw.randint(21, 40, 2)
    values = draw.randint(0, 60, (height, width, 3)) + draw.randint(0, 120, 3)
    if name == "bars":
        values[:, ::4] += 80
    if name == "dots":
        values[::5, ::5] += 80
    return Image.fromarray(values.astype(np.uint8)), name


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def write_image_folder(folder: Path, num_rows: int, *, seed: int = 0) -> Path:
    """A folder per class; whole or absent, also where several ranks write it."""
    with _at_once(folder) as part:
        for number in range(num_rows):
            image, name = image_of(number, seed)
            path = part / name / f"{number:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encoded(image))
    return folder


@contextlib.contextmanager
def _at_once(folder: Path) -> Iterator[Path]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=folder.parent))
    yield part
    with contextlib.suppress(OSError):  # another process was quicker, and has made the same
        part.rename(folder)


def rows_of(num_rows: int, seed: int = 0) -> list[dict[str, object]]:
    """As a table has them: bytes and the name of the class."""
    made = [image_of(number, seed) for number in range(num_rows)]
    return [{"image": encoded(image), "label": name} for image, name in made]


def write_tiny_resnet(folder: Path, *, seed: int = 0, size: int = SIZE) -> Path:
    """Writes config, random weights and image processor to ``folder`` and returns it."""
    import torch
    from safetensors.torch import save_file
    from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessorPil

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
        model = ResNetForImageClassification(config)
    with _at_once(folder) as part:
        model.config.save_pretrained(part)
        save_file(model.state_dict(), part / "model.safetensors", {"format": "pt"})
        ViTImageProcessorPil(size={"height": size, "width": size}).save_pretrained(part)
    return folder
