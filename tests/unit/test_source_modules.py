"""Local modules travel whole and are imported as before; installed ones stay imports; missing ones are refused."""

import importlib
import sys
import traceback

import pytest

from tests.messages import unnamed
from tests.shipping import ship
from train_func.client.source import locate, pack
from train_func.errors import SourceRefused


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Writes files into a folder that modules are imported from, and forgets them afterwards."""
    before, finders = set(sys.modules), sys.meta_path[:]
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    # A reload takes the bytecode of a file that was edited within a second and is as long as before.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def write(files, function="train_func"):
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
        importlib.invalidate_caches()
        return getattr(
            importlib.import_module(next(iter(files)).removesuffix(".py").removesuffix("/__init__").replace("/", ".")),
            function,
        )

    yield write
    sys.meta_path[:] = finders
    for name in set(sys.modules) - before:
        del sys.modules[name]


def shipped(function, tmp_path, monkeypatch):
    """The function as it arrives where none of the project's files are."""
    source = pack(function)
    arrived = tmp_path / "arrived"
    arrived.mkdir()
    monkeypatch.chdir(arrived)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])
    importlib.invalidate_caches()
    return ship(source, arrived), source


PACKAGE = {
    "main_part.py": """
import own_package.sub.deep as deep
from own_package import VERSION, sub
from own_package.sub import other as another
import flat_module
def train_func(p):
    from own_package.sub.late import LATE
    return deep.where(), VERSION, sub.__name__, another.NAME, flat_module.twice(2), LATE
""",
    "own_package/__init__.py": "from .version import VERSION\n",
    "own_package/version.py": "VERSION = '1.2'",
    "own_package/sub/__init__.py": "",
    "own_package/sub/deep.py": "from ..version import VERSION\nfrom . import other\n"
    "def where(): return __name__, other.NAME, VERSION\n",
    "own_package/sub/other.py": "import flat_module\nNAME = 'other'\n",
    "own_package/sub/late.py": "LATE = 'late'\r\n",
    "own_package/never_imported.py": "1 / 0",
    "flat_module.py": "#| not the fold of another\ndef twice(x):\n    '''#|'''\n    return x * 2\n",
}


def test_imports_of_local_modules_work_unchanged(project, tmp_path, monkeypatch):
    function = project(PACKAGE)
    expected = function({})
    arrived, source = shipped(function, tmp_path, monkeypatch)
    assert arrived({}) == expected
    assert arrived.__globals__["deep"].__file__.startswith(str(tmp_path / "arrived" / "source.py"))
    origins = {piece["origin"] for piece in source.cells["pieces"]}
    assert "own_package/never_imported.py" not in origins
    assert {"flat_module.py", "own_package/__init__.py", "own_package/sub/late.py"} <= origins
    assert tuple(source.imports) == ()


def test_a_local_module_travels_whole_and_to_the_byte(project):
    function = project({**PACKAGE, "flat_module.py": PACKAGE["flat_module.py"] + "def unused(): return 1 / 0\n"})
    source = pack(function)
    carried = {piece["origin"]: piece["text"] for piece in source.cells["pieces"]}
    assert carried["flat_module.py"] == PACKAGE["flat_module.py"] + "def unused(): return 1 / 0\n"
    assert "#|    return x * 2\n" in source.text


def test_the_text_does_not_depend_on_the_working_directory(project, tmp_path, monkeypatch):
    function = project(PACKAGE)
    here = pack(function).text
    monkeypatch.chdir("/")
    assert pack(function).text == here


def test_a_traceback_names_the_line_of_the_local_module(project, tmp_path, monkeypatch):
    files = {
        "main_part.py": "import flat_module\ndef train_func(p): return flat_module.fail()\n",
        "flat_module.py": "\n\ndef fail():\n    return 1 / 0\n",
    }
    arrived, source = shipped(project(files), tmp_path, monkeypatch)
    with pytest.raises(ZeroDivisionError) as raised:
        arrived({})
    text = "".join(traceback.format_exception(raised.value))
    assert "    return 1 / 0\n" in text
    said = {name: text.splitlines() for name, text in files.items()}
    assert locate(source.cells, text) == [
        (name, line, said[name][line - 1].strip()) for name, line in [("main_part.py", 2), ("flat_module.py", 4)]
    ]


