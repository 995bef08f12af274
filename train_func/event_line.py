"""An event: what a worker says while it runs, as one line of its log, which this module alone writes and reads.

The line is MARK, words for a person, a tab, and the same as JSON. The mark occurs in no other line, because the
supervisor escapes it in everything that is printed. The kinds of events are in ``events.py``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import Any, ClassVar

from train_func.plain import plain
from train_func.terminal import shown

MARK = "@event: "  # no end of it is its beginning, so that escaping one makes no other
ESCAPED = "@ event: "
OF_RANK = "[rank {}] "  # stands before what a rank has printed
FORMAT = 1
LONGEST = 8 * 1024  # bytes of a line; container runtimes cut lines at 16 KiB
_CUTS = (2000, 500, 120, 30)  # characters to which long texts are cut until the line fits


def now() -> str:
    """This moment, ISO, UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


@dataclass(frozen=True, kw_only=True)
class Event:
    """What every event has; its text, by str(), is what a person reads."""

    kinds: ClassVar[dict[str, type["Event"]]] = {}
    """All kinds of events, by name."""
    WORDS: ClassVar[str]
    """The text, with its fields in braces, unless ``__str__`` makes one."""

    time: str = field(default_factory=now)
    """ISO, UTC."""
    rank: int | None = None
    """Which rank says it; None for the supervisor."""

    def __init_subclass__(cls) -> None:
        Event.kinds[cls.__name__] = cls

    def __str__(self) -> str:
        return self.WORDS.format_map(vars(self))


def line(event: Event, longest: int = LONGEST) -> str:
    """The event as a line of a log, without a line break; what makes it longer than ``longest`` bytes is cut, told."""
    for limit in (longest, *_CUTS):
        if len(written := _line(_cut(event, limit))) <= longest:
            return written.decode()
    raise AssertionError(f"{type(event).__name__} has fields that cannot be cut")


def parse(text: str) -> Event | None:
    """The event of a line; None for a line that was printed, or for an event of another format."""
    if not text.startswith(MARK):
        return None
    try:
        told = json.loads(text.rpartition("\t")[2])
        kind = Event.kinds[told.pop("event")]
        return kind(**told) if told.pop("format") == FORMAT else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def readable(text: str) -> str:
    """A line of a log as a person reads it, whichever version wrote it."""
    return text.removeprefix(MARK).rpartition("\t")[0] if text.startswith(MARK) and "\t" in text else text


def escaped(printed: bytes) -> bytes:
    """A line that was printed, which no client takes for an event."""
    return printed.replace(MARK.rstrip().encode(), ESCAPED.rstrip().encode())


def _line(event: Event) -> bytes:
    words = " | ".join(shown(f"{event}").split("\n")).replace("\t", " ")
    words = words if event.rank is None else OF_RANK.format(event.rank) + words
    found = ((own.name, plain(getattr(event, own.name)), own.default) for own in fields(event))
    told = {"event": type(event).__name__, "format": FORMAT} | {
        name: of for name, of, default in found if of != default
    }
    text = f"{words}\t{json.dumps(told, separators=(',', ':'), default=str)}"
    return MARK.encode() + escaped(text.encode())


def _cut(event: Event, limit: int) -> Event:
    """With texts of at most ``limit`` characters, and so few entries in what has many."""
    cut: dict[str, Any] = {}
    for own in fields(event):
        value = getattr(event, own.name)
        if isinstance(value, str):
            cut[own.name] = _shortened(value, limit)
        elif isinstance(value, Mapping):
            kept = list(value.items())[: max(1, limit // 16)]
            cut[own.name] = {_shortened(k, limit): _shortened(v, limit) for k, v in kept}
            if left_out := len(value) - len(kept):
                cut[own.name]["left_out"] = left_out
    return replace(event, **cut)


def _shortened(value: Any, limit: int) -> Any:
    if not isinstance(value, str) or len(value) <= limit:
        return value
    return f"{value[:limit]} ... ({len(value) - limit} characters left out)"
