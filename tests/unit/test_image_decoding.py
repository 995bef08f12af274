"""One image: turned as its camera was held, in 8 bits for a colour, whatever else its file says of it."""

import base64
import io
import struct
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import datasets
import numpy as np
import pytest
from PIL import Image, ImageOps
from transformers import AutoModelForImageClassification

from tests.api_servers import running
from tests.tiny_images import image_of, write_tiny_resnet
from train_func import ImageClassification
from train_func.client.load import ready
from train_func.errors import InvalidInput
from train_func.layout import PIPELINE
from train_func.rgb import ORIENTATION, upright_rgb
from train_func.worker.tasks.image_classification import ImageClassifier
from train_func.worker.tasks.images import checked, decode

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
    assert checked(data, "a.jpg").mode == "RGB"


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
    assert checked(data, "a.jpg").mode == "RGB"
    assert np.array_equal(np.asarray(decode(data, "a.jpg")), np.asarray(decode(photo(kind, exif_of(turned(6))), "b")))


def test_a_published_model_is_asked_for_such_photos_too(tmp_path):
    from transformers import AutoImageProcessor, AutoModelForImageClassification, pipeline

    model = write_tiny_resnet(tmp_path / "model")
    data = photo("JPEG", exif_of((IMAGE_WIDTH, ASCII, 4, b"100\0"), turned(6)))
    rows = datasets.Dataset.from_list([{"image": {"bytes": data, "path": "a.jpg"}}] * 2)
    use = pipeline(
        "image-classification",
        model=AutoModelForImageClassification.from_pretrained(model),
        image_processor=AutoImageProcessor.from_pretrained(model),
    )
    half = ImageClassifier(ImageClassification(model=str(model), dataset="d"), 42, None, tmp_path / "cache")
    found = half.classes(use, rows.cast_column("image", datasets.Image()))
    assert found == [use(decode(data, "a.jpg"))[0]["label"]] * 2


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0nonsense", exif_of(turned(6))[:-9], exif_of((ORIENTATION, ASCII, 2, b"6\0\0\0"))]
)
def test_exif_that_says_no_turn_turns_nothing(exif):
    data = photo("JPEG", exif)
    assert checked(data, "a.jpg").mode == "RGB"
    assert decode(data, "a.jpg").size == (40, 24)


def png_of_16_bits(colour_type, channels):
    """As a camera of 12 bits writes it: Pillow itself writes no colours of 16 bits."""
    values = np.random.RandomState(0).randint(0, 4096, (7, 5, channels)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 5, 7, 16, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff_of_16_bits(order):
    """One strip of 5 x 7 pixels in red, green and blue."""
    pixels = np.random.RandomState(0).randint(0, 4096, (7, 5, 3)).astype(f"{order}u2").tobytes()
    bits = struct.pack(f"{order}HHH", 16, 16, 16)
    start = 8 + 2 + 9 * 12 + 4
    fields = [
        (256, 5), (257, 7), (258, start), (259, 1), (262, 2), (273, start + 6), (277, 3), (278, 7), (279, len(pixels))
    ]  # fmt: skip
    entries = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, value) for tag, value in fields if tag != 258)
    entries = entries[:24] + struct.pack(f"{order}HHII", 258, 3, 3, start) + entries[24:]
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(f"{order}IH", 8, 9) + entries + bytes(4) + bits + pixels


@pytest.mark.parametrize(
    "data",
    [
        png_of_16_bits(0, 1),
        png_of_16_bits(2, 3),
        png_of_16_bits(4, 2),
        png_of_16_bits(6, 4),
        tiff_of_16_bits("<"),
        tiff_of_16_bits(">"),
        b"P6 2 1 4095\n" + bytes(12),
        b"P3 2 1 65535\n1 2 3 40000 5 6\n",
    ],
    ids=["grey PNG", "PNG", "grey PNG and alpha", "PNG and alpha", "TIFF", "TIFF, big-endian", "PPM", "PPM in text"],
)
def test_more_than_8_bits_for_a_colour_are_refused_because_half_of_them_would_be_lost(data):
    with pytest.raises(InvalidInput, match=r"dark\.png.*8 bits") as caught:
        checked(data, "dark.png")
    assert caught.value.cause == "data"


