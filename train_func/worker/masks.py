"""Keeps the values of secrets out of everything that a worker writes: lines, events, records, its last message.

A process knows its secrets from ``begin`` on: what its environment was given from Secrets, and the token of the Hub.
The supervisor and each rank call it first.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, quote_plus

from train_func.worker.environment import GROUP_SECRET, WEBHOOK

VARIABLE = "TRAIN_FUNC_SECRETS"  # names of the variables that hold one
MASK = "***"
SHORTEST = 8  # characters; what is shorter stands in many a line by chance
# Fields that are compared.
PLAIN = {"pod", "pod_uid", "submitted", "started", "ended", "time", "cause", "checkpoints_of"}

T = TypeVar("T")
_texts: list[str] = []  # the longest first: one may be a part of another
_lines: list[bytes] = []


def begin(environ: Mapping[str, str]) -> None:
    """Masks the secrets of this environment from now on, and no others."""
    names = {*environ.get(VARIABLE, "").split(), GROUP_SECRET, WEBHOOK}
    values = {environ[name] for name in names if environ.get(name)}
    if folder := environ.get("HF_HOME"):
        with contextlib.suppress(OSError, ValueError):  # the token of a login, read if no variable gives one
            values.add(Path(folder, "token").read_text().strip())
    forms = {form for value in values for form in _forms(value) if len(form) >= SHORTEST}
    _texts[:] = sorted(forms, key=len, reverse=True)
    _lines[:] = [text.encode(errors="surrogateescape") for text in _texts]


def _forms(value: str) -> set[str]:
    """Returns the ways in which a value is printed: whole, line by line, and with the escapes of strings and URLs."""
    parts = {value, *(line.strip() for line in value.splitlines())}
    escapes: tuple[Callable[[str], str], ...] = (
        str,
        lambda part: repr(part)[1:-1],
        lambda part: json.dumps(part)[1:-1],
        lambda part: json.dumps(part, ensure_ascii=False)[1:-1],
        quote,
        quote_plus,
    )
    return {escape(part) for part in parts for escape in escapes}


def mask(value: T) -> T:
    """Returns the text, dict, list, tuple or dataclass without secrets, and anything else as it is.

    The fields in PLAIN stay as they are, by which others recognise a pod, a submission or a cause.
    """
    return cast(T, _masked(value)) if _texts else value


def _masked(value: Any) -> Any:
    match value:
        case str():
            for text in _texts:
                value = value.replace(text, MASK)
            return value
        case Mapping():
            return {_masked(name): _masked(part) for name, part in value.items()}
        case list():
            return [_masked(part) for part in value]
        case tuple() if type(value) is tuple:
            return tuple(_masked(part) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init and field.name not in PLAIN]
        return replace(value, **{name: _masked(getattr(value, name)) for name in names})
    return value


def mask_line(line: bytes) -> bytes:
    """Returns a printed line without secrets."""
    for secret in _lines:
        if secret in line:
            line = line.replace(secret, MASK.encode())
    return line


def split(line: bytes) -> tuple[bytes, bytes]:
    """Returns the begin of a line that is too long to be held, and the rest, in which a secret may have begun."""
    line, longest = mask_line(line), max(map(len, _lines), default=1)
    return line[: len(line) - longest + 1], line[len(line) - longest + 1 :]
