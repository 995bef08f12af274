"""Writes a value as the Python expression that makes an equal one in every worker, or says why there is none.

What has an expression: None, numbers, text, bytes, lists, tuples, sets, dicts, paths, dates, patterns, enums,
dataclasses, plain objects of own classes, named tuples, types, loggers, functions and classes by name, arrays and
tensors. Nothing is computed a second time: no code of the user runs in such an expression. Equal values have equal
texts in every kernel, because the text names the run; so sets are written in the order of their texts.
"""

import abc
import dataclasses
import enum
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from train_func.client.source.modules import is_installed
from train_func.client.source.repeats import Repeats

MAX_ARRAY_BYTES = 1 << 20  # of all arrays and tensors of a function together
MAX_DEPTH = 60  # Python itself reads about 90 brackets within each other
ALLOWED = (
    "None, numbers, text, bytes, lists, tuples, sets, dicts, paths, dates, patterns, enums, dataclasses, "
    "plain objects of own classes, dtypes, and arrays and tensors of 1 MiB together"
)
_MUTABLE = ("list", "dict", "set", "bytearray", "object", "numpy.ndarray", "torch.Tensor")
_CONTAINERS = (
    *("collections.deque", "collections.OrderedDict", "collections.defaultdict", "collections.Counter"),
    *("types.SimpleNamespace", "argparse.Namespace"),
)
_SIMPLE = (str, bool, type(None), bytes)  # shortly, because there may be many
_BARE = ("typing", "abc")  # of their classes an object holds nothing
_RESTORE = """\
def {name}(kind, fields):
    value = object.__new__(kind)
    for name in fields:
        object.__setattr__(value, name, fields[name])
    return value
"""
_REMAKE = """\
def {name}(value, fields, fill=None, items=()):
    if fill:
        fill(value, items)
    if fields is None:
        object.__setattr__(value, "__dict__", value)
    else:
        value.__dict__.update(fields)
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


class Home(Protocol):
    """The module that the expressions stand in."""

    name: str

    def reference(self, value: object) -> str | None:
        """The expression that names a function or a class where the module runs, or None."""

    def module(self, name: str) -> str:
        """The name by which the module has an installed module."""

    def builtin(self, name: str) -> str:
        """The name by which the module has a builtin."""

    def shared(self, value: object) -> str | None:
        """The name of the module that holds this very object, or None."""

    def helper(self, wanted: str, text: str) -> str:
        """The name of a function of the package's own, with its text after ``{name}`` is filled in."""


def is_mutable(value: object) -> bool:
    """Whether two names that hold ``value`` see each other's changes."""
    return (
        full_name(type(value)) in (*_MUTABLE, *_CONTAINERS)
        or dataclasses.is_dataclass(type(value))
        or is_own_object(value)
    )


def is_own_object(value: object) -> bool:
    """Whether ``value`` is all that its attributes are, with the items of a dict or a list, in classes written here."""
    kind = type(value)
    if kind.__module__ in ("builtins", *_BARE) or type(kind) not in (type, abc.ABCMeta) or isinstance(value, type):
        return False
    own = [one for one in kind.__mro__ if one not in (object, dict, list) and one.__module__ not in _BARE]
    return bool(own) and all(_is_written_here(one) and not _OWN_STATE & vars(one).keys() for one in own)


def _is_written_here(kind: type) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_ours = kind.__module__.partition(".")[0] == "train_func"
    return kind.__module__ == "__main__" or not (is_ours or is_installed(file))