def test_8_bits_or_fewer_for_a_colour_are_taken():
    masks = struct.pack("<III", 0xF800, 0x7E0, 0x1F)  # 16 bits for all three
    bmp = b"BM" + struct.pack("<IHHI", 82, 0, 0, 66) + struct.pack("<IiiHHIIiiII", 40, 4, 2, 1, 16, 3, 16, 0, 0, 0, 0)
    for data in (bmp + masks + bytes(16), b"P6 2 1 255\n" + bytes(6), b"P3 2 1 15\n1 2 3 15 5 6\n"):
        assert checked(data, "a.bmp").mode == "RGB"


def disc(mode):
    """Black on a transparent ground, whose colour is black too: 16 of 576 pixels show."""
    alpha = Image.new("L", (24, 24))
    alpha.paste(255, (4, 4, 8, 8))
    image = Image.merge("RGBA", [Image.new("L", alpha.size)] * 3 + [alpha])
    if mode == "P":  # its colour 0 is transparent
        image = Image.new("P", alpha.size)
        image.putpalette([0, 0, 0, 0, 0, 0])
        image.paste(1, (4, 4, 8, 8))
        image.info["transparency"] = 0
        return image
    return {"RGBa": lambda: image.convert("RGBa"), "La": lambda: image.convert("LA").convert("La")}.get(
        mode, lambda: image.convert(mode)
    )()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "PA", "RGBa", "La"])
def test_what_is_transparent_is_white_as_viewers_show_it(mode):
    made = upright_rgb(disc(mode))
    assert made.mode == "RGB"
    assert np.asarray(made).min(axis=2).tolist() == np.asarray(made).max(axis=2).tolist()
    assert (np.asarray(made) == 0).all(axis=2).sum() == 16
    assert (np.asarray(made) == 255).all(axis=2).sum() == 576 - 16


@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "RGBA"), ("PNG", "LA"), ("PNG", "P"), ("WEBP", "RGBA"), ("GIF", "P")]
)
def test_a_loaded_model_is_asked_for_the_picture_that_it_was_trained_on(tmp_path, kind, mode):
    model = write_tiny_resnet(tmp_path / "model")
    AutoModelForImageClassification.from_pretrained(model).save_pretrained(model)
    (model / PIPELINE).write_text('{"task": "image-classification"}')
    file = io.BytesIO()
    disc(mode).save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    (tmp_path / "a").write_bytes(file.getvalue())
    use, address = ready(model), base64.b64encode(file.getvalue()).decode()
    given = [decode(file.getvalue(), "a"), str(tmp_path / "a"), Image.open(file), f"data:image/png;base64,{address}"]
    with running(ThreadingHTTPServer(("127.0.0.1", 0), partial(FilesOf, directory=str(tmp_path)))) as served:
        given.append(f"http://127.0.0.1:{served.server_port}/a")
        assert [use(of) for of in given] == [use(given[0])] * 5
    assert use([given[1], given[2]]) == [use(given[0])] * 2


class FilesOf(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


def frames(kind, number):
    file = io.BytesIO()
    image = image_of(1)[0]
    later = [image_of(of)[0].resize(image.size) for of in range(2, number + 1)]
    options = {"lossless": True} if kind == "WEBP" else {}
    image.save(file, kind, save_all=True, append_images=later, **options)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_several_frames_are_seen_and_the_first_is_used(kind):
    several, one = frames(kind, 3), frames(kind, 1)
    assert (checked(several, "a").has_frames, checked(one, "a").has_frames) == (True, False)
    assert np.array_equal(np.asarray(decode(several, "a")), np.asarray(decode(one, "a")))


def test_images_that_show_the_same_are_equal_whatever_their_files_are():
    image = image_of(1)[0]
    kinds = {"PNG": {}, "BMP": {}, "TIFF": {}, "WEBP": {"lossless": True}}
    files = []
    for kind, options in kinds.items():
        file = io.BytesIO()
        image.save(file, kind, **options)
        files.append(file.getvalue())
    assert len({checked(of, "a").pixels for of in files}) == 1
    assert (
        checked(photo("JPEG", exif_of(turned(6))), "a").pixels != checked(photo("JPEG", exif_of(turned(8))), "a").pixels
    )
