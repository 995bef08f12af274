"""Objects of a notebook's own classes, and registries of its functions, arrive with what they hold."""

from pathlib import Path

import pytest

from tests.shipping import arrived

ROOT = Path(__file__).parents[2]


OBJECTS = """
    import collections, datetime, decimal, enum, fractions, functools, logging, operator, pathlib, re, types, typing
    import uuid, zoneinfo
    import numpy as np
    from dataclasses import dataclass, field, KW_ONLY
    class Color(enum.IntEnum):
        RED = 1
        BLUE = 2
    class Right(enum.Flag):
        READ = enum.auto()
        WRITE = enum.auto()
    @dataclass(frozen=True, slots=True)
    class Part:
        n: int
        kind: Color = Color.RED
    @dataclass
    class Config:
        parts: list[Part]
        _: KW_ONLY
        made: int = field(default=0, init=False)
        def __post_init__(self): self.made = len(self.parts) + 1
    Point = collections.namedtuple("Point", "x y", defaults=[0])
    class Typed(typing.NamedTuple):
        a: int
    def own(x): return x + 1
    def keep(x): return x
    CONFIG = Config([Part(1, Color.BLUE), Part(2)])
    CONFIG.made = 40
    X = [
        Color.BLUE, Right.READ | Right.WRITE, {Color.RED: "r"}, CONFIG, Point(1), Typed(3), [Part(7)],
        pathlib.Path("a/b"), pathlib.PurePosixPath("/c"), pathlib.PureWindowsPath("c:/d"),
        datetime.date(2020, 1, 2), datetime.time(1, 2, 3, 4), datetime.time(0, 5), datetime.timedelta(1, 2, 3),
        datetime.datetime(2020, 1, 1, 5, fold=1, tzinfo=zoneinfo.ZoneInfo("UTC")),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=2))), datetime.timezone.utc,
        decimal.Decimal("-0.10"), fractions.Fraction(1, 3), uuid.UUID(int=5), re.compile("a+", re.I), re.compile(b"x"),
        collections.OrderedDict(b=1, a=2), collections.Counter("aab"), collections.defaultdict(list, {"a": [1]}),
        collections.deque([1, 2], maxlen=2), types.SimpleNamespace(a=[1]), types.MappingProxyType({"a": 1}),
        int, Part, Color, np.float32, np.int8(3), np.float64("nan"),
        np.dtype(">i2"), np.mean, np.add, len, str.upper, operator.add, dict.fromkeys,
    ]
    CALLS = {"own": own, "partial": functools.partial(own, 2), "lambda": lambda x: x * 3}
    CALLS["item"] = operator.itemgetter(1)
    LOG = logging.getLogger("of.mine")
    MISSING = object()
    def same(x=MISSING): return x is MISSING
    def train_func():
        called = CALLS["own"](1), CALLS["partial"](), CALLS["lambda"](2), CALLS["item"]([1, 2]), LOG.name, same()
        return X, called, X[0] is Color.BLUE, X[3].parts[0] == Part(1, Color.BLUE), type(X[4]) is Point
"""


def test_objects_that_stand_for_values_arrive_with_their_classes(tmp_path):
    here, there, _ = arrived(tmp_path, OBJECTS)
    assert repr(there) == repr(here)
    assert there[2:] == (True, True, True)


OWN_OBJECTS = {
    "of a class body": (
        "class Cfg:\n    lr = 1e-3\n    layers = [1, 2]\nX = Cfg()\nX.lr = 5",
        "X.lr, X.layers, vars(X)",
    ),
    "of an init": ("class Cfg:\n    def __init__(self, lr): self.lr, self.made = lr, {}\nX = Cfg(3)", "X.lr, X.made"),
    "of a base": (
        (
            "import abc\nclass B(abc.ABC):\n    @abc.abstractmethod\n    def f(self): pass\n"
            "class C(B):\n    def f(self): return self.n\nX = C()\nX.n = 7"
        ),
        "X.f()",
    ),
    "of a generic class": (
        (
            "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass C(Generic[T]):\n"
            "    def __init__(self, n): self.n = n\nX = C(7)"
        ),
        "X.n",
    ),
    "with a setter": (
        (
            "class C:\n    def __init__(self): self.n = 1\n    @property\n    def n(self): return self._n\n"
            "    @n.setter\n    def n(self, n): self._n = n + 1\nX = C()"
        ),
        "X.n",
    ),
    "without new attributes": (
        (
            "class C:\n    def __init__(self): self.__dict__['n'] = 1\n"
            "    def __setattr__(self, name, value): raise AttributeError\nX = C()"
        ),
        "X.n",
    ),
    "with slots": ("class C:\n    __slots__ = ('n', 'm')\nX = C()\nX.n = 7", "X.n, hasattr(X, 'm')"),
    "with a state of its own": (
        (
            "class C:\n    def __getstate__(self): return {'n': self.n}\n"
            "    def __setstate__(self, state): self.n, self.made = state['n'], True\n"
            "X = C()\nX.n, X.file = 7, open(__file__)"
        ),
        "X.n",
    ),
    "in each other": ("class C: pass\nA, X = C(), C()\nX.a = [A]\nA.n = 4", "X.a[0] is A, A.n"),
    "with two names": ("class C: pass\nX = C()\nY = X\nX.n = 1", "X is Y, Y.n"),
    "called": ("class C:\n    def __call__(self, x): return x + self.n\nX = C()\nX.n = 2", "X(3)"),
    "a dict": (
        "class D(dict):\n    __getattr__ = dict.get\nX = D(lr=1, of=D(n=[2]))",
        "X.lr, X.of.n, type(X.of) is D, X",
    ),
    "a dict that is its attributes": (
        (
            "class D(dict):\n    def __init__(self, **n):\n        super().__init__(**n)\n"
            "        self.__dict__ = self\nX = D(lr=1)"
        ),
        "X.lr, setattr(X, 'n', 2), X['n'], X",
    ),
    "a list that changes what is appended": (
        "class L(list):\n    def append(self, x): super().append(x * 2)\nX = L()\nX.append(1)",
        "X",
    ),
    "a dict that changes what is set": (
        (
            "import collections\nclass D(collections.OrderedDict):\n"
            "    def __setitem__(self, name, x): super().__setitem__(name, x * 2)\n"
            "X = D()\nX['a'] = 1\nX['b'] = 2\nX.move_to_end('a')"
        ),
        "X",
    ),
    "with a read-only property of the same name": (
        (
            "class C:\n    def __init__(self): self.__dict__['n'] = 3\n    @property\n"
            "    def n(self): return self.__dict__['n']\nX = C()"
        ),
        "X.n",
    ),
    "a list": ("class L(list):\n    def total(self): return sum(self)\nX = L([1, 2])\nX.n = 3", "X.total(), X.n, X"),
    "arguments": (
        (
            "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--lr', default=0.1)\n"
            "X = parser.parse_args([])\nY = [X]"
        ),
        "X.lr, Y[0] is X",
    ),
    "a namespace": ("import types\nX = types.SimpleNamespace(n=1)\nY = [X]", "X.n, Y[0] is X"),
    "a registry": (
        (
            "class R:\n    def __init__(self): self.d, self.names = {}, []\n    def register(self, f):\n"
            "        assert f.__name__ not in self.d\n        self.d[f.__name__] = f\n"
            "        self.names.append(f.__name__)\n        return f\n"
            "X = R()\n@X.register\ndef one(): return 1\n@X.register\nclass Two: pass"
        ),
        "X.d['one'](), X.d['Two'] is Two, sorted(X.d), X.names",
    ),
}


