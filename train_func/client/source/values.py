"""Writes a value as the Python expression that makes an equal one in every worker, or says why there is none.

No code of the user runs in such an expression. Equal values have equal texts in every kernel, because the text names
the run; so sets are written in the order of their texts.
"""

import abc
import dataclasses
import enum
import keyword
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any, Protocol

from train_func.client.source.modules import is_installed

MAX_ARRAY_BYTES = 1 << 20  # of all arrays and tensors of a function together
MAX_DEPTH = 60  # Python itself reads about 90 brackets within each other
ALLOWED = (
    "None, numbers, text, bytes, lists, tuples, sets, dicts, paths, dates, patterns, enums, dataclasses, "
    "plain objects of own classes, dtypes, and arrays and tensors of 1 MiB together"
)
_CONTAINERS = (
    *("list", "dict", "set", "bytearray", "object", "numpy.ndarray", "torch.Tensor", "collections.deque"),
    *("collections.OrderedDict", "collections.defaultdict", "collections.Counter"),
    *("types.SimpleNamespace", "argparse.Namespace"),
)
_BARE = ("builtins", "typing", "abc")  # of their classes an object holds nothing
_OBJECT = """\
def {name}(base, kind, fields, fill=None, items=()):
    value = base.__new__(kind)
    if fill:
        fill(value, items)
    if fields is None:
        object.__setattr__(value, "__dict__", value)
    else:
        for name in fields:
            object.__setattr__(value, name, fields[name])
    return value
"""
_OWN_STATE = frozenset(  # with one of these an object is more, or other, than the attributes that it shows
    (
        *("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__"),
        *("__slots__", "__del__", "__getattribute__"),
    )
)


class NoValueError(Exception):
    """A value that no expression makes; the message says what it is."""


class Names(Protocol):
    """What the module has in which the expressions stand."""

    def reference(self, value: object) -> str | None:
        """The expression that names a function or a class, or None."""

    def module(self, name: str) -> str:
        """The name of an imported module."""

    def builtin(self, name: str) -> str:
        """The name of a builtin."""

    def shared(self, value: object) -> str | None:
        """The name of this very object, or None."""

    def helper(self, wanted: str, text: str) -> str:
        """The name of a function with that text, in which ``{name}`` is filled in."""


def full_name(kind: type) -> str:
    """As an import would say it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_mutable(value: object) -> bool:
    """Whether two names that hold ``value`` see each other's changes."""
    return full_name(type(value)) in _CONTAINERS or dataclasses.is_dataclass(type(value)) or is_own_object(value)


def is_type(value: object) -> bool:
    """Whether it is a class, or what annotations are made of."""
    is_of_typing = type(value).__module__ in ("typing", "typing_extensions")
    return isinstance(value, type) or is_of_typing or typing.get_origin(value) is not None


def is_own_object(value: object) -> bool:
    """Whether ``value`` is all that its attributes are, with the items of a dict or a list, in classes written here."""
    kind = type(value)
    if kind.__module__ in _BARE or type(kind) not in (type, abc.ABCMeta):
        return False
    own = [one for one in kind.__mro__ if one.__module__ not in _BARE]
    is_plain = {*kind.__mro__} - {*own} <= {object, dict, list, abc.ABC, typing.Generic}
    return is_plain and all(_is_written_here(one) and not _OWN_STATE & vars(one).keys() for one in own)


def _is_written_here(kind: type | types.FunctionType) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_ours = kind.__module__.partition(".")[0] == "train_func"
    return kind.__module__ == "__main__" or not (is_ours or is_installed(file))


def _an(kind: type) -> str:
    name = full_name(kind)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


