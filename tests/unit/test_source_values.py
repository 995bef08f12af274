"""A name travels as the value it holds: the worker has what the notebook had, bit for bit, or submit refuses it."""

import ast
import inspect
import json
import math
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.messages import unnamed
from tests.shipping import imported, ship
from train_func.client.source import locate, pack
from train_func.errors import SourceRefused

ROOT = Path(__file__).parents[2]


def arrived(tmp_path, text):
    """What the function returns here, and where it arrives."""
    with imported(tmp_path, inspect.cleandoc(text) if text[0] == "\n" else text) as module:
        here = module.train_func()
        source = pack(module.train_func)
    return here, ship(source, tmp_path)(), source


def refused(tmp_path, text):
    with imported(tmp_path, inspect.cleandoc(text)) as module:
        started = time.process_time()
        with pytest.raises(SourceRefused) as raised:
            pack(module.train_func)
        assert time.process_time() - started < 1
    return raised.value.faults


# Computed once, beside the notebook: a second computation would give something else.
COMPUTED = {
    "a permutation": "import numpy as np\nX = np.random.default_rng().permutation(101)",
    "a permutation of torch": "import torch\nX = torch.randperm(101)",
    "a permutation by a helper": "import random\ndef draw(): return random.sample(range(101), 40)\nX = draw()",
    "the order of a set": "import uuid\nX = list({uuid.uuid4().hex for _ in range(40)})",
    "a variable of this machine": "import os\nX = os.environ['OF_THE_NOTEBOOK'], os.getpid()",
    "files of this machine": "import glob, pathlib\nX = glob.glob('/*'), str(pathlib.Path.home())",
    "the time": "import time, datetime\nX = time.time_ns(), datetime.datetime.now(), time.perf_counter()",
    "an id": "import uuid\nX = uuid.uuid4()",
    "the content of a file": "X = open(__file__).read()",
    "a value of a block": "import os\nwith open(__file__) as f:\n    X = f.readline(), os.urandom(8)",
    "a value of a loop": "import random\nfor X in [random.random() for _ in range(3)]: pass",
    "a value under a guard": "if __name__ != '__main__':\n    import random\n    X = random.random()",
    "a value that exec made": "exec('import random; X = random.random()')",
    "a list that was changed": "import random\nX = []\nfor _ in range(7): X.append(random.random())",
    "a dict that was changed": "import os\nX = {}\nX['a'] = os.getpid()\nX.update(b=os.urandom(3))",
    "a name that a function bound": "import random\ndef draw():\n    global X\n    X = random.random()\ndraw()",
    "an unpacked call": "import random\ndef two(): return random.random(), random.random()\nY, X = two()",
    "shuffled in place": "import random\nX = [*range(50)]\nrandom.shuffle(X)",
    "choices by a generator": "import numpy as np\nr = np.random.default_rng()\nX = r.choice(99, 20, replace=False)",
    "a split": "import numpy as np\nX, rest = np.split(np.random.permutation(20), [15])",
    "weights": "import torch\nX = torch.randn(3, 4).softmax(-1)",
    "noise of half precision": "import torch\nX = torch.rand(9).bfloat16(), torch.rand(2).half()",
    "labels by their first appearance": (
        "import random\nlabels = random.sample('abcdefgh', 8)\nX = {name: i for i, name in enumerate(labels)}"
    ),
    "a set": "import uuid\nX = sorted(s := {uuid.uuid4().hex for _ in range(9)}), frozenset(s) == s",
    "a token": "import secrets\nX = secrets.randbits(40), secrets.token_bytes(4)",
    "a hash": "X = hash('text'), id(object())",
    "a configuration": (
        "import random\nfrom dataclasses import dataclass\n@dataclass\nclass C:\n    lr: float\n    tags: list\n"
        "X = C(random.uniform(1e-5, 1e-3), [random.random()])"
    ),
    "a path with the time": "import time\nfrom pathlib import Path\nX = Path('runs') / str(time.time_ns())",
    "a name of a run": "import datetime, uuid\nX = f'{datetime.datetime.now():%H%M%S%f}-{uuid.uuid4().hex[:6]}'",
    "a number of files": "import os\nX = len(os.listdir('/tmp')), os.stat(__file__).st_mtime_ns",
    "an answer of a program": "import subprocess\nX = subprocess.check_output(['date', '+%N'], text=True)",
    "a mean of what was drawn": "import numpy as np\nX = np.random.rand(50).mean(), float(np.random.rand())",
    "an exhausted iterator": "import random\nit = iter(random.sample(range(99), 9))\nX = next(it), [*it], [*it]",
    "of a NaN": "import math, random\nX = [math.nan, -0.0, random.random()]",
}


def test_every_worker_has_what_the_notebook_had(tmp_path, monkeypatch):
    monkeypatch.setenv("OF_THE_NOTEBOOK", "here")
    cells = [f"{text}\nX{number} = X\n" for number, text in enumerate(COMPUTED.values())]
    names = ", ".join(f"X{number}" for number in range(len(cells)))
    with imported(tmp_path, "".join(cells) + f"def train_func(): return [repr(x) for x in ({names})]\n") as module:
        here = module.train_func()
        (tmp_path / "packed.json").write_text(pack(module.train_func).to_json())
    monkeypatch.delenv("OF_THE_NOTEBOOK")
    code = (
        "import json, pathlib, sys, tempfile; from tests.shipping import ship; from train_func.client.source import *\n"
        "source = Source.from_json(pathlib.Path(sys.argv[1]).read_text())\n"
        "print(json.dumps(ship(source, pathlib.Path(tempfile.mkdtemp()))()))"
    )
    for seed in ("1", "2"):
        said = subprocess.check_output(
            [sys.executable, "-c", code, str(tmp_path / "packed.json")],
            env={**os.environ, "PYTHONHASHSEED": seed, "TMPDIR": str(tmp_path), "HOME": str(tmp_path)},
            cwd=ROOT,
        )
        assert dict(zip(COMPUTED, json.loads(said), strict=True)) == dict(zip(COMPUTED, here, strict=True))


