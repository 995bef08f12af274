"""The worker loads exactly the text that was submitted, or says why not."""

import hashlib
import inspect
import pickle
import traceback

import pytest

from tests.messages import refuses
from tests.shipping import packed, record_of, ship
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.wire.records import SubmissionRecord
from train_func.wire.source_file import Module, fold, split_lines, unfold
from train_func.worker.rank import source as source_module
from train_func.worker.supervisor.run_inputs import bring_submission

TEXT = "class Box:\n    x = 1\ndef train_func(p):\n    if p:\n        raise KeyError(p)\n    return Box\n"


@pytest.fixture
def source(tmp_path):
    return packed(tmp_path, TEXT)


@pytest.fixture
def store(source, tmp_path):
    """A store with a submission under ``key``."""
    store, record = open_store(f"file://{tmp_path / 'store'}"), record_of(source)
    place = {"backend": "Local", "place": "here", "identity": {}, "found_by": {}, "options": {}, "manifest": {}}
    store.put("key", SubmissionRecord(run=record, cells=source.cells, **place).to_json())
    store.put(record.keys.source, source.text.encode())
    return store


def test_a_worker_works_on_the_text_that_was_submitted(source, store, tmp_path):
    assert bring_submission(store, "key", tmp_path / "job") == record_of(source)
    assert source_module.load(tmp_path / "job", record_of(source))({}).x == 1


def test_a_changed_text_is_refused_with_both_hashes(source, store, tmp_path):
    changed = source.text.encode() + b"\n"
    store.put(record_of(source).keys.source, changed)
    with refuses(hashlib.sha256(changed).hexdigest(), source.sha256, cause="source"):
        bring_submission(store, "key", tmp_path / "job")


def test_a_text_that_the_store_lacks_is_the_store_s_failure(source, store, tmp_path):
    store.delete(record_of(source).keys.source)
    with pytest.raises(StorageFailed) as failed:
        bring_submission(store, "key", tmp_path / "job")
    assert failed.value.reason == "absent"


def test_nothing_is_written_beside_a_read_only_text(source, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "source.py").write_bytes(source.text.encode())
    folder.chmod(0o555)
    source_module.load(folder, record_of(source))
    assert [path.name for path in folder.iterdir()] == ["source.py"]


def test_functions_and_classes_of_it_can_be_pickled(source, tmp_path):
    function = ship(source, tmp_path)
    assert pickle.loads(pickle.dumps(function)) is function
    assert pickle.loads(pickle.dumps(function({}))) is function({})


def test_tracebacks_and_inspect_show_the_text(source, tmp_path):
    folder = tmp_path / "job"
    folder.mkdir()
    function = ship(source, folder)
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