def test_relative_imports_of_the_function_itself_work(project, tmp_path, monkeypatch):
    files = {
        "own_package/training.py": "from . import parts\nfrom .parts import x as y\n"
        "def train_func(p):\n    from .parts import x\n    return parts.x, x, y\n",
        "own_package/__init__.py": "",
        "own_package/parts.py": "x = 3\n",
    }
    arrived, _ = shipped(project(files), tmp_path, monkeypatch)
    assert arrived({}) == (3, 3, 3)


NET = "class Net: n = 3\n"
RE_EXPORTS = {
    "of the function": {
        "own_package/training.py": "from .net import Net\ndef train_func(p): return Net.n, __name__\n",
        "own_package/__init__.py": "from .training import train_func\n",
        "own_package/net.py": NET,
    },
    "of what the function does not use": {
        "own_package/training.py": "from .net import Net\ndef other(): return 1\nSIZES = [1]\n"
        "def train_func(p): return Net.n\n",
        "own_package/__init__.py": "from own_package.training import SIZES, other as more\nfrom .training import *\n",
        "own_package/net.py": NET,
    },
    "in a package of a package": {
        "own_package/deep/training.py": "from ..net import Net\ndef train_func(p): return Net.n\n",
        "own_package/__init__.py": "from .deep import train_func\n",
        "own_package/deep/__init__.py": "from .training import train_func\n",
        "own_package/net.py": NET,
    },
    "by a function of another module": {
        "own_package/training.py": "from .net import rate\nRATE = 7\ndef train_func(p): return rate()\n",
        "own_package/__init__.py": "",
        "own_package/net.py": "def rate():\n    from .training import RATE\n    return RATE\n",
    },
    "of the package whose __init__ holds the function": {
        "own_package/__init__.py": "from .net import Net\ndef train_func(p): return Net.n, __name__\n",
        "own_package/net.py": NET,
    },
}


@pytest.mark.parametrize("files", RE_EXPORTS.values(), ids=RE_EXPORTS)
def test_modules_that_import_from_the_function_s_own_work_unchanged(project, tmp_path, monkeypatch, files):
    function = project(files)
    expected = function({})
    arrived, _ = shipped(function, tmp_path, monkeypatch)
    assert arrived({}) == expected


def test_a_folder_without_init_is_a_package_when_it_holds_the_module(project, tmp_path, monkeypatch):
    files = {
        "main_part.py": "from own_folder import parts\nimport own_folder.deep.more\n"
        "def train_func(p): return parts.x, own_folder.deep.more.y\n",
        "own_folder/parts.py": "x = 3\n",
        "own_folder/deep/more.py": "y = 4\n",
    }
    arrived, _ = shipped(project(files), tmp_path, monkeypatch)
    assert arrived({}) == (3, 4)


def test_modules_that_import_each_other_travel(project, tmp_path, monkeypatch):
    files = {
        "main_part.py": "import one_module\ndef train_func(p): return one_module.f()\n",
        "one_module.py": "import other_module\ndef f(): return other_module.g()\n",
        "other_module.py": "import one_module\ndef g(): return one_module.__name__\n",
    }
    arrived, _ = shipped(project(files), tmp_path, monkeypatch)
    assert arrived({}) == "one_module"


def test_classes_of_local_modules_can_be_pickled(project, tmp_path, monkeypatch):
    import pickle

    files = {
        "main_part.py": "from one_module import Part\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Own:\n    part: Part\nOWN = Own(Part(2))\ndef train_func(p): return OWN\n",
        "one_module.py": "from dataclasses import dataclass\n@dataclass\nclass Part:\n    n: int\n",
    }
    arrived, _ = shipped(project(files), tmp_path, monkeypatch)
    copy = pickle.loads(pickle.dumps(arrived({})))
    assert copy == arrived({})
    assert pickle.loads(pickle.dumps(arrived)) is arrived


