"""What a definition computes, as a default or a class attribute, is not computed again where it arrives."""

from pathlib import Path

import pytest

from tests.shipping import arrived, imported, ship
from train_func.client.source import locate, pack

ROOT = Path(__file__).parents[2]


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
