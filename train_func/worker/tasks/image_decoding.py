"""Images: stores them once per machine as in their files, decodes them when they are needed, and makes batches.

A check of a run decodes each image once, and stores what it finds beside them. Training images are cropped and mirrored
at random.
"""

import hashlib
import io
import json
import math
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from train_func.errors import InvalidInput
from train_func.rgb import upright_rgb
from train_func.text import COUNTED, MAX_SHOWN, counted, listed
from train_func.worker.inputs.cache import entry, load_entry
from train_func.worker.inputs.image_folder import IS_FOLDER, STORED
from train_func.worker.inputs.locate import changed_while_read
from train_func.worker.inputs.reader import RawDataset
from train_func.worker.inputs.row_files import holds_bytes, values_of

MAX_PIXELS = 50_000_000  # of one image, 150 MB when decoded
DEEP = ("I", "F")  # modes of more than 8 bits, which a conversion would cut off
_DEEP_COLOURS = re.compile(";16[BLN]")  # in what Pillow says of a file's pixels whose lower 8 bits it drops itself
# What Pillow raises of bad files.
_NEVER_WHOLE = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error)
SEVERAL_FRAMES = ("AVIF", "GIF", "PNG", "TIFF", "WEBP")  # formats; a JPEG may carry small copies of itself
MOST_WHOLE = 2_000_000  # pixels of a JPEG that is decoded whole to be looked at, a larger one at an eighth of its size
VERSION = 3  # of what is stored; to be raised when the same input gives something else
BATCH = 256  # images written at once, or fewer that have BATCH_BYTES: Arrow ends a piece of a column at 2 GB
BATCH_BYTES = 64 * 2**20
LOSSLESS = ("RGB", "P", "L", "1")  # modes of Pillow that are the same in RGB
SCHEMA = pa.schema([("image", STORED), ("sha256", pa.string())])
LEAST_AREA = 0.35  # of an image that is cut out to train on
MOST_ASPECT = 4 / 3  # of what is cut out: as wide as high, times or divided by this
TRIES = 10  # to cut out of an image that is much longer than wide
COLUMN = "pixel_values"  # of encoded rows: the images as they are in their files


@dataclass(frozen=True)
class Look:
    """Facts of an image, without its pixels."""

    mode: str
    """Mode of Pillow."""
    is_transparent: bool
    has_frames: bool
    """Whether the image has several frames; the first one is used."""
    pixels: str
    """Hash of the pixels: equal for images that show the same, also from different files."""


def decode(data: bytes, name: str, suffices: int | None = None) -> Any:
    """Returns the image in RGB, turned as its camera was held, as transformers' pipelines take it.

    Args:
        suffices: height and width in pixels that are enough. A JPEG of at least twice that size is decoded at a half,
            a quarter or an eighth of its size, not below this, which is faster.

    Raises:
        InvalidInput: (cause "data") the image cannot be read, or is too large.
    """
    image = _opened(data, name)
    try:
        if suffices is not None:
            image.draft(image.mode, (suffices, suffices))
        return upright_rgb(image)
    except _NEVER_WHOLE as error:
        raise _unreadable(name, error) from None


