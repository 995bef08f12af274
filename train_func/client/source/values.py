"""Values as Python expressions that make equal values in every worker, or the reason why there is no expression.

No code of the user runs in such an expression. Equal values have equal texts in every kernel, because the name of the
run depends on the text; so sets are written in the order of their texts.
"""

import copyreg
import dataclasses
import enum
import io
import math
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from train_func.client.source.cells import ATOMS, Text, is_installed
from train_func.client.source.pieces import Expression, Piece

LARGEST_DECIMAL = 10_000  # bits: Python writes a longer int as hex alone, by default from 4,300 digits
MAX_ARRAY_BYTES = 1 << 20  # of all arrays and tensors of a function together
# Of these types, of dataclasses and of classes written here an object is what pickle takes of it.
_PICKLED = frozenset(
    (
        *("complex", "object", "bytearray", "range", "slice", "types.SimpleNamespace", "argparse.Namespace"),
        *("collections.OrderedDict", "collections.Counter", "collections.defaultdict", "collections.deque"),
        *("datetime.timedelta", "datetime.timezone", "decimal.Decimal", "fractions.Fraction", "uuid.UUID"),
        *("logging.Logger", "logging.RootLogger", "operator.itemgetter", "operator.attrgetter", "torch.Size"),
        "functools.partial",
    )
)
_BARE = ("builtins", "typing", "abc", "enum", "collections")  # their classes belong to no package
_FILL = """\
def {name}(value, state, items, pairs):
    from builtins import hasattr, isinstance, next, object, tuple, type
    base = next(kind for kind in type(value).__mro__ if kind.__module__ in ("builtins", "collections"))
    for item in items:
        base.append(value, item)
    for key in pairs:
        base.__setitem__(value, key, pairs[key])
    if state is None:
        return value
    if state is ...:
        object.__setattr__(value, "__dict__", value)
        return value
    if hasattr(type(value), "__setstate__"):
        value.__setstate__(state)
        return value
    fields, slots = state if isinstance(state, tuple) else (state, None)
    for name in fields or ():
        value.__dict__[name] = fields[name]
    for name in slots or ():
        object.__setattr__(value, name, slots[name])
    return value
"""

REFILL = """\
def {name}(value, new):
    from builtins import hasattr, next, type
    base = next(kind for kind in type(value).__mro__ if kind.__module__ in ("builtins", "collections"))
    base.clear(value)
    if hasattr(base, "items"):
        for key, item in base.items(new):
            base.__setitem__(value, key, item)
    else:
        (base.update if hasattr(base, "update") else base.extend)(value, new)
"""  # the methods that a class of the user's own may override do more, or refuse

Parts = list[str | Expression]


class NoValueError(Exception):
    """No expression makes the value; the message says what the value is."""


def full_name(kind: type) -> str:
    """Returns the name for an import."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def is_mutable(value: object) -> bool:
    """Returns whether a change of ``value`` shows in every name that holds it."""
    is_hashed_by_id = full_name(type(value)) in ("object", "torch.Tensor") or is_own_object(value)
    return type(value).__hash__ is None or (is_hashed_by_id and not isinstance(value, tuple | enum.Enum))


def is_type(value: object) -> bool:
    """Returns whether it is a class, or a part of annotations."""
    is_of_typing = type(value).__module__ in ("typing", "typing_extensions")
    return isinstance(value, type) or is_of_typing or typing.get_origin(value) is not None


def is_open_file(value: object) -> bool:
    """Returns whether it is a file of this machine, and not one in memory."""
    return isinstance(value, io.IOBase) and not isinstance(value, io.BytesIO | io.StringIO)


def is_own_object(value: object) -> bool:
    """Returns whether its class and all its bases, except those of Python itself, are the user's own."""
    kinds = [kind for kind in type(value).__mro__ if kind.__module__ not in _BARE]
    return bool(kinds) and all(map(_is_written_here, kinds)) and not isinstance(value, type)


def _is_written_here(kind: type | types.FunctionType) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    is_ours = kind.__module__.partition(".")[0] == "train_func"
    return kind.__module__ == "__main__" or not (is_ours or is_installed(file))


def _is_generated(function: object) -> bool:
    """Returns whether a dataclass or a named tuple generated the method."""
    return getattr(getattr(function, "__code__", None), "co_filename", "") == "<string>"