def full_name(kind: type) -> str:
    """As an import would say it."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Writer:
    """Writes the values of one function; counts the bytes of its arrays. ``repeats``: to be filled, in a first pass."""

    def __init__(self, repeats: Repeats | None) -> None:
        self.repeats = repeats
        self._array_bytes: dict[int, int] = {}
        self._arrays: list[object] = []  # they live as long as their ids count

    def write(self, value: object, home: Home, *, is_named: bool = False) -> str:
        """The expression of ``value`` in the module ``home``.

        Args:
            value: to be written.
            home: the module that the expression stands in.
            is_named: write the value itself, although a name of the module holds it.

        Raises:
            NoValueError: no expression makes it.
        """
        expression = _Expression(self, home)
        try:
            return expression.of(value, is_top=is_named)
        except NoValueError as error:
            if expression.depth > 1:
                raise NoValueError(f"{_an(type(value))} that holds {error}") from None
            raise

    def count(self, array: object, num_bytes: int) -> None:
        """Raises NoValueError when the arrays together are too large."""
        if id(array) not in self._array_bytes:
            self._arrays.append(array)
        self._array_bytes[id(array)] = num_bytes
        if (total := sum(self._array_bytes.values())) > MAX_ARRAY_BYTES:
            raise NoValueError(
                f"{_an(type(array))} of {num_bytes:,} bytes, and arrays and tensors of {total:,} bytes together, of "
                f"which {MAX_ARRAY_BYTES:,} travel"
            )


class _Expression:
    def __init__(self, writer: Writer, home: Home) -> None:
        self.writer = writer
        self.home = home
        self.path: list[int] = []  # the values around the one that is written
        self.depth = 0  # of the value that could not be written

    def of(self, value: object, *, is_top: bool = False) -> str:
        """The text of ``value`` and of all that it holds."""
        if type(value) in _SIMPLE:
            return repr(value)
        if type(value) is int:
            return self.number(value)
        if id(value) in self.path:
            raise NoValueError(f"{_an(type(value))} that holds itself")
        if len(self.path) >= MAX_DEPTH:
            raise NoValueError(f"{_an(type(value))} within {MAX_DEPTH} others")
        if (first := self.writer.repeats) and is_mutable(value) and first.meets_again(value, self.home.name):
            return "None"
        self.path.append(id(value))
        try:
            text = self._text(value)
        except NoValueError:
            self.depth = max(self.depth, len(self.path))
            raise
        self.path.pop()
        name = None if is_top or not is_mutable(value) else self.home.shared(value)
        return name or text

    def _text(self, value: object) -> str:
        kind = type(value)
        if isinstance(value, enum.Enum):
            return self._enum(value)
        if (write := _WRITERS.get(full_name(kind))) is not None:
            return write(self, value)
        if isinstance(value, types.FunctionType | type | types.BuiltinFunctionType | types.MethodType):
            return self._named(value)
        if dataclasses.is_dataclass(value):
            return self._dataclass(value)
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return f"{self._named(kind)}._make({self._items(value, '[]')})"
        if kind.__module__ in ("typing", "types", "typing_extensions") or isinstance(value, typing.TypeVar):
            return self._typing(value)
        if kind.__module__.partition(".")[0] == "numpy":
            return self._numpy(value)
        if is_own_object(value):
            return self._own_object(value)
        if (named := self.home.reference(value)) is not None:
            return named
        raise NoValueError(f"{_an(kind)}")

    def _named(self, value: object) -> str:
        text = self.home.reference(value)
        if text is None:
            if isinstance(owner := getattr(value, "__self__", None), type):
                self._named(owner)  # which may be why
            shown = getattr(value, "__qualname__", None) or repr(value)
            if getattr(value, "__closure__", None):
                raise NoValueError(f"the function {shown!r}, which was made by a call of another one")
            if isinstance(value, type) and _is_written_here(value):
                raise NoValueError(
                    f"the class {shown!r}, which was defined again since: run the cell that made this again"
                )
            raise NoValueError(f"{shown!r} of {getattr(value, '__module__', None)}, which has no name to import it by")
        return text

    def _call(self, path: str, *arguments: str) -> str:
        module, _, name = path.rpartition(".")
        return f"{self.home.module(module)}.{name}({', '.join(arguments)})"

    def _items(self, values: Iterable[Any], brackets: str) -> str:
        texts = [self.of(value) for value in values]
        end = "," if brackets == "()" and len(texts) == 1 else ""
        return f"{brackets[0]}{', '.join(texts)}{end}{brackets[1]}"

    def number(self, value: Any) -> str:
        """Of an int, a float or a complex, with every bit."""
        if isinstance(value, complex):
            return f"{self.home.builtin('complex')}({self.number(value.real)}, {self.number(value.imag)})"
        if isinstance(value, int):
            return repr(value) if value.bit_length() < 10_000 else hex(value)  # Python reads no longer decimals
        if math.isfinite(value):
            return repr(value)
        if math.isinf(value):
            return f"{self.home.builtin('float')}({str(value)!r})"
        sign = "-" if math.copysign(1, value) < 0 else ""
        return f"{sign}{self.home.builtin('float')}('nan')"

    def _sorted(self, values: Iterable[Any]) -> str:
        return ", ".join(sorted(self.of(value) for value in values))

    def _set(self, value: Any) -> str:
        return f"{{{self._sorted(value)}}}" if value else f"{self.home.builtin('set')}()"

    def _frozenset(self, value: Any) -> str:
        inner = f"[{self._sorted(value)}]" if value else ""
        return f"{self.home.builtin('frozenset')}({inner})"

    def _dict(self, value: Mapping[Any, Any]) -> str:
        return "{" + ", ".join(f"{self.of(key)}: {self.of(item)}" for key, item in value.items()) + "}"

    def _enum(self, value: enum.Enum) -> str:
        kind = self._named(type(value))
        name = value._name_
        if name is not None and type(value).__members__.get(name) is value:
            return f"{kind}[{name!r}]"
        return f"{kind}({self.of(value._value_)})"  # a combination of flags

    def _dataclass(self, value: Any) -> str:
        kind = type(value)
        names = [name for base in kind.__mro__ for name in _slots(base) if hasattr(value, name)]
        state = {**{name: getattr(value, name) for name in names}, **getattr(value, "__dict__", {})}
        fields = dataclasses.fields(value)
        others = [
            one for one in kind.__mro__[1:-1] if not dataclasses.is_dataclass(one) and one.__module__ not in _BARE
        ]
        if others and set(state) != {own.name for own in fields}:
            raise NoValueError(_an(kind))  # a model, for one, whose fields are not all that it holds
        is_plain = all(own.init for own in fields) and not hasattr(kind, "__post_init__")
        is_plain = is_plain and getattr(kind.__init__, "__code__", None) is not None
        is_plain = is_plain and kind.__init__.__code__.co_filename == "<string>"
        if is_plain and set(state) == {own.name for own in fields}:
            given = ", ".join(f"{own.name}={self.of(state[own.name])}" for own in fields)
            return f"{self._named(kind)}({given})"
        return f"{self.home.helper('restore', _RESTORE)}({self._named(kind)}, {self._dict(state)})"

    def _own_object(self, value: object) -> str:
        kind = type(value)
        name = self._named(kind)
        state = object.__getattribute__(value, "__dict__")
        base = "dict" if isinstance(value, dict) else "list" if isinstance(value, list) else "object"
        fields = "None" if state is value else self._dict(state)
        given = [f"{self.home.builtin(base)}.__new__({name})", fields]
        if isinstance(value, dict):
            given += [f"{self.home.builtin('dict')}.update", self._dict(dict(dict.items(value)))]
        elif isinstance(value, list):
            given += [f"{self.home.builtin('list')}.extend", self._items(list.__iter__(value), "[]")]
        return f"{self.home.helper('remake', _REMAKE)}({', '.join(given)})"

    def _reduced(self, value: Any, path: str) -> str:
        """By the arguments with which pickle would make it."""
        arguments = value.__reduce__()[1]
        return self._call(path, *(self.of(argument) for argument in arguments))

    def _date(self, value: Any) -> str:
        if full_name(type(value)) == "datetime.date":
            return self._call("datetime.date", *map(str, (value.year, value.month, value.day)))
        parts = [value.hour, value.minute, value.second, value.microsecond]
        if full_name(type(value)) == "datetime.datetime":
            parts = [value.year, value.month, value.day, *parts]
        zone = [] if value.tzinfo is None else [f"tzinfo={self.of(value.tzinfo)}"]
        fold = ["fold=1"] if value.fold else []
        return self._call(full_name(type(value)), *map(str, parts), *zone, *fold)

    def _typing(self, value: Any) -> str:
        name = getattr(value, "_name", None) or getattr(value, "__name__", "")
        if isinstance(name, str) and getattr(typing, name, None) is value:
            return f"{self.home.module('typing')}.{name}"
        kind = full_name(type(value))
        if kind == "typing.TypeVar":
            bound = [] if value.__bound__ is None else [f"bound={self.of(value.__bound__)}"]
            varied = [f"{word}=True" for word in ("covariant", "contravariant") if getattr(value, f"__{word}__")]
            limits = [self.of(one) for one in value.__constraints__]
            return self._call("typing.TypeVar", repr(value.__name__), *limits, *bound, *varied)
        if kind == "typing.NewType":
            return self._call("typing.NewType", repr(value.__name__), self.of(value.__supertype__))
        if kind == "typing.ForwardRef":
            return repr(value.__forward_arg__)
        if kind in ("typing.ParamSpec", "typing.TypeVarTuple"):
            return self._call(kind, repr(value.__name__))
        origin, arguments = typing.get_origin(value), typing.get_args(value)
        if origin is None:
            raise NoValueError(_an(type(value)))
        if origin is types.UnionType:
            return f"({' | '.join(map(self._argument, arguments))})"
        if origin is typing.Union:
            return f"{self.home.module('typing')}.Union[{', '.join(map(self._argument, arguments))}]"
        alias = getattr(value, "_name", None)
        if kind == "types.GenericAlias" or not alias or not hasattr(typing, alias):
            head = self.of(origin)
        else:
            head = f"{self.home.module('typing')}.{alias}"
        if hasattr(value, "__metadata__"):
            head = f"{self.home.module('typing')}.Annotated"
            arguments = (value.__origin__, *value.__metadata__)
        inner = ", ".join(map(self._argument, arguments))
        return f"{head}[{inner or '()'}]" if len(arguments) != 1 else f"{head}[{inner}]"

    def _argument(self, value: Any) -> str:
        if value is type(None):
            return "None"
        return self._items(value, "[]") if isinstance(value, list) else self.of(value)

    def _dtype(self, dtype: Any) -> str:
        from numpy.lib.format import descr_to_dtype, dtype_to_descr

        descr = dtype_to_descr(dtype) if not dtype.hasobject and dtype.kind != "T" else None
        if descr is None or descr_to_dtype(descr) != dtype or dtype.metadata:
            raise NoValueError(f"a numpy dtype of objects or with a layout of its own ({dtype})")
        return self._call("numpy.dtype", repr(descr))

    def _numpy(self, value: Any) -> str:
        kinds = [full_name(base) for base in type(value).__mro__]
        if "numpy.dtype" in kinds:
            return self._dtype(value)
        if "numpy.generic" in kinds and type(value).__module__ == "numpy":
            if value.dtype.type is not type(value):
                raise NoValueError(_an(type(value)))
            return f"{self._array(value, value.dtype, value.reshape(1).tobytes())}[0]"
        if kinds[0] == "numpy.ndarray":
            data = self._array(value, value.dtype, value.tobytes())  # in the order of the rows, however it lies
            return f"{data}.reshape({tuple(value.shape)!r})"
        if (named := self.home.reference(value)) is not None:
            return named
        raise NoValueError(_an(type(value)))

    def _array(self, value: Any, dtype: Any, data: bytes) -> str:
        if dtype.hasobject:
            raise NoValueError("an array of objects")
        kind = self._dtype(dtype)
        self.writer.count(value, len(data))
        numpy = self.home.module("numpy")
        return f"{numpy}.frombuffer({self.home.builtin('bytearray')}.fromhex('{data.hex()}'), {kind})"

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
        self.writer.count(value, len(raw))
        name = self.home.module("torch")
        dtype = f"{name}.{str(value.dtype).removeprefix('torch.')}"
        shape = tuple(value.shape)
        if raw:
            buffer = f"{self.home.builtin('bytearray')}.fromhex('{raw.hex()}')"
            text = f"{name}.frombuffer({buffer}, dtype={dtype}).reshape({shape!r})"
        else:
            text = f"{name}.empty({shape!r}, dtype={dtype})"
        return f"{text}.requires_grad_()" if value.requires_grad else text

    def _torch_name(self, value: Any) -> str:
        """Of a dtype, a layout or a memory format: its ``repr`` is its name."""
        return f"{self.home.module('torch')}.{str(value).removeprefix('torch.')}"

    def _pattern(self, value: Any) -> str:
        flags = value.flags & ~(32 if isinstance(value.pattern, str) else 0)  # re.UNICODE is what a text has anyway
        return self._call("re.compile", repr(value.pattern), *([str(flags)] if flags else []))

    def _logger(self, value: Any) -> str:
        return self._call("logging.getLogger", *([] if value.name == "root" else [repr(value.name)]))

    def _partial(self, value: Any) -> str:
        words = [f"**{self._dict(value.keywords)}"] if value.keywords else []
        return self._call("functools.partial", *(self.of(one) for one in (value.func, *value.args)), *words)

    def _method_of_class(self, value: Any) -> str:
        name, home = value.__name__, value.__objclass__
        if getattr(home, name, None) is not value:
            raise NoValueError(_an(type(value)))
        return f"{self._named(home)}.{name}"

    def _namespace(self, value: Any) -> str:
        return self._call(full_name(type(value)), f"**{self._dict(vars(value))}")

    def _deque(self, value: Any) -> str:
        return self._call("collections.deque", self._items(value, "[]"), self.of(value.maxlen))

    def _defaultdict(self, value: Any) -> str:
        return self._call("collections.defaultdict", self.of(value.default_factory), self._dict(value))


def _slots(kind: type) -> list[str]:
    slots = kind.__dict__.get("__slots__", ())
    names = [slots] if isinstance(slots, str) else [*slots]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _an(kind: type) -> str:
    name = full_name(kind)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _path(self: _Expression, value: Any) -> str:
    kind = full_name(type(value)).replace("Posix", "") if "Pure" not in type(value).__name__ else full_name(type(value))
    return self._call("pathlib." + kind.rpartition(".")[2], repr(str(value)))


def _as_shown(self: _Expression, value: Any) -> str:
    return repr(value)


_Write = Callable[[_Expression, Any], str]
_DATES = ("datetime.date", "datetime.time", "datetime.datetime")
_PATHS = ("PosixPath", "WindowsPath", "PurePosixPath", "PureWindowsPath")
_WRITERS: dict[str, _Write] = {
    **dict.fromkeys(("NoneType", "bool", "str", "bytes"), _as_shown),
    **dict.fromkeys(("int", "float", "complex"), _Expression.number),
    "ellipsis": lambda self, value: "...",
    "NotImplementedType": lambda self, value: self.home.builtin("NotImplemented"),
    "object": lambda self, value: f"{self.home.builtin('object')}()",
    "bytearray": lambda self, value: f"{self.home.builtin('bytearray')}({bytes(value)!r})",
    "range": lambda self, value: f"{self.home.builtin('range')}({value.start}, {value.stop}, {value.step})",
    "slice": lambda self, value: (
        f"{self.home.builtin('slice')}({', '.join(self.of(one) for one in (value.start, value.stop, value.step))})"
    ),
    "list": lambda self, value: self._items(value, "[]"),
    "tuple": lambda self, value: self._items(value, "()"),
    "set": _Expression._set,
    "frozenset": _Expression._frozenset,
    "dict": _Expression._dict,
    "mappingproxy": lambda self, value: self._call("types.MappingProxyType", self._dict(value)),
    "collections.OrderedDict": lambda self, value: self._call("collections.OrderedDict", self._dict(value)),
    "collections.Counter": lambda self, value: self._call("collections.Counter", self._dict(value)),
    "collections.defaultdict": _Expression._defaultdict,
    "collections.deque": _Expression._deque,
    "types.SimpleNamespace": _Expression._namespace,
    "argparse.Namespace": _Expression._namespace,
    **{f"{home}.{name}": _path for name in _PATHS for home in ("pathlib", "pathlib._local")},
    **dict.fromkeys(_DATES, _Expression._date),
    "datetime.timedelta": lambda self, value: self._reduced(value, "datetime.timedelta"),
    "datetime.timezone": lambda self, value: self._call("datetime.timezone", *map(self.of, value.__getinitargs__())),
    "zoneinfo.ZoneInfo": lambda self, value: self._call("zoneinfo.ZoneInfo", repr(value.key)),
    "decimal.Decimal": lambda self, value: self._call("decimal.Decimal", repr(str(value))),
    "fractions.Fraction": lambda self, value: self._call(
        "fractions.Fraction", self.number(value.numerator), self.number(value.denominator)
    ),
    "uuid.UUID": lambda self, value: self._call("uuid.UUID", repr(str(value))),
    "re.Pattern": _Expression._pattern,
    "logging.Logger": _Expression._logger,
    "logging.RootLogger": _Expression._logger,
    "functools.partial": _Expression._partial,
    "operator.itemgetter": lambda self, value: self._reduced(value, "operator.itemgetter"),
    "operator.attrgetter": lambda self, value: self._reduced(value, "operator.attrgetter"),
    "method_descriptor": _Expression._method_of_class,
    "wrapper_descriptor": _Expression._method_of_class,
    "torch.Tensor": _Expression._tensor,
    "torch.Size": lambda self, value: self._call("torch.Size", repr(tuple(value))),
    **{f"torch.{name}": _Expression._torch_name for name in ("dtype", "layout", "memory_format")},
}


def is_plain(value: object) -> bool:
    return value is None or (type(value).__module__ == "builtins" and not callable(value))
