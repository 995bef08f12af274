"""Bytes lost, damaged or changed on the way to and from an S3 server, and in it."""

import hashlib
import random
import re

import pytest

from tests.s3_servers import KINDS, only_these, s3_server
from tests.tcp_proxy import Cut, Spoiler, cut, flip_last_byte, tcp_proxy
from train_func.errors import StorageFailed
from train_func.storage import open_store
from train_func.storage import s3_server as server_module

MIB = 1 << 20


@pytest.fixture(scope="module", params=KINDS)
def server(request, tmp_path_factory):
    with s3_server(request.param, tmp_path_factory.mktemp(request.param)) as running:
        yield running


@pytest.fixture
def proxy(server):
    with tcp_proxy(server.port) as running:
        yield running


@pytest.fixture
def store(server, proxy, monkeypatch, request):
    """A store of the test's own, which reaches its server through the proxy."""
    only_these(monkeypatch, {**server.environment, "AWS_ENDPOINT_URL_S3": proxy.endpoint})
    return open_store(f"s3://{server.bucket}/{hashlib.sha256(request.node.name.encode()).hexdigest()[:12]}")


def refusal(call):
    with pytest.raises(StorageFailed) as caught:
        call()
    return caught.value


def raw_key(store, key):
    return f"{store.address.split('/', 3)[3]}/{key}"


def test_a_download_goes_on_where_the_connection_broke(store, proxy, tmp_path):
    data = random.Random(2).randbytes(20 * MIB + 7)
    (tmp_path / "file").write_bytes(data)
    digest = store.upload("run/model", tmp_path / "file")
    counts = {"passed": 0, "cuts": 0}
    begun_at = set()

    def cut_every_six_megabytes(answer, request):
        begun_at.update(int(start) for start in re.findall(rb"(?i)range: bytes=(\d+)-", request))
        counts["passed"] += len(answer)
        if counts["passed"] > 6 * MIB * (counts["cuts"] + 1) and counts["cuts"] < 3:
            counts["cuts"] += 1
            raise Cut
        return answer

    proxy.on_reply = cut_every_six_megabytes
    assert store.download("run/model", tmp_path / "back") == digest
    assert (tmp_path / "back").read_bytes() == data
    assert counts["cuts"] == 3
    assert len({start for start in begun_at if start > MIB}) >= 2, begun_at  # it did not start again each time


def test_a_part_whose_connection_broke_is_sent_again(store, proxy, tmp_path):
    data = random.Random(3).randbytes(20 * MIB + 7)
    (tmp_path / "file").write_bytes(data)
    proxy.on_reply = Spoiler(b"PUT ", cut, times=2)
    store.upload("run/model", tmp_path / "file")
    assert proxy.on_reply.num_spoiled == 2
    assert store.get("run/model").data == data


@pytest.mark.parametrize("size", [101, 8 * MIB + 101])
def test_a_byte_damaged_on_the_way_here_is_noticed_and_read_again(store, proxy, tmp_path, size):
    data = random.Random(4).randbytes(size)
    (tmp_path / "file").write_bytes(data)
    digest = store.upload("run/a", tmp_path / "file")
    for read in (lambda: store.get("run/a").data, lambda: store.download("run/a", tmp_path / "back")):
        proxy.on_reply = Spoiler(b"GET ", flip_last_byte)
        assert read() in (data, digest)
        assert proxy.on_reply.num_spoiled == 1
    assert (tmp_path / "back").read_bytes() == data


def test_a_byte_damaged_on_the_way_there_is_noticed_and_sent_again(store, proxy, tmp_path):
    data = b"A" * (8 * MIB) + b"B" * 1_000_003
    (tmp_path / "file").write_bytes(data)
    spoiled = []

    def spoil_once(request):
        if request.startswith(b"B" * 1000) and not spoiled:
            spoiled.append(request)
            return flip_last_byte(request)
        return request

    proxy.on_request = spoil_once
    store.upload("run/model", tmp_path / "file")
    assert len(spoiled) == 1
    assert store.get("run/model").data == data


def test_an_object_damaged_in_the_store_is_refused_and_the_older_file_stays(store, server, tmp_path):
    (tmp_path / "file").write_bytes(b"older")
    wrong = hashlib.sha256(b"what was stored once").hexdigest()
    server.client().put_object(
        Bucket=server.bucket, Key=raw_key(store, "run/a"), Body=b"what is there now", Metadata={"sha256": wrong}
    )
    for call in (lambda: store.get("run/a"), lambda: store.download("run/a", tmp_path / "file")):
        failed = refusal(call)
        assert failed.reason == "damaged"
        assert not failed.retryable
        assert wrong in str(failed)
    assert (tmp_path / "file").read_bytes() == b"older"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


@pytest.mark.parametrize("spoil", [cut, flip_last_byte])
def test_objects_that_other_programs_stored_are_read_and_checked_too(store, proxy, server, tmp_path, spoil):
    data = random.Random(5).randbytes(3 * MIB + 1)
    server.client().put_object(Bucket=server.bucket, Key=raw_key(store, "data.csv"), Body=data)
    for read in (lambda: store.get("data.csv").data, lambda: store.download("data.csv", tmp_path / "back")):
        answers = iter(range(1000))
        proxy.on_reply = lambda answer, request, n=answers: spoil(answer) if next(n) == 3 else answer
        assert read() in (data, hashlib.sha256(data).hexdigest())
        assert next(answers) > 4
    assert (tmp_path / "back").read_bytes() == data


def test_a_file_that_changes_while_it_is_sent_is_refused(store, proxy, tmp_path):
    (tmp_path / "file").write_bytes(bytes(17 * MIB))

    def change(answer):
        with (tmp_path / "file").open("r+b") as file:
            file.seek(16 * MIB)
            file.write(b"changed")
        return answer

    proxy.on_reply = Spoiler(b"POST ", change)
    failed = refusal(lambda: store.upload("run/model", tmp_path / "file"))
    assert failed.reason == "damaged"
    assert "written to" in str(failed)
    assert store.list("") == []


def test_an_upload_that_fails_leaves_no_parts_on_the_server(store, proxy, server, tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "TRY_SECONDS", 0.5)
    fresh = open_store(store.address)
    (tmp_path / "file").write_bytes(bytes(17 * MIB))
    proxy.on_reply = Spoiler(b"PUT ", cut, times=10**6)
    failed = refusal(lambda: fresh.upload("run/model", tmp_path / "file"))
    assert failed.reason == "unreachable"
    assert failed.retryable
    assert not server.client().list_multipart_uploads(Bucket=server.bucket).get("Uploads")
    assert store.list("") == []
