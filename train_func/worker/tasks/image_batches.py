"""Makes batches of images: decoded one by one, those to train on cut out and mirrored at random."""

import math
from typing import Any

import numpy as np

from train_func.errors import InvalidInput
from train_func.worker.tasks.image_decoding import decode
from train_func.worker.tasks.kept_images import name_of

LEAST_AREA = 0.35  # of an image that is cut out to train on
MOST_ASPECT = 4 / 3  # of what is cut out: as wide as high, times or divided by this
TRIES = 10  # to cut out of an image that is much longer than wide
COLUMN = "pixel_values"  # of encoded rows: the images as they are in their files


class ImageCollator:
    """Callable with rows; what it draws comes from numpy's generator, which the place in the plan has seeded."""

    def __init__(self, processor: Any, *, augment: bool) -> None:
        """``processor``: an image processor of transformers."""
        self._processor, self._augment = processor, augment
        self._shape = shape_of(processor)

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Raises InvalidInput (cause "code" or "data") when rows have no images, or one cannot be decoded."""
        import torch

        if COLUMN not in rows[0]:
            raise InvalidInput(
                f"rows with the columns {', '.join(rows[0]) or 'none'} are to become a batch of images, which stand in "
                f"the column {COLUMN}. Trainer leaves out columns that forward of the model does not take: begin it "
                f"with def forward(self, {COLUMN}, labels=None)",
                cause="code",
            )
        batch = {COLUMN: torch.from_numpy(np.stack([self._pixels(row[COLUMN]) for row in rows]))}
        if "label" in rows[0]:
            batch["labels"] = torch.tensor([row["label"] for row in rows])
        return batch

    def _pixels(self, stored: dict[str, Any]) -> np.ndarray:
        # The sides of a part are at least half of the image's: at twice the model's size none is enlarged.
        suffices = 2 * max(self._shape) if self._augment else None
        # One at a time: a batch of large ones would not fit.
        image = decode(stored["bytes"], name_of(stored), suffices)
        if not self._augment:
            return _processed(self._processor, image)
        part = cut_out(image, self._shape, getattr(self._processor, "resample", None))
        return _processed(self._processor, part, do_resize=False, do_center_crop=False)


def cut_out(image: Any, shape: tuple[int, int], resample: Any = None) -> Any:
    """A random part of an image, of height and width ``shape``, mirrored or not."""
    from PIL import Image

    box = _box(image.width, image.height, shape[1] / shape[0])
    is_mirrored = np.random.random_sample() < 0.5
    filtering = Image.Resampling.BILINEAR if resample is None else Image.Resampling(int(resample))
    part = image.resize((shape[1], shape[0]), filtering, box=box)
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if is_mirrored else part


def _box(width: int, height: int, aspect: float) -> tuple[int, int, int, int]:
    """Left, upper, right and lower edge of a part of at least LEAST_AREA; where none fits, the middle."""
    for _ in range(TRIES):
        area = width * height * np.random.uniform(LEAST_AREA, 1.0)
        ratio = aspect * math.exp(np.random.uniform(-math.log(MOST_ASPECT), math.log(MOST_ASPECT)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, upper = np.random.randint(width - across + 1), np.random.randint(height - down + 1)
            return left, upper, left + across, upper + down
    across, down = min(width, max(1, round(height * aspect))), min(height, max(1, round(width / aspect)))
    left, upper = (width - across) // 2, (height - down) // 2
    return left, upper, left + across, upper + down


def shape_of(processor: Any) -> tuple[int, int]:
    """Height and width of what an image processor makes of any image.

    Raises:
        InvalidInput: (cause "model") they depend on the image, so that there is no batch, or there are not 3 colours.
    """
    from PIL import Image

    made = [_processed(processor, Image.new("RGB", size)).shape for size in ((64, 64), (64, 96), (96, 64))]
    if len(set(made)) > 1 or len(made[0]) != 3 or made[0][0] != 3:
        shown = ", ".join(map(str, dict.fromkeys(made)))
        raise InvalidInput(
            f"{type(processor).__name__} makes arrays of the shapes {shown} of images of several sizes; one shape "
            "(3, height, width) is expected: set its size to a height and a width, or its do_center_crop",
            cause="model",
        )
    return made[0][1], made[0][2]


def _processed(processor: Any, image: Any, **settings: Any) -> np.ndarray:
    made: np.ndarray = processor(images=image, return_tensors="np", **settings)[COLUMN][0]
    return made.astype(np.float32, copy=False)
