"""The contract of a store, shown on a folder and on S3 servers."""

import hashlib
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.messages import refusal
from tests.racing import race
from tests.s3_servers import KINDS, s3_server
from train_func.storage import Entry, open_store

MIB = 1 << 20


@pytest.fixture(scope="module", params=["folder", *KINDS])
def place(request, tmp_path_factory):
    """Address and environment of one kind of store."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "folder":
        yield folder.as_uri(), {}
        return
    with s3_server(request.param, folder) as server:
        yield f"s3://{server.bucket}", server.environment


@pytest.fixture
def store(place, monkeypatch, request):
    """A store of the test's own."""
    address, environment = place
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"{address}/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}")


def keys(store, prefix=""):
    return [entry.key for entry in store.list(prefix)]


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\xff" * 101, b"\r\n" * 40_007])
def test_get_returns_what_put_stored_last_under_its_version(store, data):
    first = store.put("run/a", b"before")
    version = store.put("run/a", data)
    stored = store.get("run/a")
    assert (stored.data, stored.version) == (data, version)
    assert first != version


def test_a_missing_object_is_told_with_its_key_and_store(store):
    store.put("run/a", b"one")
    failed = refusal(lambda: store.get("run/missing"))
    assert (failed.reason, failed.retryable) == ("absent", False)
    assert "'run/missing'" in str(failed)
    assert store.address in str(failed)
    assert refusal(lambda: store.get("run/a/below")).reason == "absent"


def test_create_succeeds_once(store):
    store.put("run/lease", b"mine", if_absent=True)
    for data in (b"other", b"mine"):
        assert refusal(lambda data=data: store.put("run/lease", data, if_absent=True)).reason == "conflict"
    assert store.get("run/lease").data == b"mine"


def test_replace_succeeds_for_the_current_version_only(store):
    first = store.put("run/latest", b"step 1")
    second = store.put("run/latest", b"step 2", if_version=first)
    failed = refusal(lambda: store.put("run/latest", b"step 3", if_version=first))
    assert (failed.reason, "'run/latest'" in str(failed)) == ("conflict", True)
    assert store.get("run/latest").data == b"step 2"
    store.delete("run/latest")
    assert refusal(lambda: store.put("run/latest", b"step 3", if_version=second)).reason == "conflict"
    assert keys(store) == []


def test_of_eight_processes_exactly_one_creates_and_exactly_one_replaces(store):
    created, replaced = race(store.address, num_writers=8, num_rounds=20)
    assert [len(winners) for winners in created] == [1] * 20
    assert [len(winners) for winners in replaced] == [1] * 20
    assert store.get("pointer").data == f"round 19 writer {replaced[-1][0]}".encode()


@pytest.mark.parametrize("size", [0, 101, 8 * MIB, 8 * MIB + 1, 17 * MIB + 7])
def test_files_of_any_size_come_back_as_they_were(store, tmp_path, size):
    (tmp_path / "file").write_bytes(data := random.Random(size).randbytes(size))
    digest = hashlib.sha256(data).hexdigest()
    sent = []
    assert store.upload("run/model.safetensors", tmp_path / "file", sent=sent.append) == digest
    assert sum(sent) == size
    assert store.checksum("run/model.safetensors") == digest
    assert store.download("run/model.safetensors", tmp_path / "new" / "folder" / "back") == digest
    assert (tmp_path / "new" / "folder" / "back").read_bytes() == data
    assert store.list("run/") == [Entry("run/model.safetensors", size)]
    assert store.get("run/model.safetensors").data == data


