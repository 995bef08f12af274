"""The packed module's own format: two header lines, the pieces, and local modules folded into comments at its end.

A folded module keeps every byte of its lines behind ``#|``, so the whole stays one valid Python file. The second
header line is an index of the folded modules, so nothing inside a piece can be mistaken for one.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CODING = "# coding: utf-8\n"  # the first line, so that no comment of a piece is ever read as an encoding
INDEX = "# folded: "
FOLD = "#|"
NUM_HEADER_LINES = 2


def split_lines(text: str) -> list[str]:
    """The lines of ``text`` as Python counts them, each with its own line break."""
    return list(io.StringIO(text, newline=""))  # str.splitlines knows many more line breaks than Python does


@dataclass(frozen=True)
class Module:
    """A local module: ``name`` as imported, ``path`` below the folder it is imported from."""

    name: str
    is_package: bool
    path: str
    text: str


@dataclass(frozen=True)
class SourceFile:
    """What a packed text holds besides its pieces; ``package`` is what relative imports of the pieces refer to."""

    package: str
    modules: tuple[tuple[Module, int], ...]  # each with its first line in the packed text


def fold(body: str, modules: Sequence[Module], package: str = "") -> str:
    """The packed text of ``body`` (which ends its last line) and ``modules``; ``unfold`` reads the modules back."""
    line = NUM_HEADER_LINES + len(split_lines(body)) + 1
    index: list[dict[str, Any]] = []
    folded: list[str] = []
    for module in modules:
        lines = split_lines(module.text)
        is_ended = not lines or lines[-1].endswith(("\r", "\n"))
        if not is_ended:
            lines[-1] += "\n"
        entry = {"name": module.name, "package": module.is_package, "path": module.path, "ended": is_ended}
        index.append({**entry, "first": line, "lines": len(lines)})
        folded += [FOLD + text for text in lines]
        line += len(lines)
    header = json.dumps({"package": package, "modules": index}, sort_keys=True)
    return "".join([CODING, INDEX, header, "\n", body, *folded])


def unfold(text: str) -> SourceFile:
    """The modules folded into ``text``.

    Raises:
        ValueError: when ``text`` was not made by ``fold``.
    """
    head = text[: len(CODING) + len(INDEX)]
    if head != CODING + INDEX:
        raise ValueError(f"the text begins {head[:40]!r}; a packed module begins {CODING + INDEX!r}")
    lines = split_lines(text)
    header = json.loads(lines[1].removeprefix(INDEX))
    modules = []
    for entry in header["modules"]:
        first = entry["first"]
        content = "".join(line.removeprefix(FOLD) for line in lines[first - 1 : first - 1 + entry["lines"]])
        content = content if entry["ended"] else content.removesuffix("\n")
        modules.append((Module(entry["name"], entry["package"], entry["path"], content), first))
    return SourceFile(header["package"], tuple(modules))
