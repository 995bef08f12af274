"""A model comes home whole and verified, or nothing changes: what is not known to be fetched is never touched."""

import hashlib
import json
import os
import re
import threading
from pathlib import Path

import pytest

from train_func.client.model import fetch as fetching
from train_func.client.model.fetch import fetch
from train_func.errors import InvalidInput, StorageFailed
from train_func.storage import open_store
from train_func.wire.layout import RunKeys

KEYS, NEWER = RunKeys("a-run"), RunKeys("a-run", 2)
FIRST = {"config.json": b"{}", "model.safetensors": b"first weights", "onnx/a.bin": b"a", "old/shard": b"s" * 101}
SECOND = {"config.json": b"{}", "model.safetensors": b"other weights", "onnx/b.bin": b"b"}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def publish(store, files, **fields):
    """As a worker publishes it: the files of its attempt, which is that of its generation, and then the result."""
    listed = {name: {"size": len(data), "sha256": sha256(data)} for name, data in files.items()}
    plain = {"format": 1, "attempt": 1, "generation": 1, "metrics": {}, "files": listed, **fields}
    keys = RunKeys(KEYS.name, plain["generation"])
    for name, data in files.items():
        store.put(f"{keys.attempt(1).model}/{name}", data)
    store.put(keys.result, json.dumps(plain).encode())