OF_DEFINITIONS = {
    "a default": "import random\ndef f(x=random.random(), *, y=[random.random()]): return x, y\nX = f",
    "a default over lines": "import random\ndef f(x=[\n  random.random(),\n  2], y=(\n 3)): return x, y\nX = f",
    "a default of a method": "import os\nclass A:\n    def f(self, x=os.urandom(3)): return x\ndef X(): return A().f()",
    "an attribute of a class": (
        "import os, random\nclass CFG:\n    seed, files = random.random(), sorted(os.listdir('/'))\n    n = 3\n"
        "    __own = 4\n    class Inner: y = random.random()\n"
        "def X(): return CFG.seed, CFG.files, CFG.n, CFG._CFG__own, CFG.Inner.y"
    ),
    "an attribute set later": "class CFG: n = 3\nCFG.n = 4\nCFG.new = [1]\ndef X(): return CFG.n, CFG.new",
    "an attribute set by its name": "class CFG: n = 3\nsetattr(CFG, 'new', [1])\ndef X(): return CFG.n, CFG.new",
    "attributes set in a loop": (
        "class CFG:\n    n = 3\n    def f(self, m): return m\n"
        "for k, v in {'n': 4, 'm': 5}.items(): setattr(CFG, k, v)\n"
        "def X(): return CFG.n, CFG.m"
    ),
    "attributes set by a function": (
        "class CFG: n = 3\ndef update(**new):\n    for k in new: setattr(CFG, k, new[k])\nupdate(n=4, m=5)\n"
        "def X(): return CFG.n, CFG.m"
    ),
    "an attribute added to a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass CFG:\n    n: int = 3\nsetattr(CFG, 'm', 5)\n"
        "def X(): return CFG(), CFG.m"
    ),
    "a cache that a method makes": (
        "class CFG:\n    @classmethod\n    def get(cls):\n        if not hasattr(cls, 'file'):\n"
        "            cls.file = open(__file__)\n        return cls.file.mode\nCFG.get()\ndef X(): return CFG.get()"
    ),
    "an attribute that a function changed": "class CFG: n = 3\ndef s(): CFG.n += 1\ns()\ndef X(): return CFG.n",
    "an attribute of a function": "def f(): return f.calls\nf.calls = 7\nX = f",
    "a method set later": "class A: pass\ndef go(self): return 5\nA.go = go\ndef X(): return A().go()",
    "a method replaced": (
        "class A:\n    def f(self): return 1\n    def g(self): return 2\n    def h(self): return 3\n"
        "def own(self): return 4\nA.f, A.g, A.__len__ = own, lambda self: 5, own\nA.h = A.g\n"
        "def X(): return A().f(), A().g(), A().h(), len(A())"
    ),
    "a method replaced by a function": (
        "class A:\n    def f(self): return 1\ndef own(self): return 2\ndef patch(kind): kind.f = own\npatch(A)\n"
        "def X(): return A().f()"
    ),
    "a property replaced by a value": (
        "class A:\n    @property\n    def f(self): return 1\nA.f = 7\ndef X(): return A().f"
    ),
    "a function that a class names, replaced": (
        "def relu(x): return 1\ndef gelu(x): return 2\nclass A: act = relu\nA.act = gelu\ndef X(): return A.act(0)"
    ),
    "attributes of several targets, replaced": (
        "class A:\n    x, y = 1, 2\n    u = v = 3\n    if True: w = 4\n    class B: z = 5\n"
        "A.x, A.v, A.w, A.B.z = 6, 7, 8, 9\ndef X(): return A.x, A.y, A.u, A.v, A.w, A.B.z"
    ),
    "a default of a dataclass, replaced": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\nclass B(A): x = 2\nA.x, B.x = 5, 6\n"
        "def X(): return A.x, A().x, B.x"
    ),
    "attributes deleted": (
        "class B:\n    x = 0\n    def f(self): return 0\nclass A(B):\n    x = 1\n    def f(self): return 1\n"
        "del A.x, A.f\ndef X(): return A.x, A().f()"
    ),
    "an attribute added where other code completes the class": (
        "import functools\nclass B:\n    def __init_subclass__(cls): cls.n = 1\nclass A(B): pass\n"
        "@functools.total_ordering\nclass C:\n    def __lt__(self, other): return True\nA.n, A.m, C.m = 2, 3, 4\n"
        "def X(): return A.n, A.m, C.m"
    ),
    "defaults set later": (
        "def f(x, y=1, *, z): return x, y, z\nf.__defaults__, f.__kwdefaults__ = (2, 3), {'z': 4}\n"
        "def g(x=1): return x\ng.__defaults__ = (5,)\nclass A:\n    def h(self, x): return x\n"
        "A.h.__defaults__ = (6,)\ndef X(): return f(), g(), A().h()"
    ),
    "a literal default that was filled": "def f(seen=[]): return seen\nf().append(1)\nX = f",
    "attributes that a class body changes": (
        "class A:\n    x = 1\n    x += 1\n    y, z = [1], {'n': 1}\n    y += [2]\n    u = []\n    z['n'] += 1\n"
        "    if x: u.append(3)\n    for i in range(3): x += i\ndef X(): return A.x, A.y, A.z, A.u, A.i"
    ),
    "a registry of a class body": (
        "class A:\n    names = []\n    def add(names):\n        def decorate(f):\n"
        "            assert f.__name__ not in names\n            names.append(f.__name__)\n            return f\n"
        "        return decorate\n    @add(names)\n    def f(self): return 1\ndef X(): return A.names, A().f()"
    ),
    "names of an enum from a list that changed": (
        "import enum\nn = ['a', 'b']\nA = enum.Enum('A', n)\nB = enum.IntEnum('B', names=n, start=3)\n"
        "n.append('c')\ndef X(): return [*A], [*B]"
    ),
    "objects of a class that has a property": (
        "import enum, typing\nfrom dataclasses import dataclass\nclass P(typing.NamedTuple):\n    n: int\n"
        "@dataclass(slots=True)\nclass S:\n    n: int\nclass C:\n    def clear(self): self.n = 0\nc = C()\nc.n = 3\n"
        "class E(enum.Enum): B = 1\nclass A:\n    p, s, c, e = P(1), S(2), c, E.B\n    q = P(4)\n    t = S(5)\n"
        "    u = c\n    @property\n    def f(self): return 1\n"
        "def X(): return A.p, A.s, A.c.n, A.e, A.q, A.t, A.u.n, A.u is A.c"
    ),
    "names of an enum from a set": (
        "import enum, uuid\nn = {uuid.uuid4().hex for _ in range(20)}\nA = enum.Enum('A', ['x' + one for one in n])\n"
        "def X(): return [*A]"
    ),
    "a member of an enum": (
        "import enum, random\nclass A(enum.Enum):\n    B = random.random()\n    C = enum.auto()\n    D = B\n"
        "def X(): return [one.value for one in A], A.D is A.B"
    ),
    "fields of a named tuple": (
        "import collections, typing\nn, d = ['a', 'b'], [1]\nA = collections.namedtuple('A', n, defaults=d)\n"
        "class B(typing.NamedTuple):\n    a: list = d[0]\nn.append('c')\nd[0] = 2\ndef X(): return A(5), B()"
    ),
    "state that a decorator keeps as attributes": (
        "def count(f):\n    def w(x):\n        w.calls += 1\n        return f(x)\n    w.calls = 0\n    return w\n"
        "class Count:\n    def __init__(self, f): self.f, self.n = f, 0\n    def __call__(self, x):\n"
        "        self.n += 1\n        return self.f(x)\n@count\ndef f(x): return x\n@Count\ndef g(x): return x\n"
        "f(1), g(2)\ndef X(): return f.calls, g.n"
    ),
    "what a decorator remembers of calls, which a worker makes anew": (
        "def memo(f):\n    known = {}\n    n = 0\n    def w(x):\n        nonlocal n\n        n += 1\n"
        "        return known.setdefault(x, f(x))\n    return w\n@memo\ndef f(x): return x\nf(1)\ndef X(): return f(1)"
    ),
    "a class of the branch that was taken": (
        "flag = True\nif flag:\n    class A(dict): x = 1\nelse:\n    class A: y = 2\ndef X(): return A.x, A()"
    ),
    "what belongs to a class as it is": (
        "import functools\ndef twice(f):\n    @functools.wraps(f)\n    def w(self): return 2 * f(self)\n    return w\n"
        "class A:\n    'says'\n    def a(self): return 1\n    b = property(a)\n    c = staticmethod(lambda: 3)\n"
        "    d = a\n    @twice\n    def e(self): return 4\n    @functools.cached_property\n    def f(self): return 5\n"
        "    @property\n    def g(self): return 6\n    @g.setter\n    def g(self, n): pass\n    h = twice(a)\n"
        "    def __own(self): return 7\n    def i(self): return self.__own()\nprint(A().b, A().g)\ng = [1]\n"
        "def X(): return A().a(), A().b, A.c(), A().d(), A().e(), A().f, A().g, A().h(), A().i()"
    ),
    "a list that the class body fills": (
        "class A:\n    x = []\n    y = list()\n    z = []\n    for n in range(3): y.append(n); z.append(n)\n"
        "def X(): return A.x, A.y, A.z"
    ),
    "a registry of subclasses": (
        "class Base:\n    kinds = dict()\n    names = []\n    def __init_subclass__(cls):\n"
        "        assert cls.__name__ not in Base.kinds\n        Base.kinds[cls.__name__] = cls\n"
        "        Base.names.append(cls.__name__)\nclass A(Base): pass\nclass B(Base): pass\n"
        "def X(): return sorted(Base.kinds), Base.names, Base.kinds['A'] is A, B.__name__"
    ),
    "a field of a dataclass": (
        "import random\nfrom dataclasses import dataclass, field\n@dataclass(order=True)\nclass C:\n"
        "    x: float = random.random()\n    y: float = field(default=3, repr=False)\n"
        "    z: list = field(default_factory=list)\ndef X(): return C(), C().y, C() == C()"
    ),
    "the value before it was bound again": "N = 1\ndef f(x=N, y={'n': N}): return x, y, N\nN = 2\nX = f",
    "a name that is gone": "n = [1]\ndef f(x=n): return x\ndel n\nX = f",
}