def test_installed_packages_and_this_one_stay_imports(project):
    files = {
        "main_part.py": "import numpy as np\nimport json\nfrom train_func import Run\n"
        "def train_func(p):\n    import torch.nn as nn\n    from train_func.errors import InvalidInput\n"
        "    return np, json, Run, nn, InvalidInput\n",
    }
    source = pack(project(files))
    assert tuple(source.imports) == ("json", "numpy", "torch", "train_func")
    assert [piece["origin"] for piece in source.cells["pieces"]] == ["main_part.py"] * 4


def test_a_credential_in_a_local_module_is_found(project):
    files = {
        "main_part.py": "import own_part\ndef train_func(p): return own_part\n",
        "own_part.py": "KEY = 'ghp_" + "a1" * 20 + "'\n",
    }
    with pytest.raises(SourceRefused) as refused:
        pack(project(files))
    (fault,) = refused.value.faults
    assert unnamed(fault, "own_part.py", "line 1", "GitHub token") == []


def test_a_missing_module_of_a_local_one_is_found(project):
    files = {
        "main_part.py": "def train_func(p):\n    import own_part\n    return own_part.f\n",
        "own_part.py": "import a_missing_module\ndef f(): return a_missing_module\n",
    }
    with pytest.raises(SourceRefused) as refused:
        pack(project(files))
    (fault,) = refused.value.faults
    assert unnamed(fault, "own_part.py", "line 1", "'a_missing_module'", "interpreter") == []


def test_what_a_local_module_may_lack_is_not_accused(project):
    files = {
        "main_part.py": "import own_part\ndef train_func(p): return own_part\n",
        "own_part.py": "def plot():\n    import a_missing_module\ntry:\n    import another_missing_module\n"
        "except ImportError:\n    another_missing_module = None\n",
    }
    assert not pack(project(files)).imports


def test_names_that_cannot_be_told_from_a_text_are_not_accused(project):
    files = {
        "main_part.py": "import own_part, other_part\ndef train_func(p): return own_part, other_part\n",
        "own_part.py": "from math import *\ndef f(): return floor(pi)\n",
        "other_part.py": "globals().update(x=1)\ndef f(): return x\n",
    }
    assert "floor(pi)" in pack(project(files)).text


def test_a_compiled_local_module_is_refused(project, tmp_path):
    from importlib.machinery import EXTENSION_SUFFIXES

    name = "own_fast_part" + EXTENSION_SUFFIXES[0]
    function = project({"main_part.py": "def train_func(p):\n    import own_fast_part\n", name: b"\x7fELF"})
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    (fault,) = refused.value.faults
    assert unnamed(fault, "line 2", "'own_fast_part'", "read as Python") == []


def test_a_local_module_that_is_not_python_is_refused(project):
    function = project({"main_part.py": "def train_func(p):\n    import own_part\n", "own_part.py": "def ("})
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    (fault,) = refused.value.faults
    assert unnamed(fault, "line 2", "'own_part'", "read as Python") == []


def test_a_folder_that_only_shares_a_module_s_name_does_not_hide_that_it_is_missing(project):
    function = project({"main_part.py": "def train_func(p):\n    import wandb_runs\n", "wandb_runs/run-1/log.txt": ""})
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    (fault,) = refused.value.faults
    assert unnamed(fault, "'wandb_runs'", "interpreter") == []


def test_a_missing_part_of_a_local_package_is_refused(project):
    function = project({"main_part.py": "def train_func(p):\n    import own_pack.lost\n", "own_pack/__init__.py": ""})
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    (fault,) = refused.value.faults
    assert unnamed(fault, "'own_pack.lost'", "interpreter") == []


