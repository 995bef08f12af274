"""The codec of all records: a dataclass to JSON and back, checked by the types of its fields.

The JSON says which format it has. What is read is what the class says: a record of another format, with other fields
or with values of other types is refused by its name.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, ClassVar, Literal, Self, Union, cast, get_args, get_origin, get_type_hints

from train_func.errors import InvalidInput, StorageFailed
from train_func.version import VERSION


class OtherFormat(StorageFailed):
    """Another version of this package wrote the record."""


class Record:
    """Base of the dataclasses that are stored, or sent, as JSON of their own."""

    FORMAT: ClassVar[int] = 1
    """Raised when this class reads no longer what it wrote."""
    REMEDY: ClassVar[str] = "Use the version that wrote it, or submit the run with fresh=True"
    """Said of a record of another format, or with other fields."""

    def to_dict(self) -> dict[str, Any]:
        """Returns plain JSON values; ``from_dict`` is its inverse."""
        plain = json.dumps({"format": self.FORMAT, **_values(self)}, default=_values)
        return dict(json.loads(plain))

    def to_json(self, indent: int | None = 1) -> bytes:
        """Returns the record as JSON; ``from_json`` is its inverse."""
        return json.dumps(self.to_dict(), indent=indent).encode()

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any], where: str = "the record") -> Self:
        """Returns the record of plain JSON values.

        Raises:
            OtherFormat: another version wrote it; the message calls it ``where``.
            StorageFailed: (reason "damaged") it is no such record.
            InvalidInput: a Run in it is invalid.
        """
        values = {name: value for name, value in plain.items() if name != "format"}
        this = f"this is train_func {VERSION}"
        writer = f"train_func {plain['package_version']} wrote it, and " if "package_version" in plain else ""
        if plain.get("format") != cls.FORMAT:
            differs = f"is of format {plain.get('format')}: {writer}{this}, which reads format {cls.FORMAT}"
            raise OtherFormat(f"{where} {differs}. {cls.REMEDY}", reason="damaged")
        if names := _strange(cls, values):
            differs = f"has other fields ({', '.join(sorted(names))}): {writer}{this}"
            raise OtherFormat(f"{where} {differs}. {cls.REMEDY}", reason="damaged")
        try:
            return cast("Self", _record(cls, values))
        except InvalidInput:
            raise
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise StorageFailed(f"{where} is damaged: {error}", reason="damaged") from error

    @classmethod
    def from_json(cls, data: bytes, where: str = "the record") -> Self:
        """Returns the record of ``data``. Raises what ``from_dict`` raises."""
        return cls.from_dict(read_json(data, where), where)


def read_json(data: bytes, where: str) -> dict[str, Any]:
    """Returns a JSON object. Raises StorageFailed (reason "damaged") when it is none."""
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        plain = None
    if not isinstance(plain, dict):
        raise StorageFailed(f"{where} is damaged: it is no JSON object", reason="damaged")
    return plain


def _values(value: Any) -> dict[str, Any]:
    """Returns the values of what json does not know: a dataclass, or a mapping other than a dict."""
    if not isinstance(value, Record) and hasattr(value, "to_dict"):
        return dict(value.to_dict())
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _strange(kind: Any, values: Mapping[str, Any]) -> set[str]:
    """Returns the names that are no fields, and the fields that are missing."""
    required = {each.name for each in fields(kind) if each.default is MISSING and each.default_factory is MISSING}
    return (set(values) - {field.name for field in fields(kind)}) | (required - set(values))


def _record(kind: Any, values: Mapping[str, Any]) -> Any:
    if names := _strange(kind, values):
        raise ValueError(f"the fields of a {kind.__name__} differ: {', '.join(sorted(names))}")
    hints = _hints(kind)
    return kind(**{name: _value(hints[name], value, name) for name, value in values.items()})


_hints = cache(get_type_hints)


def _value(kind: Any, plain: Any, name: str) -> Any:
    """Returns the value of a field of this type. Raises ValueError when it has another one."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return plain
    if origin in (Union, UnionType):
        return _one_of(arguments, plain, name)
    if hasattr(kind, "from_dict") and not issubclass(kind, Record):
        return kind.from_dict(plain)
    if is_dataclass(kind):
        return _record(kind, plain)
    if origin is Mapping and isinstance(plain, dict):
        return {key: _value(arguments[1], value, name) for key, value in plain.items()}
    if origin in (tuple, list, Sequence) and isinstance(plain, list):
        items = [_value(arguments[0], item, name) for item in plain]
        return items if origin is list else tuple(items)
    if origin is Literal and plain in arguments:
        return plain
    if isinstance(plain, str) and isinstance(kind, type) and issubclass(kind, str):
        return kind(plain)  # an enumeration refuses what it has not
    if type(plain) is kind:
        return plain
    if kind is float and type(plain) is int:
        return float(plain)
    raise ValueError(f"{name} is {plain!r:.100}")


def _one_of(kinds: Sequence[Any], plain: Any, name: str) -> Any:
    """Returns the value of the first of the types that it is one of, or None."""
    *earlier_kinds, last = [kind for kind in kinds if kind is not type(None)]
    if plain is None and type(None) in kinds:
        return None
    for kind in earlier_kinds:
        with contextlib.suppress(TypeError, ValueError):
            return _value(kind, plain, name)
    return _value(last, plain, name)