@pytest.mark.parametrize(("text", "used"), OWN_OBJECTS.values(), ids=OWN_OBJECTS)
def test_plain_objects_of_own_classes_arrive_with_their_attributes(tmp_path, text, used):
    here, there, _ = arrived(tmp_path, f"{text}\ndef train_func():\n    return {used}\n")
    assert repr(there) == repr(here)


def test_a_registry_holds_what_it_held_once(tmp_path):
    text = """
        KINDS, NAMES = {}, []
        def register(name):
            def add(kind):
                assert name not in KINDS
                KINDS[name] = kind
                NAMES.append(name)
                return kind
            return add
        @register("a")
        class A: pass
        @register("b")
        def b(): return "first"
        @register("c")
        def c(): return "second"
        def train_func(): return sorted(KINDS), NAMES, KINDS["b"](), KINDS["c"](), KINDS["a"] is A
    """
    here, there, _ = arrived(tmp_path, text)
    assert there == here == (["a", "b", "c"], ["a", "b", "c"], "first", "second", True)


def test_a_decorated_function_in_a_dict_is_the_one_that_its_name_has(tmp_path):
    text = """
        from functools import lru_cache
        @lru_cache(maxsize=None)
        def fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)
        CALLS = {"fib": fib}
        def train_func(): return CALLS["fib"](20), CALLS["fib"] is fib
    """
    here, there, _ = arrived(tmp_path, text)
    assert there == here == (6765, True)


REGISTRIES = {
    "an ordered dict": ("collections.OrderedDict()", "REG[f.__name__] = f", "sorted(REG)"),
    "a defaultdict": ("collections.defaultdict(list)", "REG['a'].append(f)", "[f() for f in REG['a']]"),
    "a deque": ("collections.deque()", "REG.append(f)", "[f() for f in REG]"),
    "a counter": ("collections.Counter()", "REG[f] += 1", "[f() for f in REG]"),
    "a dict": ("{}", "REG[f.__name__] = f", "sorted(REG)"),
    "a list": ("[]", "REG.append(f)", "[f() for f in REG]"),
}


@pytest.mark.parametrize("base", ["dict", "list", "collections.OrderedDict", "collections.deque"])
def test_of_a_registry_of_an_own_class_no_method_runs_that_the_class_has_overridden(tmp_path, base):
    added = "REG.append(f)" if base.endswith(("list", "deque")) else "REG[f] = 1"
    text = (
        f"import collections\nCALLS = []\nclass Own({base}):\n"
        "    def clear(self):\n        CALLS.append('clear')\n        super().clear()\n"
        "    def update(self, *new):\n        raise TypeError('add one by one')\n"
        "    def extend(self, new):\n        raise TypeError('add one by one')\n"
        f"REG = Own()\ndef reg(f):\n    {added}\n    return f\n"
        "@reg\ndef one():\n    return 1\n@reg\ndef two():\n    return 2\n"
        "def train_func():\n    return [f() for f in REG], CALLS, type(REG).__name__\n"
    )
    here, there, _ = arrived(tmp_path, text)
    assert there == here == ([1, 2], [], "Own")


@pytest.mark.parametrize(("kind", "add", "used"), REGISTRIES.values(), ids=REGISTRIES)
def test_a_registry_of_any_kind_holds_its_functions_once(tmp_path, kind, add, used):
    text = (
        f"import collections\nREG = {kind}\ndef reg(f):\n    {add}\n    return f\n"
        f"@reg\ndef one():\n    return 1\n@reg\ndef two():\n    return 2\n"
        f"def train_func():\n    return {used}\n"
    )
    here, there, _ = arrived(tmp_path, text)
    assert there == here
    assert len(here) == 2