OF_A_FILE = """
from dataclasses import dataclass
def rate(x=1): return x
@dataclass
class Config:
    epochs: int = 1
    def twice(self): return 2 * self.epochs
"""


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("return x", "return x + 1"),
        ("x=1", "x=2"),
        ("epochs: int = 1", "epochs: int = 2"),
        ("2 * self.epochs", "3 * self.epochs"),
        (OF_A_FILE, ""),
    ],
)
def test_a_module_that_was_edited_after_its_import_is_refused_until_it_is_loaded_again(
    project, tmp_path, monkeypatch, said, says
):
    function = project(
        {
            "part.py": "import edited\ndef train_func(): return edited.rate(), (one := edited.Config()).twice(), one\n",
            "edited.py": OF_A_FILE,
        }
    )
    pack(function)
    (tmp_path / "edited.py").write_text(OF_A_FILE.replace(said, says) + "# edited\n")
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    assert all(fault.startswith("edited.py") and "importlib.reload" in fault for fault in refused.value.faults)
    if says:
        importlib.reload(sys.modules["edited"])
        expected = function()
        arrived, _ = shipped(function, tmp_path, monkeypatch)
        assert repr(arrived()) == repr(expected)


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("return x", "return x + 1"),
        ("def rate(x=1)", "# moved\ndef rate(x=2)"),
        ("2 * self", "3 * self"),
    ],
)
def test_what_was_edited_in_the_function_s_own_file_after_its_import_is_refused(project, tmp_path, said, says):
    head = "def train_func(): return rate(), Config().twice()\n"
    function = project({"part.py": head + OF_A_FILE})
    pack(function)
    (tmp_path / "part.py").write_text(head + OF_A_FILE.replace(said, says))
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    assert all(fault.startswith("part.py") and "importlib.reload" in fault for fault in refused.value.faults)
    assert pack(importlib.reload(sys.modules["part"]).train_func)


def test_a_module_in_which_only_lines_have_moved_arrives_as_its_file_says(project, tmp_path, monkeypatch):
    files = {
        "part.py": "import edited\ndef train_func(): return edited.rate(), edited.Config().twice(), edited.own(3)\n"
    }
    function = project({**files, "edited.py": OF_A_FILE + "own = lambda x: x\nother = lambda x: x * x\n"})
    expected, file = function(), tmp_path / "edited.py"
    file.write_text("# moved\n\ndef first(): return 7\n" + file.read_text())
    arrived, _ = shipped(function, tmp_path, monkeypatch)
    assert arrived() == expected


def test_a_function_that_was_imported_before_its_module_was_loaded_again_is_refused(project, tmp_path):
    files = {"part.py": "from edited import rate as own\ndef train_func(): return own()\n", "edited.py": OF_A_FILE}
    function = project(files)
    (tmp_path / "edited.py").write_text(OF_A_FILE.replace("return x", "return x + 1"))
    importlib.reload(sys.modules["edited"])
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    assert unnamed(str(refused.value), "part.py, line 1", "run the import again") == []
    assert pack(importlib.reload(sys.modules["part"]).train_func)


def test_a_constant_of_a_module_that_was_set_since_is_refused(project):
    files = {"part.py": "import own\ndef train_func(): return own.f()\n", "own.py": "RATE = 1\ndef f(): return RATE\n"}
    function = project(files)
    sys.modules["own"].RATE = 5
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    (fault,) = refused.value.faults
    assert unnamed(fault, "own.py, line 1: `RATE = 1`", "'RATE'", "parameters") == []