@pytest.mark.parametrize("text", OF_DEFINITIONS.values(), ids=OF_DEFINITIONS)
def test_defaults_and_class_attributes_are_not_computed_again(tmp_path, text):
    here, there, _ = arrived(tmp_path, f"{text}\ndef train_func(): return X()\n")
    assert repr(there) == repr(here)


def test_a_definition_with_a_computed_default_keeps_its_lines(tmp_path):
    text = "import random\ndef f(x=[\n    random.random(),\n], y=1):\n    raise KeyError(y)\ndef train_func(): f()\n"
    with imported(tmp_path, text) as module:
        source = pack(module.train_func)
    with pytest.raises(KeyError) as raised:
        ship(source, tmp_path)()
    import traceback

    said = locate(source.cells, "".join(traceback.format_exception(raised.value)))
    assert [line for _, line, _ in said] == [6, 5]


VALUES = [
    *(None, True, False, 0, -1, 10**500, -(2**70), 7**9999, -(7**9999), ...),
    *(0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, complex(-0.0, math.inf), 1j),
    *("", "é\u2028\x00\x85\r\n'\"\\{}", "\ud83d", "😀", b"", b"\x00\xff'", bytearray(b"a\x00")),
    *([], [1, [2, [3]]], (), (1,), (1, (2,)), {}, {1: 2, "a": None, (1, 2): [3]}, set(), frozenset()),
    *({1, 2, "a"}, frozenset({(1, 2), "b"}), {"b": 1, "a": 2}, range(3, 9, 2), slice(None, 3), [None, True, 1, 1.0]),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}")
