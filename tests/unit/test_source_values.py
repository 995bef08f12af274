"""A name travels as the value it holds: the worker has what the notebook had, bit for bit, or submit refuses it."""

import ast
import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.shipping import arrived, imported, ship
from train_func.client.source import locate, pack

ROOT = Path(__file__).parents[2]


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


def test_a_value_that_no_code_uses_is_not_looked_at(tmp_path):
    text = "MODEL = open(__file__)\ndef unused(): return MODEL\ndef train_func(): return 1\n"
    assert arrived(tmp_path, text)[1] == 1


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
