"""What every store does, shown on a folder, on MinIO, and on a scheme that a package registers."""

import hashlib
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests import shelf_store
from tests.s3_servers import KINDS, s3_server
from train_func.errors import StorageFailed
from train_func.storage import Entry, open_store, s3_files

MIB = 1 << 20


@pytest.fixture(scope="module", params=["folder", "shelf", *KINDS])
def place(request, tmp_path_factory):
    """Address and environment of one kind of store."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "folder":
        yield folder.as_uri(), {}
        return
    if request.param == "shelf":
        with pytest.MonkeyPatch.context() as patched:
            shelf_store.install(folder, patched)
            yield "shelf://upper", {}
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


def refusal(call):
    with pytest.raises(StorageFailed) as caught:
        call()
    return caught.value


def keys(store, prefix=""):
    return [entry.key for entry in store.list(prefix)]


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\xff" * 101, b"\r\n" * 40_007])
def test_get_returns_what_put_stored_under_the_same_version(store, data):
    version = store.put("run/a", data)
    found = store.get("run/a")
    assert (found.data, found.version) == (data, version)


def test_a_later_put_replaces_the_object_and_its_version(store):
    first = store.put("run/a", b"one")
    second = store.put("run/a", b"two")
    assert store.get("run/a").data == b"two"
    assert first != second


def test_a_missing_object_is_told_with_its_key_and_store(store):
    store.put("run/a", b"one")
    failed = refusal(lambda: store.get("run/missing"))
    assert failed.reason == "absent"
    assert not failed.retryable
    assert "'run/missing'" in str(failed)
    assert store.address in str(failed)
    assert refusal(lambda: store.get("run/a/below")).reason == "absent"


def test_create_succeeds_once(store):
    store.put("run/lease", b"mine", if_absent=True)
    assert refusal(lambda: store.put("run/lease", b"other", if_absent=True)).reason == "conflict"
    assert refusal(lambda: store.put("run/lease", b"mine", if_absent=True)).reason == "conflict"
    assert store.get("run/lease").data == b"mine"


def test_replace_succeeds_for_the_current_version_only(store):
    first = store.put("run/latest", b"step 1")
    second = store.put("run/latest", b"step 2", if_version=first)
    assert store.get("run/latest").version == second
    failed = refusal(lambda: store.put("run/latest", b"step 3", if_version=first))
    assert failed.reason == "conflict"
    assert "'run/latest'" in str(failed)
    assert store.get("run/latest").data == b"step 2"


def test_replace_of_an_object_that_is_gone_is_a_conflict(store):
    version = store.put("run/latest", b"step 1")
    store.delete("run/latest")
    assert refusal(lambda: store.put("run/latest", b"step 2", if_version=version)).reason == "conflict"
    assert keys(store) == []


@pytest.mark.parametrize("size", [0, 101, 8 * MIB, 8 * MIB + 1, 17 * MIB + 7])
def test_files_of_any_size_come_back_as_they_were(store, tmp_path, size):
    data = random.Random(size).randbytes(size)
    (tmp_path / "file").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    assert store.upload("run/model.safetensors", tmp_path / "file") == digest
    assert store.download("run/model.safetensors", tmp_path / "new" / "folder" / "back") == digest
    assert (tmp_path / "new" / "folder" / "back").read_bytes() == data
    assert store.list("run/") == [Entry("run/model.safetensors", size)]
    assert store.get("run/model.safetensors").data == data


def test_a_download_replaces_an_older_file(store, tmp_path):
    (tmp_path / "file").write_bytes(b"a much longer older file")
    store.put("run/a", b"new")
    store.download("run/a", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_download_that_fails_leaves_the_older_file_and_nothing_else(store, tmp_path):
    (tmp_path / "file").write_bytes(b"older")
    assert refusal(lambda: store.download("run/missing", tmp_path / "file")).reason == "absent"
    assert (tmp_path / "file").read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_download_to_a_place_that_cannot_be_says_so(store, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    store.put("run/a", b"new")
    failed = refusal(lambda: store.download("run/a", tmp_path / "file" / "below"))
    assert failed.reason == "address"
    assert str(tmp_path / "file") in str(failed)


def test_only_files_are_uploaded(store, tmp_path):
    missing = refusal(lambda: store.upload("run/a", tmp_path / "missing"))
    folder = refusal(lambda: store.upload("run/a", tmp_path))
    assert (missing.reason, folder.reason) == ("absent", "absent")
    assert str(tmp_path / "missing") in str(missing)
    assert "folder" in str(folder)
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
    assert keys(store, "run/") == ["run/a.json", "run/a/10", "run/a/2", "run/b"]
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
    assert store.names("run/c") == ["d/"]
    assert store.names("run/b") == store.names("nothing/here") == []
    assert "'..'" in str(refusal(lambda: store.names("run/..")))


def test_a_deleted_object_is_gone_and_deleting_it_again_does_nothing(store):
    store.put("run/a/b", b"x")
    store.put("run/c", b"x")
    store.delete("run/a/b")
    store.delete("run/a/b")
    store.delete("never/was")
    assert keys(store) == ["run/c"]
    assert refusal(lambda: store.get("run/a/b")).reason == "absent"


@pytest.mark.parametrize(
    "key",
    ["Größe/日本語 🙂.json", "a b/c+d%20e&f=g", 'it\'s "quoted" $x `y`', "…/...", ".hidden/.part", "-rf", "x" * 200],
)
def test_unusual_keys_work(store, key):
    store.put(key, b"here")
    assert keys(store) == [key]
    assert store.get(key).data == b"here"
    store.delete(key)
    assert keys(store) == []


@pytest.mark.parametrize(
    "key",
    [
        "",
        "/etc/passwd",
        "../secret",
        "a/../../secret",
        "a/./b",
        "a//b",
        "a/",
        "nul\0",
        "line\nbreak",
        "\ud800",
        ".train_func/locks/00",
        "x" * 201,
        "/".join(["x" * 100] * 9),
    ],
)
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
def test_a_copy_within_the_store_has_the_bytes_and_what_is_recorded_of_them(store, tmp_path, monkeypatch, size):
    monkeypatch.setattr(s3_files, "COPIED_PART", 5 * MIB)
    (tmp_path / "file").write_bytes(data := random.Random(size).randbytes(size))
    sha256 = store.upload("run/attempts/1/model/file", tmp_path / "file")
    store.put("run/model/file", b"of the model before")
    store.copy("run/attempts/1/model/file", "run/model/file", size)
    assert store.download("run/model/file", tmp_path / "back") == sha256
    assert (tmp_path / "back").read_bytes() == data
    assert size == 0 or store.checksum("run/model/file") == sha256
    store.put("run/attempts/1/model/file", b"of another attempt")
    assert store.get("run/model/file").data == data
    assert keys(store) == ["run/attempts/1/model/file", "run/model/file"]


@pytest.mark.parametrize("size", [7, 11 * MIB])
def test_a_copy_of_what_is_not_there_changes_nothing(store, monkeypatch, size):
    monkeypatch.setattr(s3_files, "COPIED_PART", 5 * MIB)
    store.put("run/model/file", b"of the model before")
    failed = refusal(lambda: store.copy("run/attempts/1/model/file", "run/model/file", size))
    assert failed.reason == "absent"
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
    assert len(keys(store, "thread/")) == 8


def test_opening_a_store_loads_no_client_library():
    code = (
        "import os, sys, time; os.environ['AWS_ENDPOINT_URL_S3'] = 'http://127.0.0.1:9'\n"
        "started = time.process_time()\n"
        "from train_func.storage import open_store; open_store('s3://bucket/prefix'); open_store('file:///tmp/store')\n"
        "opened = time.process_time()\n"
        "print([name for name in ('boto3', 'botocore', 'torch') if name in sys.modules])\n"
        "import boto3; boto3.session.Session().client('s3', region_name='r')\n"
        "assert opened - started < time.process_time() - opened"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("data/store", "file://"),
        ("~/store", str(Path("~/store").expanduser())),
        ("file://data/store", "file:///"),
        ("file://", "three slashes"),
        ("file:///", "name a folder"),
        ("file:///a/../b", "without"),
        ("file:///a/%00", "NUL"),
        ("s3://", "s3://bucket/prefix"),
        ("s3:///prefix", "bucket is missing"),
        ("s3:bucket", "s3://bucket/prefix"),
        ("S3://bucket", "small letters"),
        ("s3://Bucket_1", "3 to 63"),
        ("s3://minio:9000/bucket", "AWS_ENDPOINT_URL_S3"),
        ("s3://bucket/../other", "'..'"),
        ("s3://bucket/a?versionId=1", "'?'"),
        ("az://container", "s3://bucket/prefix"),
        ("https://host/bucket", "s3://bucket/prefix"),
        (None, "text"),
    ],
)
def test_an_address_that_is_none_is_refused_with_the_remedy(address, remedy):
    failed = refusal(lambda: open_store(address))
    assert failed.reason == "address"
    assert remedy in str(failed)


def test_a_password_in_an_address_is_refused_and_not_repeated():
    failed = refusal(lambda: open_store("s3://user:hunter2hunter2@bucket/prefix"))
    assert failed.reason == "address"
    assert "AWS_SECRET_ACCESS_KEY" in str(failed)
    assert "hunter2" not in str(failed)


def test_an_address_reads_the_same_however_it_was_written(tmp_path):
    folder = tmp_path / "two words"
    assert open_store(f"file://{folder}").address == open_store(f"{folder.as_uri()}/").address == folder.as_uri()
    assert open_store("s3://bucket/a/b/").address == "s3://bucket/a/b"
