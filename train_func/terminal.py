"""What a terminal would obey is shown instead: text of workers, data and servers moves no cursor and hides nothing.

For what is printed and for the messages of errors; text that is handed out as a value stays as it is.
"""

import json
import re
import sys

# Control characters but tab and newline, marks that change the direction of text, invisible ones, and half characters.
_OBEYED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    r"\ud800-\udfff\U000e0000-\U000e007f]"
)


def shown(text: str) -> str:
    """``text`` with its lines and tabs, everything else that a terminal would obey written as Python writes it.

    Of a progress bar, drawn again and again after carriage returns, the first and the last drawing are shown.
    """
    return _OBEYED.sub(_written, "\n".join(map(_drawn, text.split("\n"))))


def json_shown(value: object) -> str:
    """JSON with letters as they are, where stdout has them; what a terminal would obey is escaped as JSON does it."""
    text = _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], json.dumps(value, indent=2, ensure_ascii=False))
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return json.dumps(value, indent=2)
    return text


def in_ipython() -> bool:
    """Whether a person types in IPython, as in a notebook; False in a program."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)() is not None


def _drawn(line: str) -> str:
    drawings = [drawing for drawing in line.split("\r") if drawing]
    return f"{drawings[0]} ... {drawings[-1]}" if len(drawings) > 2 else "\r".join(drawings)


def _written(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode()