def test_plain_values_arrive_with_their_types(tmp_path, value):
    with imported(tmp_path, "X = None\ndef train_func(): return X\n") as module:
        module.X = value
        there = ship(pack(module.train_func), tmp_path)()
    assert (type(there), there) == (type(value), value)
    if isinstance(value, float):
        assert struct.pack("d", there) == struct.pack("d", value)
    if isinstance(value, dict):
        assert list(there) == list(value)


def test_a_nan_keeps_its_sign(tmp_path):
    here, there, _ = arrived(
        tmp_path, "X = [float('nan'), -float('nan'), {'a': float('nan')}]\ndef train_func(): return X\n"
    )
    assert repr(there) == repr(here)
    assert [math.copysign(1, value) for value in there[:2]] == [math.copysign(1, value) for value in here[:2]]


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


BUILTINS = {
    "None's type": ("X = type(None)\ntype = 'bert'", "X, type"),
    "sets": ("X = {1}, frozenset([2])\nset = frozenset = 'own'", "X, set, frozenset"),
    "infinity": ("X = [float('inf')]\nfloat = 'own'", "X, float"),
    "an array": ("import numpy as np\nX = np.zeros(2)\nbytearray = 'own'", "X, bytearray"),
    "a class and a method": ("X = [list, str.upper]\nlist = str = 'own'", "X, list, str"),
    "an object": (
        "class C: pass\nX = C()\nX.n = 1\nhasattr = isinstance = object = tuple = type = 'own'",
        "X.n, hasattr, isinstance, object, tuple, type",
    ),
}


@pytest.mark.parametrize(("text", "used"), BUILTINS.values(), ids=BUILTINS)
def test_a_value_arrives_beside_a_name_that_hides_a_builtin(tmp_path, text, used):
    here, there, _ = arrived(tmp_path, f"{text}\ndef train_func(): return {used}\n")
    assert repr(there) == repr(here)


def test_functions_of_torch_arrive_as_the_same_ones(tmp_path):
    text = """
        import math, torch
        import numpy as np
        import torch.nn.functional as F
        X = {"sigmoid": torch.sigmoid, "tanh": torch.tanh, "relu": torch.relu, "gelu": F.gelu, "silu": F.silu}
        Y = [torch.special.expit, torch.linalg.norm, torch.Tensor.clamp, np.tanh, math.tanh, torch.nn.GELU]
        def train_func():
            return X, Y
    """
    here, there, _ = arrived(tmp_path, text)
    assert [*there[0].items()] == [*here[0].items()]
    assert there[1] == here[1]


ARRAYS = {
    "plain": np.arange(6.0).reshape(2, 3),
    "of bits": np.array([np.nan, -0.0, np.inf, 1e-310]),
    "big-endian": np.array([1, 2, 3], dtype=">i4"),
    "structured": np.array([(1, 2.5), (3, 4.5)], dtype=[("a", "<i2"), ("b", ">f8")]),
    "strided": np.arange(20).reshape(4, 5)[::2, ::-2],
    "transposed": np.asfortranarray(np.arange(6).reshape(2, 3)),
    "empty": np.empty((0, 3), dtype="float32"),
    "of no dimension": np.array(3.5),
    "of texts": np.array(["a", "éé"]),
    "of dates": np.array(["2020-01-01", "NaT"], dtype="datetime64[D]"),
    "of truths": np.array([[True], [False]]),
    "complex": np.array([1 + 2j]),
    "half": np.array([0.1], dtype="float16"),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_arrays_arrive_bit_for_bit(tmp_path, array):
    with imported(tmp_path, "X = None\ndef train_func(): return X\n") as module:
        module.X = [array, array.reshape(-1)[:1]]
        there = ship(pack(module.train_func), tmp_path)()[0]
    assert (there.dtype, there.shape, there.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert there.flags.writeable


TENSORS = {
    "plain": torch.arange(6.0).reshape(2, 3),
    "bfloat16": torch.tensor([1.0, float("nan"), -0.0], dtype=torch.bfloat16),
    "strided": torch.arange(20).reshape(4, 5)[::2, 1::2],
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "expanded": torch.ones(1, 3).expand(4, 3),
    "of no dimension": torch.tensor(3),
    "empty": torch.empty(0, 2, dtype=torch.int16),
    "of truths": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]).conj(),
    "with a gradient": torch.ones(2, requires_grad=True),
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS)
def test_tensors_arrive_bit_for_bit(tmp_path, tensor):
    with imported(tmp_path, "X = None\ndef train_func(): return X\n") as module:
        module.X = {"t": tensor, "dtype": tensor.dtype, "size": tensor.shape}
        there = ship(pack(module.train_func), tmp_path)()
    assert torch.equal(there["t"].nan_to_num(7), tensor.nan_to_num(7))
    found = there["t"].dtype, there["t"].shape, there["t"].requires_grad
    assert found == (tensor.dtype, tensor.shape, tensor.requires_grad)
    assert (there["dtype"], there["size"]) == (tensor.dtype, tensor.shape)