def found(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def model(folder):
    return {name: data for name, data in found(folder).items() if name not in ("manifest.json", "SHA256SUMS")}


@pytest.fixture
def store(tmp_path):
    (tmp_path / "there").mkdir()
    store = open_store((tmp_path / "there/store").as_uri())
    publish(store, FIRST)
    return store


@pytest.fixture
def home(tmp_path):
    """Holds nothing but what is fetched, so that leftovers are seen."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def fetched(store, home):
    return fetch(store, KEYS, home / "model")


@pytest.mark.parametrize("made", ["absent", "empty", "a link to an empty one"])
def test_a_new_or_empty_folder_gets_the_whole_model_and_nothing_lies_beside_it(store, home, made):
    to = home / "model"
    if made == "empty":
        to.mkdir()
    if made == "a link to an empty one":
        (home / "disk").mkdir()
        to.symlink_to(home / "disk")
    assert fetch(store, KEYS, to) == to
    assert model(to) == FIRST
    assert {path.name for path in home.iterdir()} <= {"model", "disk"}
    assert not [path for path in to.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    "manifest",
    [
        b"",
        b"{}",
        b"[]",
        b'{"lines": 7}',
        b'{"files": {}}',
        json.dumps({"files": {"notes.txt": {"size": 5, "sha256": sha256(b"notes")}}}).encode(),
    ],
)
def test_a_folder_that_only_holds_some_manifest_keeps_every_file(store, home, manifest):
    to = home / "model"
    to.mkdir()
    (to / "manifest.json").write_bytes(manifest)
    (to / "notes.txt").write_bytes(b"notes")
    before = found(to)
    with pytest.raises(InvalidInput, match="model"):
        fetch(store, KEYS, to)
    assert found(to) == before


def test_a_folder_of_other_files_and_a_file_are_refused_and_kept(store, home):
    (home / "work").mkdir()
    (home / "work/thesis.tex").write_text("years of work")
    (home / "file").write_text("a file")
    for name in ("work", "file"):
        with pytest.raises(InvalidInput):
            fetch(store, KEYS, home / name)
    assert found(home) == {"work/thesis.tex": b"years of work", "file": b"a file"}


def test_a_newer_model_replaces_the_files_of_the_older_and_keeps_all_others(store, fetched):
    (fetched / "notes.md").write_bytes(b"mine")
    (fetched / "onnx/mine.txt").write_bytes(b"mine too")
    untouched = (fetched / "config.json").stat().st_ino
    publish(store, SECOND, generation=2)
    fetch(store, NEWER, fetched)
    assert model(fetched) == {**SECOND, "notes.md": b"mine", "onnx/mine.txt": b"mine too"}
    assert not (fetched / "old").exists()
    assert (fetched / "config.json").stat().st_ino == untouched
    assert json.loads((fetched / "manifest.json").read_bytes())["generation"] == 2
    assert fetch(store, NEWER, fetched) == fetched


def change(folder):
    (folder / "model.safetensors").write_bytes(b"tuned by hand")


def change_what_goes(folder):
    (folder / "old/shard").write_bytes(b"mine now")


def put_in_the_way(folder):
    (folder / "onnx/b.bin").write_bytes(b"another b of mine")


def put_a_folder_in_the_way(folder):
    (folder / "onnx/b.bin").mkdir()


@pytest.mark.parametrize("alter", [change, change_what_goes, put_in_the_way, put_a_folder_in_the_way])
def test_what_a_person_changed_in_a_fetched_folder_is_never_overwritten(store, fetched, home, alter):
    alter(fetched)
    publish(store, SECOND, generation=2)
    before = found(home)
    with pytest.raises(InvalidInput):
        fetch(store, NEWER, fetched)
    assert found(home) == before


def test_a_changed_file_is_not_silently_replaced_by_the_same_model_and_a_lost_one_comes_again(store, fetched):
    (fetched / "config.json").unlink()
    fetch(store, KEYS, fetched)
    assert model(fetched) == FIRST
    change(fetched)
    with pytest.raises(InvalidInput, match="model.safetensors"):
        fetch(store, KEYS, fetched)
    assert (fetched / "model.safetensors").read_bytes() == b"tuned by hand"


@pytest.mark.parametrize("after", range(5))  # so many files had been exchanged
def test_an_interrupted_exchange_goes_on_when_it_is_fetched_again(store, fetched, home, monkeypatch, after):
    publish(store, SECOND, generation=2)
    steps = iter([True] * after)

    def interrupted(path, target):
        if fetching.STAGING not in str(target) and not next(steps, False):
            raise KeyboardInterrupt
        os.replace(path, target)  # noqa: PTH105

    monkeypatch.setattr(fetching.Path, "replace", interrupted)
    try:
        fetch(store, NEWER, fetched)
    except KeyboardInterrupt:
        pass
    else:
        assert after == 4  # model.safetensors, onnx/b.bin, SHA256SUMS, manifest.json
        return
    finally:
        monkeypatch.undo()
    assert not [path for path in home.rglob("*") if path.name.startswith(".")]
    fetch(store, NEWER, fetched)
    assert model(fetched) == SECOND


@pytest.mark.parametrize("to", ["absent", "fetched before"])
def test_a_damaged_file_changes_nothing(store, home, to):
    folder = home / "model"
    if to == "fetched before":
        fetch(store, KEYS, folder)
    publish(store, SECOND, generation=2)
    store.put(f"{NEWER.attempt(1).model}/model.safetensors", b"OTHER weights")
    before = found(home)
    with pytest.raises(StorageFailed) as refused:
        fetch(store, NEWER, folder)
    assert refused.value.reason == "damaged"
    assert found(home) == before
    assert (to == "absent") == (not folder.exists())


@pytest.mark.parametrize("to", ["/proc/folder/model", "a file/model"])
def test_a_folder_that_cannot_be_made_is_refused_by_its_name(store, home, to):
    (home / "a file").write_text("")
    with pytest.raises(InvalidInput, match=re.escape(f"to='{home / to}'")):
        fetch(store, KEYS, home / to)


def test_one_that_another_process_has_fetched_meanwhile_is_as_good(store, home, monkeypatch):
    rename = Path.rename

    def second(path, target):
        monkeypatch.undo()
        assert fetch(store, KEYS, target) == target
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", second)
    assert model(fetch(store, KEYS, home / "model")) == FIRST
    assert [path.name for path in home.iterdir()] == ["model"]


OTHER = RunKeys("a-run", 3)
THIRD = {"config.json": b"[]", "vocabulary.txt": b"words"}


@pytest.mark.parametrize("before", ["absent", "fetched before"])
@pytest.mark.parametrize("at", range(12))  # calls of the slower one to the disk
def test_of_two_models_that_are_fetched_into_one_folder_at_once_one_is_there_and_whole(
    store, home, monkeypatch, before, at
):
    to = home / "model"
    if before == "fetched before":
        fetch(store, KEYS, to)
    publish(store, SECOND, generation=2)
    publish(store, THIRD, generation=3)
    left, threads = [at], []

    def slowed(name):
        call = getattr(Path, name)

        def wait(path, *arguments, **options):
            left[0] -= 1
            if left[0] == -1:
                threads.append(threading.Thread(target=fetch, args=(store, OTHER, to)))
                threads[0].start()
                threads[0].join(0.3)  # it may have to wait for this one
            return call(path, *arguments, **options)

        return wait

    for name in ("rename", "replace", "chmod", "unlink", "write_bytes"):
        monkeypatch.setattr(Path, name, slowed(name))
    fetch(store, NEWER, to)
    for thread in threads:
        thread.join()
    generation = json.loads((to / "manifest.json").read_bytes())["generation"]
    assert model(to) == {2: SECOND, 3: THIRD}[generation]
    assert not [path for path in home.rglob("*") if path.name.startswith(".")]


def num_read():
    """Bytes that this process has read, from a disk or not."""
    return int(re.search(r"rchar: (\d+)", Path("/proc/self/io").read_text())[1])


def test_a_model_that_is_here_is_read_once_to_be_verified(store, home):
    size = 8_000_001
    publish(store, {"model.safetensors": b"w" * size})
    fetch(store, KEYS, home / "model")
    before = num_read()
    fetch(store, KEYS, home / "model")
    assert num_read() - before < 1.5 * size


ONE = {"size": 1, "sha256": "0" * 64}
NAMES = ["../out", "a/../../out", "/etc/out", "a\\b", "..\\out", "", "a//b", "./a", ".", "a/", "nul\0", "tab\there"]
NAMES += ["manifest.json", "SHA256SUMS", ".train_func-fetch-1/a"]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_elsewhere_is_refused_before_any_folder_is_made(store, home, name):
    store.put(KEYS.result, json.dumps({"files": {"a.txt": ONE, name: ONE}, "metrics": {}}).encode())
    with pytest.raises(StorageFailed) as refused:
        fetch(store, KEYS, home / "deep/model")
    assert refused.value.reason == "damaged"
    assert not list(home.iterdir())


MALFORMED = [
    b"",
    b"not json",
    b"\xff\xfe",
    b"[]",
    b"7",
    b"null",
    b"{}",
    b'{"files": []}',
    b'{"files": {"a": null}}',
    b'{"files": {"a": "x"}}',
    b'{"files": {"a": {"size": 1}}}',
    json.dumps({"files": {"a": {**ONE, "sha256": 7}}}).encode(),
    json.dumps({"files": {"a": {**ONE, "sha256": "xyz"}}}).encode(),
    json.dumps({"files": {"a": {**ONE, "size": "1"}}}).encode(),
    json.dumps({"files": {"a": {**ONE, "size": -1}}}).encode(),
    json.dumps({"files": {"a": ONE, "a/b": ONE}}).encode(),
    json.dumps({"files": {"a": ONE}, "metrics": [1]}).encode(),
    b"[" * 100_000,
]


@pytest.mark.parametrize("manifest", MALFORMED)
def test_a_malformed_manifest_is_damage_and_not_a_mistake_of_this_program(store, home, manifest):
    store.put(KEYS.result, manifest)
    with pytest.raises(StorageFailed) as refused:
        fetch(store, KEYS, home / "model")
    assert refused.value.reason == "damaged"
    assert KEYS.result in str(refused.value)
    assert not list(home.iterdir())