def checked(data: bytes, name: str) -> Look:
    """Decodes an image, and returns its facts.

    Raises:
        InvalidInput: (cause "data") it cannot be decoded, or has more than 8 bits for a colour.
    """
    image = _opened(data, name)
    try:
        is_deep = _is_deep(image)  # before it is loaded, which makes 8 bits of some
        has_frames = image.format in SEVERAL_FRAMES and getattr(image, "is_animated", False)
        size = image.size
        if image.width * image.height > MOST_WHOLE:
            image.draft(image.mode, (max(1, image.width // 8), max(1, image.height // 8)))
        image.load()
        mode: str = image.mode
        is_transparent = image.has_transparency_data
        shown = image if is_deep else upright_rgb(image)
        pixels = hashlib.sha256(f"{sorted(size)} {shown.size}".encode() + shown.tobytes()).hexdigest()
    except _NEVER_WHOLE as error:
        raise _unreadable(name, error) from None
    if is_deep:
        raise InvalidInput(
            f"{name}: an image of mode {mode}, with more than 8 bits for a colour; save it with 8 bits", cause="data"
        )
    return Look(mode, is_transparent, has_frames, pixels)


def _is_deep(image: Any) -> bool:
    """Returns whether a colour has more than 8 bits in the file of an opened image."""
    if image.mode.startswith(DEEP):
        return True
    for decoder, _, _, settings in image.tile:
        if decoder.startswith("ppm") and settings[-1] > 255:
            return True
        if _DEEP_COLOURS.search(str(settings)):
            return True
    return False


def _opened(data: bytes, name: str) -> Any:
    from PIL import Image

    try:
        image = Image.open(io.BytesIO(data))
    except (*_NEVER_WHOLE, Image.DecompressionBombError) as error:
        raise _unreadable(name, error) from None
    if image.width * image.height > MAX_PIXELS:
        raise InvalidInput(
            f"{name}: {image.width} x {image.height} pixels; at most {MAX_PIXELS:,} are allowed; make it smaller",
            cause="data",
        )
    return image


def _unreadable(name: str, error: Exception) -> InvalidInput:
    why = "no format that is known" if "cannot identify" in str(error) else f"{type(error).__name__}: {error}"
    return InvalidInput(f"{name}: no image can be read from it ({why[:200]}); copy it again or remove it", cause="data")


@dataclass(frozen=True)
class ImageTable:
    """Stored images; ``table`` has a row for each image: image (bytes and name) and sha256 of the bytes."""

    table: pa.Table
    key: str
    """Key in the cache, by content."""


def keep(table: pa.Table, column: str, source: RawDataset, known_by: list[str | None], cache: Path) -> ImageTable:
    """Stores the images of a column in the cache, and returns them.

    Args:
        source: the data set of ``table``; images in a folder are named by their paths from it.
        known_by: identifies the content of the data set.

    Raises:
        InvalidInput: the column holds no images, or a row names a file that does not exist or has changed.
    """
    if fault := _type_fault(table, column):
        raise InvalidInput(fault, cause="data")
    is_folder, local = IS_FOLDER in (table.schema.metadata or {}), source.local
    may_read = source.commit is not None or is_folder
    sums = {name.partition("/")[2]: sha256 for name, sha256 in local.files.items()} if local and is_folder else {}
    key = hashlib.sha256(json.dumps([VERSION, column, *known_by]).encode()).hexdigest()

    def write(part: Path) -> None:
        with pa.ipc.new_stream(str(part), SCHEMA) as writer:
            for batch in _batches(table, column, source.where, sums, may_read=may_read):
                writer.write_batch(batch)
        if local and not is_folder:
            local.check_unchanged(cache)

    def mapped(path: Path) -> pa.Table:
        return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()

    return ImageTable(load_entry(cache, f"images/{key}.arrow", write, mapped), key)


def _type_fault(table: pa.Table, column: str) -> str | None:
    kind = table.schema.field(column).type
    has_bytes = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    if holds_bytes(kind) or (
        has_bytes and pa.types.is_null(kind.field("bytes").type)
    ):  # null: paths alone, told by row
        return None
    image_columns = [field.name for field in table.schema if holds_bytes(field.type) or pa.types.is_struct(field.type)]
    return (
        f"column {column!r} holds {kind}, not images: bytes of image files are expected, or what datasets calls Image "
        f"(paths become it by rows.cast_column({column!r}, datasets.Image())); columns with such: "
        f"{', '.join(map(repr, image_columns)) or 'none'}"
    )


def _batches(
    table: pa.Table, column: str, root: str, sums: Mapping[str, str], *, may_read: bool
) -> Iterator[pa.RecordBatch]:
    """Yields the stored images; ``sums``: the SHA-256 that files of images must have, by name."""
    missing: list[str] = []
    changed: list[str] = []
    rows: list[dict[str, Any]] = []
    size = 0
    for at, scalar in enumerate(values_of(table, column), 1):
        value = scalar.as_py()
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, None)
        if data is None and path and may_read and Path(path).is_file():
            data = Path(path).read_bytes()
        if data is None:
            missing.append(f"row {at}" + (f" ({path})" if path else ""))
            data = b""
        is_inside = path is not None and path.startswith(f"{root}{os.sep}")
        name = "" if path is None else path.removeprefix(f"{root}{os.sep}") if is_inside else Path(path).name
        sha256 = hashlib.sha256(data).hexdigest()
        if sums.get(name, sha256) != sha256:
            changed.append(name)
        rows.append({"image": {"bytes": data, "path": name}, "sha256": sha256})
        size += len(data)
        if len(rows) == BATCH or size >= BATCH_BYTES:
            yield pa.RecordBatch.from_pylist(rows, SCHEMA)
            rows, size = [], 0
    yield pa.RecordBatch.from_pylist(rows, SCHEMA)
    if changed:
        raise changed_while_read(changed)
    if missing:
        raise InvalidInput(
            f"column {column!r}: {len(missing)} of {counted(table.num_rows, 'image')} with no bytes: "
            f"{listed(missing, MAX_SHOWN)} {COUNTED}; remove these rows, or save the data set with its images in it",
            cause="data",
        )


def name_of(stored: dict[str, Any], row: int | None = None) -> str:
    """Returns the name of an image in messages; ``row``: its row in the data set, from 0."""
    where = "" if row is None else f"row {row + 1}"
    return f"{stored['path']}{f' ({where})' if where else ''}" if stored["path"] else where or "an image"


@dataclass(frozen=True)
class Looks:
    """Facts of the images of a part."""

    pixels: np.ndarray
    """Hash of the pixels of all images, in the order of the rows."""
    notes: list[str]


def look_at_each(images: ImageTable, part: str, cache: Path) -> Looks:
    """Decodes the images of the rows called ``part``, once per machine, and returns their facts.

    Raises:
        InvalidInput: images cannot be decoded; the message names them.
    """

    def write(target: Path) -> None:
        looks, faults = _tried(images.table)
        if faults:
            more = f"{part} rows: {len(faults)} of {counted(images.table.num_rows, 'image')} cannot be used: "
            raise InvalidInput(f"{more}{listed(faults, MAX_SHOWN, separator='; ')} {COUNTED}", cause="data")
        lossy = Counter(look.mode for look in looks if look.mode not in LOSSLESS)
        transparent, framed = sum(look.is_transparent for look in looks), sum(look.has_frames for look in looks)
        pixels = [look.pixels for look in looks]
        target.write_text(json.dumps({"modes": lossy, "transparent": transparent, "framed": framed, "pixels": pixels}))

    seen = json.loads(entry(cache, f"images/{images.key}.json", write).read_text())
    of_all, notes = f"of {counted(images.table.num_rows, 'image')}", []
    if modes := seen["modes"]:
        shown = ", ".join(f"{number} of mode {mode}" for mode, number in sorted(modes.items()))
        notes.append(f"{part} rows: {sum(modes.values())} {of_all} become RGB: {shown}")
    if number := seen["transparent"]:
        notes.append(f"{part} rows: {number} {of_all} may be transparent, and are shown on white")
    if number := seen["framed"]:
        notes.append(f"{part} rows: {number} {of_all} have several frames, of which the first is used")
    return Looks(np.array(seen["pixels"]), notes)


def _tried(table: pa.Table) -> tuple[list[Look], list[str]]:
    """Returns the facts of images that can be decoded, and the faults of the others."""

    images = table["image"]  # once: a table makes it anew at every asking

    def tried(row: int) -> tuple[Look | None, str]:
        stored = images[row].as_py()
        try:
            return checked(stored["bytes"], name_of(stored, row)), ""
        except InvalidInput as refused:
            return None, refused.faults[0]

    with ThreadPoolExecutor(os.cpu_count()) as threads:  # Pillow decodes without the lock of the interpreter
        results = list(threads.map(tried, range(table.num_rows), chunksize=BATCH))
    return [look for look, _ in results if look], [fault for _, fault in results if fault]


class ImageCollator:
    """Makes a batch of rows; it draws from numpy's generator, which is seeded by the place in the plan."""

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
    """Returns a random part of an image, of height and width ``shape``, mirrored or not."""
    from PIL import Image

    box = _box(image.width, image.height, shape[1] / shape[0])
    is_mirrored = np.random.random_sample() < 0.5
    filtering = Image.Resampling.BILINEAR if resample is None else Image.Resampling(int(resample))
    part = image.resize((shape[1], shape[0]), filtering, box=box)
    return part.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if is_mirrored else part


def _box(width: int, height: int, aspect: float) -> tuple[int, int, int, int]:
    """Returns left, upper, right and lower edge of a part of at least LEAST_AREA; of the middle if none fits."""
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
    """Returns height and width of the arrays that an image processor makes.

    Raises:
        InvalidInput: (cause "model") they depend on the image, so that no batch can be made, or are not of 3 colours.
    """
    from PIL import Image

    shapes = [_processed(processor, Image.new("RGB", size)).shape for size in ((64, 64), (64, 96), (96, 64))]
    if len(set(shapes)) > 1 or len(shapes[0]) != 3 or shapes[0][0] != 3:
        shown = ", ".join(map(str, dict.fromkeys(shapes)))
        raise InvalidInput(
            f"{type(processor).__name__} makes arrays of the shapes {shown} of images of several sizes; one shape "
            "(3, height, width) is expected: set its size to a height and a width, or its do_center_crop",
            cause="model",
        )
    return shapes[0][1], shapes[0][2]


def _processed(processor: Any, image: Any, **settings: Any) -> np.ndarray:
    pixels: np.ndarray = processor(images=image, return_tensors="np", **settings)[COLUMN][0]
    return pixels.astype(np.float32, copy=False)
