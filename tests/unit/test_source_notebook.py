"""Functions defined in the cells of real notebooks, executed by a real kernel, arrive with all they use."""

import hashlib
import json
import sys
import traceback
from pathlib import Path
from types import SimpleNamespace

import nbformat
import papermill
import pytest
from nbclient import NotebookClient

from tests.messages import unnamed
from tests.shipping import ship
from train_func.client.source import locate

ROOT = Path(__file__).parents[2]
# What a cell writes for the test to read: the source, or why it was refused, and how long that took.
PACK = """
import json as _json, time as _time, dataclasses as _dataclasses
from train_func.client.source import pack as _pack
from train_func.errors import SourceRefused as _SourceRefused
_started = _time.process_time()
try:
    _said = _dataclasses.asdict(_pack(train_func))
except _SourceRefused as _error:
    _said = {"faults": _error.faults}
_said["seconds"] = _time.process_time() - _started
with open("said.jsonl", "a", newline="") as _file:
    _file.write(_json.dumps(_said) + "\\n")
"""


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """Executes cells in a new kernel; returns what each cell PACK said."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])  # what is shipped stays importable for this test alone

    def execute(*cells):
        document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        client = NotebookClient(document, timeout=300, kernel_name="python3", allow_errors=True)
        client.execute(cwd=str(tmp_path))
        said = tmp_path / "said.jsonl"
        lines = said.read_text().splitlines() if said.exists() else [str(document.cells[-1].outputs)]
        said.unlink()
        return [SimpleNamespace(**json.loads(line)) for line in lines]

    return execute


STORY = [
    "import json, os\nimport numpy as np",
    "from __future__ import annotations\nfrom dataclasses import dataclass, field\nimport enum",
    "RATE = 1e-3\nLABELS = ('bad', 'good')   # in the order of the classes\nRows = list[dict[str, int]]",
    """@dataclass
class Config:
    rate: float = RATE
    names: list[str] = field(default_factory=lambda: [*LABELS])
""",
    """class Color(enum.Enum):
    RED = 1

