"""Text for people: numbers, lists and rows in words, without characters that a terminal would obey.

1 worker, 2 workers; a, b and 3 more; 66.5 MB; in rows 3, 8. Text of workers, data and servers moves no cursor and hides
nothing in output or in an error; text that is returned as a value does not change.
"""

import difflib
import json
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


MAX_SHOWN = 5
COUNTED = "(data rows are counted from 1, without the header)"  # lines of a file differ by header and line breaks


def counted(number: int, noun: str) -> str:
    """Returns number and noun, such as "2 workers"; the plural of ``noun`` ends in s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(values: Sequence[Any], at_most: int = 5, *, separator: str = ", ", show: Callable[[Any], str] = str) -> str:
    """Returns the first of the values, and how many more there are."""
    more = f" and {len(values) - at_most} more" if len(values) > at_most else ""
    return separator.join(map(show, values[:at_most])) + more


def numbered_workers(numbers: Iterable[int]) -> str:
    """Returns ``worker 0``, ``workers 0, 2`` or ``workers 0 to 199``."""
    numbers = sorted(set(numbers))
    if len(numbers) == 1:
        return f"worker {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"workers {numbers[0]} to {numbers[-1]}"
    shown = ", ".join(map(str, numbers[:6]))
    return f"workers {shown}" + (f" and {len(numbers) - 6} more" if len(numbers) > 6 else "")


def cut(words: str, most: int) -> str:
    """Returns the words; of more than ``most`` characters the first ones and an ellipsis."""
    return words if len(words) <= most else f"{words[:most]} ..."


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Returns the name that was probably meant: case, accents, and spaces around it count for nothing."""
    plain_names: dict[str, str] = {}
    for each in names:
        plain_names.setdefault(_plain(each), each)
    close = difflib.get_close_matches(_plain(name), plain_names, n=1)
    return plain_names[close[0]] if close else None


def _plain(name: str) -> str:
    letters = unicodedata.normalize("NFKD", name.strip().casefold())
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def sized(num_bytes: int) -> str:
    """Returns the size in the largest decimal unit that gives at least one."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:,.1f} {name}"
    return counted(num_bytes, "byte")


def in_rows(rows: "Sequence[int] | np.ndarray") -> str:
    """Returns words for rows, numbered from 0, with the first few of them."""
    numbers = ", ".join(str(int(row) + 1) for row in rows[:MAX_SHOWN])
    place = "in row" if len(rows) == 1 else "in rows" if len(rows) <= MAX_SHOWN else "first in rows"
    return f"{place} {numbers} {COUNTED}"


def are(number: int) -> str:
    """Returns "is" or "are" for a number."""
    return "is" if number == 1 else "are"


# Control characters but tab and newline, marks that change the direction of text, invisible ones, and half characters.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)


def shown(text: str) -> str:
    """Returns ``text`` with its lines and tabs; other characters that a terminal would obey are escaped as in Python.

    A progress bar, which is drawn again after each carriage return, keeps its first and last drawing.
    """
    lines = []
    for line in text.split("\n"):
        drawings = [drawing for drawing in line.split("\r") if drawing]
        lines.append(f"{drawings[0]} ... {drawings[-1]}" if len(drawings) > 2 else "\r".join(drawings))
    return _OBEYED.sub(lambda match: match[0].encode("unicode_escape").decode(), "\n".join(lines))


def json_shown(value: object) -> str:
    """Returns JSON with the letters that stdout can encode; characters that a terminal would obey are escaped."""
    text = _OBEYED.sub(lambda match: json.dumps(match[0])[1:-1], json.dumps(value, indent=2, ensure_ascii=False))
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return json.dumps(value, indent=2)
    return text


def in_ipython() -> bool:
    """Returns whether this runs in IPython, such as a notebook."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)() is not None
