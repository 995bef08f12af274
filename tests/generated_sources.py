"""Function sources made of everything that a shell, a template or a text file would damage, with what they return."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

HAZARDS = (
    *("$", "$$", "$HOME", "${HOME}", "$(touch /tmp/x)", "$5", "`id`", "`", "'", '"', "'''", '"""', "\\", "\\\\", "\\n"),
    *("\\b", "\\0", "EOM", "EOF", "EOF\n", "\nEOM\n", "<<EOM", "%s", "%(x)s", "{x}", "{{", "}}", "{% if %}", "#", "#|"),
    *("!", "!!", "&&", ";", "|", ">", "<", "*", "?", "~", "\t", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"),
    *("\r", "\r\n", "\n", "\ufeff", "\x00", "\x1a", "\x1b[31m", "\x7f", "é", "e\u0301"),
    *("ß", "中文", "😀", "👩‍👩‍👧", "𝒳"),
    *("\u202e", "\ud7ff", "\U0010ffff", "---\nkey: |\n", "- a\n", "__import__('os')", "# coding: latin-1", "null"),
)
NAMES = ("value", "größe", "变量", "𝒳", "e\u0301", "_", "__x", "EOM", "True_", "ª")


@dataclass(frozen=True)
class Generated:
    """The text of a Python file with a function ``train_func``, which called with {} returns ``returns``."""

    text: str
    returns: list[object]

    @property
    def data(self) -> bytes:
        """The file's exact bytes."""
        return self.text.encode()


def generated_sources(seed: int, num_sources: int) -> Iterator[Generated]:
    """``num_sources`` different sources, the same for the same seed."""
    rng = random.Random(seed)
    for number in range(num_sources):
        yield _source(rng, number)


def large_source(num_bytes: int) -> Generated:
    """One source of at least ``num_bytes`` bytes in lines of every length."""
    rng = random.Random(num_bytes)
    lines, values, size = [], [], 0
    while size < num_bytes:
        value = rng.randbytes(rng.choice([1, 40, 5000, 60_000])).hex() + rng.choice(HAZARDS)
        lines.append(f"    values.append({value!r})\n")
        values.append(value)
        size += len(lines[-1].encode())
    text = "def train_func(parameters):\n    values = []\n" + "".join(lines) + "    return values\n"
    return Generated(text, [*values])


def _source(rng: random.Random, number: int) -> Generated:
    values = [_value(rng) for _ in range(rng.randint(1, 5))]
    names = rng.sample(NAMES, 2)
    tab = rng.choice(["    ", "\t", " ", "  \t"])
    constant, (shown, first) = names[0], _literal(rng, _value(rng))
    literals = [_literal(rng, value) for value in values]
    head = rng.choice(["", "# $HOME `id` \\\n", "#!/bin/sh\n", f"'''{_raw(rng)}'''\n"])
    lines = [
        head,
        f"{constant} = {shown}\n",
        rng.choice(["", "\n\n", "\x0c\n", "# EOM\n"]),
        f"def {names[1]}(x):\n{tab}# {_one_line(rng)}\n{tab}return x  # `$x`\n",
        f"def train_func(parameters):\n{tab}'''{_raw(rng)}'''\n{tab}values = []\n",
        *(f"{tab}values.append({names[1]}({text}))  # {_one_line(rng)}\n" for text, _ in literals),
        f"{tab}if {number} == \\\n{number}:\n{tab}{tab}values.append({constant})\n",
        f"{tab}return values{rng.choice([chr(10), '', '  # the end', ';'])}",
    ]
    text = "".join(lines)
    newline = rng.choice(["\n", "\n", "\n", "\r\n", "\r"])
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", newline) if newline != "\n" else text
    bom = "\ufeff" if rng.random() < 0.1 else ""
    return Generated(bom + text, [*(value for _, value in literals), first])


def _value(rng: random.Random) -> str:
    parts = rng.choices(HAZARDS, k=rng.randint(0, 12))
    if rng.random() < 0.05:
        parts.append(rng.choice(["x", "€", "ab "]) * rng.choice([1000, 70_000]))
    return "".join(parts)


def _literal(rng: random.Random, value: str) -> tuple[str, str]:
    """A Python expression, and what it evaluates to: raw line breaks in it are "\\n" to Python."""
    style = rng.choice(["repr", "escaped", "triple", "formatted", "bytes"])
    if style == "repr":
        return repr(value), value
    if style == "escaped":
        return '"' + "".join(f"\\U{ord(character):08x}" for character in value) + '"', value
    if style == "bytes":
        return f"{value.encode()!r}.decode()", value
    raw = value.replace("\\", "\\\\").replace('"', '\\"').replace("\x00", "\\0")
    seen = value.replace("\r\n", "\n").replace("\r", "\n")
    if style == "formatted":
        return 'f"""' + raw.replace("{", "{{").replace("}", "}}") + '{1 + 1:>3}"""', seen + "  2"
    return f'"""{raw}"""', seen


def _raw(rng: random.Random) -> str:
    """The inside of a docstring, as raw as Python takes it."""
    return _value(rng).replace("\\", "\\\\").replace("'", "\\'").replace("\x00", "")


def _one_line(rng: random.Random) -> str:
    return "".join(character for character in _value(rng) if character not in "\r\n\x00")