REFUSED = {
    "a model": ("import torch\nX = torch.nn.Linear(1, 1)", "torch.nn"),
    "an own model": ("import torch\nclass N(torch.nn.Module): pass\nX = [N()]", "whose base is torch.nn"),
    "a parameter": ("import torch\nX = torch.nn.Parameter(torch.zeros(1))", "Parameter"),
    "a device": ("import torch\nX = torch.device('cpu')", "torch.device"),
    "a device in a default": ("import torch\ndef X(d=torch.device('cpu')): return d", "torch.device"),
    "a device in a class": ("import torch\nclass X:\n    d = torch.device('cpu')", "torch.device"),
    "a transform": ("import torch\nX = torch.nn.Sequential(torch.nn.ReLU())", "Sequential"),
    "a tokenizer": ("from tokenizers import Tokenizer, models\nX = Tokenizer(models.BPE())", "Tokenizer"),
    "a client": ("import boto3\nX = boto3.client('s3', region_name='x')", "S3"),
    "a generator of numbers": ("import numpy as np\nX = np.random.default_rng()", "Generator"),
    "Python's generator": ("import random\nX = random.Random(3)", "random.Random"),
    "an own object with a file": ("class Box: pass\nX = Box()\nX.file = open(__file__)", "Box"),
    "an own object of an installed class": (
        "import threading\nclass Box(threading.Thread): pass\nX = Box()",
        "Box, whose base is threading.Thread",
    ),
    "a sentinel that pickle finds by its name": (
        "class Absent:\n    def __reduce__(self): return 'ABSENT'\nX = Absent()",
        "Absent, and cannot travel",
    ),
    "an own object of an earlier class": ("class Box: n = 1\nX = Box()\nclass Box: n = 2", "again"),
    "a closure": ("def make(n):\n    return lambda x: x + n\nX = make(2)", "call"),
    "a function changed by a call": ("import functools\ndef f(): pass\nX = functools.lru_cache(f)", "lru_cache"),
    "an array of objects": ("import numpy as np\nX = np.array([{}, None], dtype=object)", "`.tolist()`"),
    "an aligned array": (
        "import numpy as np\nX = np.zeros(1, np.dtype([('a', 'i1'), ('b', 'f8')], align=True))",
        "layout",
    ),
    "a masked array": ("import numpy as np\nX = np.ma.array([1])", "MaskedArray"),
    "a sparse tensor": ("import torch\nX = torch.eye(2).to_sparse()", "torch.sparse_coo"),
    "a tensor with its graph": ("import torch\nX = torch.ones(1, requires_grad=True) * 2", "detach"),
    "a tensor on another device": ("import torch\nX = torch.empty(2, device='meta')", "meta"),
    "arrays of more than 1 MiB": ("import numpy as np\nX = [np.zeros(2**16), np.zeros(2**16 + 1)]", "1,048,576"),
    "a list that holds itself": ("X = []\nX.append(X)", "holds itself"),
    "two that hold each other": ("X = {}\nY = [X]\nX['y'] = Y", "holds itself"),
    "the environment": ("import os\nX = os.environ", "os._Environ"),
    "standard output": ("import sys\nX = sys.stdout", "'X'"),
    "a model set on a class": (
        "import torch\nclass X: pass\nX.d = 1\nsetattr(X, 'm', torch.nn.ReLU())  # d =",
        "torch.nn",
    ),
    "an instance of an earlier class": (
        "import dataclasses as d\n@d.dataclass\nclass C:\n  a: int\nX = C(1)\n@d.dataclass\nclass C:\n  b: int",
        "C",
    ),
}


