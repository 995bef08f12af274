"""One image: turned as its camera was held, in 8 bits for a colour, whatever else its file says of it."""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.tiny_images import image_of
from train_func.worker.tasks.image_decoding import ORIENTATION, checked, decode

ASCII, SHORT, FLOAT, SIGNED = 2, 3, 11, 9  # types of a field of EXIF
IMAGE_WIDTH, X_RESOLUTION, RESOLUTION_UNIT = 0x0100, 0x011A, 0x0128


def exif_of(*fields):
    """As bytes, so that a field may have a type that is not its own: (tag, type, number of values, 4 bytes)."""
    entries = b"".join(struct.pack("<HHI4s", tag, kind, count, value) for tag, kind, count, value in fields)
    return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(fields)) + entries + bytes(4)


def turned(value):
    return (ORIENTATION, SHORT, 1, struct.pack("<HH", value, 0))


def photo(kind, exif):
    file = io.BytesIO()
    image_of(1)[0].resize((40, 24)).save(file, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    return file.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", range(10))
def test_an_image_is_turned_as_pillow_and_pipelines_turn_it(kind, value):
    exif = Image.Exif()
    exif[ORIENTATION] = value
    data = photo(kind, exif)
    with Image.open(io.BytesIO(data)) as image:
        expected = ImageOps.exif_transpose(image).convert("RGB")
    made = decode(data, "a.jpg")
    assert np.array_equal(np.asarray(made), np.asarray(expected))
    assert np.array_equal(np.asarray(ImageOps.exif_transpose(made)), np.asarray(expected))
    assert checked(data, "a.jpg") == "RGB"


@pytest.mark.parametrize(
    "field",
    [
        (IMAGE_WIDTH, ASCII, 4, b"100\0"),
        (IMAGE_WIDTH, FLOAT, 1, struct.pack("<f", 100.0)),
        (IMAGE_WIDTH, SIGNED, 1, struct.pack("<i", -1)),
        (RESOLUTION_UNIT, ASCII, 2, b"2\0\0\0"),
        (X_RESOLUTION, ASCII, 3, b"72\0\0"),
    ],
)
@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_a_field_of_exif_that_cannot_be_written_again_changes_nothing(kind, field):
    fields = sorted([field, turned(6)])
    data = photo(kind, exif_of(*fields))
    assert checked(data, "a.jpg") == "RGB"
    assert np.array_equal(np.asarray(decode(data, "a.jpg")), np.asarray(decode(photo(kind, exif_of(turned(6))), "b")))


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0nonsense", exif_of(turned(6))[:-9], exif_of((ORIENTATION, ASCII, 2, b"6\0\0\0"))]
)
def test_exif_that_says_no_turn_turns_nothing(exif):
    data = photo("JPEG", exif)
    assert checked(data, "a.jpg") == "RGB"
    assert decode(data, "a.jpg").size == (40, 24)