STATES = {
    "an annotated constant": ("RATE: float = 1", "own.RATE = 5", "RATE"),
    "a chained constant": ("RATE = OTHER = 1", "own.OTHER = 5", "OTHER"),
    "one of two constants": ("RATE, OTHER = 1, 2", "own.OTHER = 5", "OTHER"),
    "a computed constant": ("BASE = 2\nRATE = BASE * float('3') - 1", "own.RATE = 5", "RATE"),
    "a constant of another type": ("RATE = 1", "own.RATE = [1]", "RATE"),
    "an item of a dict": ("CFG = {'lr': [1, 2]}", "own.CFG['lr'].append(3)", "CFG"),
    "an item of a list": ("SIZES = [1, 2]", "own.SIZES[0] = 3", "SIZES"),
    "a function": ("def f(): return 1", "own.f = lambda: 2", "f"),
    "a function by another of the module": ("def f(): return 1\ndef g(): return 2", "own.f = own.g", "f"),
    "a class": ("class Net: n = 1", "own.Net = type('Net', (), {})", "Net"),
    "a method": ("class Net:\n    def f(self): return 1", "own.Net.f = lambda self: 2", "Net.f"),
}


@pytest.mark.parametrize(("text", "change", "name"), STATES.values(), ids=STATES)
def test_a_local_module_that_holds_something_else_by_now_is_refused(project, text, change, name):
    function = project({"part.py": "import own\ndef train_func(): return own\n", "own.py": text + "\n"})
    pack(function)
    exec(change, {"own": sys.modules["own"], "__name__": "__main__"})
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    (fault,) = refused.value.faults
    assert unnamed(fault, "own.py", repr(name)) == []


@pytest.mark.parametrize("change", ["own.RATE = 5", "own.CFG.lr = 2", "own.CFG.table['a'] = 1"])
def test_what_a_statement_sets_on_a_local_module_that_computes_it_is_refused(project, change):
    own = "from types import SimpleNamespace\nRATE = sum([1])\nCFG = SimpleNamespace(lr=1, table={})\n"
    function = project({"part.py": f"import own\n{change}\ndef train_func(): return own.RATE\n", "own.py": own})
    with pytest.raises(SourceRefused) as refused:
        pack(function)
    (fault,) = refused.value.faults
    assert unnamed(fault, "'own'", repr(change.split(".")[1].split()[0]), "inside train_func") == []


def test_a_name_of_a_local_module_that_is_no_value_is_refused_with_where_to_import_it(project):
    files = {"part.py": "from own import NET\ndef train_func(): return NET\n", "own.py": "NET = open(__file__)\n"}
    with pytest.raises(SourceRefused) as refused:
        pack(project(files))
    (fault,) = refused.value.faults
    assert unnamed(fault, "part.py, line 1", "'NET'", "Import it inside the code") == []


def test_what_one_local_module_does_to_another_is_not_accused(project, tmp_path, monkeypatch):
    files = {
        "part.py": "import own, filler\ndef train_func(): return own.KINDS, own.RATE, own.f(), own.LEVEL, own.COUNTS\n",
        "own.py": "KINDS, RATE, LEVEL, COUNTS = {}, 1, 2, {'a': set()}\ndef f(): return 1\nLEVEL *= LEVEL\n",
        "filler.py": "import own\nown.KINDS['a'] = own.RATE = 7\nown.f = lambda: 2\nown.COUNTS['a'].add(1)\n",
    }
    function = project(files)
    expected = function()
    arrived, _ = shipped(function, tmp_path, monkeypatch)
    assert arrived() == expected == ({"a": 7}, 7, 2, 4, {"a": {1}})


def test_a_constant_that_the_module_sets_itself_is_not_accused(project, tmp_path, monkeypatch):
    text = "COUNT, TABLE, LEVEL = 0, {}, 1\nMODE = 'a'\nfor n in range(2): TABLE[n] = n\nLEVEL += 1\n"
    text += "def set_mode():\n    global MODE\n    MODE = 'b'\nset_mode()\n"
    function = project(
        {"part.py": "import own\ndef train_func(): return own.TABLE, own.LEVEL, own.MODE\n", "own.py": text}
    )
    arrived, _ = shipped(function, tmp_path, monkeypatch)
    assert arrived() == function() == ({0: 0, 1: 1}, 2, "b")