@pytest.mark.parametrize(("text", "fact"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_value_is_refused_where_it_is_made(tmp_path, text, fact):
    (fault,) = refused(tmp_path, f"{text}\ndef train_func(): return X\n")
    lines = [
        number for number, line in enumerate(text.splitlines(), 1) if "X = " in line or "d=" in line or "d =" in line
    ]
    lines += [number for number, line in enumerate(text.splitlines(), 1) if "X.append" in line or "X['y']" in line]
    assert any(not unnamed(fault, f"line {line}: ", fact, "inside train_func") for line in lines), fault


# What was made of something that has another text by now; the mark stands in the line that has to be executed again.
RENEWED = {
    "a base": "class A: n = 1\nclass X(A): pass  # old\nclass A: n = 2",
    "a base of a base": "class A: n = 1\nclass B(A): pass  # old\nclass X(B): pass\nclass A: n = 2",
    "a base in a class": ("class A:\n    class B: n = 1\nclass X(A.B): pass  # old\nclass A:\n    class B: n = 2"),
    "a base with a parameter": (
        "from typing import Generic, TypeVar\nT = TypeVar('T')\nclass A(Generic[T]): n = 1\n"
        "class X(A[int]): pass  # old\nclass A(Generic[T]): n = 2"
    ),
    "a metaclass": "class M(type): n = 1\nclass X(metaclass=M): pass  # old\nclass M(type): n = 2",
    "a class in a default": "class A: n = 1\ndef X(a=A): return a.n  # old\nclass A: n = 2",
    "a class in a class": "class A: n = 1\nclass X:\n    kind = A  # old\nclass A: n = 2",
    "a class in a list": "class A: n = 1\nX = [A]  # old\nclass A: n = 2",
    "a function in a list": "def f(): return 1\nX = [f]  # old\ndef f(): return 2",
    "a function in a call": "import functools\ndef f(): return 1\nX = functools.partial(f)  # old\ndef f(): return 2",
    "a function in a default": "def f(): return 1\ndef X(g=f): return g()  # old\ndef f(): return 2",
    "functions of a loop": ("X = []  # old\nfor i in range(3):\n    def f(i=i): return i\n    X.append(f)\n"),
    "a class method": "class A:\n    @classmethod\n    def f(cls): return 1\nX = A.f  # old\nclass A: f = list",
    "a class of a loop": "X = []  # old\nfor n in (1, 2):\n    class A: own = n\n    X.append(A())",
    "a class of a loop with a list": (
        "X = []  # old\nfor _ in range(2):\n    class A:\n        def f(self, own=[]): return own\n    X.append(A())"
    ),
    "the class of an object": "class A:\n    def f(_): return 1\nX = A()  # old\nclass A:\n    def f(_): return 2",
    "the class of a dataclass": (
        "from dataclasses import dataclass\n@dataclass\nclass A:\n    def f(self): return 1\nX = A()  # old\n"
        "@dataclass\nclass A:\n    def f(self): return 2"
    ),
    "the class of a member": (
        "import enum\nclass A(enum.Enum):\n    B = 1\n    def f(self): return 1\nX = A.B  # old\n"
        "class A(enum.Enum):\n    B = 1\n    def f(self): return 2"
    ),
}


@pytest.mark.parametrize("text", RENEWED.values(), ids=RENEWED)
def test_what_was_made_of_something_that_was_defined_otherwise_since_is_refused(tmp_path, text):
    (fault,) = refused(tmp_path, f"{text}\ndef train_func(): return X\n")
    (line,) = (number for number, line in enumerate(text.splitlines(), 1) if "# old" in line)
    assert f"line {line}: " in fault.partition("`")[0]
    assert "again" in fault


def test_what_was_made_of_a_class_that_another_value_has_changed_since_is_refused(shell):
    once = "class A: n = N\n"
    for cell in ("N = 1", once, "X = A()", "N = 2", once, "def train_func(): return X.n"):
        shell.run_cell(cell, store_history=True).raise_error()
    with pytest.raises(SourceRefused) as raised:
        pack(shell.user_ns["train_func"])
    assert unnamed(raised.value, "cell In[3], line 1: `X = A()`", "again") == []


def test_what_was_made_of_a_class_arrives_when_its_cell_is_executed_again(shell, tmp_path):
    once = "class A:\n    n = 1\n    def f(self): return self.n\n"
    for cell in (
        once,
        "class D(A): pass\nX, K = A(), A",
        once,
        "def train_func(): return X.f(), D().f(), K.n",
    ):
        shell.run_cell(cell, store_history=True).raise_error()
    assert ship(pack(shell.user_ns["train_func"]), tmp_path)() == (1, 1, 1)


IN_CELLS = {
    "an import behind an import *": (
        "from os.path import *", "from shlex import join", "def train_func(): return join(['a', 'b']), normpath('/')"
    ),
    "an import behind one of two names": (
        "from json import loads, dumps", "from pickle import dumps",
        "def train_func(): return dumps.__module__, loads.__module__",
    ),
    "an import * behind an import": (
        "from shlex import join, quote", "from os.path import *", "def train_func(): return join('a', 'b'), quote(' ')"
    ),
    "a function behind an import *": (
        "from os.path import *", "def join(x): return x", "def train_func(): return exists('/'), join(2)"
    ),
    "a function that import * does not give": (
        "def _re(): return 'own'", "from string import *", "def train_func(): return _re(), digits"
    ),
    "a value that __all__ of an import * lacks": (
        "def stat(): return 7", "from os.path import *", "def train_func(): return exists('/'), stat()"
    ),
    "what IPython has, where its lack is caught": (
        "def train_func():\n    try:\n        get_ipython(), display\n    except NameError: pass\n    return 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("cells", IN_CELLS.values(), ids=IN_CELLS)
def test_a_name_that_several_cells_bind_holds_what_it_held_last(shell, tmp_path, cells):
    for cell in cells:
        shell.run_cell(cell, store_history=True).raise_error()
    function = shell.user_ns["train_func"]
    assert ship(pack(function), tmp_path)() == function()


ADVICE = {
    "a frame": ("import pandas\ndf = pandas.DataFrame({'a': [1]})\ndef X(): return df", 'Run(inputs={"df": df})'),
    "a Dataset": ("import datasets\nX = datasets.Dataset.from_dict({'a': [1]})", 'Run(inputs={"X": X})'),
    "a module set on a class": ("import json\nclass X: pass\nX.tool = json", "Import it inside"),
}


@pytest.mark.parametrize(("text", "advice"), ADVICE.values(), ids=ADVICE)
def test_what_travels_in_another_way_is_refused_with_that(tmp_path, text, advice):
    (fault,) = refused(tmp_path, f"{text}\ndef train_func(): return X\n")
    assert unnamed(fault.replace("'", '"'), "line ", advice) == []


def test_a_value_that_no_code_uses_is_not_looked_at(tmp_path):
    text = "MODEL = open(__file__)\ndef unused(): return MODEL\ndef train_func(): return 1\n"
    assert arrived(tmp_path, text)[1] == 1


SECRETS = {
    "by its name": "API_KEY = ''.join(['hunter2'] * 2)\ndef train_func(): return API_KEY",
    "by its shape": "X = ['s' + 'k-' + 'a1B2' * 8]\ndef train_func(): return X",
    "under a key": "X = {'api_key': 'hunter2' * 2}\ndef train_func(): return X",
    "in a field": (
        "from dataclasses import dataclass\n@dataclass\nclass C:\n    password: str\nX = C('hunter2' * 2)\n"
        "def train_func(): return X"
    ),
    "in a named tuple": (
        "import collections\nP = collections.namedtuple('P', 'user password')\nX = P('me', 'hunter2' * 2)\n"
        "def train_func(): return X"
    ),
    "in a default": "def f(*, token='hunter2' * 2): return token\ndef train_func(): return f()",
    "in a class": "class CFG:\n    token = 'hunter2' * 2\ndef train_func(): return CFG",
    "set on a class": "class CFG: pass\nCFG.token = 'hunter2' * 2\ndef train_func(): return CFG",
    "in what two values hold": ("one = {'api_key': 'hunter2' * 2}\nX, Y = [one], [one]\ndef train_func(): return X, Y"),
    "in the statement alone": "X = len('sk-" + "a1B2" * 8 + "')\ndef train_func(): return X",
}


@pytest.mark.parametrize("text", SECRETS.values(), ids=SECRETS)
def test_a_credential_in_a_computed_value_is_refused_and_not_shown(tmp_path, text):
    (fault,) = refused(tmp_path, text)
    assert unnamed(fault, "line ", "credential") == []
    assert "hunter2" * 2 not in fault
    assert "a1B2" * 8 not in fault


def test_names_of_one_object_stay_names_of_one_object(tmp_path):
    text = """
        import numpy as np
        A = [1]
        B = A
        C = {"a": A, "w": (W := np.zeros(3))}
        one = {"deep": [7]}
        D, E = [one, one["deep"]], {"one": one}
        def own(x=one["deep"]): return x
        def train_func(): return A is B, C["a"] is A, C["w"] is W, D[0] is E["one"], own() is D[1] is D[0]["deep"], A
    """
    here, there, _ = arrived(tmp_path, text)
    assert there == here == (True, True, True, True, True, [1])


@pytest.mark.parametrize(
    "line",
    [
        "for a in CONFIGS: pass",
        "for z in CONFIGS: pass",
        "A = CFG",
        "Z = CFG",
        "Z = [CFG, CONFIGS]",
        "A, Z = CONFIGS",
        "def unused(): return CFG, A\nA = CFG",
        "_ = CFG['deep']",
    ],
)
def test_a_name_that_no_code_uses_does_not_change_the_text(tmp_path, line):
    text = "CFG = {'lr': 1, 'deep': [1]}\nCONFIGS = [{'a': 1}, CFG['deep']]\nX = ''\n"
    used = "def train_func():\n    return CFG, CONFIGS, CONFIGS[1] is CFG['deep']\n"
    _, _, plain = arrived(tmp_path, f"{text}{used}")
    here, there, source = arrived(tmp_path, f"{text}{used}{line}\n")
    assert there == here
    assert source.text == plain.text


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


def test_a_local_module_is_imported_there_as_here(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (tmp_path / "own_rates.py").write_text("import sys\nRATE = len(sys.argv) and 1\ndef rate(): return RATE\n")
    text = (
        "import own_rates as o\nfrom own_rates import RATE, rate\nHELD = o.RATE\nRATE = [RATE, 7]\n"
        "def train_func(): return RATE, HELD, rate(), o.RATE\n"
    )
    try:
        here, there, source = arrived(tmp_path, text)
    finally:
        sys.modules.pop("own_rates", None)
    assert there == here == ([1, 7], 1, 1, 1)
    assert "#|RATE = len(sys.argv) and 1\n" in source.text


def test_a_value_that_was_imported_from_a_local_module_is_that_of_the_notebook(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    (tmp_path / "own_draws.py").write_text("import random\nDRAWN = random.random()\ndef f(): return 1\n")
    try:
        here, there, _ = arrived(tmp_path, "from own_draws import DRAWN, f\ndef train_func(): return DRAWN, f()\n")
    finally:
        sys.modules.pop("own_draws", None)
    assert there == here


def test_another_value_is_another_source_and_the_same_value_the_same(tmp_path):
    def sha256(value):
        with imported(tmp_path, f"X = {value}\ndef train_func(): return X\n") as module:
            return pack(module.train_func).sha256

    assert sha256("[1, 2]") == sha256("list(range(1, 3))") != sha256("[1, 3]")


def test_a_set_is_written_alike_in_every_process(tmp_path):
    path = tmp_path / "of_sets.py"
    path.write_text(
        "import fractions, json, math, operator, pathlib, random, struct\n"
        "class Own: n = 1\n"
        "X = {'a', 'b', 'c', ('d', 1), None, 2.5, math.sin, operator.add, json.dumps, struct.pack, pathlib.Path('a')}\n"
        "X |= {fractions.Fraction(n, 7) for n in range(9)} | {Own, lambda: 1, lambda: 2, lambda x: x, random.choice}\n"
        "import numpy, typing\n"
        "X |= {lambda n=n: n for n in range(5)} | {numpy.add, typing.AnyStr}\n"
        "def train_func(): return X\n"
    )
    code = (
        "import sys; sys.path[:0] = ['.', sys.argv[1]]; import of_sets\n"
        "from train_func.client.source import pack; print(pack(of_sets.train_func).sha256)"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path)], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1


def test_an_error_in_a_value_s_line_names_the_cell_s_line(tmp_path):
    with imported(tmp_path, "import os\n\nX = [\n  os.getpid()]\ndef train_func(): return X\n") as module:
        source = pack(module.train_func)
    (number,) = (n for n, line in enumerate(source.text.splitlines(), 1) if line.startswith("X ="))
    assert [place[1:] for place in locate(source.cells, f'File "/a/source.py", line {number}\n')] == [(3, "X = [")]
    assert ast.parse(source.text)


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


LAMBDAS = {
    "of a loop": ("fs = [lambda x, i=i: x + i for i in range(3)]", "[f(6) for f in fs]"),
    "with a list of its own": ("fs = [lambda c=[]: c for _ in range(2)]", "fs[0]() is fs[1]()"),
    "of a name that was bound again": ("K = 2\nsq = lambda x, k=K: x**k\nK = 3", "sq(3)"),
    "by keyword": ("K = 2\nsq = lambda x, *, k=K: x**k\nK = 3", "sq(3)"),
    "of a call": ("import random\nf = lambda k=random.randint(0, 10**9): k", "f()"),
    "in a dict": ("K = 2\nfs = {'a': lambda x, k=K: x**k}\nK = 3", "fs['a'](3)"),
    "in a class": ("K = 2\nclass C:\n    sq = lambda self, x, k=K: x**k\nK = 3", "C().sq(3)"),
    "as a default": ("K = 2\ndef f(x, g=lambda x, k=K: x**k):\n    return g(x)\nK = 3", "f(3)"),
}


@pytest.mark.parametrize(("text", "used"), LAMBDAS.values(), ids=LAMBDAS)
def test_the_defaults_of_a_lambda_are_not_computed_again(tmp_path, text, used):
    here, there, _ = arrived(tmp_path, f"{text}\ndef train_func():\n    return {used}\n")
    assert there == here


BLOCKS = {
    "in a branch": 'if True:\n    def f(n=int("3")):\n        return n',
    "in a handler": 'try:\n    import no_such_module\nexcept ImportError:\n    class f:\n        lr = float("3")\n'
    "        def __new__(cls):\n            return cls.lr",
    "in a loop": "for i in range(3):\n    def f(i=i):\n        return i",
}


@pytest.mark.parametrize("text", BLOCKS.values(), ids=BLOCKS)
def test_a_definition_in_a_block_has_the_value_of_its_default(tmp_path, text):
    here, there, _ = arrived(tmp_path, f"{text}\ndef train_func():\n    return f()\n")
    assert there == here == (2 if "in range" in text else 3)


MACHINES = {
    "a device of a function": (
        "import torch\nX = (lambda: 0) and 0\ndef dev():\n    name = 'cpu'\n    if torch.cuda.is_available():\n"
        "        name = 'cuda'\n    return name\nX = dev()"
    ),
    "a device of two functions": (
        "import torch\ndef has(): return torch.cuda.is_available()\n"
        "def dev(): return 'cuda' if has() else 'cpu'\nX = dev()"
    ),
    "cores of a function": "import os\ndef count(): return os.cpu_count()\nX = count()",
    "a device": 'import torch\nX = "cuda" if torch.cuda.is_available() else "cpu"',
    "a device of a branch": 'import torch\nif torch.cuda.is_available():\n    X = "cuda"\nelse:\n    X = "cpu"',
    "a device of a class": 'import torch\nclass X:\n    device = "cuda" if torch.cuda.is_available() else "cpu"',
    "a rank": 'import os\nX = int(os.environ.get("RANK", 0))',
    "cores": "import os\nX = os.cpu_count()",
    "cores as a default": "import os\ndef X(n=os.cpu_count()):\n    return n",
    "a folder": "from pathlib import Path\nX = Path(__file__).parent",
    "a temporary folder": "import tempfile\nX = tempfile.mkdtemp()",
    "a device by another name": "import torch.cuda as on\nX = [on.device_count()]",
    "cores by another name": "from os import cpu_count as cores\nX = cores()",
    "cores as a default of a lambda": "import os\nX = lambda n=os.cpu_count(): n",
    "a choice by a name": "import torch\nhas = torch.cuda.is_available()\nX = 'cuda' if has else 'cpu'",
    "a path of a folder": "from pathlib import Path\nROOT = Path(__file__).parent\nX = str(ROOT / 'data')",
    "a value of a with": "import tempfile\nwith tempfile.TemporaryDirectory() as folder:\n    X = folder",
    "a value of a for": "import os\nfor X in range(os.cpu_count()): pass",
    "a value of a try": "import torch\ntry: X = torch.cuda.get_device_name()\nexcept Exception: X = 'cpu'",
    "a value in an expression": "import os\nif (X := os.cpu_count()): pass",
}


@pytest.mark.parametrize("text", MACHINES.values(), ids=MACHINES)
def test_what_this_machine_is_does_not_travel_as_a_value(tmp_path, text):
    (fault,) = refused(tmp_path, f"{text}\ndef train_func():\n    return X\n")
    assert "machine" in fault
    assert "line " in fault


DATA = {
    "of a file": "from pathlib import Path\nFILE = Path(__file__)\nX = FILE.read_text()",
    "by a pool": "import os\nfrom multiprocessing.pool import ThreadPool\n"
    "X = ThreadPool(os.cpu_count()).map(len, ['a'])",
    "of a block": (
        "import os\nfrom multiprocessing.pool import ThreadPool\nwith ThreadPool(os.cpu_count()) as pool:\n"
        "    X = pool.map(len, ['a'])"
    ),
    "by a function that uses a folder": (
        "import tempfile\ndef load(folder): return [1, 2]\nFOLDER = tempfile.mkdtemp()\nX = load(FOLDER)"
    ),
    "by a function with a folder": (
        "import tempfile\ndef load():\n    folder = tempfile.mkdtemp()\n    assert folder\n    return [1]\nX = load()"
    ),
    "bound anew": "import os\nX = os.cpu_count()\nX = 3",
    "by a function that looks for a device": (
        "import torch\ndef load():\n    if torch.cuda.is_available(): pass\n    return [1, 2]\nX = load()"
    ),
}


@pytest.mark.parametrize("text", DATA.values(), ids=DATA)
def test_data_that_was_made_with_what_this_machine_has_travels(tmp_path, text):
    here, there, _ = arrived(tmp_path, f"{text}\ndef train_func():\n    return X\n")
    assert there == here


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