class Writer:
    """Writes the values of one function; counts the bytes of its arrays, and what it meets more than once."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._again: set[int] = set()
        self._met_now: set[int] = set()
        self._met: dict[int, object] = {}  # they live as long as their ids count
        self._array_bytes: dict[int, int] = {}
        self._around: list[int] = []  # the values around the one that is written
        self._depth = 0
        self._is_counting = True

    def begin(self, *, is_counting: bool) -> None:
        """Begins to write everything again: first to count, then with names for what was met more than once."""
        self._is_counting = is_counting
        self._array_bytes.clear()
        if is_counting:
            self._again.clear()
            self._met_now.clear()

    @property
    def repeated(self) -> set[int]:
        """The mutable objects that were met more than once, when all were counted."""
        return set() if self._is_counting else self._again

    def text(self, value: object, *, is_named: bool = False) -> str:
        """The expression of ``value``; raises NoValueError when there is none. ``is_named``: it is given a name."""
        around, self._around, self._depth = self._around, [], 0
        try:
            return self._of(value, is_named=is_named)
        except NoValueError as error:
            if self._depth > 1:
                raise NoValueError(f"{_an(type(value))} that holds {error}") from None
            raise
        finally:
            self._around = around

    def _of(self, value: object, *, is_named: bool = False) -> str:
        if value is None or type(value) in (str, bool, bytes):
            return repr(value)
        if type(value) in (int, float):
            return self._number(value)
        if id(value) in self._around:
            raise NoValueError(f"{_an(type(value))} that holds itself")
        if len(self._around) >= MAX_DEPTH:
            raise NoValueError(f"{_an(type(value))} within {MAX_DEPTH} others")
        if is_mutable(value):
            if not is_named and (name := self.names.shared(value)):
                return name
            if self._is_counting and id(value) in self._met_now:
                self._again.add(id(value))
            self._met_now.add(id(value))
            self._met[id(value)] = value
        self._around.append(id(value))
        self._depth = max(self._depth, len(self._around))
        text = self._text(value)
        self._around.pop()
        self._depth = len(self._around)
        return text

    def _text(self, value: Any) -> str:
        kind = type(value)
        if isinstance(value, enum.Enum):
            member = kind.__members__.get(value._name_ or "")
            key = f"[{value._name_!r}]" if member is value else f"({self._of(value._value_)})"  # a union of flags
            return f"{self._named(kind)}{key}"
        if (write := _WRITERS.get(full_name(kind))) is not None:
            return write(self, value)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return f"{self._named(kind)}._make({self._items(value)})"
        if isinstance(value, PurePath) and kind.__module__.partition(".")[0] == "pathlib":
            return self._call("pathlib." + kind.__name__.removeprefix("Posix").removeprefix("Windows"), str(value))
        if kind.__module__ == "numpy" and "numpy.generic" in map(full_name, kind.__mro__) and value.dtype.type is kind:
            return f"{self._array(value.reshape(1))}[0]"
        if full_name(kind).startswith("numpy.dtype"):
            return self._dtype(value)
        if is_own_object(value):
            return self._object(value)
        return self._named(value)

    def _named(self, value: Any) -> str:
        if (text := self.names.reference(value)) is not None:
            return text
        if not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
            raise NoValueError(_an(type(value)))
        if isinstance(owner := getattr(value, "__self__", None), type):
            self._named(owner)  # which may be why
        if getattr(value, "__closure__", None):
            raise NoValueError(f"the function {value.__qualname__!r}, which was made by a call of another one")
        if isinstance(value, type | types.FunctionType) and _is_written_here(value):
            what = "class" if isinstance(value, type) else "function"
            raise NoValueError(
                f"the {what} {value.__qualname__!r}, whose name was bound again since: run the cell that made this "
                "again, or give one of the two another name"
            )
        raise NoValueError(f"{value.__qualname__!r} of {value.__module__}, which has no name to import it by")

    def _call(self, path: str, /, *arguments: object, **named: object) -> str:
        module, _, name = path.rpartition(".")
        texts = [*map(self._of, arguments)]
        if all(word.isidentifier() and not keyword.iskeyword(word) for word in named):
            texts += [f"{word}={self._of(value)}" for word, value in named.items()]
        else:
            texts.append(f"**{self._dict(named)}")
        return f"{self.names.module(module)}.{name}({', '.join(texts)})"

    def _items(self, values: Iterable[Any], brackets: str = "[]") -> str:
        texts = [self._of(value) for value in values]
        end = "," if brackets == "()" and len(texts) == 1 else ""
        return f"{brackets[0]}{', '.join(texts)}{end}{brackets[1]}"

    def _dict(self, value: Mapping[Any, Any]) -> str:
        return "{" + ", ".join(f"{self._of(key)}: {self._of(item)}" for key, item in value.items()) + "}"

    def _number(self, value: Any) -> str:
        """With every bit."""
        if isinstance(value, complex):
            return f"{self.names.builtin('complex')}({self._number(value.real)}, {self._number(value.imag)})"
        if isinstance(value, int):
            return repr(value) if value.bit_length() < 10_000 else hex(value)  # Python reads no longer decimals
        if math.isfinite(value):
            return repr(value)
        sign = "-" if math.copysign(1, value) < 0 else ""
        return f"{sign}{self.names.builtin('float')}({'nan' if math.isnan(value) else 'inf'!r})"

    def _set(self, value: Any) -> str:
        items = f"[{', '.join(sorted(map(self._of, value)))}]" if value else ""
        return f"{self.names.builtin(type(value).__name__)}({items})"

    def _dataclass(self, value: Any) -> str:
        kind = type(value)
        slots = [vars(base).get("__slots__", ()) for base in kind.__mro__]
        names = [name for each in slots for name in ([each] if isinstance(each, str) else each) if hasattr(value, name)]
        state = {name: getattr(value, name) for name in names if name not in ("__dict__", "__weakref__")}
        state |= getattr(value, "__dict__", {})
        fields = dataclasses.fields(value)
        is_whole = {*state} == {one.name for one in fields}
        if not is_whole and not all(dataclasses.is_dataclass(one) or one.__module__ in _BARE for one in kind.__mro__):
            raise NoValueError(_an(kind))  # a model, for one, whose fields are not all that it holds
        is_generated = getattr(getattr(kind.__init__, "__code__", None), "co_filename", "") == "<string>"
        is_plain = is_generated and all(one.init for one in fields) and not hasattr(kind, "__post_init__")
        if is_whole and is_plain:
            return f"{self._named(kind)}({', '.join(f'{one.name}={self._of(state[one.name])}' for one in fields)})"
        return self._made("object", kind, self._dict(state))

    def _object(self, value: object) -> str:
        state = object.__getattribute__(value, "__dict__")
        fields = "None" if state is value else self._dict(state)
        if isinstance(value, dict):
            return self._made("dict", type(value), fields, "update", self._dict(dict(dict.items(value))))
        if isinstance(value, list):
            return self._made("list", type(value), fields, "extend", self._items(list.__iter__(value)))
        return self._made("object", type(value), fields)

    def _made(self, base: str, kind: type, fields: str, fill: str = "", items: str = "") -> str:
        base = self.names.builtin(base)
        rest = f", {base}.{fill}, {items}" if fill else ""
        return f"{self.names.helper('object', _OBJECT)}({base}, {self._named(kind)}, {fields}{rest})"

    def _date(self, value: Any) -> str:
        words = ("year", "month", "day", "hour", "minute", "second", "microsecond", "tzinfo", "fold")
        named = {word: getattr(value, word) for word in words if getattr(value, word, None)}
        return self._call(full_name(type(value)), **named)

    def _dtype(self, dtype: Any) -> str:
        from numpy.lib.format import descr_to_dtype, dtype_to_descr

        descr = dtype_to_descr(dtype) if not dtype.hasobject and dtype.kind != "T" else None
        if descr is None or descr_to_dtype(descr) != dtype or dtype.metadata:
            raise NoValueError(f"a numpy dtype of objects or with a layout of its own ({dtype})")
        return self._call("numpy.dtype", descr)

    def _array(self, value: Any) -> str:
        if value.dtype.hasobject:
            raise NoValueError("an array of objects")
        data = self._bytes(value, value.tobytes())  # in the order of the rows, however it lies
        text = f"{self.names.module('numpy')}.frombuffer({data}, {self._dtype(value.dtype)})"
        return text if value.ndim == 1 else f"{text}.reshape({tuple(value.shape)!r})"

    def _tensor(self, value: Any) -> str:
        torch = sys.modules["torch"]
        if value.device.type != "cpu":
            raise NoValueError(f"a tensor on the device {value.device}; `.cpu()` gives one that travels")
        if value.layout != torch.strided or value.is_quantized:
            raise NoValueError(f"a tensor of the layout {value.layout}; only dense ones travel")
        if not value.is_leaf:
            raise NoValueError("a tensor with the graph that computed it; `.detach()` gives one that travels")
        plain = value.detach().resolve_conj().resolve_neg().contiguous()
        raw = plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""
        name, shape = self.names.module("torch"), tuple(value.shape)
        dtype = f"dtype={name}.{str(value.dtype).removeprefix('torch.')}"
        text = f"{name}.frombuffer({self._bytes(value, raw)}, {dtype}).reshape({shape!r})"
        text = text if raw else f"{name}.empty({shape!r}, {dtype})"
        return f"{text}.requires_grad_()" if value.requires_grad else text

    def _bytes(self, array: object, raw: bytes) -> str:
        self._array_bytes[id(array)] = len(raw)
        self._met[id(array)] = array
        if (total := sum(self._array_bytes.values())) > MAX_ARRAY_BYTES:
            raise NoValueError(
                f"{_an(type(array))} of {len(raw):,} bytes, and arrays and tensors of {total:,} bytes together, of "
                f"which {MAX_ARRAY_BYTES:,} travel"
            )
        return f"{self.names.builtin('bytearray')}.fromhex('{raw.hex()}')"

    def _pattern(self, value: Any) -> str:
        flags = value.flags & ~(32 if isinstance(value.pattern, str) else 0)  # re.UNICODE is what a text has anyway
        return self._call("re.compile", value.pattern, *([flags] if flags else []))


def _called(path: str, *attributes: str) -> Callable[[Writer, Any], str]:
    """Made by a call with some of its attributes."""
    return lambda writer, value: writer._call(path, *(getattr(value, name) for name in attributes))


def _wrapped(path: str, plain: Callable[[Any], object]) -> Callable[[Writer, Any], str]:
    """Made by a call with a plain value."""
    return lambda writer, value: writer._call(path, plain(value))


_WRITERS: dict[str, Callable[[Writer, Any], str]] = {
    "complex": Writer._number,
    "ellipsis": lambda writer, value: "...",
    "NotImplementedType": lambda writer, value: writer.names.builtin("NotImplemented"),
    "object": lambda writer, value: f"{writer.names.builtin('object')}()",
    "bytearray": lambda writer, value: f"{writer.names.builtin('bytearray')}({bytes(value)!r})",
    "range": lambda writer, value: f"{writer.names.builtin('range')}({value.start}, {value.stop}, {value.step})",
    "slice": lambda writer, value: (
        f"{writer.names.builtin('slice')}{writer._items((value.start, value.stop, value.step), '()')}"
    ),
    "list": Writer._items,
    "tuple": lambda writer, value: writer._items(value, "()"),
    **dict.fromkeys(("set", "frozenset"), Writer._set),
    "dict": Writer._dict,
    "mappingproxy": _wrapped("types.MappingProxyType", dict),
    "collections.OrderedDict": _wrapped("collections.OrderedDict", dict),
    "collections.Counter": _wrapped("collections.Counter", dict),
    "collections.defaultdict": lambda writer, value: writer._call(
        "collections.defaultdict", value.default_factory, dict(value)
    ),
    "collections.deque": lambda writer, value: writer._call("collections.deque", [*value], value.maxlen),
    "types.SimpleNamespace": lambda writer, value: writer._call("types.SimpleNamespace", **vars(value)),
    "argparse.Namespace": lambda writer, value: writer._call("argparse.Namespace", **vars(value)),
    **{f"datetime.{name}": Writer._date for name in ("date", "time", "datetime")},
    **{
        path: lambda writer, value: writer._call(full_name(type(value)), *value.__reduce__()[1])  # as pickle does
        for path in ("datetime.timedelta", "operator.itemgetter", "operator.attrgetter")
    },
    "datetime.timezone": lambda writer, value: writer._call("datetime.timezone", *value.__getinitargs__()),
    "zoneinfo.ZoneInfo": _called("zoneinfo.ZoneInfo", "key"),
    "decimal.Decimal": _wrapped("decimal.Decimal", str),
    "fractions.Fraction": _called("fractions.Fraction", "numerator", "denominator"),
    "uuid.UUID": _wrapped("uuid.UUID", str),
    "re.Pattern": Writer._pattern,
    "logging.Logger": _called("logging.getLogger", "name"),
    "logging.RootLogger": lambda writer, value: writer._call("logging.getLogger"),
    "functools.partial": lambda writer, value: writer._call(
        "functools.partial", value.func, *value.args, **value.keywords
    ),
    "numpy.ndarray": Writer._array,
    "torch.Tensor": Writer._tensor,
    "torch.Size": _wrapped("torch.Size", tuple),
    **{
        f"torch.{name}": lambda writer, value: f"{writer.names.module('torch')}.{str(value).removeprefix('torch.')}"
        for name in ("dtype", "layout", "memory_format")
    },
}
