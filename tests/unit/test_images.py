"""Images are turned as their camera was held, in 8 bits for a colour, and never all in memory at once."""

import base64
import contextlib
import io
import struct
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image, ImageOps
from transformers import AutoModelForImageClassification

from tests.api_servers import running
from tests.tiny_images import encoded, image_of, rows_of, write_tiny_resnet
from train_func import ImageClassification
from train_func.client.model.load import ready
from train_func.errors import InvalidInput
from train_func.rgb import ORIENTATION, upright_rgb
from train_func.wire.layout import PIPELINE
from train_func.worker.inputs import row_files
from train_func.worker.tasks import image_decoding
from train_func.worker.tasks.image_classification import ImageClassifier
from train_func.worker.tasks.image_decoding import checked, decode

ASCII, SHORT = 2, 3  # types of a field of EXIF
IMAGE_WIDTH = 0x0100


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


TURNS = [*[("JPEG", value) for value in range(10)], ("PNG", 6), ("WEBP", 6), ("TIFF", 6)]


@pytest.mark.parametrize(("kind", "value"), TURNS)
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
    ("exif", "size"),
    [
        (exif_of((IMAGE_WIDTH, ASCII, 4, b"100\0"), turned(6)), (24, 40)),
        (b"Exif\0\0nonsense", (40, 24)),
        (exif_of((ORIENTATION, ASCII, 2, b"6\0\0\0")), (40, 24)),
    ],
)
def test_exif_that_is_damaged_or_cannot_be_written_again_is_no_fault_of_the_image(exif, size):
    data = photo("JPEG", exif)
    assert checked(data, "a.jpg").mode == "RGB"
    assert decode(data, "a.jpg").size == size


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A published model."""
    model = write_tiny_resnet(tmp_path_factory.mktemp("model") / "tiny")
    AutoModelForImageClassification.from_pretrained(model).save_pretrained(model)
    (model / PIPELINE).write_text('{"task": "image-classification"}')
    return model


def png_of_16_bits(colour_type, channels):
    """As a camera of 12 bits writes it: Pillow itself writes no colours of 16 bits."""
    values = np.random.RandomState(0).randint(0, 4096, (7, 5, channels)).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in values)

    def chunk(name, content):
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 5, 7, 16, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def tiff_of_16_bits():
    """With zeros behind its pixels, which are twice as large as Pillow has written them."""
    return encoded(image_of(1)[0], "TIFF").replace(struct.pack("<3H", 8, 8, 8), struct.pack("<3H", 16, 16, 16)) + bytes(
        9999
    )


@pytest.mark.parametrize(
    "data",
    [
        png_of_16_bits(0, 1),
        png_of_16_bits(2, 3),
        png_of_16_bits(6, 4),
        tiff_of_16_bits(),
        b"P6 2 1 4095\n" + bytes(12),
        b"P3 2 1 65535\n1 2 3 40000 5 6\n",
    ],
    ids=["grey PNG", "PNG", "PNG and alpha", "TIFF", "PPM", "PPM in text"],
)
def test_more_than_8_bits_for_a_colour_are_refused_because_half_of_them_would_be_lost(data):
    with pytest.raises(InvalidInput, match=r"dark\.png.*8 bits") as caught:
        checked(data, "dark.png")
    assert caught.value.cause == "data"


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
    return image.convert("LA").convert("La") if mode == "La" else image.convert(mode)


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "PA", "RGBa", "La"])
def test_what_is_transparent_is_white_as_viewers_show_it(mode):
    made = upright_rgb(disc(mode))
    assert made.mode == "RGB"
    assert np.asarray(made).min(axis=2).tolist() == np.asarray(made).max(axis=2).tolist()
    assert (np.asarray(made) == 0).all(axis=2).sum() == 16
    assert (np.asarray(made) == 255).all(axis=2).sum() == 576 - 16


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGBA"), ("PNG", "P"), ("WEBP", "RGBA")])
def test_a_loaded_model_is_asked_for_the_picture_that_it_was_trained_on(tmp_path, model, kind, mode):
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


NUM_ROWS, EACH, PIECE = 41, 500_000, 2_000_000  # bytes of an image, and read at once


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(row_files, "PIECE", PIECE)
    monkeypatch.setattr(image_decoding, "BATCH_BYTES", PIECE)


@contextlib.contextmanager
def of_its_own():
    """Arrow's second pool, which nothing else uses, so that its maximum is that of what is tested."""
    before, own = pa.default_memory_pool(), pa.system_memory_pool()
    pa.set_memory_pool(own)
    yield own
    pa.set_memory_pool(before)


def large_rows(form):
    """Decoders stop where an image ends, and leave the zeros after it."""
    rows = rows_of(NUM_ROWS)
    made = [{**row, "image": row["image"] + bytes(EACH - len(row["image"]))} for row in rows]
    return made if form == "bytes" else [{**row, "image": {"bytes": row["image"], "path": None}} for row in made]


def starts(path, tmp_path):
    task = ImageClassification(model=None, size=24, dataset=str(path))
    return ImageClassifier(task, 42, None, tmp_path / "cache").rows()


def test_a_parquet_file_of_images_is_never_whole_in_memory_and_not_read_at_the_next_start(tmp_path, small_pieces):
    files = {form: tmp_path / f"{form}.parquet" for form in ("bytes", "Image")}
    for form, path in files.items():
        parquet.write_table(pa.Table.from_pylist(large_rows(form)), path, row_group_size=4, compression="none")
        starts(path, tmp_path)
    with of_its_own() as memory:
        for path in files.values():
            starts(path, tmp_path)
        assert memory.max_memory() < EACH
        for path in files.values():
            rows = starts(path, tmp_path / "other")
        assert memory.max_memory() < NUM_ROWS * EACH / 2
    kept = rows.train.cast_column("image", datasets.Image(decode=False))
    assert {len(image["bytes"]) for image in kept["image"]} == {EACH}


def test_a_parquet_file_that_is_damaged_among_its_images_is_refused(tmp_path):
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(rows_of(NUM_ROWS)), path)
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)  # where the images begin
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="rows.parquet") as caught:
        starts(path, tmp_path)
    assert caught.value.cause == "data"
    assert not list((tmp_path / "cache/images").glob("*.arrow"))