def _an(kind: type) -> str:
    name = full_name(kind)
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


class Writer:
    """Writes the values of one function; the same object always has the same expression.

    Args:
        reference: returns the expression that names a function or a class, or None.
        module: returns the name of an imported module.
        helper: returns the name of a function with that text, in which ``{name}`` is filled in.
        at: the line that needs the first value.

    These functions add the pieces that they need to ``needed``.
    """

    def __init__(
        self,
        reference: Callable[[object], str | None],
        module: Callable[[str], str],
        helper: Callable[[str, str], str],
        at: tuple[Text, int],
    ) -> None:
        self._reference = reference
        self._module = module
        self._helper = helper
        self.at = at
        self.needed: list[Piece] = []
        self.shared: list[Expression] = []
        """The expressions of mutable objects, in the order of their first use."""
        self._of_object: dict[int, Expression] = {}
        self._around: list[int] = []  # the values around the one that is written
        self._num_array_bytes = 0

    def expression(self, value: object, text: Text, line: int) -> Expression:
        """Returns the expression of a value of that line; raises NoValueError if there is none."""
        around, self._around, at, self.at = self._around, [], self.at, (text, line)
        try:
            part = self._part(value)
        except NoValueError as error:
            if len(self._around) > 1:
                raise NoValueError(f"{_an(type(value))} that holds {error}") from None
            raise
        finally:
            self._around, self.at = around, at
        return part if isinstance(part, Expression) else Expression(value, [part], [], (text, line))

    def _part(self, value: Any) -> str | Expression:
        if type(value) is int and value.bit_length() > LARGEST_DECIMAL:
            return hex(value)
        if value is None or type(value) in (str, bool, bytes, int):
            return repr(value)
        if type(value) is float and math.isfinite(value):
            return repr(value)  # with every bit
        if id(value) in self._around:
            raise NoValueError(f"{_an(type(value))} that holds itself")
        if known := self._of_object.get(id(value)):
            known.num_uses += 1
            return known
        self._around.append(id(value))
        needed, self.needed = self.needed, []
        try:
            expression = Expression(value, self._parts(value), self.needed, self.at)
        finally:
            self.needed = needed
        self._around.pop()
        if is_mutable(value):
            self._of_object[id(value)] = expression
            self.shared.append(expression)
        return expression

    def _parts(self, value: Any) -> Parts:
        kind = type(value)
        name = full_name(kind)
        if name in _WRITERS:
            return _WRITERS[name](self, value)
        if isinstance(value, enum.Enum) and kind.__members__.get(value._name_ or "") is value:
            return [f"{self._named(kind)}[{value._name_!r}]"]
        if isinstance(value, PurePath) and kind.__module__.partition(".")[0] == "pathlib":
            return self._call("pathlib." + kind.__name__.removeprefix("Posix").removeprefix("Windows"), str(value))
        numpy = sys.modules.get("numpy")
        if numpy and isinstance(value, numpy.generic):
            return [*self._array(value.reshape(1)), "[0]"]
        if numpy and isinstance(value, numpy.dtype):
            return self._dtype(value)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(value)
        if name in _PICKLED or is_own_object(value):
            return self._pickled(value)
        return [self._named(value)]

    def _named(self, value: Any) -> str:
        if (text := self._reference(value)) is not None:
            return text
        if is_open_file(value):
            raise NoValueError("an open file")
        if not isinstance(value, type | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
            kinds = [kind for kind in type(value).__mro__ if kind.__module__ not in _BARE]
            base = next((kind for kind in kinds if not _is_written_here(kind)), type(value))
            suffix = "" if base is type(value) else f", whose base is {full_name(base)}"
            raise NoValueError(_an(type(value)) + suffix)
        if isinstance(owner := getattr(value, "__self__", None), type):
            self._named(owner)  # which may be why
        if getattr(value, "__closure__", None):
            raise NoValueError(f"the function {value.__qualname__!r}, which was made by a call of another one")
        if isinstance(value, type | types.FunctionType) and _is_written_here(value):
            raise NoValueError(
                f"{value.__qualname__!r}, whose name was bound again since: run the cell that made this again, or give "
                "one of the two another name"
            )
        raise NoValueError(f"{value.__qualname__!r} of {value.__module__}, which has no name to import it by")

    def _call(self, path: str, /, *arguments: object, **named: object) -> Parts:
        module, _, name = path.rpartition(".")
        called = f"{self._module(module)}.{name}" if module else name
        parts = [part for value in arguments for part in (", ", self._part(value))]
        parts += [part for word, value in named.items() for part in (", ", f"{word}=", self._part(value))]
        return [called, *_in_brackets("(", parts, ")")]

    def _items(self, values: Iterable[Any], brackets: str = "[]") -> Parts:
        parts = [part for value in values for part in (", ", self._part(value))]
        is_single = brackets == "()" and len(parts) == 2
        return _in_brackets(brackets[0], parts, ",)" if is_single else brackets[1])

    def _dict(self, value: Mapping[Any, Any]) -> Parts:
        items = value.items()
        parts = [part for key, item in items for part in (", ", self._part(key), ": ", self._part(item))]
        return _in_brackets("{", parts, "}")

    def _set(self, value: Any) -> Parts:
        plain = Writer(_describe, str, lambda name, text: name, self.at)  # names nothing: names follow the order
        plain._around = self._around

        def text(member: object) -> str:
            part = plain._part(member)
            return part if isinstance(part, str) else part.text()

        parts = [part for member in sorted(value, key=text) for part in (", ", self._part(member))]
        return [self._named(type(value)), *(_in_brackets("([", parts, "])") if parts else ["()"])]

    def _float(self, value: float) -> Parts:
        sign = "-" if math.copysign(1, value) < 0 else ""
        return [f"{sign}{self._named(float)}({'nan' if math.isnan(value) else 'inf'!r})"]

    def _dataclass(self, value: Any) -> Parts:
        """Writes a dataclass by its constructor if the constructor alone makes it, as a person would."""
        kind, fields = type(value), dataclasses.fields(value)
        is_plain = (
            _is_generated(kind.__init__) and all(field.init for field in fields) and not hasattr(kind, "__post_init__")
        )
        if not is_plain or getattr(value, "__dict__", {}).keys() - {field.name for field in fields}:
            return self._pickled(value)
        values = [(field.name, getattr(value, field.name)) for field in fields]
        parts = [part for name, value in values for part in (", ", f"{name}=", self._part(value))]
        return [self._named(kind), *_in_brackets("(", parts, ")")]

    def _pickled(self, value: Any) -> Parts:
        """Writes an object by the parts that pickle takes: maker, state and items; its ``__init__`` does not run."""
        try:
            reduced = value.__reduce_ex__(2)
        except Exception:  # of the user's code, or "cannot pickle"
            reduced = None
        if not isinstance(reduced, tuple):  # but the name of a sentinel, which pickle looks up
            raise NoValueError(_an(type(value)))
        make, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        if make is copyreg.__newobj__:  # type: ignore[attr-defined]
            fields = getattr(value, "_fields", ()) if _is_generated(type(value).__new__) else ()
            words = ["", *(f"{name}=" for name in fields)]  # a field's name may say that it is a credential
            words = words if len(words) == len(arguments) else [""] * len(arguments)
            parts = [
                part
                for word, argument in zip(words, arguments, strict=True)
                for part in (", ", word, self._part(argument))
            ]
            parts = [f"{self._named(arguments[0])}.__new__", *_in_brackets("(", parts, ")")]
        else:
            parts = [self._named(make), *self._items(arguments, "()")]
        if state is None and items is None and pairs is None:
            return parts
        fields = "..." if state is value else self._part(state)
        rest = [fields, ", ", *self._items(items or ()), ", ", *self._dict(dict(pairs or ()))]
        return [f"{self._helper('_filled', _FILL)}(", *parts, ", ", *rest, ")"]

    def _date(self, value: Any) -> Parts:
        words = ("year", "month", "day", "hour", "minute", "second", "microsecond", "tzinfo", "fold")
        named = {word: getattr(value, word) for word in words if getattr(value, word, None)}
        return self._call(full_name(type(value)), **named)

    def _pattern(self, value: Any) -> Parts:
        flags = value.flags & ~(32 if isinstance(value.pattern, str) else 0)  # re.UNICODE is what a text has anyway
        return self._call("re.compile", value.pattern, *([flags] if flags else []))

    def _dtype(self, dtype: Any) -> Parts:
        from numpy.lib.format import dtype_to_descr

        descr = None if dtype.hasobject else dtype_to_descr(dtype)
        if descr is None or sys.modules["numpy"].dtype(descr) != dtype:
            raise NoValueError(f"a numpy dtype of objects or with a layout of its own ({dtype})")
        return self._call("numpy.dtype", descr)

    def _array(self, value: Any) -> Parts:
        if value.dtype.hasobject:
            raise NoValueError("an array of objects; `.tolist()` gives a list, which travels where its items do")
        data = self._bytes(value, value.tobytes())  # in the order of the rows, however it lies
        parts = [f"{self._module('numpy')}.frombuffer({data}, ", *self._dtype(value.dtype), ")"]
        return parts if value.ndim == 1 else [*parts, f".reshape({value.shape!r})"]

    def _tensor(self, value: Any) -> Parts:
        torch = sys.modules["torch"]
        if value.device.type != "cpu":
            raise NoValueError(f"a tensor on the device {value.device}; `.cpu()` gives one that travels")
        if value.layout != torch.strided:
            raise NoValueError(f"a tensor of the layout {value.layout}; only dense ones travel")
        if not value.is_leaf:
            raise NoValueError("a tensor with the graph that computed it; `.detach()` gives one that travels")
        plain = value.detach().resolve_conj().resolve_neg().contiguous()
        name, shape = self._module("torch"), tuple(value.shape)
        dtype = f"dtype={name}.{str(value.dtype).removeprefix('torch.')}"
        text = f"{name}.empty({shape!r}, {dtype})"
        if plain.numel():
            data = self._bytes(value, plain.reshape(-1).view(torch.uint8).numpy().tobytes())
            text = f"{name}.frombuffer({data}, {dtype}).reshape({shape!r})"
        return [f"{text}.requires_grad_()" if value.requires_grad else text]

    def _bytes(self, array: object, raw: bytes) -> str:
        self._num_array_bytes += len(raw)
        if self._num_array_bytes > MAX_ARRAY_BYTES:
            raise NoValueError(
                f"{_an(type(array))} of {len(raw):,} bytes, and arrays and tensors of {self._num_array_bytes:,} bytes "
                f"together, of which {MAX_ARRAY_BYTES:,} travel"
            )
        return f"{self._named(bytearray)}.fromhex('{raw.hex()}')"


def _describe(value: object) -> str | None:
    """Returns a description that identifies a function or a class in every process."""
    facts = [getattr(value, name, None) for name in ("__module__", "__qualname__", "__name__")]
    if isinstance(value, types.FunctionType):  # perhaps a lambda
        code, defaults = value.__code__, (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values())
        facts += [code.co_firstlineno, *code.co_positions(), code.co_code, code.co_names]
        facts += [constant for constant in (*code.co_consts, *defaults) if type(constant) in ATOMS]
    return repr(facts) if facts[1] or facts[2] else None


def _in_brackets(opening: str, parts: Parts, closing: str) -> Parts:
    """Returns the parts in brackets; each of ``parts`` has a comma before it."""
    return [opening, *parts[1:], closing] if parts else [opening, closing]


_WRITERS: dict[str, Callable[[Writer, Any], Parts]] = {
    "ellipsis": lambda writer, value: ["..."],
    "float": Writer._float,
    "list": Writer._items,
    "tuple": lambda writer, value: writer._items(value, "()"),
    "set": Writer._set,
    "frozenset": Writer._set,
    "dict": Writer._dict,
    "datetime.date": Writer._date,
    "datetime.time": Writer._date,
    "datetime.datetime": Writer._date,
    "mappingproxy": lambda writer, value: writer._call("types.MappingProxyType", dict(value)),
    "zoneinfo.ZoneInfo": lambda writer, value: writer._call("zoneinfo.ZoneInfo", value.key),
    "re.Pattern": Writer._pattern,
    "numpy.ndarray": Writer._array,
    "torch.Tensor": Writer._tensor,
    "torch.dtype": lambda writer, value: [f"{writer._module('torch')}.{str(value).removeprefix('torch.')}"],
}
