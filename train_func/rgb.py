"""Images in red, green and blue: upright, and on white if they are transparent, as viewers show them.

Workers convert training images with it, and ``load()`` the images for a model.
"""

import base64
import io
from pathlib import Path
from typing import Any

ORIENTATION = 0x0112  # of EXIF: how the camera was held
_TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


def upright_rgb(image: Any) -> Any:
    """Returns the pixels of an image of Pillow; of several frames the current one, which is the first in a new file."""
    from PIL import Image

    image.load()
    try:
        turn = _TURNS.get(image.getexif().get(ORIENTATION))
    except Exception:  # Pillow raises many kinds of damaged EXIF; the pixels have been read
        turn = None
    # Not by ImageOps.exif_transpose: it writes all of EXIF again, which fails where a field has a type of its own.
    upright = image.transpose(Image.Transpose[turn]) if turn else image
    if upright.has_transparency_data:
        shown = (upright.convert("LA") if upright.mode == "La" else upright).convert("RGBA")  # two steps from La
        pixels = Image.alpha_composite(Image.new("RGBA", shown.size, "white"), shown).convert("RGB")
    else:
        pixels = upright.convert("RGB")
    pixels.info = {}  # its EXIF would have the image turned again
    return pixels


def open_image(image: Any, timeout: float | None = None) -> Any:
    """Returns an input of an image pipeline in RGB: an address, a path, base64 or an image of Pillow.

    Other inputs are returned unchanged.
    """
    from PIL import Image

    if isinstance(image, str):
        if image.startswith(("http://", "https://")):
            from huggingface_hub import get_session

            answer = get_session().get(image, timeout=timeout, follow_redirects=True)
            image = Image.open(io.BytesIO(answer.raise_for_status().content))
        elif image.startswith("data:image/"):
            image = Image.open(io.BytesIO(base64.b64decode(image.partition(",")[2])))
        elif _is_file(image):
            image = Image.open(image)
    return upright_rgb(image) if isinstance(image, Image.Image) else image


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except OSError:  # base64 is longer than a name may be
        return False