class Model:
    '''Has a method.'''
    def run(self, x: Config) -> Rows:
        return [{'n': int(np.sum([1, 2]))}, {'red': Color.RED.value}]""",
    "def helper(config=Config()):\n    return json.dumps([config.rate, config.names])",
    "%%time\ndef timed(x):\n    return x + 1\n",
    "def train_func(p):\n    '''$HOME `id` \\\\ EOM'''\n    return helper(), timed(1), Model().run(Config())\n",
]


def test_what_other_cells_define_arrives(notebook, tmp_path):
    (source,) = notebook(*STORY, PACK)
    assert not hasattr(source, "faults"), source.faults
    assert ship(source, tmp_path)({}) == ('[0.001, ["bad", "good"]]', 2, [{"n": 3}, {"red": 1}])
    assert list(source.imports) == ["dataclasses", "enum", "json", "numpy", "os"]
    assert source.seconds < 1


def test_what_cells_have_computed_is_what_a_worker_has(notebook, tmp_path):
    (source,) = notebook(
        "import numpy as np, os, uuid",
        "ORDER = np.random.default_rng().permutation(20)\nNAMES = list({uuid.uuid4().hex for _ in range(9)})",
        "FOUND = {'pid': os.getpid(), 'order': ORDER}\nopen('seen.txt', 'w').write(repr((ORDER, NAMES, FOUND)))",
        "def train_func(p): return ORDER, NAMES, FOUND",
        PACK,
    )
    order, names, found = ship(source, tmp_path)({})
    assert repr((order, names, found)) == (tmp_path / "seen.txt").read_text()
    assert found["order"] is order


def test_a_builtin_that_ipython_has_replaced_is_python_s_own_in_a_worker(notebook, tmp_path):
    (source,) = notebook(
        "def save(text):\n    with open('/dev/null', 'w') as file:\n        return file.write(text)",
        "def quit(): return 'own'",
        "def train_func(p): return save('abc'), open is __import__('io').open, quit()",
        PACK,
    )
    assert not hasattr(source, "faults"), source.faults
    assert ship(source, tmp_path)({}) == (3, True, "own")


def test_each_piece_is_the_exact_text_of_its_cell(notebook):
    (source,) = notebook(*STORY, PACK)
    for piece in source.cells["pieces"]:
        cell = STORY[int(piece["origin"].removeprefix("cell In[").removesuffix("]")) - 1]
        assert piece["text"].rstrip("\n") in cell
        assert cell.splitlines()[piece["line"] - 1].startswith(piece["text"].splitlines()[0])


def test_the_same_cells_give_the_same_bytes_in_any_kernel_and_order_of_execution(notebook):
    (first,) = notebook(*STORY, PACK)
    again = notebook(
        "1 + 1", *STORY[:3], "RATE = 5", *STORY[2:], PACK, STORY[5], STORY[7], "x = 3", STORY[2], PACK, *STORY[:5], PACK
    )
    assert {source.text for source in again} == {first.text}
    assert again[0].sha256 == first.sha256 == hashlib.sha256(first.text.encode()).hexdigest()
    assert again[0].cells["pieces"] != first.cells["pieces"]


def test_a_traceback_points_into_the_cells(notebook, tmp_path):
    (source,) = notebook("import json", "\n\ndef helper(x):\n    y = x\n    return y.upper()\n",
                         "def train_func(p):\n    return helper(3)\n", PACK)  # fmt: skip
    with pytest.raises(AttributeError) as raised:
        ship(source, tmp_path)({})
    assert locate(source.cells, "".join(traceback.format_exception(raised.value))) == [
        ("cell In[3]", 2, "return helper(3)"),
        ("cell In[2]", 3, "return y.upper()"),
    ]


def test_the_newest_definition_counts(notebook, tmp_path):
    (source,) = notebook(
        "def helper(): return 1",
        "N = 1\nclass A: x = 1\nclass B:\n    def f(self): return 1",
        "def train_func(p): return helper(), N, A.x, B().f()",
        "def helper(): return 2",
        "N = 2",
        "class A: x = 2\nclass B:\n    def f(self): return 2",
        "1 / 0\nN = 3\ndef helper(): return 3",  # never came that far
        PACK,
    )
    assert ship(source, tmp_path)({}) == (2, 2, 2, 2)


def test_papermill_s_parameters_count(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    cells = ["EPOCHS = 3\nDATA = 'a'", "def train_func(p): return EPOCHS, DATA", PACK]
    document = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    document.cells[0].metadata["tags"] = ["parameters"]
    document.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(document, tmp_path / "in.ipynb")
    papermill.execute_notebook(
        tmp_path / "in.ipynb", tmp_path / "out.ipynb", {"EPOCHS": 7}, cwd=str(tmp_path), progress_bar=False
    )
    source = SimpleNamespace(**json.loads((tmp_path / "said.jsonl").read_text()))
    assert ship(source, tmp_path)({}) == (7, "a")
    assert [piece["origin"] for piece in source.cells["pieces"]] == ["cell In[1]", "cell In[2]", "cell In[3]"]


def test_local_modules_and_magics_written_files_travel(notebook, tmp_path):
    (source,) = notebook(
        "%%writefile own_part.py\nimport math\ndef area(r):\n    return math.floor(r)\n",
        "import own_part\nfrom own_part import area",
        "%%capture\ndef shown(): return own_part.area(2.5)",
        "def train_func(p): return area(1.5), shown()",
        PACK,
    )
    (tmp_path / "own_part.py").unlink()
    assert ship(source, tmp_path)({}) == (1, 2)
    sys.modules.pop("own_part")


def test_what_autoreload_has_loaded_again_travels_as_its_file_says(notebook, tmp_path):
    first, second = notebook(
        "%load_ext autoreload\n%autoreload 2",
        "%%writefile own_part.py\nclass Disc:\n    def area(self, r): return 3 * r\n"
        "def area(r): return Disc().area(r)\n",
        "from own_part import Disc, area",
        "def train_func(p): return area(2), Disc().area(3)",
        PACK,
        "%%writefile own_part.py\nRATE = 4\nclass Disc:\n    def area(self, r):\n        return RATE * r + 1\n"
        "def area(r):\n    return Disc().area(r) + 1\n",
        PACK,
    )
    assert (ship(first, tmp_path)({}), ship(second, tmp_path)({})) == ((6, 9), (10, 13))
    sys.modules.pop("own_part")


def test_faults_name_the_cell_and_the_line(notebook):
    (refused,) = notebook(
        "log = open('log.txt', 'w')\nSIZES = [1]",
        "SIZES.append(2)\ndef helper():\n    files = !ls\n    return files",
        "def train_func(p):\n    %time helper()\n    display(p)\n    return tokeniser, log, SIZES, helper(), _",
        PACK,
    )
    found = [fault.split(": ")[0] for fault in refused.faults]
    assert sorted(found) == [
        *("cell In[1], line 1", "cell In[2], line 3"),
        *("cell In[3], line 2", "cell In[3], line 3", "cell In[3], line 4", "cell In[3], line 4"),
    ]
    assert refused.seconds < 1


def test_names_without_a_statement_are_named(notebook):
    (refused,) = notebook(
        "%%writefile own_part.py\ndef helper(): return 1\n",
        "%run own_part.py",
        "def train_func(p): return helper()",
        PACK,
    )
    (fault,) = refused.faults
    assert unnamed(fault, "'helper'", "own_part.py") == []


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("train_func = lambda p: 1", "cell In[1], line 1: `train_func = lambda p: 1`: a lambda was given"),
        ("async def train_func(p): pass", "cell In[1], line 1: `async def train_func(p): pass`: `async def"),
        ("class T:\n    def m(self, p): pass\ntrain_func = T().m", "cell In[1], line 2"),
        (
            "def train_func(a, b): pass",
            "cell In[1], line 1: `def train_func(a, b): pass`: train_func(a, b) is called with one dict",
        ),
    ],
)
def test_functions_of_another_kind_are_refused_with_their_cell(notebook, cell, words):
    (refused,) = notebook(cell, PACK)
    (fault,) = refused.faults
    assert words in fault
