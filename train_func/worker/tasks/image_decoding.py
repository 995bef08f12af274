"""Decodes images: what is in a file becomes red, green and blue, and what cannot is named."""

import hashlib
import io
import re
import struct
from dataclasses import dataclass
from typing import Any

from train_func.errors import InvalidInput
from train_func.rgb import upright_rgb

MAX_PIXELS = 50_000_000  # of one image, 150 MB when decoded
DEEP = ("I", "F")  # modes of more than 8 bits, which a conversion would cut off
_DEEP_COLOURS = re.compile(";16[BLN]")  # in what Pillow says of a file's pixels whose lower 8 bits it drops itself
# What Pillow raises of bad files.
_NEVER_WHOLE = (OSError, SyntaxError, ValueError, EOFError, IndexError, TypeError, struct.error)
SEVERAL_FRAMES = ("AVIF", "GIF", "PNG", "TIFF", "WEBP")  # formats; a JPEG may carry small copies of itself
MOST_WHOLE = 2_000_000  # pixels of a JPEG that is decoded whole to be looked at, a larger one at an eighth of its size


@dataclass(frozen=True)
class Look:
    """What is known of an image without keeping it."""

    mode: str
    """Of Pillow."""
    is_transparent: bool
    has_frames: bool
    """Whether there are several, of which the first is used."""
    pixels: str
    """The same for images that show the same, whatever their files are."""


def decode(data: bytes, name: str, suffices: int | None = None) -> Any:
    """The image in RGB, turned as its camera was held, as transformers' pipelines take it.

    Args:
        suffices: pixels of height and width; a JPEG of at least twice as many is decoded at a half, a quarter or an
            eighth of its size, not below this, which is faster.

    Raises:
        InvalidInput: (cause "data") it cannot be read, or is too large.
    """
    image = _opened(data, name)
    try:
        if suffices is not None:
            image.draft(image.mode, (suffices, suffices))
        return upright_rgb(image)
    except _NEVER_WHOLE as error:
        raise _unreadable(name, error) from None


def checked(data: bytes, name: str) -> Look:
    """An image that can be decoded.

    Raises:
        InvalidInput: (cause "data") it cannot, or has more than 8 bits for a colour.
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
        shown = "" if is_deep else _digest(size, upright_rgb(image))
    except _NEVER_WHOLE as error:
        raise _unreadable(name, error) from None
    if is_deep:
        raise InvalidInput(
            f"{name}: an image of mode {mode}, with more than 8 bits for a colour; save it with 8 bits", cause="data"
        )
    return Look(mode, is_transparent, has_frames, shown)


def _digest(size: tuple[int, int], image: Any) -> str:
    return hashlib.sha256(f"{sorted(size)} {image.size}".encode() + image.tobytes()).hexdigest()


def _is_deep(image: Any) -> bool:
    """Whether a colour has more than 8 bits in the file of an opened image."""
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
            f"{name}: {image.width} x {image.height} pixels; at most {MAX_PIXELS:,} may be: make it smaller",
            cause="data",
        )
    return image


def _unreadable(name: str, error: Exception) -> InvalidInput:
    why = "no format that is known" if "cannot identify" in str(error) else f"{type(error).__name__}: {error}"
    return InvalidInput(f"{name}: no image can be read from it ({why[:200]}); copy it again or remove it", cause="data")
