"""python notebooks/data/draw_shapes.py: draws shapes.parquet, beside this file, anew; the same bytes each time.

Light shapes of any colour, place, size and turn on a dark, noisy ground: no class is known by its colour.
"""

import io
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
from PIL import Image, ImageDraw

SIZE, SCALE = 48, 4  # pixels; drawn larger and made smaller, for smooth edges
NUM_EACH = 75
NOISE = 12.0  # of each colour, of 255
CORNERS = {"square": 4, "star": 10, "triangle": 3}
SHAPES = ("circle", *CORNERS)
SEED = 7


def drawn(shape: str, random: np.random.RandomState) -> Image.Image:
    """One image of a shape."""
    ground, colour = random.randint(0, 90, 3), random.randint(120, 256, 3)
    image = Image.new("RGB", (SIZE * SCALE,) * 2, tuple(map(int, ground)))
    radius = random.uniform(0.26, 0.40) * SIZE * SCALE
    across, down = random.uniform(radius, SIZE * SCALE - radius, 2)
    pen, fill = ImageDraw.Draw(image), tuple(map(int, colour))
    if shape in CORNERS:
        turn, corners = random.uniform(0, 2 * math.pi), CORNERS[shape]
        reach = [radius * (0.45 if shape == "star" and number % 2 else 1.0) for number in range(corners)]
        angles = [turn + 2 * math.pi * number / corners for number in range(corners)]
        points = zip(reach, angles, strict=True)
        pen.polygon([(across + r * math.cos(a), down + r * math.sin(a)) for r, a in points], fill)
    else:
        pen.ellipse((across - radius, down - radius, across + radius, down + radius), fill)
    small = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX), np.float64)
    return Image.fromarray(np.clip(small + random.normal(0, NOISE, (SIZE, SIZE, 1)), 0, 255).astype(np.uint8))


def write(path: Path) -> None:
    """The file, its rows in shuffled order."""
    random = np.random.RandomState(SEED)
    rows = []
    for shape in np.repeat(SHAPES, NUM_EACH):
        file = io.BytesIO()
        drawn(str(shape), random).quantize(16).save(file, "PNG", optimize=True)
        rows.append({"image": {"bytes": file.getvalue(), "path": None}, "label": str(shape)})
    rows = [rows[at] for at in random.permutation(len(rows))]
    for number, row in enumerate(rows):
        row["image"]["path"] = f"{number:03d}.png"
    stored = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.Table.from_pylist(rows, pa.schema([("image", stored), ("label", pa.string())]))
    parquet.write_table(table, path, compression="zstd")


if __name__ == "__main__":
    write(Path(__file__).with_name("shapes.parquet"))
