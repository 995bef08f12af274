"""Functions that work where they were written work where they arrive, and none of them is accused."""

import inspect

import pytest

from tests.shipping import imported, ship
from train_func.client.source import pack

CORRECT = {
    "walrus": """
        def train_func(p):
            if (n := len([1, 2])) > 1:
                return [y := n, y**2, (lambda: y)()]
    """,
    "walrus at module level": """
        x = (n := 5) + n
        def train_func(p):
            return x, n
    """,
    "match": """
        def train_func(p):
            match {"a": [1, 2, 3], "b": "c"}:
                case {"a": [first, *others], **rest}:
                    return first, others, rest
                case str() | None as other:
                    return other
    """,
    "nested functions and closures inside": """
        def train_func(p):
            total = 0
            def add(n):
                nonlocal total
                def twice():
                    return n * 2
                total += twice()
                return total
            return [add(n) for n in range(3)]
    """,
    "class bodies": """
        SIZE = 3
        def train_func(p):
            class Inner:
                size = SIZE
                doubled = size * 2
                table = {k: v for k, v in zip("ab", range(SIZE))}
                def __init__(self):
                    self.x = __class__.__name__
                def me(self):
                    return super().__init__, self.x
            return Inner.size, Inner.doubled, Inner.table, Inner().me()[1]
    """,
    "class looks up a global of its own name": """
        size = 3
        class Box:
            size = size
        def train_func(p):
            return Box.size
    """,
    "annotations in quotes": """
        from __future__ import annotations
        def train_func(p: "dict[str, NotThere]") -> "pd.DataFrame":
            x: AlsoNotThere = 1
            y: "list[Nothing]" = [x]
            return y
    """,
    "annotations of local variables are never looked up": """
        def train_func(p):
            x: NotThere = 1
            return x
    """,
    "generics": """
        from typing import Generic, Literal, NewType, TypedDict, NamedTuple, TypeVar
        T = TypeVar("T")
        Pairs = dict[str, list[int]]
        Maybe = int | None
        UserId = NewType("UserId", int)
        Mode = Literal["a b", "c"]
        class Row(TypedDict):
            text: str
        class Point(NamedTuple):
            x: int
            y: int = 2
        class Stack(Generic[T]):
            def __init__(self, items: Pairs | Maybe = None): self.items: list[T] = [items]
        def train_func(p: Pairs, *, mode: Mode = "c"):
            return Stack(UserId(3)).items, Row(text="x"), Point(1), mode, str(Maybe)
    """,
    "star arguments": """
        def helper(*args, key=1, **kwargs): return args, key, kwargs
        def train_func(p, *rest, **named):
            return helper(*[1, 2], **{"key": 3, "other": 4}), rest, named
    """,
    "decorators": """
        import functools
        def times(n):
            def decorate(f):
                @functools.wraps(f)
                def wrapper(*args): return [f(*args)] * n
                return wrapper
            return decorate
        def plain(f):
            def inner(*args): return f(*args)
            return inner
        @functools.lru_cache
        def cached(n): return n + 1
        @plain
        @times(2)
        def helper(n): return cached(n)
        @times(3)
        def train_func(p): return helper(1)
    """,
    "decorator made of a class": """
        class Counted:
            def __init__(self, f): self.f, self.n = f, 0
            def __call__(self, *args):
                self.n += 1
                return self.f(*args), self.n
        @Counted
        def helper(n): return n
        def train_func(p): return helper(1)[0]
    """,
    "global statements": """
        COUNT = 0
        def bump():
            global COUNT, BORN_LATER
            COUNT += 1
            BORN_LATER = COUNT * 10
        def train_func(p):
            bump()
            return COUNT > 0, BORN_LATER >= 10
    """,
    "comprehensions": """
        TABLE = [[1, 2], [3]]
        def train_func(p):
            flat = [x for row in TABLE for x in row if x]
            return flat, {x: y for x, y in enumerate(flat)}, {x for x in flat}, sum(x for x in flat), [
                [y for y in range(x)] for x in flat]
    """,
    "names of exceptions": """
        class Own(Exception): pass
        def train_func(p):
            try:
                raise Own("x")
            except (Own, KeyError) as error:
                return str(error)
            finally:
                pass
    """,
    "exception groups": """
        def train_func(p):
            try:
                raise ExceptionGroup("g", [ValueError("v")])
            except* ValueError as group:
                found = [str(e) for e in group.exceptions]
            return found
    """,
    "names of the module": """
        def train_func(p): return isinstance(__name__, str), __doc__ is None, isinstance(__file__, str), __debug__
    """,
    "import that may fail": """
        try:
            import a_missing_tomllib as toml
        except ImportError:
            import tomllib as toml
        try:
            from a_missing_module import thing
        except ModuleNotFoundError:
            thing = None
        def train_func(p):
            try:
                import another_missing_module
            except ImportError:
                another_missing_module = None
            return toml.loads("a = 1"), thing, another_missing_module
    """,
    "import that may not be reached": """
        import contextlib
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from a_missing_module import Thing
        def train_func(p, x: "Thing | None" = None):
            if p.get("wandb"):
                import a_missing_module
            with contextlib.suppress(ImportError):
                import another_missing_module
            return x
    """,
    "conditional definitions": """
        import sys
        if sys.version_info >= (3, 0):
            LEVEL = 3
            def helper(): return LEVEL
        else:
            def helper(): return 2
        def train_func(p): return helper()
    """,
    "name that may be missing": """
        def train_func(p):
            try:
                unicode
            except NameError:
                unicode_is_there = False
            return unicode_is_there
    """,
    "asks for IPython": """
        def train_func(p):
            try:
                get_ipython()
                return True
            except NameError:
                return False
    """,
    "expressions in f-strings": """
        WIDTH, items = 7, [1, 2]
        def train_func(p):
            return f"{WIDTH:>{WIDTH}} {items!r:{'>'}{20}} {', '.join(f'{x=}' for x in items)} {{not_a_name}}"
    """,
    "names bound later": """
        def train_func(p): return helper()
        def helper(): return CONSTANT
        CONSTANT = 4
    """,
    "calls at module level": """
        def make(): return {"x": LATER_NEEDED}
        LATER_NEEDED = 3
        TABLE = make()
        def train_func(p): return TABLE
    """,
    "mutual recursion": """
        def even(n): return n == 0 or odd(n - 1)
        def odd(n): return n != 0 and even(n - 1)
        def train_func(p): return even(10)
    """,
    "recursion": """
        def train_func(p, n=3): return [] if n == 0 else [n, *train_func(p, n - 1)]
    """,
    "lambdas and operators as helpers": """
        import operator
        from functools import partial, reduce
        square = lambda x: x * FACTOR
        FACTOR = 2
        add = partial(reduce, operator.add)
        first = operator.itemgetter(0)
        def train_func(p, key=lambda x: -x): return square(3), add([1, 2]), first([9]), sorted([1, 2], key=key)
    """,
    "single dispatch": """
        import functools
        @functools.singledispatch
        def show(x): return "any"
        @show.register
        def _(x: int): return "int"
        @show.register(str)
        def _(x): return "str"
        def train_func(p): return show(1), show("a"), show(None)
    """,
    "overloads": """
        from typing import overload
        @overload
        def show(x: int) -> int: ...
        @overload
        def show(x: str) -> str: ...
        def show(x): return x
        def train_func(p): return show(1)
    """,
    "several names of one statement": """
        (A, [B, *C]), D = (1, [2, 3, 4]), 5
        E = F = [6]
        def train_func(p): return A, B, C, D, E, F
    """,
    "statements on one line": """
        A = 1; B = A + 1; C = undefined_later = 3;  # comment
        import json; import math as m
        def train_func(p): x = 1; return A, B, C, json.dumps(m.floor(x + 0.5))
    """,
    "attribute of a module": """
        import os, math
        join = os.path.join
        CIRCLE = math.tau
        def train_func(p): return join("a", "b"), CIRCLE
    """,
    "submodules": """
        import xml
        import xml.dom
        import xml.etree.ElementTree
        import os.path as path
        def train_func(p):
            return xml.etree.ElementTree.fromstring("<a/>").tag, path.join("a"), xml.dom.Node.ELEMENT_NODE
    """,
    "star import": """
        from math import *
        def train_func(p): return floor(pi)
    """,
    "bound again from its own value": """
        ROWS = ["b ", " a"]
        ROWS = [row.strip() for row in ROWS]
        N = 1
        N += 1
        N *= len(ROWS)
        HALF = N / 2
        ROWS = sorted(ROWS)
        N = N + 10
        NAMES = ["x"]
        NAMES += ["y"]
        BUILT = str.split("c d")
        BUILT = list(map(str.upper, BUILT))
        def train_func(p): return ROWS, N, HALF, NAMES, BUILT
    """,
    "earlier value of a name": """
        SIZE = 1
        def first(n=SIZE): return n
        TABLE = {"size": SIZE}
        SIZE = 2
        def train_func(p): return first(), TABLE, SIZE
    """,
    "value that a block may leave in place": """
        import os
        LEVEL = 1
        if os.environ.get("AN_UNSET_VARIABLE"):
            LEVEL = 2
        try:
            import a_missing_module
            FAST = True
        except ImportError:
            print("slow")
            FAST = False
        match LEVEL:
            case 1:
                NAME = "one"
            case _:
                NAME = "many"
        if (other := 5) > 3:
            pass
        def train_func(p): return LEVEL, FAST, NAME, other
    """,
    "conditional import that did not happen": """
        HAVE_IT = False
        if HAVE_IT:
            from a_missing_module import Thing
        def train_func(p): return isinstance(p, Thing) if HAVE_IT else "without"
    """,
    "labels set afterwards": """
        def helper(): return 1
        helper.__doc__ = "says one"
        def train_func(p): return helper()
    """,
    "a Run of another cell": """
        from train_func import Run
        run = Run(epochs=3, parameters={"x": [1]})
        def train_func(p): return run.epochs, run.parameters
    """,
    "several star imports": """
        from os.path import *
        from collections.abc import *
        def train_func(p): return join("a", "b"), isinstance({}, Mapping)
    """,
    "shadowed builtins": """
        list = (1, 2)
        def sum(x): return "mine"
        def train_func(p, max=3):
            id = max
            return list, sum([1]), id
    """,
    "async and generators inside": """
        import asyncio
        async def fetch(n):
            await asyncio.sleep(0)
            return [x async for x in numbers(n)]
        async def numbers(n):
            for i in range(n): yield i
        def chunks(n): yield from range(n)
        def train_func(p): return asyncio.run(fetch(3)), list(chunks(2))
    """,
    "exotic syntax": """
        def train_func(p, /, a=1, *, b: int = 2):
            assert a, "message"
            with open(__file__) if False else __import__("contextlib").nullcontext(3) as n, \\\\
                 __import__("contextlib").nullcontext():
                pass
            for i in range(3):
                if i: break
            else:
                i = 9
            while False: pass
            x = y = [*range(2), *"ab"]
            x[0] += 1
            del y[1]
            lo, *hi = x
            return n, i, lo, hi, a if b else p, not a, -b, a < b < 3, x[1:], {**{"a": 1}}, 0x_ff, 1_000, "a" "b"
    """,
    "no parameters": """
        def train_func(): return 7
    """,
    "special tokens": """
        pad_token = "[PAD_TOKEN_X]"
        TOKENS = {"mask_token": "[MASK_TOKEN]", "token": "HF_TOKEN"}
        def train_func(p, unk_token="<unknown>", sep_token="##separator"): return pad_token, TOKENS, unk_token
    """,
    "session of another package": """
        def train_func(p):
            from requests import Session
            return Session().__class__.__name__
    """,
    "form feeds and tabs": "A = 1\n\x0c\n\x0cB = 2\n\x0cdef train_func(p):\n\t\x0c# x\n\treturn A, B\n",
    "windows line ends": 'A = """x\r\ny"""\r\ndef train_func(p):\r\n    return A\r\n',
    "old mac line ends": 'A = """x\ry"""\rdef train_func(p):\r    return A, """\r"""\r',
    "byte order mark": "\ufeffA = 1\ndef train_func(p):\n    return A\n",
    "text in another encoding": "# coding: latin-1\nA = 'é'\ndef train_func(p):\n    return A\n".encode("latin-1"),
    "looks like an encoding": "A = 1; 'coding: utf-16'\ndef train_func(p):  # coding: latin-1\n    return A, 'é'\n",
    "nothing ends the last line": "def train_func(p): return 1",
    "backslash at the end": "A = 1 \\\n\nB = 2; \\\nC = 3\ndef train_func(p): return A, B, C\n",
}


@pytest.mark.parametrize("text", CORRECT.values(), ids=CORRECT)
def test_a_function_that_works_here_works_there(text, tmp_path):
    if isinstance(text, str) and text.startswith("\n        "):
        text = inspect.cleandoc(text).replace("\\\\", "\\")
    with imported(tmp_path, text) as module:
        expected = module.train_func({}) if inspect.signature(module.train_func).parameters else module.train_func()
        source = pack(module.train_func)
    function = ship(source, tmp_path)
    arrived = function({}) if inspect.signature(function).parameters else function()
    assert repr(arrived) == repr(expected)


@pytest.mark.skipif("sys.version_info < (3, 12)", reason="syntax of Python 3.12")
def test_type_statements_and_type_parameters_travel(tmp_path):
    text = "type Pair[T] = tuple[T, T]\nclass Box[T]: x: T\ndef train_func[S](p: Pair[S]): return Box, str(Pair)\n"
    with imported(tmp_path, text) as module:
        source = pack(module.train_func)
    assert ship(source, tmp_path)({})[1] == "Pair"
