"""The worker loads exactly the text that was submitted, or says why not."""

import hashlib
import inspect
import pickle
import subprocess
import sys
import traceback

import pytest

from tests.shipping import packed, record_of, ship
from train_func.errors import InvalidInput, StorageFailed
from train_func.source_file import Module, fold, split_lines, unfold
from train_func.storage import open_store
from train_func.worker.rank import source as source_module

TEXT = "class Box:\n    x = 1\ndef train_func(p):\n    if p:\n        raise KeyError(p)\n    return Box\n"


@pytest.fixture
def source(tmp_path):
    return packed(tmp_path, TEXT)


def test_a_changed_text_is_refused_with_both_hashes(source, tmp_path):
    (tmp_path / "source.py").write_bytes(source.text.encode() + b"\n")
    found = hashlib.sha256(source.text.encode() + b"\n").hexdigest()
    with pytest.raises(InvalidInput, match=rf"has SHA-256 {found}, and {source.sha256} was submitted") as refused:
        source_module.load(tmp_path, None, record_of(source))
    assert refused.value.cause == "source"


def test_a_text_that_the_store_lacks_is_the_store_s_failure(source, tmp_path):
    with pytest.raises(StorageFailed) as failed:
        source_module.load(tmp_path, open_store(f"file://{tmp_path / 'store'}"), record_of(source))
    assert failed.value.reason in {"absent", "bucket"}


def test_a_text_of_another_format_is_no_packed_module():
    with pytest.raises(ValueError, match="a packed module begins"):
        unfold("import os\n")


def test_the_store_is_asked_only_when_the_job_folder_lacks_the_text(source, tmp_path):
    store = open_store(f"file://{tmp_path / 'store'}")
    (tmp_path / "source.py").write_bytes(source.text.encode())
    assert source_module.load(tmp_path, store, record_of(source))({}).x == 1
    assert store.list("") == []


def test_nothing_is_written_beside_a_read_only_text(source, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "source.py").write_bytes(source.text.encode())
    folder.chmod(0o555)
    source_module.load(folder, None, record_of(source))
    assert [path.name for path in folder.iterdir()] == ["source.py"]


def test_functions_and_classes_of_it_can_be_pickled(source, tmp_path):
    function = ship(source, tmp_path)
    assert pickle.loads(pickle.dumps(function)) is function
    assert pickle.loads(pickle.dumps(function({}))) is function({})


@pytest.mark.parametrize("by_store", [False, True])
def test_tracebacks_and_inspect_show_the_text(source, tmp_path, by_store):
    folder = tmp_path / "job"
    folder.mkdir()
    store = open_store(f"file://{tmp_path / 'store'}") if by_store else None
    function = ship(source, folder, store)
    with pytest.raises(KeyError) as raised:
        function({"x": 1})
    text = "".join(traceback.format_exception(raised.value))
    number = split_lines(source.text).index("        raise KeyError(p)\n") + 1
    assert f'File "{folder}/source.py", line {number}, in train_func' in text
    assert "    raise KeyError(p)\n" in text
    assert inspect.getsource(function) in source.text


def test_an_error_of_the_text_itself_is_the_code_s(tmp_path):
    text = (
        "import os\ndef chosen(f): return {'a': f}[os.environ.get('KEY_OF_A_WORKER', 'a')]\n"
        "@chosen\ndef train_func(p): return 1\n"
    )
    source = packed(tmp_path, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KEY_OF_A_WORKER", "b")
        with pytest.raises(KeyError, match="'b'"):
            ship(source, tmp_path)


def test_a_second_shipment_replaces_the_first(tmp_path):
    first = packed(tmp_path, "def train_func(p): return 1\n")
    second = packed(tmp_path, "def train_func(p): return 2\n")
    assert [ship(source, tmp_path)({}) for source in (first, second, first)] == [1, 2, 1]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r", ""])
def test_what_is_folded_is_unfolded(ending):
    text = ending.join(["import os", "#| x", "\x0c\u2028'''", "'''", "y = 1"]) + ending
    files = {"a": "a/__init__.py", "a.b": "a/b.py", "c": "c.py"}
    modules = [Module(name, name == "a", file, "" if name == "a" else text) for name, file in files.items()]
    whole = fold("x = 1\ny = '''\n#| z\n'''\n", modules, "a")
    packed_text = unfold(whole)
    assert packed_text.package == "a"
    assert [module.text for module, _ in packed_text.modules] == ["", text, text]
    for module, first in packed_text.modules[1:]:
        assert split_lines(whole)[first - 1].startswith("#|" + split_lines(module.text)[0])
    compile(whole, "source.py", "exec")


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("train_func.worker.rank.source", ("torch", "train_func.client", "boto3")),
        ("train_func.client.source", ("torch", "numpy", "IPython", "boto3")),
    ],
)
def test_neither_side_loads_what_it_does_not_need(module, heavy):
    code = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
