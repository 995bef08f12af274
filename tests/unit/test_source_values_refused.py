"""What is no value is refused by submit, where it is made, and with what to do in its place."""

from pathlib import Path

import pytest

from tests.messages import unnamed
from tests.shipping import arrived, refused, ship
from train_func.client.source import pack
from train_func.errors import SourceRefused

ROOT = Path(__file__).parents[2]


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


ADVICE = {
    "a frame": ("import pandas\ndf = pandas.DataFrame({'a': [1]})\ndef X(): return df", 'Run(inputs={"df": df})'),
    "a Dataset": ("import datasets\nX = datasets.Dataset.from_dict({'a': [1]})", 'Run(inputs={"X": X})'),
    "a module set on a class": ("import json\nclass X: pass\nX.tool = json", "Import it inside"),
}


@pytest.mark.parametrize(("text", "advice"), ADVICE.values(), ids=ADVICE)
def test_what_travels_in_another_way_is_refused_with_that(tmp_path, text, advice):
    (fault,) = refused(tmp_path, f"{text}\ndef train_func(): return X\n")
    assert unnamed(fault.replace("'", '"'), "line ", advice) == []


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