def test_a_download_replaces_an_older_file_and_one_that_fails_leaves_it_and_nothing_else(store, tmp_path):
    (tmp_path / "file").write_bytes(b"a much longer older file")
    store.put("run/a", b"new")
    assert refusal(lambda: store.download("run/missing", tmp_path / "file")).reason == "absent"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]
    assert (tmp_path / "file").read_bytes() == b"a much longer older file"
    store.download("run/a", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"new"
    failed = refusal(lambda: store.download("run/a", tmp_path / "file" / "below"))
    assert (failed.reason, str(tmp_path / "file") in str(failed)) == ("address", True)


def test_only_files_are_uploaded(store, tmp_path):
    for path in (tmp_path / "missing", tmp_path):
        failed = refusal(lambda path=path: store.upload("run/a", path))
        assert (failed.reason, str(path) in str(failed)) == ("absent", True)
    assert keys(store) == []


def test_an_upload_that_is_given_up_leaves_the_object_as_it_was(store, tmp_path):
    class GivenUp(Exception):
        pass

    def give_up(num_bytes):
        raise GivenUp

    store.put("run/a", b"older")
    (tmp_path / "file").write_bytes(bytes(17 * MIB))
    with pytest.raises(GivenUp):
        store.upload("run/a", tmp_path / "file", sent=give_up)
    assert store.get("run/a").data == b"older"
    assert keys(store) == ["run/a"]


def test_a_listing_is_sorted_and_takes_any_beginning_of_a_key(store):
    for key in ("run/b", "run/a/2", "run/a/10", "run-2/x", "other", "run/a.json"):
        store.put(key, key.encode())
    assert keys(store) == ["other", "run-2/x", "run/a.json", "run/a/10", "run/a/2", "run/b"]
    assert keys(store, "run/a") == ["run/a.json", "run/a/10", "run/a/2"]
    assert store.list("run/a/1") == [Entry("run/a/10", 8)]
    assert keys(store, "nothing/here") == []


def test_the_names_in_a_folder_are_those_directly_in_it(store):
    for key in ("run/b", "run/a/2", "run/a/10", "run-2/x", "other", "run/a.json", "run/c/d/e"):
        store.put(key, key.encode())
    store.put("run/gone/x", b"x")
    store.delete("run/gone/x")
    assert store.names("") == ["other", "run-2/", "run/"]
    assert store.names("run") == store.names("run/") == ["a.json", "a/", "b", "c/"]
    assert store.names("run/b") == store.names("nothing/here") == []
    assert "'..'" in str(refusal(lambda: store.names("run/..")))


def test_many_objects_are_deleted_at_once_and_those_that_are_gone_are_no_failure(store):
    for key in ("run/a/b", "run/a/c d+é", "run/e"):
        store.put(key, b"x")
    store.delete("run/a/b", "run/a/c d+é", "never/was")
    store.delete("run/a/b")
    store.delete()
    assert keys(store) == ["run/e"]
    assert "'..'" in str(refusal(lambda: store.delete("run/e", "run/..")))
    assert keys(store) == ["run/e"]


UNUSUAL = ["Größe/日本語 🙂.json", "a b/c+d%20e&f=g", 'it\'s "quoted" $x `y`', "…/...", ".hidden/.part", "-rf"]
UNUSUAL += ["x" * 200]


def test_unusual_keys_work(store):
    for key in UNUSUAL:
        store.put(key, key.encode())
        store.copy(key, f"copy/{key[:100]}")
    assert keys(store) == sorted([*UNUSUAL, *(f"copy/{key[:100]}" for key in UNUSUAL)])
    assert all(store.get(key).data == key.encode() for key in UNUSUAL)
    store.delete(*keys(store))
    assert keys(store) == []


IMPOSSIBLE = ["", "/etc/passwd", "../secret", "a/../../secret", "a/./b", "a//b", "a/", "nul\0", "line\nbreak", "\ud800"]
IMPOSSIBLE += [".train_func/locks/00", "x" * 201, "/".join(["x" * 100] * 9)]


@pytest.mark.parametrize("key", IMPOSSIBLE)
def test_keys_that_not_every_store_can_hold_are_refused(store, tmp_path, key):
    (tmp_path / "file").write_bytes(b"x")
    for call in (
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.delete(key),
        lambda: store.upload(key, tmp_path / "file"),
        lambda: store.download(key, tmp_path / "file"),
    ):
        failed = refusal(call)
        assert failed.reason == "address"
        assert "run/attempts/1/lease.json" in str(failed)  # what a key may look like
    assert keys(store) == []


@pytest.mark.parametrize("size", [0, 1, 40_007, 11 * MIB + 7])
def test_a_copy_within_the_store_has_the_bytes_and_what_is_recorded_of_them(store, tmp_path, size):
    (tmp_path / "file").write_bytes(data := random.Random(size).randbytes(size))
    sha256 = store.upload("run/attempts/1/model/file", tmp_path / "file")
    store.put("run/model/file", b"of the model before")
    assert store.copy("run/attempts/1/model/file", "run/model/file") == sha256
    store.put("run/attempts/1/model/file", b"of another attempt")
    assert store.download("run/model/file", tmp_path / "back") == store.checksum("run/model/file") == sha256
    assert (tmp_path / "back").read_bytes() == data
    assert keys(store) == ["run/attempts/1/model/file", "run/model/file"]


def test_a_copy_of_what_is_not_there_changes_nothing(store):
    store.put("run/model/file", b"of the model before")
    assert refusal(lambda: store.copy("run/attempts/1/model/file", "run/model/file")).reason == "absent"
    assert store.get("run/model/file").data == b"of the model before"


def test_a_probe_of_a_good_place_leaves_nothing_behind(store):
    store.probe("run")
    store.probe("")
    assert keys(store) == []


def test_one_store_serves_several_threads(store):
    def use(number):
        for round_ in range(7):
            store.put(f"thread/{number}", f"{number} {round_}".encode())
            assert store.get(f"thread/{number}").data == f"{number} {round_}".encode()
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, range(8))) == list(range(8))


def test_opening_a_store_loads_no_client_library():
    code = (
        "import os, sys; os.environ['AWS_ENDPOINT_URL_S3'] = 'http://127.0.0.1:9'\n"
        "from train_func.storage import open_store; open_store('s3://bucket/prefix'); open_store('file:///tmp/store')\n"
        "print([name for name in ('boto3', 'botocore', 'torch') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("data/store", "file://"),
        ("file://data/store", "file:///"),
        ("file://", "three slashes"),
        ("file:///", "name a folder"),
        ("file:///a/../b", "without"),
        ("s3://", "s3://bucket/prefix"),
        ("S3://bucket", "small letters"),
        ("s3://Bucket_1", "3 to 63"),
        ("s3://minio:9000/bucket", "AWS_ENDPOINT_URL_S3"),
        ("s3://bucket/../other", "'..'"),
        ("s3://bucket/a?versionId=1", "'?'"),
        ("s3://user:hunter2hunter2@bucket/prefix", "AWS_SECRET_ACCESS_KEY"),
        ("az://container", "s3://bucket/prefix"),
        (None, "text"),
    ],
)
def test_an_address_that_is_none_is_refused_with_the_remedy_and_without_a_password(address, remedy):
    failed = refusal(lambda: open_store(address))
    assert failed.reason == "address"
    assert remedy in str(failed)
    assert "hunter2" not in str(failed)


def test_an_address_reads_the_same_however_it_was_written(tmp_path):
    folder = tmp_path / "two words"
    assert open_store(f"file://{folder}").address == open_store(f"{folder.as_uri()}/").address == folder.as_uri()
    assert open_store("s3://bucket/a/b/").address == "s3://bucket/a/b"
