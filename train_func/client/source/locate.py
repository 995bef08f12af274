"""From the line numbers of a worker's traceback to the cells the lines came from."""

import re
from collections.abc import Mapping
from typing import Any

from train_func.source_file import split_lines

# A folded local module shows as a file below source.py: ".../source.py/mypackage/module.py".
_FRAME = re.compile(
    r'^[^\n]*File "(?:[^"\n]*[/\\])?source\.py(?:/(?P<path>[^"\n]+))?", line (?P<line>\d+)[^\n]*\n?', re.MULTILINE
)


def locate(cells: Mapping[str, Any], traceback_text: str) -> list[tuple[str, int, str]]:
    """The frames of ``traceback_text`` that lie in the packed module, innermost last.

    Args:
        cells: the content of ``cells.json``.
        traceback_text: as Python prints it.

    Returns:
        Per frame: the origin ("cell In[5]" or a file), the line in it counted from 1, that line without indentation.
    """
    found = []
    for frame in _FRAME.finditer(traceback_text):
        place = _origin(cells, frame["path"], int(frame["line"]))
        quoted = re.match(
            r" {4,}(?P<line>[^\n]*)", traceback_text[frame.end() :]
        )  # other packages have a source.py too
        if place and (quoted is None or quoted["line"].strip() == place[2]):
            found.append(place)
    return found


def locate_main(cells: Mapping[str, Any], stacks: str) -> list[tuple[str, int, str]]:
    """The frames of a process's main thread in the packed module, innermost first; ``stacks`` as faulthandler prints.

    It prints the thread last that began first; of more than a hundred, an ellipsis in place of that one too.
    """
    return [] if stacks.rstrip().endswith("\n...") else locate(cells, stacks.rpartition("hread 0x")[2])


def _origin(cells: Mapping[str, Any], path: str | None, line: int) -> tuple[str, int, str] | None:
    if path is not None:
        if path not in cells.get("modules", {}):
            return None
        line += cells["modules"][path] - 1
    for piece in cells["pieces"]:
        lines = split_lines(piece["text"])
        if piece["first"] <= line <= piece["last"] and lines:
            index = 0 if "is_value" in piece else min(line - piece["first"], len(lines) - 1)
            return piece["origin"], piece["line"] + index, lines[index].strip()
    return None
